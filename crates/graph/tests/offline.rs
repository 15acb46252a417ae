//! Offline mode: rows are added first, and their features are computed later. The features equal
//! those on arrival.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{Edges, FrozenSpan, GraphError, GraphFeatures, Mode, PatternSettings, Settings};
use oracle::StreamRows;
use oracle::check::{
    CallResult, CheckedStream, StreamCall, amounts, by_engine, by_oracle, call, difference, show,
    shrink,
};
use oracle::random::{Size, StreamRandom, stream};
use std::sync::Arc;

/// The ways of an offline run in these tests.
#[derive(Clone, Copy, PartialEq)]
enum OfflineRun {
    Ahead,
    /// The rows of each call are provisional: they are undone, added again and retained.
    Undo,
    /// The canary: features of rows when all are there, old ones and later ones.
    Late,
}

/// Sometimes builds a segment, and attaches it at once or later.
fn seal(engine: &mut GraphFeatures, pending: &mut Option<FrozenSpan>, random: &mut StreamRandom) {
    *pending = pending.take().or_else(|| engine.freeze());
    if random.is(0.6)
        && let Some(frozen) = pending.take()
    {
        engine.attach(Arc::new(frozen.plan().unwrap().build().unwrap())).unwrap();
    }
}

/// Features of all calls except the last `Start`s. Some calls at a time are added before the
/// features of any of their rows are computed. While rows are pending, the counters are copied from
/// `online`.
fn offline(
    stream: &CheckedStream,
    online: &[CallResult],
    seed: u64,
    way: OfflineRun,
) -> Vec<CallResult> {
    let mut random = StreamRandom::new(seed ^ 0x0ff1_11e0);
    let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
    let width = stream.settings.width();
    let (mut results, mut pending) = (online.to_vec(), None);
    let mut at = 0;
    while let Some(first) = stream.calls.get(at) {
        if matches!(first, StreamCall::Start(_)) {
            pending = None;
            results[at].cells = call(&mut engine, first);
            at += 1;
            continue;
        }
        let most = if way == OfflineRun::Undo { 1 } else { random.size(1, stream.calls.len() + 1) };
        let rest = stream.calls[at..].iter().take(most);
        let group: Vec<&StreamCall> =
            rest.take_while(|one| !matches!(one, StreamCall::Start(_))).collect();
        if way == OfflineRun::Undo {
            let before = (engine.stats(), engine.state());
            engine.begin().unwrap();
            first.rows().with(|edges| engine.learn_pending(edges)).unwrap();
            engine.transform_pending(random.size(0, 40)).unwrap();
            if random.is(0.3) {
                engine.drop_pending();
            }
            engine.undo();
            let mut stats = engine.stats();
            stats.bytes = before.0.bytes;
            assert_eq!((stats, engine.state(), engine.pending()), (before.0, before.1, 0));
            engine.begin().unwrap();
        }
        let keeps_early = way == OfflineRun::Undo && random.is(0.5);
        let may_seal =
            stream.settings.segment.is_some() && (way != OfflineRun::Undo || keeps_early);
        for one in &group {
            one.rows().with(|edges| engine.learn_pending(edges)).unwrap();
            if keeps_early {
                engine.keep();
            }
            if may_seal {
                seal(&mut engine, &mut pending, &mut random);
            }
        }
        let rows: usize = group.iter().map(|one| one.rows().len()).sum();
        assert_eq!(engine.pending(), rows);
        let mut cells = Vec::new();
        if way == OfflineRun::Late {
            engine.drop_pending();
            for one in &group {
                cells.extend(one.rows().with(|edges| engine.preview(edges, None)).unwrap().0);
            }
        }
        while engine.pending() > 0 {
            cells.extend(engine.transform_pending(random.size(0, 40)).unwrap());
            if may_seal {
                seal(&mut engine, &mut pending, &mut random);
            }
        }
        engine.keep();
        assert_eq!(cells.len(), rows * width);
        let mut cells = cells.as_slice();
        for (one, result) in group.iter().zip(&mut results[at..]) {
            let (own, others) = cells.split_at(one.rows().len() * width);
            cells = others;
            if matches!(one, StreamCall::Transform(_)) {
                result.cells = own.to_vec();
            }
        }
        at += group.len();
        let stats = engine.stats();
        let last = &mut results[at - 1];
        last.now = stats.now;
        if stream.settings.segment.is_none() {
            (last.edges, last.accounts) = (stats.edges, stats.accounts);
        }
    }
    results
}

fn bits(results: &[CallResult]) -> Vec<Vec<u64>> {
    results.iter().map(|one| one.cells.iter().map(|cell| cell.to_bits()).collect()).collect()
}

/// The first fault, if any.
fn fault(stream: &CheckedStream, seed: u64, way: OfflineRun) -> Option<String> {
    let plain = Settings { segment: None, ..stream.settings.clone() };
    let plain = CheckedStream { settings: plain, calls: stream.calls.clone() };
    let online = by_engine(&plain);
    let got = offline(stream, &online, seed, way);
    if bits(&got) == bits(&online) && got == online {
        return None;
    }
    let reported = difference(&plain, &got, &online);
    Some(reported.unwrap_or_else(|| "the last bits of a feature".into()))
}

fn agree(size: Size, seed: u64, with_segments: bool, way: OfflineRun) {
    let mut stream = stream(Mode::Causal, size, seed);
    if with_segments {
        stream.settings.edges_max = None;
        stream.settings.segment = Some(if seed.is_multiple_of(5) { 1 } else { 1 + seed % 40 });
    }
    let Some(first) = fault(&stream, seed, way) else { return };
    let rows: usize = stream.calls.iter().map(|call| call.rows().len()).sum();
    let is_bad = |one: &CheckedStream| fault(one, seed, way).is_some();
    let stream = if rows <= 600 { shrink(stream, is_bad) } else { stream };
    let last = fault(&stream, seed, way).unwrap_or(first);
    panic!("seed {seed}: {last}\n{}", show(&stream));
}

