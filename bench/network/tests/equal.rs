//! A stream over rows fetched through a connection gives the same features as the plain engine, bit
//! for bit, for all cache settings.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use farrow_bench_network::cache::{CachedContent, Design, Policy, RowCache, RowCacheSettings};
use farrow_bench_network::client::RowClient;
use farrow_bench_network::rows::{FetchSettings, Index, Remote, RunCounters};
use farrow_bench_network::server::serve;
use farrow_bench_network::whatif::{LineCacheShape, LineWait, RemoteMemory};
use farrow_graph::{
    Edges, GraphError, GraphFeatures, ListKind, Mode, PatternSettings, RowRequest, Segment,
    Settings, row_of,
};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

const DEADLINE: Duration = Duration::from_secs(20);

struct PaymentStream {
    ids: Vec<i64>,
    sources: Vec<i64>,
    targets: Vec<i64>,
    times: Vec<i64>,
}

/// Few accounts, some of them hubs, and self-loops: patterns of all kinds.
fn stream(rows: usize, mut seed: u64) -> PaymentStream {
    let mut below = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % end) as i64
    };
    let mut stream = PaymentStream {
        ids: Vec::new(),
        sources: Vec::new(),
        targets: Vec::new(),
        times: Vec::new(),
    };
    let mut time = 0;
    for id in 0..rows as i64 {
        time += below(3);
        stream.ids.push(id);
        stream.sources.push(if below(5) == 0 { 0 } else { below(90) });
        stream.targets.push(if below(5) == 0 { 1 } else { below(90) });
        stream.times.push(time);
    }
    stream
}

impl PaymentStream {
    fn part(&self, from: usize, to: usize) -> Edges<'_> {
        Edges {
            ids: &self.ids[from..to],
            sources: &self.sources[from..to],
            targets: &self.targets[from..to],
            times: &self.times[from..to],
            columns: &[],
        }
    }
}

fn settings(mode: Mode, segment: Option<u64>) -> Settings {
    let bins = |window| Some(PatternSettings { window, bins: vec![2, 3, 4, 6] });
    Settings {
        mode,
        segment,
        time_window: Some(120),
        fan: bins(60),
        degree: bins(120),
        scatter_gather: bins(90),
        temporal_cycle: bins(90),
        simple_cycle: bins(40),
        cycle_length_max: 4,
        ..Settings::default()
    }
}

type TestPlacer<'a> = &'a mut dyn FnMut(u32, Segment) -> Arc<Segment>;

fn features(stream: &PaymentStream, mode: Mode, mut place: Option<TestPlacer<'_>>) -> Vec<u64> {
    let segment = place.is_some().then_some(25);
    let mut engine = GraphFeatures::new(settings(mode, segment)).unwrap();
    let (mut bits, mut number, rows) = (Vec::new(), 0, stream.ids.len());
    for from in (0..rows).step_by(20) {
        let cells = engine.transform(&stream.part(from, (from + 20).min(rows))).unwrap();
        bits.extend(cells.iter().map(|cell| cell.to_bits()));
        while let Some(place) = &mut place
            && let Some(frozen) = engine.freeze()
        {
            engine.attach(place(number, frozen.plan().unwrap().build().unwrap())).unwrap();
            number += 1;
        }
    }
    assert!(place.is_none() || number > 8, "{number} segments");
    bits
}

/// A server on a separate thread, while the test runs.
fn server() -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(listener).await
        })
    });
    receiver.recv_timeout(DEADLINE).unwrap()
}

fn over_network(
    stream: &PaymentStream,
    mode: Mode,
    cache: Option<RowCacheSettings>,
    fetch: FetchSettings,
) -> (Vec<u64>, RunCounters) {
    let client = RowClient::new(server(), DEADLINE).unwrap();
    let remote = Remote::new(client, cache.map(RowCache::new), fetch);
    let bits = features(
        stream,
        mode,
        Some(&mut |number, segment| {
            remote.bring(number, &segment).unwrap();
            Arc::new(remote.segment(number, &segment).unwrap())
        }),
    );
    (bits, remote.counters())
}

fn fetching(design: Design, index: Index, prefetch_max: usize) -> FetchSettings {
    FetchSettings { design, index, prefetch_max, is_traced: false }
}

