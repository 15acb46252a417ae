//! Connections to the data servers of other nodes.

use std::sync::Arc;

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_net::pack::PackMode;
use farrow_net::records::Credentials;
use farrow_store::{Home, Layout, RegionOptions};

use super::{Net, NetOptions};
use crate::protocol::net::NetAction;

/// Regression test: a node started again with other memory at the same address. No connection to it
/// was made until a view of the cluster without it had been seen: each had the old length.
#[test]
fn a_node_with_other_memory_at_the_same_address_is_connected_again() {
    let options = RegionOptions::for_capacity(Length(1 << 20));
    let geometry = Layout::new(&options).unwrap().geometry;
    let fabric = Arc::new(ShmFabric::memfd("connect", geometry).unwrap());
    let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
    let _home = Home::create(Arc::clone(&region), &options, 0).unwrap();
    let options = NetOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        credentials: Credentials::Plain,
        packing: PackMode::Off,
        #[cfg(feature = "rdma")]
        rdma: None,
    };
    let mut net = Net::start(&region, options).unwrap();
    let mut connect = |addresses: &[&str], section| {
        let node = "b".to_owned();
        let addresses = addresses.iter().map(ToString::to_string).collect();
        net.perform(NetAction::Connect { node, addresses, section });
        net.peer("b").unwrap()
    };
    let first = connect(&["127.0.0.1:9"], 1 << 20);
    assert!(Arc::ptr_eq(&first, &connect(&["127.0.0.1:9"], 1 << 20)), "nothing has changed");
    let second = connect(&["127.0.0.1:9"], 1 << 21);
    assert_eq!(second.section(), Length(1 << 21));
    let third = connect(&["127.0.0.1:10", "[::1]:10"], 1 << 21);
    assert!(!Arc::ptr_eq(&second, &third), "it listens elsewhere");
    let again = connect(&["[::1]:10", "127.0.0.1:10"], 1 << 21);
    assert!(Arc::ptr_eq(&third, &again), "the same addresses");
}
