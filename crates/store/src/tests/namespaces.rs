//! Namespaces: separate names and accounts, shared ids, also over restarts.

use farrow_memory::Length;

use super::support::{TestClient, TestRegion, part, small};
use crate::{
    Lru, NamespaceId, NamespaceOptions, Need, SealRequest, StoreError, Target, Usage, Within,
    full_name, own_name,
};

fn options(name: &str) -> NamespaceOptions {
    NamespaceOptions { name: name.to_owned(), ..NamespaceOptions::default() }
}

#[test]
fn a_name_is_one_object_in_each_namespace() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let id = home.create_namespace(&options("team")).unwrap();
    let one = TestClient::join(&world, &mut home).unwrap();
    let two = TestClient::join_in(&world, &mut home, "team").unwrap();
    let ours = one.put(&mut home, b"ours", Some("x")).unwrap();
    let theirs = two.put(&mut home, b"theirs", Some("x")).unwrap();
    assert_eq!(one.reader.find("x").unwrap().map(|entry| entry.id), Some(ours));
    let found = two.reader.find("x").unwrap().unwrap();
    assert_eq!((found.id, found.namespace), (theirs, id));
    assert_eq!(one.reader.by_id(theirs).unwrap(), Some(found), "ids lead everywhere");
    assert_eq!(home.find(Target::Name("team\0x")).unwrap(), found);
    match two.put(&mut home, b"again", Some("x")) {
        Err(StoreError::NameTaken { name }) => assert_eq!(name, "x"),
        other => panic!("{other:?}"),
    }
    let list = |client: &TestClient| {
        let listed = client.reader.list("").unwrap();
        listed.into_iter().map(|one| (one.entry.id, one.name)).collect::<Vec<_>>()
    };
    assert_eq!(list(&one), [(ours, Some("x".to_owned()))]);
    assert_eq!(list(&two), [(theirs, Some("x".to_owned()))]);
    assert_eq!(one.reader.list("team").unwrap(), []);
    // An unnamed object is in the namespace of its client, even if the client sealed it itself.
    two.entries.add_pages(home.entry_pages(two.slot, 1).unwrap()).unwrap();
    let grant = home.grant(two.slot, Length(4096), Length(4096)).unwrap();
    let own = two.seal_local(part(grant, 0, 128), 7).unwrap();
    assert_eq!((list(&one).len(), list(&two).len()), (1, 2));
    assert_eq!(one.reader.by_id(own).unwrap().unwrap().namespace, id);
    let mut events = one.reader.events(0).unwrap();
    let mut seen = Vec::new();
    while let Some(crate::Seen::Event(event)) = events.advance().unwrap() {
        seen.push((event.namespace, event.name));
    }
    let x = "x".to_owned();
    assert_eq!(seen, [(NamespaceId::DEFAULT, x.clone()), (id, x)]);
    drop(home);
    let mut home = world.adopt();
    home.client_leave(two.slot).unwrap();
    assert_eq!(one.reader.by_id(own).unwrap().unwrap().namespace, id);
    let taken = home.take_over(own).unwrap();
    assert_eq!(home.find(Target::Id(taken)).unwrap().namespace, id);
    assert_eq!((list(&one).len(), list(&two).len()), (1, 2));
    home.check().unwrap();
}

#[test]
fn names_of_others_are_refused() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    home.create_namespace(&options("team")).unwrap();
    home.create_namespace(&options("tea")).unwrap();
    let clients = ["", "team", "tea"].map(|n| TestClient::join_in(&world, &mut home, n).unwrap());
    let long = format!("tea\0{}", "x".repeat(252));
    for (i, full) in [
        (0, "team\0x"),
        (0, "\0x"),
        (1, "x"),
        (1, "teamx"),
        (1, "tea\0x"),
        (1, "team\0"),
        (1, "team"),
        (1, "team\0x\0y"),
        (2, "team\0x"),
        (2, "tea\0team\0x"),
        (2, &long),
    ] {
        let client = &clients[i];
        assert!(matches!(home.reserve(client.slot, full), Err(StoreError::NameInvalid { .. })));
        let grant = home.grant(client.slot, Length(1), Length(1)).unwrap();
        let request = SealRequest::bytes(part(grant, 0, 128), Length(1), Some(full));
        let sealed = home.seal(client.slot, &request, 1);
        assert!(matches!(sealed, Err(StoreError::NameInvalid { .. })), "{i} {full:?}");
        home.release(client.slot, &[grant]).unwrap();
    }
    home.reserve(clients[1].slot, "team\0x").unwrap();
    let longest = "x".repeat(251);
    let full = full_name("tea", &longest).unwrap();
    assert_eq!((full.len(), own_name(&full)), (255, longest.as_str()));
    home.reserve(clients[2].slot, &full).unwrap();
    match full_name("tea", &"x".repeat(252)) {
        Err(StoreError::NameInvalid { bytes, max }) => assert_eq!((bytes, max), (252, 251)),
        other => panic!("{other:?}"),
    }
    home.check().unwrap();
}