#[test]
fn rows_over_a_network_change_nothing_whatever_is_retained_of_them() {
    let stream = stream(700, 1);
    for mode in [Mode::Batch, Mode::Causal] {
        let plain = features(&stream, mode, None);
        assert!(plain.iter().filter(|bits| **bits != 0).count() > 500, "patterns");
        for policy in Policy::ALL {
            for content in [CachedContent::Vertices, CachedContent::Full] {
                for (design, index) in
                    [(Design::Thesis, Index::Remote), (Design::Ours, Index::Local)]
                {
                    // Small enough for constant evictions.
                    let cache =
                        RowCacheSettings { policy, content, capacity: 12_000, banks: 2, design };
                    let how = format!("{mode:?}, {cache:?}");
                    let fetch = fetching(design, index, 200);
                    let (bits, counters) = over_network(&stream, mode, Some(cache), fetch);
                    assert!(bits == plain, "{how}");
                    assert!(counters.wire.calls > 0, "{how}");
                    assert_eq!(counters.cache.hits > 0, content == CachedContent::Full, "{how}");
                    if index == Index::Remote {
                        assert!(counters.cache.negative_hits > 0, "{how}");
                    }
                }
            }
        }
    }
}

#[test]
fn rows_over_a_network_change_nothing_where_nothing_is_retained() {
    let stream = stream(500, 2);
    let plain = features(&stream, Mode::Batch, None);
    for (design, index) in [(Design::Thesis, Index::Remote), (Design::Ours, Index::Local)] {
        let (bits, counters) = over_network(&stream, Mode::Batch, None, fetching(design, index, 0));
        assert!(bits == plain, "{design:?}");
        assert_eq!(counters.wire.calls, counters.wire.rows, "each row is a call");
    }
}

#[test]
fn a_prefetch_saves_calls() {
    let stream = stream(700, 3);
    let cache = |design| RowCacheSettings {
        policy: Policy::Lru,
        content: CachedContent::Full,
        capacity: 64 << 20,
        banks: 4,
        design,
    };
    let calls = |design, prefetch_max| {
        let fetch = fetching(design, Index::Local, prefetch_max);
        over_network(&stream, Mode::Batch, Some(cache(design)), fetch).1
    };
    let (one, beside, ahead) =
        (calls(Design::Thesis, 0), calls(Design::Ours, 0), calls(Design::Ours, 1000));
    assert_eq!((one.wire.calls, one.prefetched), (one.cache.misses, 0));
    assert!(beside.wire.calls <= one.wire.calls, "{beside:?} beside {one:?}");
    assert!(ahead.wire.calls < beside.wire.calls, "{ahead:?} beside {beside:?}");
    assert!(ahead.prefetched > 0);
}

#[test]
fn a_server_that_says_nothing_is_an_error_that_names_the_time() {
    let stream = stream(400, 4);
    let deadline = Duration::from_millis(300);
    // The kernel accepts the connection, but no process reads it.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let client = RowClient::new(silent.local_addr().unwrap(), deadline).unwrap();
    let remote = Remote::new(client, None, fetching(Design::Ours, Index::Local, 0));
    let mut engine = GraphFeatures::new(settings(Mode::Batch, Some(25))).unwrap();
    engine.learn(&stream.part(0, 50)).unwrap();
    let segment = engine.freeze().unwrap().plan().unwrap().build().unwrap();
    let late = remote.bring(0, &segment).unwrap_err().to_string();
    assert_eq!(late, "a call had no answer within 300 ms");
    engine.attach(Arc::new(remote.segment(0, &segment).unwrap())).unwrap();
    // After the first failed call no other call is made.
    let edges = stream.part(50, 100);
    let error = engine.transform(&edges).unwrap_err();
    assert!(matches!(error, GraphError::Lost { .. }), "{error}");
    assert!(error.to_string().ends_with(&late), "{error}");
}

#[test]
fn a_segment_that_the_server_does_not_have_is_an_error() {
    let stream = stream(400, 5);
    let client = RowClient::new(server(), DEADLINE).unwrap();
    let remote = Remote::new(client, None, fetching(Design::Ours, Index::Local, 0));
    let mut engine = GraphFeatures::new(settings(Mode::Batch, Some(25))).unwrap();
    engine.learn(&stream.part(0, 50)).unwrap();
    let segment = engine.freeze().unwrap().plan().unwrap().build().unwrap();
    engine.attach(Arc::new(remote.segment(7, &segment).unwrap())).unwrap();
    let error = engine.transform(&stream.part(50, 100)).unwrap_err().to_string();
    assert!(error.contains("there is no segment 7"), "{error}");
}