fn all_agree(with_segments: bool, way: OfflineRun) {
    let [small, medium, large] = amounts();
    for (size, count) in [(Size::Small, small), (Size::Medium, medium), (Size::Large, large)] {
        (0..count.div_ceil(2)).for_each(|seed| agree(size, seed, with_segments, way));
    }
}

#[test]
fn rows_that_came_ahead_get_what_they_would_have_got() {
    all_agree(false, OfflineRun::Ahead);
}

#[test]
fn segments_that_hold_later_rows_change_nothing() {
    all_agree(true, OfflineRun::Ahead);
}

#[test]
fn pending_rows_that_are_undone_leave_no_trace() {
    all_agree(false, OfflineRun::Undo);
    all_agree(true, OfflineRun::Undo);
}

#[test]
fn undo_removes_pending_rows_that_begin_made_provisional() {
    let mut engine = fan(Mode::Causal);
    row(1, |edges| engine.learn(edges)).unwrap();
    engine.begin().unwrap();
    row(2, |edges| engine.learn_pending(edges)).unwrap();
    let waits = GraphError::Provisional { rows: 1 };
    assert_eq!(row(3, |edges| engine.learn_pending(edges)), Err(waits));
    engine.undo();
    assert_eq!((engine.pending(), engine.stats().edges), (0, 1));
    // The rows of a later call are not provisional.
    row(12, |edges| engine.learn(edges)).unwrap();
    engine.undo();
    assert_eq!(engine.stats().edges, 1);
    engine.begin().unwrap();
    row(13, |edges| engine.learn_pending(edges)).unwrap();
    engine.keep();
    engine.undo();
    assert_eq!(engine.transform_pending(1).unwrap(), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!((engine.pending(), engine.stats().edges), (0, 2));
}

#[test]
fn offline_mode_agrees_with_the_oracle() {
    let [small, _, _] = amounts();
    for seed in 0..small / 4 {
        let mut stream = stream(Mode::Causal, Size::Small, seed);
        if seed.is_multiple_of(2) {
            stream.settings.edges_max = None;
            stream.settings.segment = Some(1 + seed % 20);
        }
        let want = by_oracle(&stream, None);
        let got = offline(&stream, &want, seed, OfflineRun::Ahead);
        if let Some(reported) = difference(&stream, &got, &want) {
            panic!("seed {seed}: {reported}\n{}", show(&stream));
        }
    }
}

/// The canary: the comparison must detect rows that see later ones.
#[test]
fn rows_that_see_later_ones_are_distinguished() {
    let is_seen = (0..100).any(|seed| {
        fault(&stream(Mode::Causal, Size::Small, seed), seed, OfflineRun::Late).is_some()
    });
    assert!(is_seen);
}

fn fan(mode: Mode) -> GraphFeatures {
    let fan = Some(PatternSettings { window: 10, bins: vec![2, 3] });
    GraphFeatures::new(Settings { mode, fan, ..Settings::default() }).unwrap()
}

fn row<R>(at: i64, run: impl FnOnce(&Edges<'_>) -> R) -> R {
    let mut rows = StreamRows::default();
    rows.push((at, at, 9, at));
    rows.with(run)
}

#[test]
fn other_rows_wait_until_all_have_their_features() {
    let mut engine = fan(Mode::Causal);
    row(1, |edges| engine.learn_pending(edges)).unwrap();
    row(2, |edges| engine.learn_pending(edges)).unwrap();
    let refused = [
        row(3, |edges| engine.transform(edges).unwrap_err()),
        row(3, |edges| engine.preview(edges, None).unwrap_err()),
        row(3, |edges| engine.learn(edges).unwrap_err()),
    ];
    assert!(refused.iter().all(|one| *one == GraphError::Pending { rows: 2 }), "{refused:?}");
    assert_eq!(engine.transform_pending(1).unwrap(), [0.0; 4]);
    engine.drop_pending();
    assert_eq!((engine.pending(), engine.stats().edges), (0, 2));
    assert_eq!(engine.transform_pending(9).unwrap(), []);
    assert_eq!(row(3, |edges| engine.transform(edges)).unwrap(), [0.0, 1.0, 0.0, 0.0]);
    row(4, |edges| engine.learn_pending(edges)).unwrap();
    row(5, |edges| engine.start(edges)).unwrap();
    assert_eq!((engine.pending(), engine.stats().edges), (0, 1));
}

/// Stamps that were widened between two calls lost the removals that were due after the first. Such
/// edges stayed in the graph, where nothing evicted them any more.
#[test]
fn edges_evicted_by_pending_rows_leave_though_later_rows_widen_the_stamps() {
    let mut engine = fan(Mode::Causal);
    // The third row evicts the first two, one of which is late.
    let late = [5, 1, 100];
    late.into_iter().for_each(|at| row(at, |edges| engine.learn_pending(edges)).unwrap());
    row(1 << 33, |edges| engine.learn_pending(edges)).unwrap();
    engine.transform_pending(4).unwrap();
    let stats = engine.stats();
    assert_eq!((stats.edges, stats.accounts), (1, 2));
    assert_eq!(engine.state().times, [1 << 33]);
}

#[test]
fn there_is_no_offline_mode_of_batches() {
    let error = row(1, |edges| fan(Mode::Batch).learn_pending(edges)).unwrap_err().to_string();
    assert!(error.starts_with("mode must be causal"), "{error}");
}
