//! Notes of the members that open objects.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Region};
use farrow_net::source::MemberLife;
use farrow_store::{Home, Layout, RegionOptions, SealRequest, Target};

use super::interests::Interests;
use super::source::RegionSource;
use super::{EventSender, NetEvent};

/// Regression test: a thread found an object, and noted its member after a delete had taken the notes
/// and ended. The hold failed, and the note stayed until the member left.
#[test]
fn a_note_of_an_object_that_has_ended_goes() {
    let options = RegionOptions::for_capacity(Length(1 << 20));
    let geometry = Layout::new(&options).unwrap().geometry;
    let fabric = Arc::new(ShmFabric::memfd("notes", geometry).unwrap());
    let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
    let mut home = Home::create(Arc::clone(&region), &options, 0).unwrap();
    let (sender, _events) = mpsc::channel::<NetEvent>();
    let (wake, _woken) = UnixStream::pair().unwrap();
    let event_sender = EventSender::new(sender, wake);
    let source = RegionSource::new(&region, Arc::default(), event_sender).unwrap();
    let slot = home.client_join(1, 1, 0).unwrap().client;
    let block = home.grant(slot, Length(4096), Length(4096)).unwrap();
    let id = home.seal(slot, &SealRequest::bytes(block, block.length, Some("t")), 1).unwrap();

    let [one, other] = ["b", "c"].map(|name| MemberLife { name: name.to_owned(), incarnation: 1 });
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
