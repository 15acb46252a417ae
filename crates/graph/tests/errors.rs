//! Each error for its cause, with its numbers, and an unchanged graph after it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod oracle;

use farrow_graph::{
    Column, Edges, Evidence, GraphError, GraphFeatures, GraphState, Measure, Mode, PatternSettings,
    Settings, StatisticsSettings,
};
use oracle::StreamRows;

fn bins(window: u64, bins: &[u64]) -> Option<PatternSettings> {
    Some(PatternSettings { window, bins: bins.to_vec() })
}

fn statistics(window: u64) -> Option<StatisticsSettings> {
    let (measures, columns) = (Measure::ALL.to_vec(), vec![Column::Time, Column::Given]);
    Some(StatisticsSettings { window, measures, columns })
}

/// The parameter and the reason of the error for some settings.
fn refused(settings: &Settings) -> (String, String) {
    let Err(error) = GraphFeatures::new(settings.clone()) else { panic!("{settings:?} was taken") };
    assert_eq!(settings.check(), Err(error.clone()));
    match error {
        GraphError::Setting { parameter, reason } => (parameter, reason),
        other => panic!("{settings:?}: {other}"),
    }
}

type Setter = fn(&mut Settings, Option<PatternSettings>);

const PATTERNS: [(&str, Setter); 6] = [
    ("fan_in", |settings, bins| settings.fan = bins),
    ("degree_in", |settings, bins| settings.degree = bins),
    ("scatter-gather", |settings, bins| settings.scatter_gather = bins),
    ("temp-cycle", |settings, bins| settings.temporal_cycle = bins),
    ("lc-cycle", |settings, bins| settings.simple_cycle = bins),
    ("gather-scatter", |settings, bins| settings.gather_scatter = bins),
];

#[test]
fn settings_of_patterns_are_checked_one_by_one() {
    for (name, set) in PATTERNS {
        let with = |bins| {
            let mut settings = Settings { time_window: Some(5), ..Settings::default() };
            set(&mut settings, bins);
            settings
        };
        let (parameter, reason) = refused(&with(bins(0, &[2])));
        assert_eq!(parameter, format!("window of {name}"));
        assert!(reason.contains("is 0"), "{reason}");
        for wrong in [&[][..], &[0], &[0, 2], &[3, 2], &[2, 2], &[2, 5, 4]] {
            let (parameter, reason) = refused(&with(bins(1, wrong)));
            assert_eq!(parameter, format!("bins of {name}"));
            assert!(reason.contains(&format!("{wrong:?}")), "{reason}");
        }
        for right in [&[1][..], &[1, 2], &[7, u64::MAX]] {
            assert_eq!(with(bins(u64::MAX, right)).check(), Ok(()));
        }
    }
}

#[test]
fn other_settings_are_checked_one_by_one() {
    let good = || Settings { fan: bins(5, &[2]), ..Settings::default() };
    let wrong = [
        (Settings { time_window: Some(0), ..good() }, "time_window", "is 0"),
        (Settings { time_window: None, fan: None, ..good() }, "time_window", "needed"),
        (Settings { edges_max: Some(0), ..good() }, "edges_max", "is 0"),
        (Settings { cycle_length_max: 1, ..good() }, "cycle_length_max", "is 1; at least 2"),
        (Settings { cycle_length_max: 0, ..good() }, "cycle_length_max", "is 0; at least 2"),
        (Settings { threads: 0, ..good() }, "threads", "is 0"),
        (Settings { statistics: statistics(0), ..good() }, "window of the statistics", "is 0"),
    ];
    for (settings, parameter, reason) in wrong {
        let got = refused(&settings);
        assert!(got.0 == parameter && got.1.contains(reason), "{got:?} for {settings:?}");
    }
    // The window of the statistics bounds the graph in causal mode only.
    let alone = Settings { fan: None, statistics: statistics(5), ..good() };
    assert_eq!(alone.check(), Ok(()));
    let got = refused(&Settings { mode: Mode::Batch, ..alone });
    assert_eq!(got.0, "time_window");
}

/// A graph with a few rows, and the next rows.
fn engine(mode: Mode) -> (GraphFeatures, StreamRows) {
    let settings = Settings {
        mode,
        fan: bins(10, &[2, 3]),
        simple_cycle: bins(10, &[2, 3]),
        statistics: statistics(10),
        keeps_ids: true,
        ..Settings::default()
    };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let mut rows = StreamRows::default();
    [(0, 1, 2, 1), (1, 2, 3, 2), (2, 4, 3, 3), (3, 3, 1, 9)]
        .into_iter()
        .for_each(|row| rows.push(row));
    rows.columns.push(vec![1.5, 2.5, 3.5, 4.5]);
    rows.with(|edges| engine.transform(edges)).unwrap();
    let mut rows = StreamRows::default();
    [(4, 1, 2, 10), (5, 2, 1, 11), (6, 5, 3, 30)].into_iter().for_each(|row| rows.push(row));
    rows.columns.push(vec![0.5, 5.5, 9.5]);
    (engine, rows)
}

