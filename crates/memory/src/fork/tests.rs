use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::fabric::shm::ShmFabric;
use crate::fabric::{CoherenceClass, FabricKind};
use crate::region::{Access, Region};
use crate::units::{Geometry, Offset, Section, Span};
use crate::{Fabric, PassedFabric, PassedParts};

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A region of four pages, as a client maps it.
fn client_region() -> Arc<Region> {
    let page = Length(page_bytes());
    let geometry = Geometry { control: page, data: Length(4 * page.0) };
    let home = ShmFabric::memfd("fork", geometry).unwrap();
    let copy = |fd: std::os::fd::BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap();
    let fabric = PassedFabric::new(PassedParts {
        kind: FabricKind::Shm,
        coherence: CoherenceClass::Coherent,
        geometry,
        control_read: copy(home.read_fd(Section::Control).0),
        control_file_offset: 0,
        data_read: copy(home.read_fd(Section::Data).0),
        data_write: home.write_fd(Section::Data).map(|(fd, _)| copy(fd)),
        data_file_offset: 0,
    });
    let region = Region::map(Arc::new(fabric.unwrap()), Access::Client, None);
    Arc::new(region.unwrap())
}

fn end_of(pid: u32) -> i32 {
    let mut code = None;
    wait_for("a child ends", || {
        code = trial::ended(pid).unwrap();
        code.is_some()
    });
    code.unwrap()
}

/// Regression: a child could store into memory that its parent had mapped writable.
#[test]
fn a_child_reads_the_window_and_faults_where_it_stores() {
    let region = client_region();
    let page = page_bytes();
    let data = Span::new(Offset(page), Length(page));
    region.make_writable(data).unwrap();
    region.write(data.offset, b"parent").unwrap();
    let alias = region.alias(data).unwrap();
    let pointer = region.address_of(data).unwrap().0;
    let first = |at: usize| -> *mut u8 { std::ptr::with_exposed_provenance_mut(at) };
    // SAFETY: the child's copy of the window, mapped readable.
    let read = trial::in_child(|| unsafe { first(pointer).read_volatile() } == b'p').unwrap();
    assert_eq!(end_of(read), 0);
    let store = trial::in_child(|| {
        // SAFETY: the store must fault; no other code uses this byte.
        unsafe { first(pointer).write_volatile(b'c') };
        true
    });
    assert_eq!(end_of(store.unwrap()), -libc::SIGSEGV);
    let secret = alias.pointer(data.offset).unwrap().expose_provenance();
    let through_alias = trial::in_child(|| {
        // SAFETY: as above.
        unsafe { first(secret).write_volatile(b'c') };
        true
    });
    assert_eq!(end_of(through_alias.unwrap()), -libc::SIGSEGV);
    assert_eq!(&region.sealed(data).unwrap()[..6], b"parent");
}

/// Regression: a witness stayed in the parent after the fork, or vanished before the last
/// grandchild exited.
#[test]
fn a_fork_is_inherited_until_its_last_descendant_ends() {
    let region = client_region();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let before = forks();
    assert!(!is_inherited(before, before));
    let pid = trial::in_child(|| {
        let mut reader = File::from(reader.try_clone().unwrap());
        trial::in_child(|| reader.read_exact(&mut [0; 1]).is_ok()).is_ok()
    });
    let after = forks();
    assert!(after > before);
    assert_eq!(end_of(pid.unwrap()), 0);
    assert!(is_inherited(before, after), "a grandchild waits");
    File::from(writer).write_all(b".").unwrap();
    wait_for("the grandchild ends", || !is_inherited(before, after));
    drop(region);
}

/// Regression: a view that another thread created between the handler and the copy had the number
/// of that very fork, and its memory was reused while the child could read it.
#[test]
fn a_view_created_while_a_fork_copies_counts_as_inherited() {
    let region = client_region();
    // SAFETY: called in pairs, as the C library does.
    unsafe { prepare() };
    let (since, number) = (completed_forks(), forks());
    // SAFETY: as above.
    unsafe { in_parent() };
    assert!(since < number, "{since} is before fork {number}");
    assert!(completed_forks() >= number);
    drop(region);
}

#[test]
fn forks_without_a_witness_count_as_alive() {
    let mut state = ForkState::new();
    for number in [3, 4, 7] {
        state.note_unwitnessed(number);
    }
    assert_eq!(state.unwitnessed, [(3, 4), (7, 7)]);
    assert!(state.is_inherited(2, 3) && state.is_inherited(3, 5) && state.is_inherited(6, 9));
    assert!(!state.is_inherited(0, 2) && !state.is_inherited(4, 6) && !state.is_inherited(7, 9));
    for number in (10..).step_by(2).take(2 * UNWITNESSED_MAX) {
        state.note_unwitnessed(number);
    }
    assert_eq!(state.unwitnessed.len(), UNWITNESSED_MAX);
    assert!(state.is_inherited(10 + 4 * UNWITNESSED_MAX as u64 - 3, u64::MAX));
}

/// Regression: a child that was forked while another thread counted maps waited for that thread,
/// which it does not have.
#[test]
fn a_child_of_a_process_that_counts_its_maps_counts_its_own() {
    let _region = client_region();
    trial::stop_in(&[trial::ForkSection::Maps]);
    let counting = std::thread::spawn(crate::maps::trial::look);
    wait_for("the count", || trial::has_stopped_in(trial::ForkSection::Maps));
    let pid = trial::in_child(|| crate::maps::trial::look().is_ok()).unwrap();
    assert_eq!(end_of(pid), 0);
    counting.join().unwrap().unwrap();
}
