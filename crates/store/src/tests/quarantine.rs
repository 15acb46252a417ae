//! Memory that a lost client could write is not reused until its node reports that it is clean.

use farrow_memory::{Length, page_bytes};

use super::support::{TestClient, TestRegion, small};
use crate::{StoreError, Target};

#[test]
fn what_a_lost_client_could_write_waits_and_is_counted() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (lost, other) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let page = Length(page_bytes());
    let capacity = home.stats().unwrap().capacity;
    let extent = home.grant(lost.slot, page, page).unwrap();
    let pages = home.entry_pages(lost.slot, 1).unwrap();
    home.reserve(lost.slot, "wanted").unwrap();
    // All the rest: only the memory of the lost client is left.
    let rest = Length(capacity.0 - page.0);
    let theirs = home.grant(other.slot, rest, rest).unwrap();

    let quarantined = home.quarantine(lost.slot).unwrap();
    let blocks = home.hold_blocks_of(lost.slot);
    assert_eq!(quarantined.spans, [extent, blocks[0], pages]);
    assert_eq!(quarantined.bytes, page);
    let stats = home.stats().unwrap();
    assert_eq!((stats.quarantine, stats.granted, stats.free), (page, rest, Length(0)));
    home.check().unwrap();
    assert!(matches!(home.grant(other.slot, page, page), Err(StoreError::OutOfMemory { .. })));
    home.reserve(other.slot, "wanted").unwrap();

    // It is known, and can do nothing.
    assert_eq!(home.quarantined().collect::<Vec<_>>(), [lost.slot]);
    let slot = lost.slot.0;
    let is_refused =
        |error: StoreError| matches!(error, StoreError::NoSuchClient { slot: s } if s == slot);
    assert!(is_refused(home.quarantine(lost.slot).unwrap_err()));
    assert!(is_refused(home.client_leave(lost.slot).unwrap_err()));
    assert!(is_refused(home.client_resume(lost.slot, lost.nonce, 42).unwrap_err()));
    assert!(is_refused(home.grant(lost.slot, page, page).unwrap_err()));
    assert!(is_refused(home.hold_block(lost.slot).unwrap_err()));
    assert!(is_refused(home.entry_pages(lost.slot, 1).unwrap_err()));
    assert!(is_refused(home.reserve(lost.slot, "another").unwrap_err()));
    assert!(is_refused(home.release(lost.slot, &[extent]).unwrap_err()));
    assert!(home.release_quarantine(other.slot).is_err(), "it is not in quarantine");

    let reclaimed = home.release_quarantine(lost.slot).unwrap();
    assert_eq!((reclaimed.granted, reclaimed.hold_blocks), (page, 1));
    assert_eq!(home.stats().unwrap().quarantine, Length(0));
    assert_eq!(home.grant(other.slot, page, page).unwrap(), extent);
    home.release(other.slot, &[theirs]).unwrap();
    home.check().unwrap();
}

#[test]
fn what_a_lost_client_held_comes_back_at_once_and_what_it_sealed_stays() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (lost, other) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let held = other.put(&mut home, b"held", None).unwrap();
    let retained = lost.put(&mut home, b"kept", Some("kept")).unwrap();
    let pages = home.entry_pages(lost.slot, 1).unwrap();
    lost.entries.add_pages(pages).unwrap();
    let block = home.grant(lost.slot, Length(128), Length(128)).unwrap();
    let own = lost.seal_local(super::support::part(block, 0, 128), 5).unwrap();
    let hold = lost.reader.hold(&lost.holds, Target::Id(held)).unwrap();
    assert!(!home.delete(Target::Id(held)).unwrap().freed_now);
    lost.holds.abandon();
    drop(hold);

    assert_eq!(home.quarantine(lost.slot).unwrap().reclaimed.objects, 1);
    home.check().unwrap();
    for id in [retained, own] {
        assert!(home.find(Target::Id(id)).is_ok() && other.reader.by_id(id).unwrap().is_some());
    }
    assert!(home.delete(Target::Id(own)).unwrap().freed_now);
    home.release_quarantine(lost.slot).unwrap();
    assert_eq!(home.find(Target::Name("kept")).unwrap().id, retained);
    home.check().unwrap();
}

/// In the region a client in quarantine is still joined: a successor reuses none of its memory
/// before it receives the same report.
#[test]
fn quarantine_outlives_the_home() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let lost = TestClient::join(&world, &mut home).unwrap();
    let page = Length(page_bytes());
    let extent = home.grant(lost.slot, page, page).unwrap();
    home.quarantine(lost.slot).unwrap();
    drop(home);
    let mut home = world.adopt();
    assert_eq!(home.quarantined().count(), 0);
    assert_eq!(home.clients().map(|record| record.client).collect::<Vec<_>>(), [lost.slot]);
    assert_eq!(home.writable_by(lost.slot)[0], extent);
    home.quarantine(lost.slot).unwrap();
    assert_eq!(home.stats().unwrap().quarantine, page);
    home.release_quarantine(lost.slot).unwrap();
    assert_eq!(home.clients().count(), 0);
    home.check().unwrap();
}