type TransformResult = Result<(Vec<f64>, Evidence), GraphError>;

/// All calls that take rows.
const CALLS: [fn(&mut GraphFeatures, &Edges<'_>) -> TransformResult; 5] = [
    |engine, edges| engine.learn(edges).map(|()| Default::default()),
    |engine, edges| engine.start(edges).map(|()| Default::default()),
    |engine, edges| engine.transform(edges).map(|cells| (cells, Evidence::default())),
    |engine, edges| engine.patterns(edges, 10),
    |engine, edges| {
        let mut cells = vec![7.0; edges.ids.len() * engine.settings().width()];
        let width = engine.settings().width();
        let result = engine.transform_into(edges, &mut cells, width, 0);
        assert!(result.is_ok() || cells.iter().all(|&cell| cell == 7.0), "a failed call wrote");
        result.map(|()| (cells, Evidence::default()))
    },
];

/// Makes a bad call, and checks that the graph equals one without it afterwards.
fn leaves_no_trace(bad: impl Fn(&mut GraphFeatures) -> GraphError) -> Vec<GraphError> {
    let errors = [Mode::Batch, Mode::Causal].map(|mode| {
        let ((mut one, next), (mut other, _)) = (engine(mode), engine(mode));
        let error = bad(&mut one);
        assert_eq!(one.stats(), other.stats(), "{mode:?}, {error}");
        let [got, want] = [&mut one, &mut other]
            .map(|engine| next.with(|edges| engine.patterns(edges, 100)).unwrap());
        assert_eq!(got, want, "{mode:?}, {error}");
        assert_eq!(one.stats(), other.stats(), "{mode:?}, {error}");
        error
    });
    errors.to_vec()
}

#[test]
fn columns_of_different_lengths() {
    let long = [1i64, 2, 3];
    let (short, value) = ([1i64, 2], [0.5f64; 3]);
    let good =
        Edges { ids: &long, sources: &long, targets: &long, times: &long, columns: &[&value] };
    let wrong = [
        (Edges { sources: &short, ..good }, "source", 2, 3),
        (Edges { targets: &short, ..good }, "target", 2, 3),
        (Edges { times: &short, ..good }, "timestamp", 2, 3),
        (Edges { columns: &[&value[..1]], ..good }, "measured", 1, 3),
        (Edges { ids: &short, ..good }, "source", 3, 2),
        (Edges { ids: &[], ..good }, "source", 3, 0),
    ];
    for call in CALLS {
        for (edges, column, rows, expected) in wrong {
            let errors = leaves_no_trace(|engine| call(engine, &edges).unwrap_err());
            let want = GraphError::Rows { column, rows, expected };
            assert!(errors.iter().all(|error| *error == want), "{errors:?}, not {want:?}");
            let text = want.to_string();
            let has = |word: &str| text.contains(word);
            assert!(has(column) && has(&rows.to_string()) && has(&expected.to_string()), "{text}");
        }
    }
}

#[test]
fn too_few_and_too_many_measured_columns() {
    let (long, value) = ([1i64, 2, 3], [0.5f64; 3]);
    for call in CALLS {
        for columns in [&[][..], &[&value[..], &value[..]]] {
            let edges = Edges { ids: &long, sources: &long, targets: &long, times: &long, columns };
            let errors = leaves_no_trace(|engine| call(engine, &edges).unwrap_err());
            let want = GraphError::Columns { given: columns.len(), expected: 1 };
            assert!(errors.iter().all(|error| *error == want), "{errors:?}, not {want:?}");
            assert!(want.to_string().contains(&format!("{} measured", columns.len())), "{want}");
        }
    }
}

#[test]
fn room_of_the_wrong_size() {
    let width = engine(Mode::Causal).0.settings().width();
    // Values, stride, offset.
    let wrong = [
        (3 * width - 1, width, 0),
        (3 * width + 1, width, 0),
        (0, width, 0),
        (3 * (width - 1), width - 1, 0),
        (3 * (width + 3), width + 3, 4),
        (3 * width, width, usize::MAX),
        (0, usize::MAX, 0),
    ];
    for (given, stride, offset) in wrong {
        let errors = leaves_no_trace(|engine| {
            let (_, rows) = self::engine(Mode::Causal);
            let mut cells = vec![7.0; given];
            let result =
                rows.with(|edges| engine.transform_into(edges, &mut cells, stride, offset));
            assert!(cells.iter().all(|&cell| cell == 7.0), "a failed call wrote");
            result.unwrap_err()
        });
        for error in errors {
            let GraphError::Room { given: reported, expected } = error else { panic!("{error}") };
            assert_eq!(reported, given);
            assert_ne!(expected, given, "stride {stride}, offset {offset}");
        }
    }
}

/// The largest number of edges in a graph.
const EDGES_MAX: usize = (1 << 27) - 1;

/// The columns take a gigabyte of addresses, but no pages, because nothing touches them.
#[test]
fn more_rows_than_a_graph_holds() {
    let most = EDGES_MAX;
    let mut zeros: Vec<i64> = Vec::new();
    if zeros.try_reserve_exact(most + 1).is_err() {
        eprintln!("skipped: this machine gives no {} bytes of addresses", (most + 1) * 8);
        return;
    }
    drop(zeros);
    let zeros = vec![0i64; most + 1];
    let values = Vec::new();
    let rows =
        Edges { ids: &zeros, sources: &zeros, targets: &zeros, times: &zeros, columns: &values };
    let settings = Settings { fan: bins(10, &[2, 3]), keeps_ids: true, ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let want = GraphError::TooMany { added: most + 1, alive: 0, most };
    // The last call allocates its result first.
    for call in &CALLS[..4] {
        assert_eq!(call(&mut engine, &rows).unwrap_err(), want);
    }
    assert_eq!(engine.stats(), Default::default());
}

/// The most rows that a graph holds; their features need more memory than any machine has.
#[test]
fn more_features_than_memory() {
    let rows = EDGES_MAX;
    let mut probe: Vec<i64> = Vec::new();
    if probe.try_reserve_exact(rows).is_err() {
        eprintln!("skipped: this machine gives no {} bytes of addresses", rows * 8);
        return;
    }
    drop(probe);
    let zeros = vec![0i64; rows];
    let edges =
        Edges { ids: &zeros, sources: &zeros, targets: &zeros, times: &zeros, columns: &[] };
    let bins: Vec<u64> = (1..=100_000).collect();
    let settings = Settings { fan: self::bins(10, &bins), keeps_ids: true, ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let want = GraphError::Memory { bytes: rows * 2 * bins.len() * 8 };
    assert_eq!(engine.transform(&edges).unwrap_err(), want);
    assert_eq!(engine.patterns(&edges, 1).unwrap_err(), want);
    assert_eq!(engine.stats(), Default::default());
}

/// A saved state must match: columns of one length, as many as the settings measure, and ids if
/// they are needed.
#[test]
fn a_state_that_does_not_fit() {
    let (engine, _) = engine(Mode::Causal);
    let state = engine.state();
    let refused = |change: fn(&mut GraphState)| {
        let mut wrong = state.clone();
        change(&mut wrong);
        GraphFeatures::restore(engine.settings().clone(), &wrong).unwrap_err()
    };
    let rows = |column, rows, expected| GraphError::Rows { column, rows, expected };
    assert_eq!(refused(|state| _ = state.sources.pop()), rows("source", 3, 4));
    assert_eq!(refused(|state| _ = state.targets.pop()), rows("target", 3, 4));
    assert_eq!(refused(|state| _ = state.times.pop()), rows("timestamp", 3, 4));
    assert_eq!(refused(|state| _ = state.columns[0].pop()), rows("measured", 3, 4));
    let columns = refused(|state| _ = state.columns.pop());
    assert_eq!(columns, GraphError::Columns { given: 0, expected: 1 });
    assert_eq!(refused(|state| state.ids = None), GraphError::NoIds);
    let restored = GraphFeatures::restore(engine.settings().clone(), &state).unwrap();
    assert_eq!(restored.state(), state);
}

#[test]
fn patterns_without_ids() {
    let settings = Settings { fan: bins(10, &[2]), ..Settings::default() };
    let mut engine = GraphFeatures::new(settings).unwrap();
    let mut rows = StreamRows::default();
    rows.push((0, 1, 2, 3));
    let result = rows.with(|edges| engine.patterns(edges, 10));
    assert_eq!(result.unwrap_err(), GraphError::NoIds);
    assert!(GraphError::NoIds.to_string().contains("keeps_ids"));
    assert_eq!(engine.stats(), Default::default());
}

#[test]
fn a_call_without_rows_changes_nothing() {
    let none: [i64; 0] = [];
    let edges = Edges { ids: &none, sources: &none, targets: &none, times: &none, columns: &[&[]] };
    for mode in [Mode::Batch, Mode::Causal] {
        for call in [CALLS[0], CALLS[2], CALLS[3], CALLS[4]] {
            let ((mut one, next), (mut other, _)) = (engine(mode), engine(mode));
            assert_eq!(call(&mut one, &edges), Ok(Default::default()));
            assert_eq!(one.stats(), other.stats());
            let [got, want] = [&mut one, &mut other]
                .map(|engine| next.with(|edges| engine.patterns(edges, 100)).unwrap());
            assert_eq!(got, want);
        }
        // `start` empties the graph.
        let (mut engine, _) = engine(mode);
        engine.start(&edges).unwrap();
        assert_eq!(engine.stats(), Default::default());
    }
}
