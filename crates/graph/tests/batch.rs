//! Batch mode against the definitions, cell by cell, on random streams.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of streams (`100`, or `100,5,1` by size), and
//! `FARROW_GRAPH_THREADS` the number of threads. `make compare` runs many more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{Mode, PatternSettings, Settings};
use oracle::StreamRows;
use oracle::check::{
    CheckedStream, StreamCall, agree, agree_restored, amounts, assert_faults_are_seen, by_engine,
};
use oracle::random::{Size, WIDE, stream};

#[test]
fn small_streams_agree_with_the_oracle() {
    let [small, _, _] = amounts();
    (0..small).for_each(|seed| agree(stream(Mode::Batch, Size::Small, seed), seed));
}

#[test]
fn medium_and_large_streams_agree_with_the_oracle() {
    let [_, medium, large] = amounts();
    (0..medium).for_each(|seed| agree(stream(Mode::Batch, Size::Medium, seed), seed));
    (0..large).for_each(|seed| agree(stream(Mode::Batch, Size::Large, seed), seed));
}

#[test]
fn a_restored_graph_goes_on_as_if_nothing_had_happened() {
    let [small, medium, _] = amounts();
    for (size, count) in [(Size::Small, small / 4), (Size::Medium, medium / 4)] {
        (0..count).for_each(|seed| agree_restored(stream(Mode::Batch, size, seed), seed));
    }
}

/// A graph that was saved without edges lost its clock, so the next late rows stayed.
#[test]
fn a_restored_graph_without_edges_knows_the_time() {
    let settings = Settings {
        mode: Mode::Batch,
        time_window: Some(10),
        edges_max: Some(1),
        simple_cycle: Some(PatternSettings { window: 10, bins: vec![2, 3] }),
        ..Settings::default()
    };
    let call = |id, time| {
        let mut rows = StreamRows::default();
        rows.push((id, 1, 2, time));
        StreamCall::Transform(rows)
    };
    let calls = vec![call(0, 100), call(1, 1), call(2, 2)];
    let stream = CheckedStream { settings, calls };
    assert_eq!(by_engine(&stream).last().unwrap().edges, 0);
    agree_restored(stream, 0);
}

/// Windows longer than the stream all begin at the same stamp. A hub's window that gather-scatter had
/// carried to its last payment passed for one of its first, so fans counted later payments.
#[test]
fn a_fan_in_a_wide_window_counts_no_later_payment() {
    let bins = vec![10, 20, 30, 40, 50, 60, 80, 100, 120];
    let wide = Some(PatternSettings { window: WIDE, bins });
    let settings = Settings {
        mode: Mode::Batch,
        fan: wide.clone(),
        gather_scatter: wide,
        ..Settings::default()
    };
    // Account 0 pays 120 others, and is paid by 60 meanwhile.
    let mut rows = StreamRows::default();
    for time in 1..=120 {
        rows.push((rows.len() as i64, 0, 1000 + time, time));
        if (31..=90).contains(&time) {
            rows.push((rows.len() as i64, 2000 + time, 0, time));
        }
    }
    agree(CheckedStream { settings, calls: vec![StreamCall::Transform(rows)] }, 0);
}

/// The canary: the comparison must detect an oracle with one wrong definition.
#[test]
fn a_wrong_definition_is_distinguished() {
    assert_faults_are_seen(Mode::Batch);
}
