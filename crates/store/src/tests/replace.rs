//! An object takes the name of another one.

use std::collections::BTreeSet;

use farrow_memory::Length;
use farrow_memory::sync::{AtomicBool, Ordering};

use super::kills::killed;
use super::support::{TestClient, TestRegion, small};
use crate::failpoints;
use crate::{EventKind, Home, Seen, StoreError, Target};
use crate::{ObjectId, SealRequest};

const OLD: &[u8] = b"old bytes";
const NEW: &[u8] = b"new bytes";

/// Seal bytes in the place of the object of this name.
fn replace(home: &mut Home, client: &TestClient, bytes: &[u8], name: &str) -> (ObjectId, bool) {
    let block = home.grant(client.slot, Length(128), Length(128)).unwrap();
    client.write(block.offset, bytes);
    let size = Length(bytes.len() as u64);
    let request = SealRequest::bytes(block, size, Some(name));
    let done = home.seal_replacing(client.slot, &request, 1).unwrap();
    (done.id, done.replaced.is_some())
}

fn bytes_of(client: &TestClient, name: &str) -> Option<Vec<u8>> {
    let held = client.reader.hold(&client.holds, Target::Name(name)).unwrap()?;
    Some(client.read(held.entry().payload()))
}

#[test]
fn a_name_moves_to_the_new_object_and_the_old_one_goes_with_its_last_hold() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let a = TestClient::join(&world, &mut home).unwrap();
    let first = replace(&mut home, &a, OLD, "n");
    assert!(!first.1, "there was none");
    let held = a.reader.hold(&a.holds, Target::Name("n")).unwrap().unwrap();
    let mut events = a.reader.events(u64::MAX).unwrap();
    let (id, had_one) = replace(&mut home, &a, NEW, "n");
    assert!(had_one && id != first.0);
    assert_eq!(bytes_of(&a, "n").unwrap(), NEW);
    assert_eq!(a.read(held.entry().payload()), OLD, "it is held");
    assert!(a.reader.by_id(first.0).unwrap().is_none());
    let mut reported = Vec::new();
    while let Some(Seen::Event(event)) = events.advance().unwrap() {
        reported.push((event.kind, event.id, event.name));
    }
    let n = || "n".to_owned();
    assert_eq!(reported, [(EventKind::Sealed, id, n()), (EventKind::Deleted, first.0, n())]);
    drop(held);
    assert_eq!(home.reclaim().unwrap().objects, 1);
    home.check().unwrap();
    assert!(home.delete(Target::Name("n")).unwrap().freed_now);
    assert_eq!(bytes_of(&a, "n"), None);
    home.check().unwrap();
}

/// A put with `--replace` deleted the old object first. If the put then failed, both were gone.
#[test]
fn a_replacement_that_fails_leaves_the_old_object() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (a, b) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    let old = a.put(&mut home, OLD, Some("n")).unwrap();
    let others = home.grant(b.slot, Length(128), Length(128)).unwrap();
    let request = SealRequest::bytes(others, Length(1), Some("n"));
    let failed = home.seal_replacing(a.slot, &request, 2);
    assert!(matches!(failed, Err(StoreError::NotYours { .. })), "{failed:?}");
    let too_long = SealRequest { size: Length(1 << 20), ..request.clone() };
    assert!(home.seal_replacing(b.slot, &too_long, 2).is_err());
    // As many objects as there may be: a replacement needs one more for a moment.
    while a.put(&mut home, b"x", None).is_ok() {}
    assert!(home.seal_replacing(b.slot, &request, 2).is_err());
    assert_eq!(home.find(Target::Name("n")).unwrap().id, old);
    assert_eq!(bytes_of(&a, "n").unwrap(), OLD);
    home.check().unwrap();
}

