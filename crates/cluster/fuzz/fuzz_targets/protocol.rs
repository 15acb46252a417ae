//! Bytes as clients could send them, to a node that has an honest client: see
//! `tests/fuzzed/clients.rs`.
#![no_main]

#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::clients::run(data));
