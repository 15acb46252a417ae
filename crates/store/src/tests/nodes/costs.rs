//! The cost of coherence: necessary lines, once, and nothing on a coherent region.

use std::sync::Arc;

use farrow_memory::{Access, Counters, Length, Offset, Proximity, Region, Span};
use farrow_testkit::incoherent::{CacheSettings, IncoherentNodes};

use super::world::options;
use crate::tests::support::{TestClient, TestRegion, small};
use crate::{
    EntryTable, HoldTable, Home, Layout, ObjectId, Reader, SealRequest, Target, UseStamps,
};

const BYTES: u64 = 4096;

/// A name and a block of one page, sealed by a client of the home's node.
fn sealed(home: &mut Home, region: &Region) -> Span {
    let client = home.client_join(1, 1, 0).unwrap().client;
    let page = home.grant(client, Length(BYTES), Length(BYTES)).unwrap();
    region.publish(page).unwrap();
    home.seal(client, &SealRequest::bytes(page, page.length, Some("n")), 5).unwrap();
    page
}

struct Looker {
    reader: Reader,
    holds: Arc<HoldTable>,
}

impl Looker {
    fn new(home: &mut Home, region: Arc<Region>) -> Self {
        let client = home.client_join(2, 1, 0).unwrap().client;
        let block = home.hold_block(client).unwrap();
        let holds = Arc::new(HoldTable::new(Arc::clone(&region), &[block]).unwrap());
        Self { reader: Reader::open(region).unwrap(), holds }
    }

    /// Refreshed and published lines of one hold and its end.
    fn hold(&self) -> (u64, u64) {
        let counters = || self.reader.region().counters();
        let before = counters();
        drop(self.reader.hold(&self.holds, Target::Name("n")).unwrap().unwrap());
        let after = counters();
        (
            after.refreshed_lines - before.refreshed_lines,
            after.published_lines - before.published_lines,
        )
    }
}

#[test]
fn an_object_is_refreshed_once() {
    for line_bytes in [64, 128] {
        let layout = Layout::new(&options()).unwrap();
        let settings = CacheSettings { line_bytes, acts: 0, seed: 1 };
        let cluster = IncoherentNodes::new(layout.geometry, 2, settings);
        let mut home = Home::create(cluster.map(0, Access::Home), &options(), 1).unwrap();
        sealed(&mut home, &cluster.map(0, Access::Client));
        let payload = BYTES / u64::from(line_bytes);

        // On the home's node: the bytes, since any node may have written them, and nothing else.
        let near = Looker::new(&mut home, cluster.map(0, Access::Client));
        assert_eq!((near.hold(), near.hold()), ((payload, 0), (0, 0)));
        // On another: header, index, name and entry each time; number of slots, claim and its end.
        let far = Looker::new(&mut home, cluster.map(1, Access::Client));
        let (first, published) = far.hold();
        let (again, published_again) = far.hold();
        assert_eq!(first - again, payload);
        assert!((5..=16).contains(&again), "{again} lines");
        assert_eq!((published, published_again), (3, 2));
        // Another process of the same node, without the marks of the first, refreshes it too.
        let other = Looker { reader: Reader::open(cluster.map(1, Access::Client)).unwrap(), ..far };
        assert!(other.hold().0 >= payload);
    }
}