/// A home is killed at each point of a replacement. One of both objects has the name then, no other
/// has it, and no byte leaks.
pub(super) fn kill_while_replacing() -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    for (is_held, is_spilled) in [(false, false), (true, false), (false, true)] {
        for kill in 0.. {
            let world = TestRegion::new(small());
            let mut home = world.create();
            let a = TestClient::join(&world, &mut home).unwrap();
            let old = a.put(&mut home, OLD, Some("n")).unwrap();
            let hold =
                is_held.then(|| a.reader.hold(&a.holds, Target::Name("n")).unwrap().unwrap());
            if is_spilled {
                home.begin_spill(old).unwrap().unwrap();
                home.finish_spill(old).unwrap().unwrap();
            }
            let name = killed(kill, || {
                replace(&mut home, &a, NEW, "n");
            });
            drop(home);
            let mut home = world.adopt();
            let found = a.reader.find("n").unwrap();
            let is_new = found.is_some_and(|entry| entry.id != old);
            assert!(is_new || home.has(Target::Id(old)).unwrap(), "neither is there at {name:?}");
            assert_eq!(is_new, !home.has(Target::Id(old)).unwrap(), "both at {name:?}");
            if is_new {
                assert_eq!(bytes_of(&a, "n").unwrap(), NEW);
                assert_eq!(a.reader.list("").unwrap().len(), 1);
            }
            if let Some(hold) = hold {
                assert_eq!(a.read(hold.entry().payload()), OLD);
            }
            home.delete(Target::Name("n")).unwrap();
            home.reclaim().unwrap();
            home.client_leave(a.slot).unwrap();
            let stats = home.stats().unwrap();
            assert_eq!((stats.free, stats.objects), (stats.capacity, 0), "{name:?}");
            home.check().unwrap();
            match name {
                Some(name) => seen.insert(name),
                None => break,
            };
        }
    }
    seen
}

/// A reader saw the older object of a name retire, and did not look at the place again, which led to the
/// newer one.
#[test]
fn readers_find_a_name_at_every_moment_of_its_replacements() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let (writer, reader) = (
        TestClient::join(&world, &mut home).unwrap(),
        TestClient::join(&world, &mut home).unwrap(),
    );
    replace(&mut home, &writer, OLD, "n");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let bytes = bytes_of(&reader, "n").expect("a name that is always there");
                assert!(bytes == OLD || bytes == NEW, "{bytes:?}");
                let target = Target::Name("n");
                let there = reader.reader.whereabouts(target).unwrap();
                assert_eq!(there, crate::Whereabouts::InMemory);
            }
        });
        for round in 0..3_000 {
            let bytes = if round % 2 == 0 { NEW } else { OLD };
            replace(&mut home, &writer, bytes, "n");
            home.reclaim().unwrap();
            if reading.is_finished() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        reading.join().unwrap();
    });
    home.check().unwrap();
}

/// The slot of the replaced object had an object of another name when the reader looked at it, and the
/// reader took its name for absent.
#[test]
fn a_name_is_found_while_its_former_slot_gets_an_object_of_another_name() {
    let targets: [fn(&TestClient) -> bool; 2] = [
        |reader| reader.reader.find("n").unwrap().is_some(),
        |reader| {
            let there = reader.reader.whereabouts(Target::Name("n")).unwrap();
            there == crate::Whereabouts::InMemory
        },
    ];
    for is_found in targets {
        let world = TestRegion::new(small());
        let mut home = world.create();
        let writer = TestClient::join(&world, &mut home).unwrap();
        let reader = TestClient::join(&world, &mut home).unwrap();
        let (old, _) = replace(&mut home, &writer, OLD, "n");
        let mut state = Some((home, writer));
        failpoints::set_reader(Some(Box::new(move |name| {
            if let (Some((home, writer)), "find.place") = (&mut state, name) {
                replace(home, writer, NEW, "n");
                let other = writer.put(home, b"x", Some("m")).unwrap();
                assert_eq!(other.slot(), old.slot(), "the test needs the same slot");
                state = None;
            }
        })));
        let is_found = is_found(&reader);
        failpoints::set_reader(None);
        assert!(is_found);
    }
}
