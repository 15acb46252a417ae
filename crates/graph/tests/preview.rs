//! Previews and rollbacks: rows get the same features as from `transform`, and leave no trace.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{
    CallInterrupt, Edges, Evidence, GraphError, GraphFeatures, Mode, PatternSettings, Settings,
};
use oracle::check::{
    CallResult, CheckedStream, StreamCall, amounts, by_engine, call, difference, show, shrink,
};
use oracle::random::{Size, StreamRandom, stream};
use std::sync::{Arc, Mutex};

/// The ways of a preview in these tests.
#[derive(Clone, Copy, PartialEq)]
enum PreviewRun {
    Preview,
    /// Provisional rows that are rolled back. Rows of the stream are provisional and committed.
    Undo,
    /// Calls that are interrupted.
    Interrupt,
    /// The canary: rows that are not rolled back.
    Learn,
}

/// The number of looks at an interrupt, and the one from which on it is set.
#[derive(Debug, Default)]
struct InterruptLooks(Mutex<(usize, Option<usize>)>);

impl CallInterrupt for InterruptLooks {
    fn is_set(&self) -> bool {
        let mut looks = self.0.lock().unwrap();
        looks.0 += 1;
        looks.1.is_some_and(|last| looks.0 > last)
    }
}

impl InterruptLooks {
    /// Sets the interrupt after some looks. Returns how many there have been.
    fn until(&self, last: Option<usize>) -> usize {
        std::mem::replace(&mut *self.0.lock().unwrap(), (0, last)).0
    }

    /// The features that a call would have, from an uninterrupted preview, after the call was
    /// interrupted at any look.
    fn interrupted(
        &self,
        engine: &mut GraphFeatures,
        edges: &Edges<'_>,
        random: &mut StreamRandom,
    ) -> Vec<f64> {
        self.until(None);
        let found = engine.preview(edges, None).unwrap().0;
        let all = self.until(None);
        for is_preview in [false, true] {
            if all > 0 {
                // More threads may divide the looks in another way.
                let last = if random.is(0.2) { 0 } else { random.size(0, all - 1) };
                self.until(Some(last));
                let ended = match is_preview {
                    true => engine.preview(edges, None).map(|(found, _)| found),
                    false => engine.transform(edges),
                };
                let rows = edges.ids.len();
                assert_eq!(ended, Err(GraphError::Interrupted { rows, taken: 0 }));
                self.until(None);
            }
        }
        found
    }
}

/// Replaces all full spans with segments.
fn seal(engine: &mut GraphFeatures) {
    while let Some(frozen) = engine.freeze() {
        engine.attach(Arc::new(frozen.plan().unwrap().build().unwrap())).unwrap();
    }
}

fn result(engine: &GraphFeatures, cells: Vec<f64>) -> CallResult {
    let stats = engine.stats();
    CallResult { cells, edges: stats.edges, accounts: stats.accounts, now: stats.now }
}

/// Runs a stream, with previews of each call's rows and of some other rows. Returns the results of
/// the calls, and the features of the previews.
fn by_previews(
    stream: &CheckedStream,
    seed: u64,
    way: PreviewRun,
) -> (Vec<CallResult>, Vec<Vec<f64>>) {
    let mut random = StreamRandom::new(seed);
    let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
    let looks = Arc::new(InterruptLooks::default());
    if way == PreviewRun::Interrupt {
        engine.set_interrupt(Arc::clone(&looks) as Arc<dyn CallInterrupt>);
    }
    let (mut results, mut seen) = (Vec::new(), Vec::new());
    for one in &stream.calls {
        let others = stream.calls[random.size(0, stream.calls.len() - 1)].rows();
        let none = one.rows().part(0..0);
        let rows = if matches!(one, StreamCall::Transform(_)) { one.rows() } else { &none };
        for (looked, is_own) in [(others, false), (rows, true)] {
            let retained = |engine: &GraphFeatures| {
                // A plain graph reuses small numbers, and may have more idle ones.
                let stats = engine.stats();
                (stats.now, stats.edges, stats.accounts, stats.rows)
            };
            let before = retained(&engine);
            let found = looked.with(|edges| match way {
                PreviewRun::Preview => engine.preview(edges, None).unwrap().0,
                PreviewRun::Undo => {
                    engine.begin().unwrap();
                    let found = engine.transform(edges).unwrap();
                    engine.undo();
                    found
                }
                PreviewRun::Interrupt => looks.interrupted(&mut engine, edges, &mut random),
                PreviewRun::Learn => engine.transform(edges).unwrap(),
            });
            if way != PreviewRun::Learn {
                assert_eq!(retained(&engine), before, "seed {seed}");
            }
            if is_own {
                seen.push(found);
            }
        }
        if way == PreviewRun::Undo {
            if !matches!(one, StreamCall::Transform(_)) {
                let state = engine.state();
                engine.begin().unwrap();
                call(&mut engine, one);
                engine.undo();
                assert_eq!(engine.state(), state, "seed {seed}");
            }
            engine.begin().unwrap();
        }
        let cells = call(&mut engine, one);
        engine.keep();
        results.push(result(&engine, cells));
        seal(&mut engine);
    }
    (results, seen)
}

