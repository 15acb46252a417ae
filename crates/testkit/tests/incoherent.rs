//! The behaviour of the simulated nodes: a fabric that hid a mistake would be useless as a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use farrow_memory::{Access, Fabric, Length, Offset, Proximity, Region, Span, page_bytes};
use farrow_testkit::fabric::{data_pages, geometry};
use farrow_testkit::incoherent::{CacheSettings, CallWatch, IncoherentNodes, NodeFabric, Upkeep};

fn cluster(line_bytes: u32, acts: u32) -> IncoherentNodes {
    IncoherentNodes::new(geometry(), 3, CacheSettings { line_bytes, acts, seed: 7 })
}

fn word_at(region: &Region, offset: Offset) -> u64 {
    let mut bytes = [0; 8];
    region.copy_out(offset, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Without a demon, only publish and refresh move lines.
#[test]
fn nothing_arrives_unless_both_sides_act() {
    for line_bytes in [64, 128] {
        let cluster = cluster(line_bytes, 0);
        let (writer, reader) = (cluster.map(1, Access::Client), cluster.map(2, Access::Client));
        let page = data_pages(0, 1);
        let at = Span::new(page.offset, Length(8));
        writer.alias(page).unwrap().write(at.offset, &7u64.to_le_bytes()).unwrap();
        reader.refresh(at).unwrap();
        assert_eq!(word_at(&reader, at.offset), 0, "not published");
        assert_eq!(cluster.node(1).caches().dirty_lines(page), 1);
        writer.publish(at).unwrap();
        assert_eq!(cluster.node(1).caches().dirty_lines(page), 0);
        assert_eq!(word_at(&reader, at.offset), 0, "not refreshed");
        reader.refresh(at).unwrap();
        assert_eq!(word_at(&reader, at.offset), 7);
        assert_eq!(cluster.memory(at), [7]);
    }
}

/// Lines move as a whole: of two nodes that write one line, the later overwrites all of it.
#[test]
fn two_writers_of_one_line_lose() {
    for (line_bytes, distance, is_lost) in
        [(64, 32, true), (64, 64, false), (128, 64, true), (128, 128, false)]
    {
        let cluster = cluster(line_bytes, 0);
        let page = data_pages(0, 1);
        let second = Offset(page.offset.0 + distance);
        let writers = [1, 2].map(|node| cluster.map(node, Access::Client));
        for (region, at) in writers.iter().zip([page.offset, second]) {
            region.alias(page).unwrap().write(at, &[9; 8]).unwrap();
        }
        for (region, at) in writers.iter().zip([page.offset, second]) {
            region.publish(Span::new(at, Length(8))).unwrap();
        }
        let first = cluster.memory(Span::new(page.offset, Length(8)))[0];
        assert_eq!(first == 0, is_lost, "lines of {line_bytes}, {distance} B apart");
    }
}

/// A node that stores the value already in memory, over an older copy of its own, is clean after
/// publish. It once was not, and its line later overwrote that of another node.
#[test]
fn what_is_published_is_clean() {
    let cluster = cluster(64, 0);
    let page = data_pages(0, 1);
    let at = Span::new(page.offset, Length(8));
    let (first, second) = (cluster.map(1, Access::Client), cluster.map(2, Access::Client));
    let write = |region: &Arc<Region>, byte| {
        region.alias(page).unwrap().write_published(at.offset, &[byte; 8]).unwrap();
    };
    write(&first, 1);
    write(&second, 2);
    write(&first, 2);
    assert_eq!(cluster.node(1).caches().dirty_lines(page), 0);
    write(&second, 3);
    cluster.disturb(10_000);
    assert_eq!(cluster.memory(at), [u64::from_le_bytes([3; 8])]);
}

/// The hazard that quarantine prevents: a line that its writer forgot is written back over later
/// bytes of another node.
#[test]
fn the_demon_writes_back_what_was_forgotten() {
    let cluster = cluster(64, 0);
    let page = data_pages(0, 1);
    let at = Span::new(page.offset, Length(8));
    let (first, second) = (cluster.map(1, Access::Client), cluster.map(2, Access::Client));
    first.alias(page).unwrap().write(at.offset, &[1; 8]).unwrap();
    second.alias(page).unwrap().write(at.offset, &[2; 8]).unwrap();
    second.publish(at).unwrap();
    assert_eq!(cluster.memory(at), [u64::from_le_bytes([2; 8])]);
    let mut rounds = 0;
    while cluster.memory(at) != [u64::from_le_bytes([1; 8])] {
        cluster.disturb(1000);
        rounds += 1;
        assert!(rounds < 10_000, "the demon never struck");
    }
    // It also fetched the line for the second node, which did not write it since.
    while word_at(&second, at.offset) != u64::from_le_bytes([1; 8]) {
        cluster.disturb(1000);
        rounds += 1;
        assert!(rounds < 20_000, "the demon never fetched");
    }
}

/// After a power loss a node has only the bytes in memory.
#[test]
fn a_power_cut_loses_what_was_not_written_back() {
    let cluster = cluster(64, 0);
    let span = data_pages(0, 4);
    let region = cluster.map(1, Access::Client);
    region.alias(span).unwrap().write(span.offset, &vec![3; span.length.as_usize()]).unwrap();
    cluster.node(1).caches().power_off();
    assert_eq!(cluster.node(1).caches().dirty_lines(span), 0);
    let retained = cluster.memory(span);
    let mut seen = vec![0; span.length.as_usize()];
    region.copy_out(span.offset, &mut seen).unwrap();
    let retained: Vec<u8> = retained.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(retained == seen);
    assert!(retained.contains(&3) && retained.contains(&0), "some lines survive, some do not");
}

/// A call that a mutant omits has no effect.
#[test]
fn a_watch_can_leave_calls_out() {
    let cluster = cluster(64, 0);
    let watch: CallWatch = Arc::new(|call| call.what == Upkeep::Refresh || call.node != 1);
    cluster.watch(&watch);
    let page = data_pages(0, 1);
    let region = cluster.map(1, Access::Client);
    region.alias(page).unwrap().write_published(page.offset, &[5; 64]).unwrap();
    assert_eq!(cluster.memory(Span::new(page.offset, Length(8))), [0]);
}

/// Threads of one node store to a line while the demon moves it: no store is lost.
#[test]
fn stores_beside_the_demon_are_retained() {
    let cluster = cluster(128, 0);
    let page = data_pages(0, 1);
    let region = cluster.map(1, Access::Client);
    let alias = region.alias(page).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let alias = &alias;
            scope.spawn(move || {
                let at = Offset(page.offset.0 + thread * 8);
                for round in 1..2000u64 {
                    alias.write(at, &round.to_le_bytes()).unwrap();
                    assert_eq!(word_at(alias.region(), at), round);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..500 {
                region.refresh(Span::new(page.offset, Length(128))).unwrap();
                cluster.disturb(20);
            }
        });
    });
    region.publish(page).unwrap();
    assert_eq!(cluster.memory(Span::new(page.offset, Length(16))), [1999, 1999]);
}

const CHILD_DIR: &str = "FARROW_TEST_INCOHERENT_DIR";

/// A node in another process exchanges bytes only by publish and refresh.
#[test]
fn nodes_in_two_processes_share_memory() {
    let settings = CacheSettings { acts: 4, ..CacheSettings::default() };
    let (requested, answer) = (data_pages(1, 1), data_pages(2, 1));
    let map = |dir: &Path, node| {
        let fabric = NodeFabric::open(dir, node, geometry(), settings).unwrap();
        let fabric: Arc<dyn Fabric> = fabric;
        Region::map_from(fabric, Access::Client, None, Proximity::Remote).map(Arc::new).unwrap()
    };
    let read = |region: &Arc<Region>, span: Span| {
        region.refresh(span).unwrap();
        region.sealed(span).unwrap().to_vec()
    };
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        let region = map(Path::new(&dir), 2);
        let mut bytes = read(&region, requested);
        bytes.reverse();
        region.alias(answer).unwrap().write_published(answer.offset, &bytes).unwrap();
        return;
    }
    let cluster = IncoherentNodes::new(geometry(), 1, settings);
    let region = map(&cluster.dir(), 1);
    let bytes: Vec<u8> = (0..page_bytes()).map(|at| (at / 5) as u8).collect();
    region.alias(requested).unwrap().write_published(requested.offset, &bytes).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "nodes_in_two_processes_share_memory"])
        .env(CHILD_DIR, cluster.dir())
        .status();
    assert!(child.unwrap().success());
    let mut back = read(&region, answer);
    back.reverse();
    assert!(back == bytes);
}
