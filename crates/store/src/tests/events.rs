//! Events as subscribers see them: in order, with their gaps, while the ring is overwritten.

use std::thread;

use farrow_memory::sync::{AtomicBool, Ordering};
use proptest::prelude::*;

use super::support::{TestClient, TestRegion, small};
use crate::{Event, EventCursor, EventKind, ObjectKind, Seen, Target};

fn next(cursor: &mut EventCursor) -> Event {
    match cursor.advance().unwrap() {
        Some(Seen::Event(event)) => event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_subscriber_sees_what_happens_in_order() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    client.put(&mut home, b"before", Some("before")).unwrap();
    let (mut oldest, mut now) =
        (client.reader.events(0).unwrap(), client.reader.events(u64::MAX).unwrap());
    assert_eq!(now.advance().unwrap(), None);
    assert_eq!(next(&mut oldest).name, "before");

    let name = "n".repeat(255);
    let id = client.put(&mut home, b"hello", Some(&name)).unwrap();
    let unnamed = client.put(&mut home, b"x", None).unwrap();
    home.set_time(9);
    home.delete(Target::Id(id)).unwrap();
    let sealed = Event {
        number: 1,
        kind: EventKind::Sealed,
        id,
        object_kind: ObjectKind::Bytes,
        size: farrow_memory::Length(5),
        namespace: crate::NamespaceId::DEFAULT,
        name: name.clone(),
        at_ns: 5,
    };
    assert_eq!(next(&mut now), sealed);
    assert_eq!((next(&mut now).id, now.position()), (unnamed, 3));
    let deleted = Event { number: 3, kind: EventKind::Deleted, at_ns: 9, ..sealed };
    assert_eq!(next(&mut now), deleted);
    assert_eq!(now.advance().unwrap(), None);
    assert_eq!((home.events_head(), now.head().unwrap()), (4, 4));
    oldest.skip_to(3).unwrap();
    oldest.skip_to(2).unwrap();
    assert_eq!(next(&mut oldest), deleted);
    oldest.skip_to(1 << 40).unwrap();
    assert_eq!(oldest.position(), 4);

    // Failures cause no events.
    home.delete(Target::Id(id)).unwrap_err();
    client.put(&mut home, b"x", Some("")).unwrap_err();
    assert_eq!(now.advance().unwrap(), None);
}

#[test]
fn a_subscriber_that_is_lapped_learns_how_much_it_missed() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let places = u64::from(world.options.events_max);
    let mut cursor = client.reader.events(0).unwrap();
    for round in 0..places {
        let id = client.put(&mut home, b"x", None).unwrap();
        home.delete(Target::Id(id)).unwrap();
        assert_eq!(home.events_head(), 2 * (round + 1));
    }
    assert_eq!(cursor.advance().unwrap(), Some(Seen::Gap { missed: places }));
    for number in places..2 * places {
        assert_eq!(next(&mut cursor).number, number);
    }
    assert_eq!(cursor.advance().unwrap(), None);
    // A position before the oldest event becomes the oldest one, without a gap.
    assert_eq!(client.reader.events(1).unwrap().position(), places);
}

#[test]
fn an_event_that_is_being_overwritten_or_damaged_is_missed() {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    for _ in 0..world.options.events_max / 2 {
        let id = client.put(&mut home, b"x", None).unwrap();
        home.delete(Target::Id(id)).unwrap();
    }
    let ring = home.layout().events.offset.0;
    let region = world.map(farrow_memory::Access::Home);
    let store = |place: u64, word: u64, value: u64| {
        let at = farrow_memory::Offset(ring + place * 320 + word * 8);
        region.write(at, &value.to_le_bytes()).unwrap();
    };
    let mut cursor = client.reader.events(0).unwrap();
    store(0, 0, 0);
    store(1, 4, 77);
    store(2, 3, u64::MAX);
    for _ in 0..3 {
        assert_eq!(cursor.advance().unwrap(), Some(Seen::Gap { missed: 1 }));
    }
    assert_eq!(next(&mut cursor).number, 3);
}

/// Ends the reader threads, even after a panic.
struct EndsReaders<'a>(&'a AtomicBool);

impl Drop for EndsReaders<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn readers_in_threads_see_whole_events_or_count_them_as_missed() {
    const EVENTS: u64 = 4_000;
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let is_over = AtomicBool::new(false);
    let read = |mut cursor: EventCursor| {
        let (mut seen, mut missed) = (0u64, 0u64);
        loop {
            let was_over = is_over.load(Ordering::Acquire);
            match cursor.advance().unwrap() {
                Some(Seen::Event(event)) => {
                    assert_eq!(event.number, seen + missed);
                    // Each object is named after the number of its first event.
                    let named = event.name.parse::<u64>().unwrap();
                    let is_sealed = event.kind == EventKind::Sealed;
                    assert_eq!(named, if is_sealed { event.number } else { event.number - 1 });
                    seen += 1;
                }
                Some(Seen::Gap { missed: more }) => missed += more,
                None if was_over => return (seen, missed),
                None => thread::yield_now(),
            }
        }
    };
    let counts = thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| client.reader.events(0).unwrap())
            .map(|cursor| scope.spawn(|| read(cursor)))
            .collect();
        let end = EndsReaders(&is_over);
        for number in (0..EVENTS).step_by(2) {
            let name = number.to_string();
            client.put(&mut home, b"x", Some(&name)).unwrap();
            home.delete(Target::Name(&name)).unwrap();
        }
        drop(end);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
    });
    for (seen, missed) in counts {
        assert_eq!(seen + missed, EVENTS);
        assert!(seen >= u64::from(world.options.events_max), "at least the last ones");
    }
}

#[test]
fn kinds_survive_their_numbers() {
    let mut all = 0;
    for kind in EventKind::ALL {
        assert_eq!(EventKind::from_u8(kind.as_u8()), Some(kind));
        assert!(!kind.is_in(all));
        all |= kind.bit();
        assert!(kind.is_in(all));
    }
    assert_eq!((EventKind::from_u8(0), EventKind::from_u8(6)), (None, None));
}

proptest! {
    #[test]
    fn a_ring_of_any_words_never_panics(words: [u64; 40], head: u64, next: u64) {
        let world = TestRegion::new(small());
        let home = world.create();
        let region = world.map(farrow_memory::Access::Home);
        let ring = home.layout().events.offset;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        region.write(ring, &bytes).unwrap();
        region.write(crate::format::header::EVENTS_HEAD, &head.to_le_bytes()).unwrap();
        let mut cursor = world.reader().events(next).unwrap();
        for _ in 0..3 {
            let _: Option<Seen> = cursor.advance().unwrap();
        }
        drop(home);
        world.adopt().check().unwrap();
    }
}