/// The results of the calls without previews.
fn alone(stream: &CheckedStream) -> Vec<CallResult> {
    let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
    let calls = stream.calls.iter().map(|one| {
        let cells = call(&mut engine, one);
        let result = result(&engine, cells);
        seal(&mut engine);
        result
    });
    calls.collect()
}

fn bits(results: &[CallResult]) -> Vec<Vec<u64>> {
    results.iter().map(|one| one.cells.iter().map(|cell| cell.to_bits()).collect()).collect()
}

/// The first fault, if any.
fn fault(stream: &CheckedStream, seed: u64, way: PreviewRun) -> Option<String> {
    let want = alone(stream);
    let (got, seen) = by_previews(stream, seed, way);
    if bits(&got) != bits(&want) || got != want {
        return Some(difference(stream, &got, &want).unwrap_or("a trace is left".into()));
    }
    let said: Vec<CallResult> =
        (want.iter().zip(seen)).map(|(want, cells)| CallResult { cells, ..want.clone() }).collect();
    difference(stream, &said, &want).map(|text| format!("preview: {text}"))
}

fn agree(mode: Mode, size: Size, seed: u64, with_segments: bool, way: PreviewRun) {
    let mut stream = stream(mode, size, seed);
    if with_segments {
        stream.settings.edges_max = None;
        stream.settings.segment = Some(if seed.is_multiple_of(5) { 1 } else { 7 });
    }
    let Some(first) = fault(&stream, seed, way) else { return };
    let rows: usize = stream.calls.iter().map(|call| call.rows().len()).sum();
    let is_bad = |one: &CheckedStream| fault(one, seed, way).is_some();
    let stream = if rows <= 600 { shrink(stream, is_bad) } else { stream };
    let last = fault(&stream, seed, way).unwrap_or(first);
    panic!("seed {seed}: {last}\n{}", show(&stream));
}

fn all_agree(mode: Mode, with_segments: bool, way: PreviewRun) {
    let [small, medium, large] = amounts();
    for (size, count) in [(Size::Small, small), (Size::Medium, medium), (Size::Large, large)] {
        (0..count / 3).for_each(|seed| agree(mode, size, seed, with_segments, way));
    }
}

#[test]
fn causal_previews_say_what_comes_and_leave_no_trace() {
    all_agree(Mode::Causal, false, PreviewRun::Preview);
}

#[test]
fn previews_of_a_batch_say_what_comes_and_leave_no_trace() {
    all_agree(Mode::Batch, false, PreviewRun::Preview);
}

#[test]
fn previews_of_a_graph_with_segments_leave_no_trace() {
    all_agree(Mode::Causal, true, PreviewRun::Preview);
    all_agree(Mode::Batch, true, PreviewRun::Preview);
}

#[test]
fn provisional_rows_are_as_others_and_leave_no_trace_when_they_go() {
    for with_segments in [false, true] {
        all_agree(Mode::Causal, with_segments, PreviewRun::Undo);
        all_agree(Mode::Batch, with_segments, PreviewRun::Undo);
    }
}

