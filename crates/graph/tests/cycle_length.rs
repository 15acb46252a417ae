//! Simple cycles of ten accounts, of more, and of any number: against the oracle, and against the
//! algorithm that Khalili's thesis prints.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{GraphFeatures, Mode, PatternKind, PatternSettings, Settings};
use oracle::StreamRows;
use oracle::check::{CheckedStream, StreamCall, agree, amounts, by_engine};
use oracle::random::{Size, StreamRandom, stream};

/// Far more accounts than a small stream has.
const ENOUGH: usize = 64;

fn cycles(mode: Mode, window: u64, length_max: usize) -> Settings {
    Settings {
        mode,
        simple_cycle: Some(PatternSettings { window, bins: (2..=30).collect() }),
        cycle_length_max: length_max,
        ..Settings::default()
    }
}

/// Where a limit is at least the number of accounts, it excludes no cycle.
#[test]
fn cycles_of_any_length_agree_with_the_oracle() {
    let [small, ..] = amounts();
    let mut longest = 0;
    for seed in 0..small / 3 {
        for mode in [Mode::Causal, Mode::Batch] {
            let CheckedStream { settings, calls } = stream(mode, Size::Small, seed);
            let window = StreamRandom::new(seed).range(5, 40) as u64;
            let (edges_max, threads) = (settings.edges_max, settings.threads);
            let mut settings = Settings { edges_max, threads, ..cycles(mode, window, usize::MAX) };
            let calls: Vec<StreamCall> = calls.into_iter().map(without_columns).collect();
            let unlimited = CheckedStream { settings: settings.clone(), calls };
            settings.cycle_length_max = ENOUGH;
            let enough = CheckedStream { settings, calls: unlimited.calls.clone() };
            let found = by_engine(&unlimited);
            assert_eq!(found, by_engine(&enough), "seed {seed}, {mode:?}");
            let cells = found.iter().flat_map(|one| one.cells.iter().enumerate());
            let sizes = cells.filter(|one| *one.1 > 0.0).map(|(at, _)| at % 29 + 2);
            longest = sizes.max().unwrap_or(0).max(longest);
            agree(unlimited, seed);
        }
    }
    assert!(longest >= 7, "the longest cycle has {longest} accounts");
}

fn without_columns(mut call: StreamCall) -> StreamCall {
    let (StreamCall::Start(rows) | StreamCall::Learn(rows) | StreamCall::Transform(rows)) =
        &mut call;
    rows.columns.clear();
    call
}

/// A ring of 300 accounts, each of which also pays into a dead end and is paid from one.
#[test]
fn a_long_ring_needs_a_limit_of_its_length() {
    let length = 300;
    for mode in [Mode::Causal, Mode::Batch] {
        for (length_max, want) in [(299, 0.0), (300, 1.0), (301, 1.0), (usize::MAX, 1.0)] {
            let mut rows = StreamRows::default();
            for account in 0..length {
                let at = 3 * account;
                rows.push((at, account, account + 1000, at));
                rows.push((at + 1, account + 2000, account, at + 1));
                rows.push((at + 2, account, (account + 1) % length, at + 2));
            }
            let mut features = GraphFeatures::new(cycles(mode, 10_000, length_max)).unwrap();
            let cells = rows.with(|edges| features.transform(edges)).unwrap();
            let last = &cells[cells.len() - 29..];
            // Beyond the last bin a size counts there.
            assert_eq!(last[28], want, "{mode:?}, at most {length_max}");
            assert_eq!(last[..28].iter().sum::<f64>(), 0.0);
        }
    }
}

/// A search without a limit on the length ends at its budget, and is counted.
#[test]
fn a_budget_ends_a_search_for_cycles_of_any_length() {
    let mut rows = StreamRows::default();
    for source in 0..60 {
        for target in (0..60).filter(|&target| target != source) {
            rows.push((rows.len() as i64, source, target, rows.len() as i64));
        }
    }
    let settings = Settings { work_max: 5_000, ..cycles(Mode::Causal, 1 << 20, usize::MAX) };
    let mut features = GraphFeatures::new(settings).unwrap();
    rows.with(|edges| features.transform(edges)).unwrap();
    let cut = features.stats().cut_short[PatternKind::SimpleCycle as usize];
    assert!(cut > 100, "{cut} searches were cut short");
}

