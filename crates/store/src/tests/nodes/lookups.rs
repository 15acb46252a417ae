//! Lookups by name during repeated rebuilds of the name index.

use std::sync::Arc;

use farrow_memory::sync::{AtomicU64, Ordering};
use farrow_memory::{Access, Length, Span};
use farrow_testkit::incoherent::{
    CacheSettings, CallWatch, IncoherentNodes, MaintenanceCall, Upkeep,
};

use super::world::options;
use crate::format::header::INDEX_TURN;
use crate::{Home, Layout, Reader, SealRequest, StoreError, Target};

/// A lookup once answered "not there" after 64 rebuilds, for an object that was there all the time.
#[test]
fn a_lookup_fails_if_the_index_is_rebuilt_in_each_round() {
    let layout = Layout::new(&options()).unwrap();
    let settings = CacheSettings { line_bytes: 64, acts: 0, seed: 1 };
    let cluster = IncoherentNodes::new(layout.geometry, 2, settings);
    let home_region = cluster.map(0, Access::Home);
    let mut home = Home::create(Arc::clone(&home_region), &options(), 1).unwrap();
    let client = home.client_join(1, 1, 0).unwrap().client;
    let block = home.grant(client, Length(4096), Length(4096)).unwrap();
    let request = SealRequest::bytes(block, block.length, Some("n"));
    let id = home.seal(client, &request, 5).unwrap();
    let reader = Reader::open(cluster.map(1, Access::Client)).unwrap();
    assert_eq!(reader.find("n").unwrap().unwrap().id, id);

    // Each time the reader asks which table is in use, the tables have changed roles: it searches
    // the empty one, and then finds the other one in use.
    let turns = Arc::new(AtomicU64::new(0));
    let word = Span::new(INDEX_TURN, Length(8));
    let looks = Arc::clone(&turns);
    let watch: CallWatch = Arc::new(move |call: MaintenanceCall| {
        if call.node == 1 && call.what == Upkeep::Refresh && call.span == word {
            let turn = looks.fetch_add(1, Ordering::Relaxed) + 1;
            home_region.write(INDEX_TURN, &turn.to_le_bytes()).unwrap();
            home_region.publish(word).unwrap();
        }
        true
    });
    cluster.watch(&watch);
    let found = reader.find("n");
    assert!(matches!(found, Err(StoreError::IndexBusy { .. })), "{found:?}");
    let place = reader.whereabouts(Target::Name("n"));
    assert!(matches!(place, Err(StoreError::IndexBusy { .. })), "{place:?}");
    assert!(turns.load(Ordering::Relaxed) < 1000, "it ends");
}
