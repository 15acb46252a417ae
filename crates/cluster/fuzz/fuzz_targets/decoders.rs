//! All that a node decodes of what another one sends: messages, questions, answers, views, offers,
//! member lists, replies and requests.
#![no_main]

#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzed::decode(data));