/// An edge: source, target, time.
type CycleEdge = (i64, i64, i64);

/// Algorithm 2 of "Graph processing on systems with disaggregated memory" (K. Khalili, 2026), line
/// by line: the lengths of the cycles that start with the transaction `start`.
fn algorithm_2(
    graph: &[CycleEdge],
    path: &mut Vec<i64>,
    start: CycleEdge,
    window: i64,
) -> Vec<usize> {
    let (source, target, time) = start;
    if path.is_empty() {
        path.extend([source, target]);
    }
    let tail = path[path.len() - 1];
    let in_window = |one: &&CycleEdge| one.0 == tail && one.2 >= time - window && one.2 <= time;
    let mut next: Vec<i64> = graph.iter().filter(in_window).map(|one| one.1).collect();
    next.sort_unstable();
    next.dedup();
    let mut lengths = Vec::new();
    if path.len() < 10 {
        for &account in &next {
            if !path.contains(&account) {
                path.push(account);
                lengths.extend(algorithm_2(graph, path, start, window));
            }
        }
    }
    if next.contains(&path[0]) {
        lengths.push(path.len());
    }
    path.pop();
    lengths
}

/// The edges of a random stream of 12 accounts without self-loops: sources and targets mostly follow
/// a ring, so that long cycles exist.
fn ring_like(random: &mut StreamRandom, rows: i64, time: impl Fn(i64) -> i64) -> Vec<CycleEdge> {
    let edge = |row| {
        let source = random.range(0, 12);
        let step = if random.is(0.8) { 1 } else { random.range(1, 12) };
        (source, (source + step) % 12, time(row))
    };
    (0..rows).map(edge).collect()
}

/// The number of cycles of each length, by row: by the engine with the default limit, and by
/// Algorithm 2, which sees all rows of a batch.
fn both(edges: &[CycleEdge], window: i64) -> [Vec<[usize; 13]>; 2] {
    let mut rows = StreamRows::default();
    for (id, &(source, target, time)) in (0..).zip(edges) {
        rows.push((id, source, target, time));
    }
    let length_max = Settings::default().cycle_length_max;
    let settings = cycles(Mode::Causal, window as u64, length_max);
    let mut features = GraphFeatures::new(settings).unwrap();
    let cells = rows.with(|edges| features.transform(edges)).unwrap();
    let ours = cells.chunks(29).map(|row| std::array::from_fn(|at| count(row, at))).collect();
    let theirs = edges.iter().map(|&start| {
        let mut by_length = [0; 13];
        for length in algorithm_2(edges, &mut Vec::new(), start, window) {
            by_length[length] += 1;
        }
        by_length
    });
    [ours, theirs.collect()]
}

/// The cycles of one length in a row of features.
fn count(row: &[f64], length: usize) -> usize {
    length.checked_sub(2).map_or(0, |bin| row[bin] as usize)
}

/// The thesis' simple cycles have at most ten accounts, and are those of the default limit. At equal
/// times the thesis counts a cycle for each of its last payments, and this crate once.
#[test]
fn the_default_limit_is_the_algorithm_of_the_thesis() {
    let [small, ..] = amounts();
    let (mut lengths, mut repeated) = ([0; 13], 0);
    for seed in 0..small / 10 {
        let mut random = StreamRandom::new(seed);
        let window = random.range(10, 40);
        let edges = ring_like(&mut random, 60, |row| row);
        let [ours, theirs] = both(&edges, window);
        assert_eq!(ours, theirs, "seed {seed}, window {window}, {edges:?}");
        for (length, found) in ours.iter().flat_map(|row| row.iter().enumerate()) {
            lengths[length] += found;
        }
        let tied = ring_like(&mut random, 60, |row| row / 4);
        let [ours, theirs] = both(&tied, window / 4).map(|rows| rows.concat());
        let (few, many) = (ours.iter().sum::<usize>(), theirs.iter().sum::<usize>());
        assert!(few <= many, "seed {seed}: {few} cycles, not at most {many}");
        repeated += many - few;
    }
    assert!(lengths[2..=10].iter().all(|&found| found > 0), "{lengths:?}");
    assert_eq!(lengths[11..], [0, 0], "{lengths:?}");
    assert!(repeated > 0);
}
