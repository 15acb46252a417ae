//! Forged frames of an admitted member, sent to a server with an honest reader.
#![no_main]

use std::sync::OnceLock;

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

static VICTIM: OnceLock<fuzzed::live::Victim> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    VICTIM.get_or_init(fuzzed::live::Victim::new).run(data);
});
