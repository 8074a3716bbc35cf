#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnbuckle_fuzz::connection_ids::connection_ids(bytes));
