#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnbuckle_fuzz::connection_strings::connection_strings(bytes));
