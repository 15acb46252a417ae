//! Without memory, a graph reports an error, is unchanged, and continues to work.
//!
//! The allocator of this program rejects allocations beyond a limit for each thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{
    Column, Evidence, GraphError, GraphFeatures, Measure, Mode, PatternSettings, Settings,
    StatisticsSettings,
};
use oracle::StreamRows;
use oracle::random::StreamRandom;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator with a count and a limit for each thread.
struct Limited;

thread_local! {
    /// Negative if a thread frees memory that another one allocated.
    static TAKEN: Cell<isize> = const { Cell::new(0) };
    static LIMIT: Cell<isize> = const { Cell::new(isize::MAX) };
}

impl Limited {
    /// Counts a change of an allocation's size from `before` to `after`; false beyond the limit.
    fn is_granted(before: usize, after: usize) -> bool {
        let taken = TAKEN.get() + (after.cast_signed() - before.cast_signed());
        let is_granted = after <= before || taken <= LIMIT.get();
        if is_granted {
            TAKEN.set(taken);
        }
        is_granted
    }
}

// SAFETY: every call is forwarded to the system's allocator with its own arguments, or rejected.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !Limited::is_granted(0, layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Limited::is_granted(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `dealloc`; `System` allocated the block.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !Limited::is_granted(layout.size(), size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `realloc`; `System` allocated the block.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Runs `run` with a limit of `bytes` more than are allocated now.
fn with_memory<R>(bytes: usize, run: impl FnOnce() -> R) -> R {
    LIMIT.set(TAKEN.get() + bytes.cast_signed());
    let result = run();
    LIMIT.set(isize::MAX);
    result
}

fn settings(mode: Mode) -> Settings {
    let bins = |window| Some(PatternSettings { window, bins: vec![2, 3, 5, 10] });
    Settings {
        mode,
        fan: bins(3_000),
        scatter_gather: bins(40),
        temporal_cycle: bins(40),
        simple_cycle: bins(20),
        cycle_length_max: 4,
        time_window: Some(20_000),
        edges_max: Some(10_235),
        statistics: Some(StatisticsSettings {
            window: 3_000,
            measures: vec![Measure::Fan, Measure::Degree, Measure::Sum],
            columns: vec![Column::Given],
        }),
        keeps_ids: true,
        ..Settings::default()
    }
}

/// One row for each time unit from `from` on; some are late. Every fourth pays account 0, some are
/// self-loops, and new accounts appear throughout.
fn rows(from: i64, count: i64) -> StreamRows {
    let mut random = StreamRandom::new(from.cast_unsigned());
    let mut rows = StreamRows { columns: vec![Vec::new()], ..StreamRows::default() };
    for id in from..from + count {
        let late = if random.is(0.05) { random.range(0, 400) } else { 0 };
        let source = if random.is(0.1) { 1_000_000 + id } else { random.range(1, 2_000) };
        let target = match random.range(0, 20) {
            0 => source,
            1..=5 => 0,
            _ => random.range(1, 2_000),
        };
        rows.push((id, source, target, (id - late).max(0)));
        rows.columns[0].push(random.unit());
    }
    rows
}

type TransformCall = fn(&mut GraphFeatures, &StreamRows) -> Result<Evidence, GraphError>;

const CALLS: [(&str, TransformCall); 5] = [
    ("learn", |engine, rows| rows.with(|edges| engine.learn(edges)).map(|()| Evidence::default())),
    ("patterns", |engine, rows| rows.with(|edges| engine.patterns(edges, 0)).map(|one| one.1)),
    ("preview", |engine, rows| rows.with(|edges| engine.preview(edges, Some(0))).map(|one| one.1)),
    ("learn_ahead", |engine, rows| {
        rows.with(|edges| engine.learn_pending(edges))?;
        engine.drop_pending();
        Ok(Evidence::default())
    }),
    ("start", |engine, rows| rows.with(|edges| engine.start(edges)).map(|()| Evidence::default())),
];

/// The content of a graph, and its counters except for memory.
fn seen(engine: &GraphFeatures) -> impl PartialEq + use<> {
    let stats = engine.stats();
    (stats.edges, stats.accounts, stats.now, stats.rows, engine.state())
}

/// Makes a call with more and more memory until it succeeds, and returns the number of failures.
/// After each failure the graph is unchanged. In the end it equals one that never ran out of
/// memory.
fn until_it_fits(
    mode: Mode,
    call: TransformCall,
    before: &[StreamRows],
    next: &StreamRows,
    step: usize,
) -> usize {
    let made = || {
        let mut engine = GraphFeatures::new(settings(mode)).unwrap();
        before.iter().for_each(|rows| rows.with(|edges| engine.learn(edges)).unwrap());
        engine
    };
    let (mut one, mut other) = (made(), made());
    let was = seen(&one);
    let mut failures = 0;
    let found = loop {
        // A kilobyte is for the arguments of the call.
        match with_memory(1_000 + failures * step, || call(&mut one, next)) {
            Ok(found) => break found,
            Err(GraphError::OutOfMemory { rows, bytes, taken }) => {
                assert_eq!((rows, taken), (next.len(), 0), "{bytes} bytes");
                assert!(seen(&one) == was, "{failures} times {step}: the graph is not as it was");
            }
            Err(GraphError::Memory { .. }) => assert!(seen(&one) == was),
            Err(error) => panic!("{error}"),
        }
        failures += 1;
    };
    assert_eq!(found, call(&mut other, next).unwrap());
    assert!(seen(&one) == seen(&other), "it went on in another way");
    let last = rows(40_000, 500);
    let [got, want] =
        [&mut one, &mut other].map(|engine| last.with(|edges| engine.patterns(edges, 100)));
    assert!(got.unwrap() == want.unwrap(), "it went on in another way");
    failures
}

