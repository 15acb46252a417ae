//! Any bytes as Dissociated IPC messages over any bytes as memory. See
//! `farrow_arrow::testing::split_messages` for the layout of an input.

#![no_main]

use farrow_arrow::testing::{exercise_messages, split_messages};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some((messages, arena)) = split_messages(input) {
        exercise_messages(&messages, &arena);
    }
});
