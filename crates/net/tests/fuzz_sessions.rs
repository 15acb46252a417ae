//! Sessions of members with a server, made up from fixed seeds, and judged by a model.
//! `FARROW_FUZZ_ROUNDS` multiplies the runs. `FARROW_FUZZ_RUNS=7..8` makes run 7 alone.
//! The fuzzer (`crates/net/fuzz`) calls the same functions with other inputs.
//!
//! The allocator of this program counts what the threads of the server allocate.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;
mod counted;
mod fuzzed;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use farrow_net::PIECE_BYTES_MAX;
use fuzzed::session::JudgedServer;

#[global_allocator]
static ALLOCATOR: counted::CountingAllocator = counted::CountingAllocator;

/// Runs of `make test`: a few seconds.
const RUNS: u64 = 1_000;

/// The largest block: a piece packed, which LZ4 may lengthen by a tenth.
const BLOCK_BYTES_MAX: u64 = PIECE_BYTES_MAX * 5 / 4;

/// All of a run: for each connection a body, its packed form, and that with a header in front.
const RUN_BYTES_MAX: u64 = 5 * 3 * BLOCK_BYTES_MAX;

/// The runs to make: those that a failure names, or a number of them.
fn runs() -> Range<u64> {
    let of = |variable| std::env::var(variable).ok();
    if let Some(runs) = of("FARROW_FUZZ_RUNS") {
        let (first, end) = runs.split_once("..").unwrap();
        return first.parse().unwrap()..end.parse().unwrap();
    }
    let rounds = of("FARROW_FUZZ_ROUNDS").and_then(|rounds| rounds.parse().ok());
    0..RUNS * rounds.unwrap_or(1)
}

#[test]
fn a_server_answers_as_the_model() {
    counted::leave_out_this_thread();
    let server = JudgedServer::new();
    let runs = runs();
    let (begin, count) = (Instant::now(), runs.end - runs.start);
    for run in runs {
        let length = 60 + run as usize % 200;
        let input = fuzzed::bytes_of(run, length);
        counted::reset();
        let ended = catch_unwind(AssertUnwindSafe(|| server.run(&input)));
        if let Err(panic) = ended {
            println!("FARROW_FUZZ_RUNS={run}..{} repeats this run", run + 1);
            println!("ends of the newest connections: {:#?}", server.violations());
            resume_unwind(panic);
        }
        let [largest, most] = counted::maxima();
        assert!(largest <= BLOCK_BYTES_MAX, "a block of {largest} B in run {run}");
        assert!(most <= RUN_BYTES_MAX, "{most} B at a time in run {run}");
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("sessions: {count} executions in {seconds:.1} s; {}", server.coverage());
    if count >= RUNS {
        server.assert_covered();
    }
}
