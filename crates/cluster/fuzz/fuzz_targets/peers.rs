//! Messages, questions, answers and remote sessions as another node could make them up, to a node that has an
//! honest mapped peer and an object of its own: see `tests/fuzzed`.
#![no_main]

#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::run(data));