#[test]
fn accounts_are_those_of_the_namespace_and_outlive_client_and_home() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let limited = NamespaceOptions {
        bytes_max: Some(1 << 20),
        objects_max: Some(3),
        writers: Some(vec![7, 8, 9, 10, 11, 12, 13, 14]),
        ..options("team")
    };
    let id = home.create_namespace(&limited).unwrap();
    let one = TestClient::join_in(&world, &mut home, "team").unwrap();
    let two = TestClient::join_in(&world, &mut home, "team").unwrap();
    let other = TestClient::join(&world, &mut home).unwrap();
    let object = one.put(&mut home, b"x", None).unwrap();
    two.put(&mut home, b"y", Some("y")).unwrap();
    other.put(&mut home, b"z", Some("y")).unwrap();
    let usage = home.usage_of_namespace(id);
    assert_eq!((usage.objects, home.usage_of_namespace(NamespaceId::DEFAULT).objects), (2, 1));
    home.client_leave(one.slot).unwrap();
    two.put(&mut home, b"y", None).unwrap();
    assert_eq!(home.usage_of_namespace(id).objects, 3);
    let before = home.usage_of_namespace(id);
    drop(home);
    let mut home = world.adopt();
    assert_eq!(home.usage_of_namespace(id), before);
    assert_eq!(home.namespace("team").unwrap().options, limited);
    assert_eq!(home.namespace_of(two.slot).unwrap().id, id);
    match home.drop_namespace("team") {
        Err(StoreError::NamespaceInUse { objects: 3, clients: 1, bytes, .. }) => {
            assert_eq!(bytes, before.bytes);
        }
        other => panic!("{other:?}"),
    }
    let within = Within { policy: &Lru, namespace: id };
    home.set_time(u64::MAX);
    let evicted = home.evict_for(&within, Need::Bytes(Length(u64::MAX))).unwrap();
    assert_eq!((evicted.objects, home.stats().unwrap().objects), (3, 1));
    assert!(home.find(Target::Id(object)).is_err());
    home.client_leave(two.slot).unwrap();
    assert_eq!(home.usage_of_namespace(id), Usage::default());
    home.drop_namespace("team").unwrap();
    assert!(matches!(home.namespace("team"), Err(StoreError::NoSuchNamespace { .. })));
    home.check().unwrap();
}

#[test]
fn the_table_has_rules() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    for (name, length) in [("", 0), ("a\0b", 3), (&*"n".repeat(64), 64)] {
        match home.create_namespace(&options(name)) {
            Err(StoreError::NamespaceNameInvalid { bytes }) => assert_eq!(bytes, length),
            other => panic!("{other:?}"),
        }
    }
    let crowd = NamespaceOptions { writers: Some(vec![1; 9]), ..options("crowd") };
    let refused = home.create_namespace(&crowd);
    assert!(matches!(refused, Err(StoreError::TooManyWriters { found: 9, max: 8 })));
    for i in 0..4 {
        home.create_namespace(&options(&format!("{i}{}", "n".repeat(62)))).unwrap();
    }
    let taken = home.create_namespace(&options(&format!("2{}", "n".repeat(62))));
    assert!(matches!(taken, Err(StoreError::NameTaken { .. })));
    let full = home.create_namespace(&options("one more"));
    assert!(matches!(full, Err(StoreError::TooManyNamespaces { max: 4 })));
    match home.drop_namespace("nobody's") {
        Err(StoreError::NoSuchNamespace { known, .. }) => assert_eq!(known.len(), 4),
        other => panic!("{other:?}"),
    }
    assert!(matches!(home.drop_namespace(""), Err(StoreError::NamespaceInUse { .. })));
    home.check().unwrap();
}
