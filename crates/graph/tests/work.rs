//! Dense cores: a budget of work ends every search, and the graph counts these searches.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{GraphFeatures, Mode, PatternKind, PatternSettings, Settings};
use oracle::check::{CheckedStream, StreamCall, agree, amounts, show};
use oracle::random::{Size, StreamRandom, stream};
use oracle::{Oracle, StreamRows};

/// Every account pays every other one, in any order; `time` maps the number of a payment to its
/// time.
fn complete(accounts: i64, time: impl Fn(i64) -> i64) -> StreamRows {
    let pairs = (0..accounts).flat_map(|one| (0..accounts).map(move |other| (one, other)));
    let mut pairs: Vec<(i64, i64)> = pairs.filter(|(one, other)| one != other).collect();
    StreamRandom::new(accounts as u64).shuffle(&mut pairs);
    let mut rows = StreamRows::default();
    for (id, (source, target)) in (0..).zip(pairs) {
        rows.push((id, source, target, time(id)));
    }
    rows
}

fn every_pattern(mode: Mode, window: u64) -> Settings {
    let bins = Some(PatternSettings { window, bins: vec![2, 3, 5, 8] });
    Settings {
        mode,
        fan: bins.clone(),
        degree: bins.clone(),
        scatter_gather: bins.clone(),
        temporal_cycle: bins.clone(),
        simple_cycle: bins.clone(),
        gather_scatter: bins,
        ..Settings::default()
    }
}

/// With 200 accounts, the search for cycles would never end without a budget.
#[test]
fn a_budget_ends_the_search_of_a_dense_core() {
    for mode in [Mode::Batch, Mode::Causal] {
        for step in [0, 1] {
            let rows = complete(200, |id| 1 + id * step);
            let work_max = 300;
            let settings = Settings { work_max, threads: 2, ..every_pattern(mode, 1 << 20) };
            let mut engine = GraphFeatures::new(settings).unwrap();
            let cells = rows.with(|edges| engine.transform(edges)).unwrap();
            assert!(cells.iter().any(|&cell| cell > 0.0));
            let cut_short = engine.stats().cut_short;
            let was_cut = |kind: PatternKind| cut_short[kind as usize] > 0;
            assert!(was_cut(PatternKind::ScatterGather), "{mode:?}, step {step}: {cut_short:?}");
            assert!(was_cut(PatternKind::SimpleCycle), "{mode:?}, step {step}: {cut_short:?}");
            // At one instant no payment follows another.
            assert_eq!(was_cut(PatternKind::TemporalCycle), step > 0, "{mode:?}: {cut_short:?}");
        }
    }
}

#[test]
fn a_small_dense_core_needs_no_budget() {
    for mode in [Mode::Batch, Mode::Causal] {
        let times: [fn(i64) -> i64; 4] = [|_| 7, |id| id, |id| id / 5, |id| (id * 17) % 30 + 1];
        for (seed, time) in times.into_iter().enumerate() {
            let settings = every_pattern(mode, 25);
            let calls = vec![StreamCall::Transform(complete(6, time))];
            agree(CheckedStream { settings, calls }, seed as u64);
        }
    }
}

/// Counts with a budget never exceed those without one, and a budget that is enough for all
/// searches changes nothing.
#[test]
fn a_budget_loses_patterns_only_where_it_says_so() {
    let [small, ..] = amounts();
    let mut cut = 0;
    for seed in 0..small / 4 {
        for mode in [Mode::Batch, Mode::Causal] {
            let mut stream = stream(mode, Size::Small, seed);
            stream.settings.statistics = None;
            stream.settings.time_window.get_or_insert(30);
            stream.settings.work_max = StreamRandom::new(seed).range(1, 60) as u64;
            let mut engine = GraphFeatures::new(stream.settings.clone()).unwrap();
            let mut oracle = Oracle::new(&stream.settings, None);
            for call in &mut stream.calls {
                let (StreamCall::Start(rows)
                | StreamCall::Learn(rows)
                | StreamCall::Transform(rows)) = call;
                rows.columns.clear();
                let before = engine.stats().cut_short;
                let got = rows.with(|edges| engine.transform(edges)).unwrap();
                let want = oracle.transform(rows).cells;
                let is_less = got.iter().zip(&want).all(|(got, want)| got <= want);
                let was_cut = engine.stats().cut_short != before;
                cut += usize::from(was_cut);
                assert!(is_less && (was_cut || got == want), "seed {seed}, {got:?}, {want:?}");
            }
        }
    }
    assert!(cut > 100, "only {cut} calls were cut short");
}

/// In causal mode the patterns within a budget depend only on the row, too.
#[test]
fn in_causal_mode_a_budget_finds_the_same_in_every_cut() {
    let [small, medium, _] = amounts();
    let mut cut = 0;
    for (size, count) in [(Size::Small, small / 2), (Size::Medium, medium)] {
        for seed in 0..count {
            let mut stream = stream(Mode::Causal, size, seed);
            let mut random = StreamRandom::new(seed);
            stream.settings.work_max = random.range(1, 100) as u64;
            stream.settings.statistics = None;
            stream.settings.time_window.get_or_insert(30);
            let mut rows = StreamRows::default();
            for call in &stream.calls {
                let more = call.rows();
                (0..more.len()).for_each(|row| {
                    rows.push((
                        more.ids[row],
                        more.sources[row],
                        more.targets[row],
                        more.times[row],
                    ));
                });
            }
            let single: Vec<StreamRows> =
                (0..rows.len()).map(|row| rows.part(row..row + 1)).collect();
            let run = |parts: &[StreamRows], threads| {
                let settings = Settings { threads, ..stream.settings.clone() };
                let mut engine = GraphFeatures::new(settings).unwrap();
                let cells = parts.iter().map(|rows| rows.with(|edges| engine.transform(edges)));
                let cells: Vec<f64> = cells.flat_map(Result::unwrap).collect();
                (cells, engine.stats().cut_short)
            };
            let want = run(&single, 1);
            cut += want.1.iter().sum::<u64>();
            for (parts, threads) in [(random.cut(&rows, 15), 2), (vec![rows.clone()], 1)] {
                let got = run(&parts, threads);
                let width = stream.settings.width().max(1);
                let place = got.0.iter().zip(&want.0).position(|(got, want)| got != want);
                let row = place.map(|at| {
                    (at / width, oracle::check::columns(&stream.settings)[at % width].0.clone())
                });
                let sizes: Vec<usize> = parts.iter().map(StreamRows::len).collect();
                assert!(
                    got == want,
                    "seed {seed}, calls of {sizes:?}, first at {row:?}, {:?} cut short, not {:?}\n{}",
                    got.1,
                    want.1,
                    show(&stream)
                );
            }
        }
    }
    assert!(cut > 1000, "only {cut} searches were cut short");
}
