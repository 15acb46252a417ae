//! Notes of the members that open objects, and room for what they hold.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_net::source::MemberLife;
use farrow_store::{Home, Layout, RegionOptions, SealRequest, Target};

use super::EventSender;
use super::source::RegionSource;
use crate::protocol::net::{HOLDS_PER_MEMBER_MAX, NetEvent, NetReaders};

struct NotesFixture {
    home: Home,
    source: Arc<RegionSource>,
    _events: (mpsc::Receiver<NetEvent>, UnixStream),
}

impl NotesFixture {
    fn new() -> Self {
        let options = RegionOptions::for_capacity(Length(1 << 20));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("notes", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let home = Home::create(Arc::clone(&region), &options, 0).unwrap();
        let (sender, events) = mpsc::channel::<NetEvent>();
        let (wake, woken) = UnixStream::pair().unwrap();
        let event_sender = EventSender::new(sender, wake);
        let source = RegionSource::new(&region, event_sender).unwrap();
        Self { home, source, _events: (events, woken) }
    }
}

fn member(name: &str) -> MemberLife {
    MemberLife { name: name.to_owned(), incarnation: 1 }
}

/// Regression test: all members together had one block of holds, fewer than two of them may need.
#[test]
fn there_is_room_for_what_all_members_may_hold() {
    let NotesFixture { mut home, source, _events } = NotesFixture::new();
    let slot = home.client_join(1, 0, 0).unwrap().client;
    let mut blocks = 0;
    for (count, name) in ["b", "c", "d", "e"].into_iter().enumerate() {
        source.end_reads_before(&member(name), 1);
        while source.needs_hold_block() {
            source.add_hold_block(home.hold_block(slot).unwrap()).unwrap();
            blocks += 1;
        }
        let free = source.hold_table().map(|table| table.free_slots()).ok();
        assert!(free >= Some((count + 1) * HOLDS_PER_MEMBER_MAX), "{free:?} for {count}");
    }
    assert_eq!(blocks, 3, "of 496 places each");
    source.forget(&member("b"));
    assert!(!source.needs_hold_block());
}

/// Regression test: a thread found an object, and noted its member after a delete had taken the notes
/// and ended. The hold failed, and the note stayed until the member left.
#[test]
fn a_note_of_an_object_that_has_ended_goes() {
    let NotesFixture { mut home, source, _events } = NotesFixture::new();
    let slot = home.client_join(1, 1, 0).unwrap().client;
    let block = home.grant(slot, Length(4096), Length(4096)).unwrap();
    let id = home.seal(slot, &SealRequest::bytes(block, block.length, Some("t")), 1).unwrap();

    let [one, other] = ["b", "c"].map(member);
    assert!(source.note(&one, id.lo));
    source.forget_note(&one, id);
    assert!(source.is_any(id), "it exists: another open of this member may rely on the note");

    assert_eq!(source.close(id).into_iter().collect::<Vec<_>>(), std::slice::from_ref(&one));
    assert!(!source.note(&one, id.lo), "it is being deleted");
    home.delete(Target::Id(id)).unwrap();
    source.reopen(id);
    assert!(source.note(&one, id.lo));
    assert!(source.note(&other, id.lo));
    source.forget_note(&one, id);
    assert!(source.is_any(id));
    source.forget_note(&other, id);
    assert!(!source.is_any(id));
}
