//! All that either end decodes of what the other sends.
#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzzed::decode(data);
    fuzzed::decode(&fuzzed::Dice(data).frame(&[]));
});
