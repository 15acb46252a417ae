//! All decoders of peer input, of client and server.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed::decode(data);
    fuzzed::decode(&fuzzed::Dice(data).frame(&[]));
});