#[test]
fn interrupted_calls_leave_no_trace() {
    for with_segments in [false, true] {
        all_agree(Mode::Causal, with_segments, PreviewRun::Interrupt);
        all_agree(Mode::Batch, with_segments, PreviewRun::Interrupt);
    }
}

#[test]
fn parts_before_an_interrupt_stay() {
    let fan = Some(PatternSettings { window: 50, bins: vec![2, 3] });
    let settings = Settings { fan, mode: Mode::Causal, ..Settings::default() };
    let numbers: Vec<i64> = (0..10_000).collect();
    let (sources, targets) = (vec![1; 10_000], vec![9; 10_000]);
    let edges = |from: usize, to: usize| Edges {
        ids: &numbers[from..to],
        sources: &sources[from..to],
        targets: &targets[from..to],
        times: &numbers[from..to],
        columns: &[],
    };
    let mut whole = GraphFeatures::new(settings.clone()).unwrap();
    let want = whole.transform(&edges(0, 10_000)).unwrap();
    let (looks, mut taken) = (Arc::new(InterruptLooks::default()), Vec::new());
    for last in 0.. {
        let mut engine = GraphFeatures::new(settings.clone()).unwrap();
        engine.set_interrupt(Arc::clone(&looks) as Arc<dyn CallInterrupt>);
        looks.until(Some(last));
        let ended = engine.transform(&edges(0, 10_000));
        looks.until(None);
        let Err(GraphError::Interrupted { rows: 10_000, taken: done }) = ended else { break };
        assert_eq!(engine.stats().rows, done as u64);
        let rest = engine.transform(&edges(done, 10_000)).unwrap();
        assert_eq!(rest, want[done * engine.settings().width()..]);
        taken.push(done);
    }
    taken.dedup();
    assert_eq!(taken, [0, 4096, 8192]);
}

#[test]
fn a_preview_after_begin_leaves_the_next_rows_provisional() {
    for mode in [Mode::Causal, Mode::Batch] {
        let fan = Some(PatternSettings { window: 10, bins: vec![2, 3] });
        let mut engine = GraphFeatures::new(Settings { fan, mode, ..Settings::default() }).unwrap();
        let row = |ids, sources, times| Edges { ids, sources, targets: &[9], times, columns: &[] };
        engine.learn(&row(&[0], &[1], &[1])).unwrap();
        let next = row(&[1], &[2], &[2]);
        engine.begin().unwrap();
        let (seen, _) = engine.preview(&next, None).unwrap();
        assert_eq!(engine.stats().edges, 1);
        assert_eq!(engine.transform(&next), Ok(seen.clone()));
        assert_eq!(engine.learn(&next), Err(GraphError::Provisional { rows: 1 }));
        engine.undo();
        assert_eq!((engine.stats().edges, engine.stats().rows), (1, 1));
        // `keep` after a preview alone ends `begin`, and retains no rows.
        engine.begin().unwrap();
        engine.preview(&next, None).unwrap();
        engine.keep();
        assert_eq!(engine.transform(&next), Ok(seen));
        assert_eq!(engine.stats().edges, 2);
    }
}