/// Objects held together are fetched together: as many calls for all of them as for one.
#[test]
fn objects_that_are_got_together_share_their_waits() {
    let settings = CacheSettings { line_bytes: 64, acts: 0, seed: 1 };
    let layout = Layout::new(&options()).unwrap();
    let cluster = IncoherentNodes::new(layout.geometry, 2, settings);
    let mut home = Home::create(cluster.map(0, Access::Home), &options(), 1).unwrap();
    let maker = cluster.map(0, Access::Client);
    let client = home.client_join(1, 1, 0).unwrap().client;
    let entries = EntryTable::new(Arc::clone(&maker), client, 1).unwrap();
    entries.add_pages(home.entry_pages(client, 1).unwrap()).unwrap();
    let page = home.grant(client, Length(BYTES), Length(BYTES)).unwrap();
    maker.publish(page).unwrap();
    let seal = |number: u64| {
        let block = Span::new(Offset(page.offset.0 + number * 128), Length(128));
        let request = SealRequest::bytes(block, Length(100), None);
        entries.seal(&request, 5, None).unwrap().unwrap().0
    };
    let mut ids: Vec<ObjectId> = (0..20).map(seal).collect();
    // And two objects in the directory, one of them deleted.
    for size in [64, 128] {
        let page = home.grant(client, Length(BYTES), Length(BYTES)).unwrap();
        maker.publish(page).unwrap();
        let request = SealRequest::bytes(page, Length(size), None);
        ids.push(home.seal(client, &request, 5).unwrap());
    }
    home.delete(Target::Id(ids[20])).unwrap();

    for node in [0, 1] {
        let looker = Looker::new(&mut home, cluster.map(node, Access::Client));
        let region = looker.reader.region();
        let counted = |ids: &[ObjectId]| {
            let targets: Vec<Target<'_>> = ids.iter().map(|id| Target::Id(*id)).collect();
            let before = region.counters();
            let held = looker.reader.hold_bytes(&looker.holds, &targets, Length(BYTES), |_| false);
            let held = held.unwrap();
            let after = region.counters();
            let are_held: Vec<bool> = (0..ids.len()).map(|at| held.get(at).is_some()).collect();
            let calls = after.refresh_calls - before.refresh_calls;
            (are_held, calls, after.refreshed_lines - before.refreshed_lines)
        };
        let (one, calls_of_one, _) = counted(&ids[..1]);
        let (all, calls, lines) = counted(&ids);
        let (again, calls_again, lines_again) = counted(&ids);
        assert_eq!(one, [true]);
        assert!(all == again && all.iter().enumerate().all(|(at, is_held)| *is_held == (at != 20)));
        assert!(calls <= calls_of_one && calls_again < calls, "{calls_of_one}, {calls} calls");
        // Both lines of each small block, and all of the home's page; the first was already
        // refreshed.
        assert_eq!(lines - lines_again, 19 * 2 + BYTES / 64);
    }
}

#[test]
fn a_coherent_region_is_neither_published_nor_refreshed_by_its_readers() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    client.put(&mut home, b"bytes", Some("n")).unwrap();
    let region =
        Region::map_from(Arc::clone(&world.fabric), Access::Client, None, Proximity::Remote);
    for region in [world.map(Access::Client), Arc::new(region.unwrap())] {
        let looker = Looker::new(&mut home, region);
        assert_eq!(looker.hold(), (0, 0));
        assert!(looker.reader.list("").unwrap().len() == 1);
        let Counters { publish_calls, refresh_calls, .. } = looker.reader.region().counters();
        assert_eq!((publish_calls, refresh_calls), (0, 0));
    }
}

/// Stamps are the only table with more than one writer: between nodes there must be one.
#[test]
fn clients_of_other_nodes_leave_no_stamps() {
    let layout = Layout::new(&options()).unwrap();
    let cluster = IncoherentNodes::new(layout.geometry, 2, CacheSettings::default());
    let mut home = Home::create(cluster.map(0, Access::Home), &options(), 1).unwrap();
    sealed(&mut home, &cluster.map(0, Access::Client));
    for (node, is_left) in [(1, false), (0, true)] {
        let region = cluster.map(node, Access::Client);
        let entry = Reader::open(Arc::clone(&region)).unwrap().find("n").unwrap().unwrap();
        UseStamps::new(&region).unwrap().touch(entry.id.slot(), 1_000_000, 1);
        assert_eq!(cluster.node(node).caches().dirty_lines(layout.uses) > 0, is_left);
        let listed = Reader::open(cluster.map(0, Access::Client)).unwrap().list("").unwrap();
        assert_eq!(listed[0].last_use_ns == 1_000_000, is_left);
    }
}
