//! Causal mode against the definitions fed row by row.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams, and `FARROW_GRAPH_THREADS` the number
//! of threads, as for batch mode.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{
    Column, GraphFeatures, Measure, Mode, PatternSettings, Settings, StatisticsSettings,
};
use oracle::StreamRows;
use oracle::check::{
    CheckedStream, StreamCall, agree, agree_restored, amounts, assert_faults_are_seen, by_engine,
    by_oracle, difference, show,
};
use oracle::random::{Size, StreamRandom, stream};

#[test]
fn small_streams_agree_with_the_oracle() {
    let [small, _, _] = amounts();
    (0..small).for_each(|seed| agree(stream(Mode::Causal, Size::Small, seed), seed));
}

#[test]
fn medium_and_large_streams_agree_with_the_oracle() {
    let [_, medium, large] = amounts();
    (0..medium).for_each(|seed| agree(stream(Mode::Causal, Size::Medium, seed), seed));
    (0..large).for_each(|seed| agree(stream(Mode::Causal, Size::Large, seed), seed));
}

#[test]
fn a_restored_graph_goes_on_as_if_nothing_had_happened() {
    let [small, medium, _] = amounts();
    for (size, count) in [(Size::Small, small / 4), (Size::Medium, medium / 4)] {
        (0..count).for_each(|seed| agree_restored(stream(Mode::Causal, size, seed), seed));
    }
}

type CausalRow = (i64, i64, i64, i64);

/// Rows in one call against rows fed one by one.
fn one_call(settings: Settings, all: &[CausalRow]) {
    let mut rows = StreamRows::default();
    all.iter().for_each(|&row| rows.push(row));
    agree(CheckedStream { settings, calls: vec![StreamCall::Transform(rows)] }, 0);
}

/// A late edge was evicted a second time when the cursor of the other edges reached it, because an
/// evicted edge stays in the graph until the call ends.
#[test]
fn a_late_edge_is_evicted_once() {
    let fan = Some(PatternSettings { window: 8, bins: vec![2] });
    let settings = Settings { fan, ..Settings::default() };
    one_call(settings, &[(0, 1, 2, 100), (1, 1, 2, 50), (2, 1, 2, 200)]);
}

/// Edges that the last row of an account did not see were hidden from its first rows too.
#[test]
fn a_gather_scatter_before_its_edges_go_in_the_same_call() {
    let gather_scatter = Some(PatternSettings { window: 5, bins: vec![2] });
    let settings = Settings { time_window: Some(1), gather_scatter, ..Settings::default() };
    let pattern = [(0, 1, 9, 1), (1, 2, 9, 1), (2, 9, 3, 1), (3, 9, 4, 1)];
    one_call(settings, &[&pattern[..], &[(4, 7, 8, 10), (5, 9, 5, 11)]].concat());
}

/// Rows of one account share a table of its legs, in which an evicted leg still counted.
#[test]
fn a_leg_that_goes_in_the_same_call_is_no_leg() {
    let scatter_gather = Some(PatternSettings { window: 20, bins: vec![2] });
    let settings = Settings { time_window: Some(18), scatter_gather, ..Settings::default() };
    one_call(settings, &[(0, 28, 2, 51), (1, 0, 28, 57), (2, 0, 1, 70), (3, 1, 2, 71)]);
}

