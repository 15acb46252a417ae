//! Bytes that a node retains, or publishes for its clients: never torn, after a kill at any step.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use farrow_memory::Access;

use super::support::{TestClient, TestRegion, small};
use crate::{CLUSTER_BYTES_MAX, Home, NamespaceId, Newcomer, RemoteClient, StoreError, failpoints};

struct KilledAtFailpoint;

/// Run until the failpoint, which must be passed.
fn kill_at<T>(name: &'static str, run: impl FnOnce() -> T) {
    failpoints::set_local(Some(Box::new(move |at| {
        if at == name {
            resume_unwind(Box::new(KilledAtFailpoint));
        }
    })));
    let ended = catch_unwind(AssertUnwindSafe(run));
    failpoints::set_local(None);
    assert!(ended.is_err(), "{name} was not passed");
}

fn adopt(world: &TestRegion) -> Home {
    Home::adopt(world.map(Access::Home)).unwrap().0
}

#[test]
fn what_was_retained_last_is_found_by_the_next_home() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    assert_eq!(home.retained_for_cluster().unwrap(), None);
    for text in ["one", "two", "", "four"] {
        home.keep_for_cluster(text.as_bytes()).unwrap();
        assert_eq!(adopt(&world).retained_for_cluster().unwrap().unwrap(), text.as_bytes());
    }
}

/// Kill a home while it retains and while it publishes: the old bytes stay retained, and no bytes
/// are published.
pub(super) fn kill_while_telling() -> BTreeSet<&'static str> {
    let world = TestRegion::new(small());
    let mut home = world.create();
    for round in 0..5_u8 {
        home.keep_for_cluster(&[round; 40]).unwrap();
        kill_at("cluster.keep.filled", || home.keep_for_cluster(&[99; 400]));
        home = adopt(&world);
        assert_eq!(home.retained_for_cluster().unwrap().unwrap(), [round; 40]);
        home.publish_members(&[round; 40]).unwrap();
        kill_at("cluster.publish.filled", || home.publish_members(&[99; 400]));
        home = adopt(&world);
        assert_eq!(world.reader().published_members().unwrap(), None, "it was being changed");
    }
    BTreeSet::from(["cluster.keep.filled", "cluster.publish.filled"])
}

#[test]
fn clients_see_what_is_reported_whole_or_not_at_all() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    assert_eq!(
        (client.reader.members_version().unwrap(), client.reader.published_members().unwrap()),
        (0, None)
    );
    home.publish_members(b"first").unwrap();
    let (number, bytes) = client.reader.published_members().unwrap().unwrap();
    assert_eq!((number, &*bytes), (client.reader.members_version().unwrap(), &b"first"[..]));
    kill_at("cluster.publish.filled", || home.publish_members(b"second"));
    assert_eq!(client.reader.published_members().unwrap(), None, "it was being changed");
    assert_ne!(client.reader.members_version().unwrap(), number);
    let mut home = adopt(&world);
    home.publish_members(b"third").unwrap();
    let (next, bytes) = client.reader.published_members().unwrap().unwrap();
    assert!(next > number);
    assert_eq!(bytes, b"third");
}

#[test]
fn more_than_fits_is_refused_and_changes_nothing() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let most = vec![7; CLUSTER_BYTES_MAX as usize];
    home.keep_for_cluster(&most).unwrap();
    let more = vec![8; CLUSTER_BYTES_MAX as usize + 1];
    assert!(matches!(home.keep_for_cluster(&more), Err(StoreError::Inconsistent(_))));
    assert_eq!(home.retained_for_cluster().unwrap().unwrap(), most);
}

#[test]
fn a_client_of_another_node_is_known_as_such_after_a_restart() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let remote_client = Some(RemoteClient { node: u64::MAX });
    let namespace = NamespaceId::DEFAULT;
    let newcomer = Newcomer { pid: 5, start_time: 6, uid: 7, namespace, remote_client };
    let slot = home.client_join_as(&newcomer).unwrap().client;
    let own = home.client_join(8, 9, 10).unwrap().client;
    let home = adopt(&world);
    assert_eq!(home.client(slot).unwrap().remote_client, remote_client);
    assert_eq!(home.client(own).unwrap().remote_client, None);
}