#[test]
fn undo_after_start_restores_the_graph_that_start_removed() {
    let fan = Some(PatternSettings { window: 10, bins: vec![2, 3] });
    let settings = Settings { fan, mode: Mode::Causal, segment: Some(5), ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let row = |ids, sources, times| Edges { ids, sources, targets: &[9], times, columns: &[] };
    engine.learn(&row(&[0], &[1], &[1])).unwrap();
    let (before, state) = (engine.stats(), engine.state());
    let other = row(&[7], &[3], &[1 << 40]);
    engine.begin().unwrap();
    // After a failed call the rows of the next call are provisional.
    engine.start(&Edges { times: &[], ..other }).unwrap_err();
    engine.start(&other).unwrap();
    assert!((engine.knows(&[1, 3]), engine.stats().rows) == (vec![false, true], 1));
    let waits = GraphError::Provisional { rows: 1 };
    assert_eq!(engine.transform(&other), Err(waits.clone()));
    assert_eq!(engine.start(&other), Err(waits.clone()));
    assert_eq!(engine.begin(), Err(waits));
    assert!(engine.freeze().is_none(), "provisional rows are in no segment");
    engine.undo();
    assert_eq!((engine.stats(), engine.state()), (before, state));
    assert_eq!(engine.transform(&row(&[1], &[2], &[2])).unwrap()[0], 1.0);
    engine.begin().unwrap();
    engine.start(&other).unwrap();
    engine.keep();
    engine.undo();
    assert_eq!((engine.stats().edges, engine.knows(&[1, 3])), (1, vec![false, true]));
    engine.learn(&other).unwrap();
}

#[test]
fn no_rows_come_beside_provisional_ones() {
    let fan = Some(PatternSettings { window: 10, bins: vec![2] });
    let settings = Settings { fan, mode: Mode::Causal, segment: Some(5), ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let (ids, times) = ([0, 1], [1, 9]);
    let edges =
        Edges { ids: &ids, sources: &[1, 2], targets: &[9; 2], times: &times, columns: &[] };
    // The call fails, so no rows are provisional.
    engine.begin().unwrap();
    let short = Edges { times: &times[..1], ..edges };
    engine.transform(&short).unwrap_err();
    engine.undo();
    engine.begin().unwrap();
    engine.learn(&edges).unwrap();
    let waits = GraphError::Provisional { rows: 2 };
    assert!(engine.freeze().is_none(), "a span that may go again is in no segment");
    assert_eq!(engine.begin(), Err(waits.clone()));
    assert_eq!(engine.learn(&edges), Err(waits.clone()));
    assert_eq!(engine.transform(&edges), Err(waits.clone()));
    assert_eq!(engine.start(&edges), Err(waits.clone()));
    assert_eq!(engine.learn_pending(&edges), Err(waits.clone()));
    assert_eq!(engine.preview(&edges, None), Err(waits));
    engine.keep();
    assert!(engine.freeze().is_some());
    assert_eq!(engine.stats().edges, 2);
    // Times that need wide stamps, and a rollback of their rows.
    engine.begin().unwrap();
    let later = [1 << 40, 1 << 41];
    engine.learn(&Edges { times: &later, ..edges }).unwrap();
    engine.undo();
    assert_eq!((engine.stats().edges, engine.stats().now), (2, Some(9)));
}

/// The canary: the comparison must detect rows that are not rolled back.
#[test]
fn rows_that_stay_are_seen() {
    let is_seen = (0..100).any(|seed| {
        fault(&stream(Mode::Causal, Size::Small, seed), seed, PreviewRun::Learn).is_some()
    });
    assert!(is_seen);
}

#[test]
fn plain_engines_are_the_same() {
    let stream = stream(Mode::Causal, Size::Medium, 1);
    assert_eq!(bits(&alone(&stream)), bits(&by_engine(&stream)));
}

#[test]
fn a_preview_names_the_patterns() {
    let fan = Some(PatternSettings { window: 10, bins: vec![2, 3] });
    let settings = Settings { fan, keeps_ids: true, ..Settings::default() };
    let mut engine = GraphFeatures::new(settings.clone()).unwrap();
    let row = |ids, sources, times| Edges { ids, sources, targets: &[9], times, columns: &[] };
    engine.learn(&row(&[0], &[1], &[1])).unwrap();
    let next = row(&[1], &[2], &[2]);
    let (_, seen) = engine.preview(&next, Some(5)).unwrap();
    assert_eq!((seen.patterns.len(), seen.patterns[0].edges.as_slice()), (1, &[0, 1][..]));
    let again = engine.patterns(&next, 5).unwrap().1;
    assert_eq!(seen, again);
    assert_eq!(engine.preview(&next, Some(0)).unwrap().1.patterns, []);

    let mut without = GraphFeatures::new(Settings { keeps_ids: false, ..settings }).unwrap();
    assert!(matches!(without.preview(&next, Some(1)), Err(GraphError::NoIds)));
    assert_eq!(without.preview(&next, None).unwrap().1, Evidence::default());
    let columns: &[&[f64]] = &[&[1.0]];
    assert!(without.preview(&Edges { columns, ..next }, None).is_err());
    assert_eq!(without.stats().rows, 0);
}