/// Rows of a stream without any features were not added.
#[test]
fn rows_without_features_are_edges() {
    let settings = Settings { time_window: Some(8), ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let mut rows = StreamRows::default();
    rows.push((0, 1, 2, 3));
    assert_eq!(rows.with(|edges| engine.transform(edges)), Ok(Vec::new()));
    assert_eq!(engine.stats().edges, 1);
}

/// The canary: the comparison must detect an oracle with one wrong definition.
#[test]
fn a_wrong_definition_is_distinguished() {
    assert_faults_are_seen(Mode::Causal);
}

/// All features of a stream, bit by bit.
fn bits(settings: &Settings, parts: &[StreamRows], threads: usize) -> Vec<u64> {
    let mut engine = GraphFeatures::new(Settings { threads, ..settings.clone() }).unwrap();
    let cells = parts.iter().map(|rows| rows.with(|edges| engine.transform(edges)).unwrap());
    cells.flatten().map(f64::to_bits).collect()
}

/// The rows of all calls of a stream.
fn joined(stream: &CheckedStream) -> StreamRows {
    let mut all = StreamRows::default();
    for call in &stream.calls {
        let rows = call.rows();
        all.ids.extend(&rows.ids);
        all.sources.extend(&rows.sources);
        all.targets.extend(&rows.targets);
        all.times.extend(&rows.times);
        all.columns.resize(rows.columns.len(), Vec::new());
        for (column, more) in all.columns.iter_mut().zip(&rows.columns) {
            column.extend(more);
        }
    }
    all
}

/// Fails if the division into calls, or the number of threads, changes a bit.
fn cuts_change_nothing(stream: &CheckedStream, seed: u64) {
    let (rows, mut random) = (joined(stream), StreamRandom::new(seed));
    let single: Vec<StreamRows> = (0..rows.len()).map(|row| rows.part(row..row + 1)).collect();
    let cuts = [vec![rows.clone()], random.cut(&rows, 20), random.cut(&rows, 200)];
    let want = bits(&stream.settings, &single, 1);
    for (cut, threads) in cuts.iter().zip([1, 2, 3]).chain(cuts.iter().zip([2, 3, 1])) {
        let got = bits(&stream.settings, cut, threads);
        if got != want {
            let width = stream.settings.width();
            let place = got.iter().zip(&want).position(|(one, other)| one != other).unwrap();
            let (row, column) =
                (place / width, &oracle::check::columns(&stream.settings)[place % width]);
            let sizes: Vec<usize> = cut.iter().map(StreamRows::len).collect();
            let (one, other) = (f64::from_bits(got[place]), f64::from_bits(want[place]));
            panic!(
                "seed {seed}, {threads} threads, calls of {sizes:?}: row {row}, {column:?}: {one}, not {other}\n{}",
                show(stream)
            );
        }
    }
}

#[test]
fn every_cut_into_calls_and_every_number_of_threads_gives_the_same_bits() {
    let [small, medium, large] = amounts();
    for (size, count) in [(Size::Small, small / 10), (Size::Medium, medium), (Size::Large, large)] {
        (0..count).for_each(|seed| cuts_change_nothing(&stream(Mode::Causal, size, seed), seed));
    }
}

/// The stream with its times and windows scaled, and some times near the limits of `i64`.
fn stretched(mut stream: CheckedStream, seed: u64) -> CheckedStream {
    let mut random = StreamRandom::new(!seed);
    let scale = 1i64 << random.pick(&[0, 20, 26, 27, 28, 30, 34, 50]);
    let settings = &mut stream.settings;
    let longer = |window: &mut u64| *window = window.saturating_mul(scale as u64);
    let patterns = [
        &mut settings.fan,
        &mut settings.degree,
        &mut settings.scatter_gather,
        &mut settings.temporal_cycle,
        &mut settings.simple_cycle,
        &mut settings.gather_scatter,
    ];
    patterns.into_iter().flatten().for_each(|one| longer(&mut one.window));
    settings.time_window.iter_mut().for_each(longer);
    if let Some(statistics) = &mut settings.statistics {
        longer(&mut statistics.window);
        // Sums of such times are only rounding error.
        if statistics.columns.contains(&Column::Time) {
            let is_exact = |one: &Measure| {
                *one < Measure::Mean || (Measure::Min..=Measure::Median).contains(one)
            };
            statistics.measures.retain(is_exact);
        }
    }
    if random.is(0.1) {
        settings.time_window = Some(u64::MAX);
    }
    let first = stream.calls.iter().flat_map(|call| &call.rows().times).copied().min();
    let (origin, extreme) = (random.range(-40, 1), random.pick(&[0.0, 0.0, 0.1]));
    for call in &mut stream.calls {
        let (StreamCall::Start(rows) | StreamCall::Learn(rows) | StreamCall::Transform(rows)) =
            call;
        for time in &mut rows.times {
            *time = (*time - first.unwrap_or_default() + origin).saturating_mul(scale);
            if random.is(extreme) {
                *time = random.pick(&[i64::MIN, i64::MIN + 1, 0, i64::MAX - 1, i64::MAX]);
            }
        }
    }
    stream
}

/// Narrow stamps get a new base, and become wide ones, in the middle of a stream.
#[test]
fn any_times_are_taken_and_any_span_between_them() {
    let [small, medium, _] = amounts();
    for (size, count) in [(Size::Small, small / 2), (Size::Medium, medium)] {
        for seed in 0..count {
            let stream = stretched(stream(Mode::Causal, size, seed), seed);
            if seed % 10 == 0 {
                cuts_change_nothing(&stream, seed);
            }
            agree(stream, seed);
        }
    }
}

/// 12,000 rows over three times the span of narrow stamps, in calls longer than the engine's own
/// parts, so that the base moves repeatedly.
#[test]
fn a_long_stream_takes_new_bases() {
    let mut random = StreamRandom::new(1);
    let unit = 1 << 20;
    let bins =
        |window| Some(PatternSettings { window: window * unit as u64, bins: vec![2, 3, 4, 6] });
    let settings = Settings {
        fan: bins(30),
        scatter_gather: bins(40),
        temporal_cycle: bins(40),
        simple_cycle: bins(20),
        cycle_length_max: 4,
        edges_max: Some(45),
        ..Settings::default()
    };
    let mut rows = StreamRows::default();
    for id in 0..12_000 {
        let late = if random.is(0.02) { random.range(0, 60) } else { 0 };
        rows.push((id, random.range(0, 12), random.range(0, 12), (id - late) * unit));
    }
    let calls =
        [0..100, 100..9_000, 9_000..12_000].map(|range| StreamCall::Transform(rows.part(range)));
    let stream = CheckedStream { settings, calls: calls.to_vec() };
    cuts_change_nothing(&stream, 1);
    let (got, want) = (by_engine(&stream), by_oracle(&stream, None));
    assert_eq!(difference(&stream, &got, &want), None);
}

/// Accounts with hundreds of edges. The engine carries their windows from row to row, despite late
/// rows, eviction by number or by time, and reused small numbers of accounts.
#[test]
fn hubs_agree_with_the_oracle_in_every_cut() {
    for seed in 0..12 {
        let mut random = StreamRandom::new(seed);
        let bins = |random: &mut StreamRandom| {
            let window = random.pick(&[40, 200, 500, 1000]);
            Some(PatternSettings { window, bins: vec![2, 5, 10, 20, 50] })
        };
        let settings = Settings {
            fan: bins(&mut random),
            degree: bins(&mut random),
            scatter_gather: bins(&mut random),
            gather_scatter: bins(&mut random),
            statistics: Some(StatisticsSettings {
                window: random.pick(&[30, 300, 900]),
                measures: Measure::ALL.to_vec(),
                columns: vec![Column::Given, Column::Time],
            }),
            time_window: random.pick(&[None, Some(150), Some(600)]),
            edges_max: random.pick(&[None, None, Some(300)]),
            ..Settings::default()
        };
        let late = random.pick(&[0.0, 0.0, 0.01]);
        let hubs = random.range(1, 4);
        let mut rows = StreamRows { columns: vec![Vec::new()], ..StreamRows::default() };
        for id in 0..1200 {
            // The hubs change, and recur.
            let hub = (id / 300) % 3 * 100 + random.range(0, hubs);
            let other = 1000 + random.range(0, 60);
            let (source, target) = if random.is(0.5) { (hub, other) } else { (other, hub) };
            let delay = if random.is(late) { random.range(0, 300) } else { 0 };
            rows.push((id, source, target, (id - delay) / 2 * 2));
            rows.columns[0].push((random.unit() * 1e4).round() / 100.0);
        }
        let calls = random.cut(&rows, 300).into_iter().map(StreamCall::Transform).collect();
        let stream = CheckedStream { settings, calls };
        let (got, want) = (by_engine(&stream), by_oracle(&stream, None));
        assert_eq!(difference(&stream, &got, &want), None, "seed {seed}, {:?}", stream.settings);
        cuts_change_nothing(&stream, seed);
        let work_max = random.pick(&[30, 100, 1000]);
        let settings = Settings { work_max, statistics: None, ..stream.settings };
        let calls = stream.calls.into_iter().map(|call| {
            StreamCall::Transform(StreamRows { columns: Vec::new(), ..call.rows().clone() })
        });
        cuts_change_nothing(&CheckedStream { settings, calls: calls.collect() }, seed);
    }
}

#[test]
fn accounts_that_left_are_forgotten() {
    let settings = Settings { time_window: Some(10), ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let mut rows = StreamRows::default();
    (0..100).for_each(|id| rows.push((id, id, 1000 + id, 1)));
    // A self-loop retains its account too.
    rows.push((100, 7, 7, 8));
    rows.with(|edges| engine.transform(edges)).unwrap();
    assert_eq!((engine.stats().edges, engine.stats().accounts), (101, 200));
    let mut rows = StreamRows::default();
    rows.push((101, 7, 5000, 12));
    rows.with(|edges| engine.learn(edges)).unwrap();
    assert_eq!((engine.stats().edges, engine.stats().accounts), (2, 2));
    let mut rows = StreamRows::default();
    rows.push((102, 8, 8, 19));
    rows.with(|edges| engine.learn(edges)).unwrap();
    assert_eq!((engine.stats().edges, engine.stats().accounts), (2, 3));
}
