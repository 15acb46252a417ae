//! Engine and oracle side by side.

use super::random::{Size, stream};
use super::{DefinitionFault, Oracle, StreamRows, pattern_of};
use farrow_graph::{GraphFeatures, GraphStats, Measure, Mode, PatternKind, Settings};
use std::fmt::Write;

#[derive(Clone, Debug)]
pub enum StreamCall {
    Start(StreamRows),
    Learn(StreamRows),
    Transform(StreamRows),
}

#[derive(Clone, Debug)]
pub struct CheckedStream {
    pub settings: Settings,
    pub calls: Vec<StreamCall>,
}

/// The result of one call: features, and counters of the graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallResult {
    pub cells: Vec<f64>,
    pub edges: usize,
    /// Used only if accounts are forgotten.
    pub accounts: usize,
    pub now: Option<i64>,
}

impl StreamCall {
    pub fn rows(&self) -> &StreamRows {
        match self {
            StreamCall::Start(rows) | StreamCall::Learn(rows) | StreamCall::Transform(rows) => rows,
        }
    }

    fn without(&self, row: usize) -> StreamCall {
        let rows = self.rows();
        let (mut left, right) = (rows.part(0..row), rows.part(row + 1..rows.len()));
        left.ids.extend(right.ids);
        left.sources.extend(right.sources);
        left.targets.extend(right.targets);
        left.times.extend(right.times);
        for (column, more) in left.columns.iter_mut().zip(right.columns) {
            column.extend(more);
        }
        match self {
            StreamCall::Start(_) => StreamCall::Start(left),
            StreamCall::Learn(_) => StreamCall::Learn(left),
            StreamCall::Transform(_) => StreamCall::Transform(left),
        }
    }
}

/// Runs a call on the engine.
pub fn call(engine: &mut GraphFeatures, call: &StreamCall) -> Vec<f64> {
    match call {
        StreamCall::Start(rows) => rows.with(|edges| engine.start(edges)).map(|()| Vec::new()),
        StreamCall::Learn(rows) => rows.with(|edges| engine.learn(edges)).map(|()| Vec::new()),
        StreamCall::Transform(rows) => rows.with(|edges| engine.transform(edges)),
    }
    .unwrap()
}

pub fn by_engine(stream: &CheckedStream) -> Vec<CallResult> {
    let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
    let results = stream.calls.iter().map(|one| {
        let cells = call(&mut engine, one);
        let GraphStats { edges, accounts, now, .. } = engine.stats();
        CallResult { cells, edges, accounts, now }
    });
    results.collect()
}

/// As `by_engine`, but every call runs on a graph restored from the last one's state.
pub fn by_restored_engines(stream: &CheckedStream) -> Vec<CallResult> {
    let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
    let results = stream.calls.iter().map(|one| {
        engine = GraphFeatures::restore(stream.settings.clone(), &engine.state()).unwrap();
        let cells = call(&mut engine, one);
        let GraphStats { edges, accounts, now, .. } = engine.stats();
        CallResult { cells, edges, accounts, now }
    });
    results.collect()
}

pub fn by_oracle(stream: &CheckedStream, fault: Option<DefinitionFault>) -> Vec<CallResult> {
    let mut oracle = Oracle::new(&stream.settings, fault);
    let results = stream.calls.iter().map(|call| {
        let cells = match call {
            StreamCall::Start(rows) => {
                oracle.start(rows);
                Vec::new()
            }
            StreamCall::Learn(rows) => {
                oracle.learn(rows);
                Vec::new()
            }
            StreamCall::Transform(rows) => oracle.transform(rows).cells,
        };
        CallResult { cells, edges: oracle.edges(), accounts: oracle.accounts(), now: oracle.now() }
    });
    results.collect()
}

/// The names of the features, and whether rounding affects them strongly.
pub fn columns(settings: &Settings) -> Vec<(String, bool)> {
    let mut columns = Vec::new();
    for kind in PatternKind::ALL {
        let bins = pattern_of(settings, kind).map_or(&[][..], |one| &one.bins);
        columns.extend(bins.iter().map(|bin| (format!("{} {bin}", kind.name()), false)));
    }
    let Some(statistics) = &settings.statistics else { return columns };
    let wanted = Measure::ALL.into_iter().filter(|one| statistics.measures.contains(one));
    let (of_column, plain): (Vec<_>, Vec<_>) = wanted.partition(|&one| one >= Measure::Mean);
    for side in ["source out", "source in", "target out", "target in"] {
        columns.extend(plain.iter().map(|one| (format!("{side} {}", one.name()), false)));
        for (number, column) in statistics.columns.iter().enumerate() {
            columns.extend(of_column.iter().map(|one| {
                let name = format!("{side} {} of {column:?} {number}", one.name());
                (name, *one >= Measure::Variance)
            }));
        }
    }
    columns
}

fn is_close(one: f64, other: f64, tolerance: f64) -> bool {
    one == other || (one - other).abs() <= tolerance * one.abs().max(other.abs()).max(1.0)
}

