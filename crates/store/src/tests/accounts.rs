//! Accounts of clients: they match the objects, outlive a home, and never mix.

use farrow_memory::Length;

use super::support::{TestClient, TestRegion, small};
use crate::{Target, Usage};

const PAGE: Length = Length(4096);

fn usage(bytes: u64, objects: u32) -> Usage {
    Usage { bytes: Length(bytes), objects }
}

#[test]
fn what_a_client_makes_is_its_own_until_the_memory_is_free() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let one = TestClient::join(&world, &mut home).unwrap();
    let two = TestClient::join(&world, &mut home).unwrap();
    let grant = home.grant(one.slot, PAGE, PAGE).unwrap();
    assert_eq!(home.usage_of(one.slot), usage(4096, 0));
    home.release(one.slot, &[grant]).unwrap();
    let before = home.usage_of(one.slot).bytes.0;
    let id = one.put(&mut home, b"bytes", None).unwrap();
    assert_eq!(home.usage_of(one.slot).objects, 1);
    let held = two.reader.hold(&two.holds, Target::Id(id)).unwrap();
    home.delete(Target::Id(id)).unwrap();
    assert_eq!(home.usage_of(one.slot).objects, 0);
    assert!(home.usage_of(one.slot).bytes.0 > before, "somebody reads it");
    assert_eq!(home.usage_of(two.slot), usage(0, 0));
    drop(held);
    home.reclaim().unwrap();
    home.check().unwrap();
}

#[test]
fn accounts_outlive_a_home_but_not_their_client() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let one = TestClient::join(&world, &mut home).unwrap();
    let two = TestClient::join(&world, &mut home).unwrap();
    for _ in 0..3 {
        one.put(&mut home, b"of one", None).unwrap();
    }
    two.put(&mut home, b"of two", None).unwrap();
    let before = (home.usage_of(one.slot), home.usage_of(two.slot));
    assert_eq!((before.0.objects, before.1.objects), (3, 1));
    drop(home);
    let mut home = world.adopt();
    assert_eq!((home.usage_of(one.slot), home.usage_of(two.slot)), before);
    home.client_leave(one.slot).unwrap();
    assert_eq!((home.usage_of(one.slot), home.usage_of_ended().objects), (usage(0, 0), 3));
    home.check().unwrap();
    // Another client in the same slot starts with nothing.
    let three = TestClient::join(&world, &mut home).unwrap();
    assert_eq!((three.slot, home.usage_of(three.slot)), (one.slot, usage(0, 0)));
    three.put(&mut home, b"of three", None).unwrap();
    assert_eq!((home.usage_of(three.slot).objects, home.usage_of_ended().objects), (1, 3));
    home.check().unwrap();
}
