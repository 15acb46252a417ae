//! Names with wrong bytes in them. Adoption did not compare a name with the hash in its entry: one
//! name that was not UTF-8 made every listing fail, and its object could not be found.

use farrow_memory::{Access, Length, Offset};

use super::support::{TestClient, TestRegion, part, small};
use crate::{Home, SealRequest, Target};

/// Objects with names, and one without.
fn named() -> (TestRegion, TestClient, Home) {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let extent = home.grant(client.slot, Length(4 << 12), Length(4 << 12)).unwrap();
    for (number, name) in [Some("one"), Some("two"), Some("three"), None].into_iter().enumerate() {
        let block = part(extent, number as u64 * 4096, 128);
        home.seal(client.slot, &SealRequest::bytes(block, Length(5), name), 1).unwrap();
    }
    (world, client, home)
}

fn names(client: &TestClient) -> Vec<(Option<String>, bool)> {
    let listed = client.reader.list("").unwrap().into_iter();
    listed.map(|one| (one.name, one.is_name_damaged)).collect()
}

fn own(name: &str) -> (Option<String>, bool) {
    (Some(name.to_owned()), false)
}

/// Overwrite the bytes of an object's name.
fn overwrite(world: &TestRegion, at: Offset, bytes: &[u8]) {
    world.map(Access::Home).write(at, bytes).unwrap();
}

#[test]
fn a_damaged_name_is_listed_as_such_and_its_object_is_found_and_deleted_by_id() {
    let (world, client, mut home) = named();
    let two = client.reader.find("two").unwrap().unwrap();
    for (bytes, what) in [(b"\xff\xfe\0", "no UTF-8"), (b"owt", "another name")] {
        overwrite(&world, two.name.offset, bytes);
        assert_eq!(
            names(&client),
            [own("one"), (None, true), own("three"), (None, false)],
            "{what}"
        );
        assert!(client.reader.find("two").unwrap().is_none(), "{what}");
        assert_eq!(client.reader.by_id(two.id).unwrap(), Some(two), "{what}");
        assert_eq!(client.reader.name_of(&two).unwrap(), None, "{what}");
    }
    assert!(home.delete(Target::Id(two.id)).unwrap().freed_now);
    assert_eq!(names(&client), [own("one"), own("three"), (None, false)]);
    home.check().unwrap();
}

#[test]
fn adoption_keeps_the_object_of_a_damaged_name_without_it_and_says_which() {
    let (world, client, home) = named();
    let two = client.reader.find("two").unwrap().unwrap();
    overwrite(&world, two.name.offset, b"\xff\xfe\xfd");
    drop(home);
    let (mut home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    home.confirm_earlier(client.slot);
    home.check().unwrap();
    assert_eq!((report.objects, report.dropped.len()), (4, 0));
    assert_eq!(report.unnamed.len(), 1);
    assert_eq!(report.unnamed[0].id, Some(two.id));
    let reason = &report.unnamed[0].reason;
    assert!(
        reason.contains("3 B") && reason.contains(&format!("{:#018x}", two.name_hash)),
        "{reason}"
    );
    assert_eq!(names(&client), [own("one"), (None, false), own("three"), (None, false)]);
    // The name is free again, and so is its room; the object is deleted by its id.
    client.put(&mut home, b"new", Some("two")).unwrap();
    assert!(client.reader.find("two").unwrap().is_some());
    assert!(home.delete(Target::Id(two.id)).unwrap().freed_now);
    home.check().unwrap();
    drop(home);
    let (home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    home.check().unwrap();
    assert_eq!((report.unnamed, report.dropped), (vec![], vec![]));
}

#[test]
fn a_heap_of_nothing_but_damage_costs_names_and_no_object() {
    let (world, client, home) = named();
    let names_at = client.reader.layout().names;
    overwrite(&world, names_at.offset, &vec![0xa5; names_at.length.0.min(4096) as usize]);
    drop(home);
    let (mut home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    home.confirm_earlier(client.slot);
    home.check().unwrap();
    assert_eq!((report.objects, report.unnamed.len()), (4, 3));
    for listed in client.reader.list("").unwrap() {
        assert!(home.delete(Target::Id(listed.entry.id)).unwrap().freed_now);
    }
    home.check().unwrap();
}
