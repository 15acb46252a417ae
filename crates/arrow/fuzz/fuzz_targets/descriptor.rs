//! Any bytes as a descriptor over any bytes as memory: parse, rebuild, check, use, describe
//! again. Two bytes of descriptor length come first; see `farrow_arrow::testing::split_input`.
//!
//! Seeds: `cargo run -p farrow-arrow --features testing --example fuzz_seeds`.
//! Run: `RUSTC_BOOTSTRAP=1 cargo fuzz run descriptor` in `crates/arrow`.

#![no_main]

use farrow_arrow::testing::{exercise, split_input};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((descriptor, arena)) = split_input(input) {
        exercise(&descriptor, &arena);
    }
});
