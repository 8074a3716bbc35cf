#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnbuckle_fuzz::http3::http3_streams(bytes));