/// The list of account 0 is full in the middle of a call, and moves to a block that is larger than
/// the memory checked in advance. The call's rows are removed, and evicted edges are restored.
#[test]
fn rows_for_which_there_is_no_memory_leave_the_graph_as_it_was() {
    let row = |rows: &mut StreamRows, id| {
        let time = if id % 7 == 0 { id - 5 } else { id };
        let source = if id % 5 == 0 { 0 } else { 1_000 + id };
        rows.push((id, source, 0, time));
        rows.columns[0].push(1.0);
    };
    let made = |range: std::ops::Range<i64>| {
        let mut rows = StreamRows { columns: vec![Vec::new()], ..StreamRows::default() };
        range.for_each(|id| row(&mut rows, id));
        rows
    };
    // Four of five rows are in the list, which has capacity for 8,191.
    let full = 8_192 / 4 * 5;
    for mode in [Mode::Causal, Mode::Batch] {
        let (before, next) = (made(0..full - 10), made(full - 10..full + 20));
        let failures = until_it_fits(mode, CALLS[0].1, &[before], &next, 3_000);
        assert!(failures > 20, "{mode:?}: {failures} failures");
    }
}

/// A call that is added in parts checks the memory for all of them in advance.
#[test]
fn a_long_call_for_which_there_is_no_memory_adds_nothing() {
    for (name, call) in CALLS {
        let failures =
            until_it_fits(Mode::Causal, call, &[rows(0, 900)], &rows(900, 9_000), 60_000);
        assert!(failures > 10, "{name}: {failures} failures");
    }
}

/// After many windows, the reported memory of a graph is almost all of its allocated memory.
#[test]
fn a_graph_reports_how_much_memory_it_holds() {
    for mode in [Mode::Causal, Mode::Batch] {
        let before = TAKEN.get();
        let mut engine = GraphFeatures::new(settings(mode)).unwrap();
        rows(0, 120_000).with(|edges| engine.learn(edges)).unwrap();
        rows(120_000, 500).with(|edges| engine.patterns(edges, 0)).unwrap();
        let held = (TAKEN.get() - before).cast_unsigned();
        let reported = engine.stats().bytes;
        assert!(reported * 20 >= held * 19, "{mode:?}: holds {held} bytes, tells of {reported}");
        assert!(reported <= held, "{mode:?}: holds {held} bytes, tells of {reported}");
    }
}

/// A stream that slows down to a fortieth, and has more accounts than edges. The graph is never
/// much larger than its content.
#[test]
fn a_graph_is_as_large_as_what_its_window_holds() {
    let patterns = Some(PatternSettings { window: 20_000, bins: vec![2, 3] });
    for mode in [Mode::Causal, Mode::Batch] {
        let settings = Settings {
            mode,
            // A pattern without state between calls.
            temporal_cycle: patterns.clone(),
            time_window: Some(20_000),
            ..Settings::default()
        };
        let mut engine = GraphFeatures::new(settings).unwrap();
        let mut random = StreamRandom::new(1);
        let (mut time, mut id, mut least) = (0, 0, usize::MAX);
        while id < 40_000 {
            let mut rows = StreamRows::default();
            for _ in 0..100 {
                time += if id < 30_000 { 1 } else { random.range(1, 9) * 8 };
                rows.push((id, random.range(0, 30_000), random.range(0, 30_000), time));
                id += 1;
            }
            rows.with(|edges| engine.transform(edges)).unwrap();
            let stats = engine.stats();
            least = if id < 30_000 { stats.edges } else { least.min(stats.edges) };
            // For an edge, two entries and a record. For an account, a number, a slot in the index
            // and two lists. A quarter more, and a constant part.
            let most = (stats.edges * 28 + stats.accounts * 18) * 5 / 4 + 70_000;
            assert!(
                stats.bytes <= most,
                "{mode:?}, row {id}: {} bytes for {} edges of {} accounts, {most} at most",
                stats.bytes,
                stats.edges,
                stats.accounts,
            );
        }
        assert!(least < 1_000, "{least} edges");
    }
}

#[test]
fn a_state_for_which_there_is_no_memory_is_refused() {
    let mut engine = GraphFeatures::new(settings(Mode::Causal)).unwrap();
    rows(0, 2_000).with(|edges| engine.learn(edges)).unwrap();
    let state = engine.state();
    let restored = |bytes| {
        let settings = settings(Mode::Causal);
        with_memory(bytes, || GraphFeatures::restore(settings, &state))
    };
    let Err(GraphError::OutOfMemory { rows, bytes, taken }) = restored(100_000) else { panic!() };
    assert_eq!((rows, taken), (2_000, 0));
    assert!(bytes > 100_000, "{bytes}");
    assert_eq!(restored(10_000_000).unwrap().state(), state);
}
