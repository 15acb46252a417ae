//! All that a node decodes of what another one sends: letters, questions, answers, views, offers,
//! rosters, replies and requests.
#![no_main]

#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::decode(data));
