#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| turnbuckle_fuzz::wire::message_round_trip(bytes));