#[test]
fn a_modelled_memory_changes_nothing_and_counts_the_same_each_time() {
    let stream = stream(700, 6);
    let plain = features(&stream, Mode::Batch, None);
    let memory = RemoteMemory::default();
    let mut placed: Vec<Arc<Segment>> = Vec::new();
    memory.count(LineCacheShape { bytes: 2048, ways: 4 });
    let counted = features(
        &stream,
        Mode::Batch,
        Some(&mut |_, segment| {
            placed.push(Arc::new(memory.segment(Arc::new(segment)).unwrap()));
            Arc::clone(&placed[placed.len() - 1])
        }),
    );
    assert!(counted == plain);
    let touched = memory.touched();
    // An index block, offsets and entries of each row, most of them evicted again.
    assert!(touched.lines >= 3 * touched.rows && touched.rows > 500, "{touched:?}");
    assert!(touched.misses > 100 && touched.misses < touched.lines, "{touched:?}");
    memory.delay(LineWait::default());
    let mut same = |number: u32, _| Arc::clone(&placed[number as usize]);
    assert!(features(&stream, Mode::Batch, Some(&mut same)) == plain);
    let again = memory.touched();
    assert_eq!((again.rows, again.misses), (touched.rows, touched.misses));
    assert_eq!(memory.waited(), touched.misses);
}

#[test]
fn segments_that_fit_whole_are_pinned_within_the_capacity_and_change_nothing() {
    let stream = stream(700, 7);
    let plain = features(&stream, Mode::Batch, None);
    for capacity in [3_000, 30_000, 300_000, 64 << 20] {
        let cache = RowCacheSettings {
            policy: Policy::Lru,
            content: CachedContent::Full,
            capacity,
            banks: 3,
            design: Design::Ours,
        };
        let fetch = fetching(Design::Ours, Index::Local, 1000);
        let remote = Remote::new(
            RowClient::new(server(), DEADLINE).unwrap(),
            Some(RowCache::new(cache)),
            fetch,
        );
        let place = |number, segment: Segment| {
            remote.bring(number, &segment).unwrap();
            Arc::new(remote.segment(number, &segment).unwrap())
        };
        assert!(features(&stream, Mode::Batch, Some(&mut |at, one| place(at, one))) == plain);
        let bytes = remote.bytes().unwrap();
        assert!(bytes <= capacity && bytes > 0, "{bytes} of {capacity}");
        // Pinned rows stay for a graph that attaches the same segments again.
        remote.reset_counters();
        let again = |number, segment: Segment| Arc::new(remote.segment(number, &segment).unwrap());
        assert!(features(&stream, Mode::Batch, Some(&mut |at, one| again(at, one))) == plain);
        let counters = remote.counters();
        assert!(counters.cache.hits > 0, "{counters:?}");
        assert_eq!(counters.wire.calls == 0, capacity >= 300_000, "{counters:?} of {capacity}");
    }
}

#[test]
fn a_prefetch_stops_while_nothing_is_missing_and_starts_again() {
    let stream = stream(400, 8);
    let cache = RowCacheSettings {
        policy: Policy::Lru,
        content: CachedContent::Full,
        capacity: 64 << 20,
        banks: 1,
        design: Design::Ours,
    };
    let fetch = fetching(Design::Ours, Index::Local, 1000);
    let remote =
        Remote::new(RowClient::new(server(), DEADLINE).unwrap(), Some(RowCache::new(cache)), fetch);
    let mut engine = GraphFeatures::new(settings(Mode::Batch, Some(25))).unwrap();
    engine.learn(&stream.part(0, 50)).unwrap();
    let segment = engine.freeze().unwrap().plan().unwrap().build().unwrap();
    remote.bring(0, &segment).unwrap();
    let near = Arc::new(segment);
    remote.segment(0, &near).unwrap();
    let rows = remote.rows(0);
    let lists = [ListKind::Out, ListKind::In];
    let accounts = 0..near.info().accounts as u32;
    let all = accounts.flat_map(|account| lists.map(|list| (account, list)));
    let index = near.buffers().unwrap().index;
    let wanted = |(account, list)| {
        row_of(&index, account, list).map(|place| RowRequest { account, list, place })
    };
    let all: Vec<RowRequest> = all.filter_map(wanted).collect();
    let [others @ .., one, last] = &all[..] else { panic!("{} rows", all.len()) };
    let prefetch = |some: &[RowRequest]| rows.prefetch(&mut some.iter().copied());
    // It fetches, then finds all rows cached, then stops prefetching.
    assert!(rows.is_prefetching() && prefetch(others));
    assert!(rows.is_prefetching() && !prefetch(others));
    assert!(!rows.is_prefetching() && !prefetch(&[*one]), "a rest is a rest");
    assert_eq!(*rows.row(*last), *near.row(last.account, last.list));
    let calls = remote.counters().wire.calls;
    assert!(rows.is_prefetching() && prefetch(&[*one]), "a row was missing");
    assert_eq!(*rows.row(*one), *near.row(one.account, one.list));
    assert_eq!(remote.counters().wire.calls, calls + 1);
}