/// The first cell that differs.
pub fn difference(
    stream: &CheckedStream,
    got: &[CallResult],
    want: &[CallResult],
) -> Option<String> {
    let columns = columns(&stream.settings);
    let forgets = stream.settings.mode == farrow_graph::Mode::Causal;
    for (number, (got, want)) in got.iter().zip(want).enumerate() {
        let lengths = (got.cells.len(), want.cells.len());
        if lengths.0 != lengths.1 {
            return Some(format!("call {number}: (got, want) {lengths:?} cells"));
        }
        for (at, (&one, &other)) in got.cells.iter().zip(&want.cells).enumerate() {
            let (row, column) = (at / columns.len(), at % columns.len());
            let (name, is_rough) = &columns[column];
            if !is_close(one, other, if *is_rough { 1e-4 } else { 1e-6 }) {
                return Some(format!("call {number}, row {row}, {name}: {one}, not {other}"));
            }
        }
        let left = |one: &CallResult| (one.edges, if forgets { one.accounts } else { 0 }, one.now);
        if left(got) != left(want) {
            let (got, want) = (left(got), left(want));
            return Some(format!("call {number}: (edges, accounts, now) {got:?}, not {want:?}"));
        }
    }
    None
}

/// Removes rows while `is_bad` holds.
pub fn shrink(mut stream: CheckedStream, is_bad: impl Fn(&CheckedStream) -> bool) -> CheckedStream {
    loop {
        let mut smaller = stream.calls.iter().enumerate().flat_map(|(number, call)| {
            let rows = (0..call.rows().len()).map(move |row| (number, row));
            rows.collect::<Vec<_>>()
        });
        let next = smaller.find_map(|(number, row)| {
            let mut calls = stream.calls.clone();
            calls[number] = calls[number].without(row);
            calls.retain(|call| call.rows().len() > 0);
            let candidate = CheckedStream { settings: stream.settings.clone(), calls };
            is_bad(&candidate).then_some(candidate)
        });
        match next {
            Some(next) => stream = next,
            None => return stream,
        }
    }
}

/// A stream in readable form.
pub fn show(stream: &CheckedStream) -> String {
    let mut text = format!("{:?}\n", stream.settings);
    for call in &stream.calls {
        let (name, rows) = match call {
            StreamCall::Start(rows) => ("start", rows),
            StreamCall::Learn(rows) => ("learn", rows),
            StreamCall::Transform(rows) => ("transform", rows),
        };
        _ = write!(text, "  {name}");
        for row in 0..rows.len() {
            let (id, time) = (rows.ids[row], rows.times[row]);
            let given: Vec<f64> = rows.columns.iter().map(|column| column[row]).collect();
            _ = write!(
                text,
                " [{id}: {} -> {} at {time} {given:?}]",
                rows.sources[row], rows.targets[row]
            );
        }
        text.push('\n');
    }
    text
}

/// Panics with the smallest stream on which engine and oracle differ, if they do.
pub fn agree(stream: CheckedStream, seed: u64) {
    agrees(stream, seed, by_engine);
}

/// As `agree`, but every call runs on a restored graph.
pub fn agree_restored(stream: CheckedStream, seed: u64) {
    agrees(stream, seed, by_restored_engines);
}

fn agrees(stream: CheckedStream, seed: u64, engine: fn(&CheckedStream) -> Vec<CallResult>) {
    let differs =
        |stream: &CheckedStream| difference(stream, &engine(stream), &by_oracle(stream, None));
    let Some(first) = differs(&stream) else { return };
    let is_small = stream.calls.iter().map(|call| call.rows().len()).sum::<usize>() <= 600;
    let stream = if is_small { shrink(stream, |one| differs(one).is_some()) } else { stream };
    let last = differs(&stream).unwrap_or(first);
    panic!("seed {seed}: {last}\n{}", show(&stream));
}

/// The number of small, medium and large random streams of a test. `FARROW_GRAPH_STREAMS` sets all
/// three, or the first alone.
pub fn amounts() -> [u64; 3] {
    let Ok(text) = std::env::var("FARROW_GRAPH_STREAMS") else { return [3000, 150, 15] };
    let wanted: Vec<u64> = text.split(',').map(|one| one.trim().parse().unwrap()).collect();
    match wanted[..] {
        [small] => [small, small.div_ceil(20), small.div_ceil(200)],
        [small, medium, large] => [small, medium, large],
        _ => panic!("FARROW_GRAPH_STREAMS is {text:?}: one number or three"),
    }
}

/// The number of threads that `FARROW_GRAPH_THREADS` sets for all streams.
pub fn threads() -> Option<usize> {
    let text = std::env::var("FARROW_GRAPH_THREADS").ok()?;
    Some(text.parse().unwrap())
}

/// Checks that the small streams detect each wrong definition.
pub fn assert_faults_are_seen(mode: Mode) {
    let faults = [
        DefinitionFault::ClosedStars,
        DefinitionFault::OpenBins,
        DefinitionFault::LateLegs,
        DefinitionFault::OpenCycles,
        DefinitionFault::NoTies,
        DefinitionFault::OtherEviction,
        DefinitionFault::SampleVariance,
        DefinitionFault::EndlessStatistics,
    ];
    let [small, _, _] = amounts();
    for fault in faults {
        let is_seen = (0..small).any(|seed| {
            let stream = stream(mode, Size::Small, seed);
            difference(&stream, &by_engine(&stream), &by_oracle(&stream, Some(fault))).is_some()
        });
        assert!(is_seen, "{fault:?} was not seen in {small} streams");
    }
}
