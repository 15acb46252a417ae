//! Connections of two members with a server, forged, split, doubled and cut short, judged by a model.
#![no_main]

use std::sync::OnceLock;

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzzed/mod.rs"]
mod fuzzed;

static SERVER: OnceLock<fuzzed::session::JudgedServer> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    SERVER.get_or_init(fuzzed::session::JudgedServer::new).run(data);
});
