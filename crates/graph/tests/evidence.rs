//! The returned patterns against those of the definitions.
//!
//! `FARROW_GRAPH_STREAMS` sets the number of random streams.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{Evidence, GraphFeatures, Mode, Pattern, PatternKind, Settings};
use oracle::check::{CheckedStream, StreamCall, agree, amounts, show, shrink};
use oracle::random::{Size, StreamRandom, stream};
use oracle::{Oracle, StreamRows, bin_of, pattern_of};

/// The patterns of one `transform`, sorted, with the middle accounts of a scatter-gather as a set.
fn sorted(mut patterns: Vec<Pattern>) -> Vec<Pattern> {
    for one in patterns.iter_mut().filter(|one| one.kind == PatternKind::ScatterGather) {
        one.accounts[2..].sort_unstable();
    }
    patterns.sort_by_cached_key(|one| {
        (one.trigger, one.kind, one.accounts.clone(), one.edges.clone(), one.size)
    });
    patterns
}

fn listed(stream: &CheckedStream, threads: usize, most: usize) -> Vec<(Vec<f64>, Evidence)> {
    let settings = Settings { threads, keeps_ids: true, ..stream.settings.clone() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let calls = stream.calls.iter().map(|call| match call {
        StreamCall::Transform(rows) => rows.with(|edges| engine.patterns(edges, most)).unwrap(),
        other => (oracle::check::call(&mut engine, other), Evidence::default()),
    });
    calls.collect()
}

fn counted(stream: &CheckedStream) -> Vec<Vec<Pattern>> {
    let mut oracle = Oracle::new(&stream.settings, None);
    let calls = stream.calls.iter().map(|call| match call {
        StreamCall::Start(rows) => {
            oracle.start(rows);
            Vec::new()
        }
        StreamCall::Learn(rows) => {
            oracle.learn(rows);
            Vec::new()
        }
        StreamCall::Transform(rows) => oracle.transform(rows).patterns,
    });
    calls.collect()
}

/// The first pattern that only one side has.
fn difference(stream: &CheckedStream) -> Option<String> {
    let listed = listed(stream, 1, usize::MAX);
    for (number, (got, want)) in listed.into_iter().zip(counted(stream)).enumerate() {
        let (got, want) = (sorted(got.1.patterns), sorted(want));
        let length = got.len().max(want.len());
        if let Some(at) = (0..length).find(|&at| got.get(at) != want.get(at)) {
            return Some(format!("call {number}: {:?}, not {:?}", got.get(at), want.get(at)));
        }
    }
    None
}

fn patterns_agree(stream: CheckedStream, seed: u64) {
    let Some(first) = difference(&stream) else { return };
    let stream = shrink(stream, |one| difference(one).is_some());
    let last = difference(&stream).unwrap_or(first);
    panic!("seed {seed}: {last}\n{}", show(&stream));
}

#[test]
fn every_pattern_is_listed_with_its_edges_and_accounts() {
    let [small, medium, _] = amounts();
    for mode in [Mode::Batch, Mode::Causal] {
        (0..small / 2).for_each(|seed| patterns_agree(stream(mode, Size::Small, seed), seed));
        (0..medium / 4).for_each(|seed| patterns_agree(stream(mode, Size::Medium, seed), seed));
    }
}

#[test]
fn to_list_patterns_changes_no_feature() {
    for mode in [Mode::Batch, Mode::Causal] {
        for seed in 0..100 {
            let stream = stream(mode, Size::Small, seed);
            let cells: Vec<Vec<f64>> =
                listed(&stream, 1, 3).into_iter().map(|(cells, _)| cells).collect();
            let plain = oracle::check::by_engine(&stream).into_iter().map(|one| one.cells);
            assert_eq!(cells, plain.collect::<Vec<_>>(), "seed {seed}\n{}", show(&stream));
            agree(stream, seed);
        }
    }
}

/// With any limit and number of threads, the list is the beginning of the whole list.
#[test]
fn the_limit_keeps_the_first_and_counts_the_others() {
    let [_, medium, _] = amounts();
    let mut most_seen = 0;
    for mode in [Mode::Batch, Mode::Causal] {
        for seed in 0..medium {
            let (stream, mut random) = (stream(mode, Size::Medium, seed), StreamRandom::new(seed));
            let whole = listed(&stream, 1, usize::MAX);
            for threads in [1, 2, 3] {
                let most = random.pick(&[0, 1, 7, 100, 2000]);
                for ((cells, got), (all_cells, all)) in
                    listed(&stream, threads, most).iter().zip(&whole)
                {
                    assert_eq!(cells, all_cells, "seed {seed}, {threads} threads");
                    let count = all.patterns.len();
                    let retained = count.min(most);
                    assert_eq!(
                        got.patterns,
                        all.patterns[..retained],
                        "seed {seed}, {threads} threads"
                    );
                    assert_eq!((got.dropped, all.dropped), ((count - retained) as u64, 0));
                    most_seen = most_seen.max(count);
                }
            }
        }
    }
    // The engine sorts its matches only when it has twice the limit.
    assert!(most_seen > 1024, "{most_seen} patterns in one call at most");
}

/// In causal mode the list is the same for one row at a time and for all at once.
#[test]
fn in_causal_mode_cuts_into_calls_change_no_list() {
    let [small, ..] = amounts();
    for seed in 0..small / 10 {
        let mut stream = stream(Mode::Causal, Size::Small, seed);
        stream.calls =
            stream.calls.iter().map(|call| StreamCall::Transform(call.rows().clone())).collect();
        let single = stream.calls.iter().flat_map(|call| {
            let rows = call.rows();
            (0..rows.len()).map(|row| StreamCall::Transform(rows.part(row..row + 1)))
        });
        let single = CheckedStream { settings: stream.settings.clone(), calls: single.collect() };
        let all = |stream: &CheckedStream| {
            let calls = listed(stream, 1, usize::MAX).into_iter();
            calls.flat_map(|(_, evidence)| evidence.patterns).collect::<Vec<_>>()
        };
        assert_eq!(all(&stream), all(&single), "seed {seed}\n{}", show(&stream));
    }
}

/// The counts of a row equal the patterns that list it as their trigger.
#[test]
fn in_causal_mode_counts_are_the_patterns_of_their_rows() {
    let [small, ..] = amounts();
    let mut compared = 0;
    for seed in 0..small / 4 {
        let mut stream = stream(Mode::Causal, Size::Small, seed);
        if let Some(statistics) = &mut stream.settings.statistics {
            statistics.measures.clear();
            statistics.columns.clear();
        }
        // Each row gets a unique id.
        let mut id = 0;
        for call in &mut stream.calls {
            let (StreamCall::Start(rows) | StreamCall::Learn(rows) | StreamCall::Transform(rows)) =
                call;
            rows.ids.iter_mut().for_each(|one| {
                *one = id;
                id += 1;
            });
            rows.columns.clear();
        }
        for (call, (cells, evidence)) in stream.calls.iter().zip(listed(&stream, 1, usize::MAX)) {
            if cells.is_empty() {
                continue;
            }
            let width = stream.settings.width();
            for (row, cells) in cells.chunks(width).enumerate() {
                let want = by_bins(&stream.settings, call.rows(), row, &evidence.patterns);
                assert_eq!(cells, want, "seed {seed}, row {row}\n{}", show(&stream));
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared} rows");
}

fn by_bins(settings: &Settings, rows: &StreamRows, row: usize, patterns: &[Pattern]) -> Vec<f64> {
    let mut counts = Vec::new();
    let is_loop = rows.sources[row] == rows.targets[row];
    for kind in PatternKind::ALL {
        let Some(bins) = pattern_of(settings, kind).map(|one| &one.bins) else { continue };
        let mut histogram = vec![0.0; bins.len()];
        // A self-loop lists the patterns that it finds, but is not part of them.
        for one in patterns.iter().filter(|one| one.kind == kind && one.trigger == rows.ids[row]) {
            let is_part = one.edges.contains(&rows.ids[row]);
            assert_eq!(is_part, !is_loop || is_part, "{one:?}");
            histogram[bin_of(bins, one.size as usize, None)] += f64::from(u8::from(is_part));
        }
        counts.extend(histogram);
    }
    counts
}
