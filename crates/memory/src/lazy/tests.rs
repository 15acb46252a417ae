use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::*;
use crate::FileMap;
use crate::fork::trial;
use crate::sync::{AtomicU64, Ordering};

const PAGES: u64 = 16;

/// A file of which page n is filled with n + 1, a map of it, and a thread that serves its faults.
struct LazyFixture {
    fill: Arc<FileMap>,
    map: Arc<LazyMap>,
    served: Arc<AtomicU64>,
    stop: OwnedFd,
    serving: Serving,
    server: Option<JoinHandle<()>>,
}

/// What the server does with a page that faults.
#[derive(Clone, Copy, PartialEq)]
enum Serving {
    Fill,
    Copy,
    GiveUp,
}

fn page_at(number: u64) -> Span {
    Span::new(Offset(number * page_bytes()), Length(page_bytes()))
}

fn content(number: u64) -> Vec<u8> {
    vec![number as u8 + 1; page_bytes() as usize]
}

impl LazyFixture {
    /// `None` where the kernel or the rights do not allow it.
    fn new(serving: Serving) -> Option<Self> {
        let length = Length(PAGES * page_bytes());
        let (file, readable) = lazy_file("lazy-test", length).unwrap();
        let faults = match PageFaults::open(None) {
            Ok(faults) => faults,
            Err(PageFaultsError::NoRight { .. } | PageFaultsError::Unsupported { .. }) => {
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let fill = Arc::new(FileMap::new(file, 0, length, true).unwrap());
        let map = LazyMap::new(readable.as_fd(), Span::new(Offset(0), length), faults).unwrap();
        let map = Arc::new(map);
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let stop = rustix::event::eventfd(0, flags).unwrap();
        let served = Arc::new(AtomicU64::new(0));
        let mut world = Self { fill, map, served, stop, serving, server: None };
        world.start_server();
        Some(world)
    }

    fn start_server(&mut self) {
        let (map, fill) = (Arc::clone(&self.map), Arc::clone(&self.fill));
        let (served, serving) = (Arc::clone(&self.served), self.serving);
        let stop = self.stop.try_clone().unwrap();
        let server = std::thread::spawn(move || {
            while let Some(offsets) = map.faults(stop.as_fd()).unwrap() {
                for offset in offsets {
                    served.fetch_add(1, Ordering::Relaxed);
                    let number = offset.0 / page_bytes();
                    match serving {
                        Serving::Fill => {
                            fill.write(offset, &content(number)).unwrap();
                            map.show(page_at(number)).unwrap();
                        }
                        Serving::Copy => map.show_copy(offset, &content(number)).unwrap(),
                        Serving::GiveUp => map.give_up(page_at(number)).unwrap(),
                    }
                }
            }
        });
        self.server = Some(server);
    }

    fn stop_server(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.server.take().unwrap().join().unwrap();
        rustix::io::read(&self.stop, &mut [0; 8][..]).unwrap();
    }

    fn bytes(&self, number: u64) -> LazyBytes {
        self.map.bytes(page_at(number)).unwrap()
    }
}

impl Drop for LazyFixture {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.server.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_page_is_brought_when_it_is_first_read_and_never_again() {
    for serving in [Serving::Fill, Serving::Copy] {
        let Some(world) = LazyFixture::new(serving) else { return };
        for _ in 0..2 {
            assert_eq!(world.bytes(3).as_ref(), content(3));
            assert_eq!(world.bytes(15).as_ref()[1], 16);
        }
        assert_eq!(world.served.load(Ordering::Relaxed), 2);
        let allocated = world.fill.committed().unwrap().0;
        let expected = if serving == Serving::Fill { 2 * page_bytes() } else { 0 };
        assert_eq!(allocated, expected, "a copy is in no file, and nothing else was touched");
    }
}

/// A page may be in the file while its bytes still arrive.
#[test]
fn a_page_that_another_process_brought_is_shown_by_the_server_too() {
    let Some(world) = LazyFixture::new(Serving::Fill) else { return };
    world.fill.write(Offset(2 * page_bytes()), &[77; 64]).unwrap();
    assert_eq!(world.bytes(2).as_ref(), content(2), "not the 77 of before");
    assert_eq!(world.served.load(Ordering::Relaxed), 1);
    // Shown ahead: no fault.
    world.fill.write(Offset(5 * page_bytes()), &content(5)).unwrap();
    world.map.show(page_at(5)).unwrap();
    world.map.show(page_at(5)).unwrap();
    assert_eq!(world.bytes(5).as_ref(), content(5));
    assert_eq!(world.served.load(Ordering::Relaxed), 1);
    // A page that is not in the file cannot be shown by mistake.
    assert!(matches!(world.map.show(page_at(6)), Err(MapError::System { .. })));
    let two = Span::new(Offset(5 * page_bytes()), Length(2 * page_bytes()));
    assert!(matches!(world.map.show(two), Err(MapError::System { .. })));
    assert_eq!(world.bytes(6).as_ref(), content(6));
}

#[test]
fn a_system_call_reads_a_page_that_is_not_there_yet() {
    let Some(world) = LazyFixture::new(Serving::Fill) else { return };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut writer = File::from(writer);
    writer.write_all(world.bytes(9).as_ref()).unwrap();
    let mut found = vec![0; page_bytes() as usize];
    let mut reader = File::from(reader);
    std::io::Read::read_exact(&mut reader, &mut found).unwrap();
    assert_eq!(found, content(9));
}

#[test]
fn a_page_that_is_given_up_raises_sigbus_and_fails_system_calls() {
    let Some(world) = LazyFixture::new(Serving::GiveUp) else { return };
    world.fill.write(Offset(0), &content(0)).unwrap();
    world.map.show(page_at(0)).unwrap();
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let failed = rustix::io::write(&writer, world.bytes(4).as_ref());
    assert_eq!(failed, Err(Errno::FAULT));
    assert_eq!(world.bytes(0).as_ref(), content(0), "what was shown stays");
    // Giving up all of it leaves that page.
    world.map.give_up(world.map.span()).unwrap();
    assert_eq!(world.bytes(0).as_ref(), content(0));
    drop(world);
    // The signal itself, in a child with a map of its own.
    let child = trial::in_child(|| {
        let world = LazyFixture::new(Serving::GiveUp).unwrap();
        std::hint::black_box(world.bytes(7).as_ref()[0]);
        true
    });
    assert_eq!(end_of(child.unwrap()), -libc::SIGBUS);
}

/// It would read zeros, or other memory that it mapped there.
#[test]
fn a_child_faults_where_its_parent_has_a_map() {
    let Some(world) = LazyFixture::new(Serving::Fill) else { return };
    assert_eq!(world.bytes(1).as_ref(), content(1));
    for number in [1, 2] {
        let bytes = world.bytes(number);
        let child = trial::in_child(move || {
            std::hint::black_box(bytes.as_ref()[0]);
            true
        });
        assert_eq!(end_of(child.unwrap()), -libc::SIGSEGV, "page {number}");
    }
    let address = world.map.address();
    let child = trial::in_child(move || {
        let at = std::ptr::without_provenance_mut(address);
        let flags = rustix::mm::MapFlags::PRIVATE;
        let read = rustix::mm::ProtFlags::READ;
        // SAFETY: the address is a hint, and the mapping is used by nobody.
        let found = unsafe { rustix::mm::mmap_anonymous(at, page_bytes() as usize, read, flags) };
        found.is_ok_and(|found| found.addr() != address)
    });
    assert_eq!(end_of(child.unwrap()), 0, "nothing else is mapped there");
    assert_eq!(world.bytes(2).as_ref(), content(2), "the parent's pages are as before");
}

#[test]
fn files_that_could_end_within_the_map_are_refused() {
    let Ok(faults) = PageFaults::open(None) else { return };
    let page = Length(page_bytes());
    let open = |flags| File::from(rustix::fs::memfd_create("lazy-test", flags).unwrap());
    let file = open(rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING);
    file.set_len(page.0).unwrap();
    let refused = LazyMap::new(file.as_fd(), Span::new(Offset(0), page), faults);
    assert!(matches!(refused, Err(LazyMapError::File(FabricError::CanShrink { .. }))));
    let (file, readable) = lazy_file("lazy-test", page).unwrap();
    File::from(file.try_clone().unwrap()).write_all_at(b"x", 0).unwrap();
    assert!(File::from(file).set_len(0).is_err());
    assert!(File::from(readable.try_clone().unwrap()).write_all_at(b"x", 0).is_err());
    let two = Span::new(Offset(0), Length(2 * page.0));
    let refused = LazyMap::new(readable.as_fd(), two, PageFaults::open(None).unwrap());
    assert!(matches!(refused, Err(LazyMapError::File(FabricError::TooShort { .. }))));
    let half = Span::new(Offset(0), Length(page.0 / 2));
    let refused = LazyMap::new(readable.as_fd(), half, PageFaults::open(None).unwrap());
    assert!(matches!(refused, Err(LazyMapError::Map(MapError::NotPages { .. }))));
}

/// The right to serve faults inside system calls travels with the open device.
#[test]
fn a_user_without_the_right_gets_it_with_the_device() {
    if !rustix::process::geteuid().is_root() || PageFaults::open(None).is_err() {
        return;
    }
    let Ok(device) = open_device() else { return };
    let child = trial::in_child(|| {
        // SAFETY: changes the user of this child alone.
        let changed = unsafe { libc::setgid(65534) == 0 && libc::setuid(65534) == 0 };
        let without = PageFaults::open(None);
        let is_refused = matches!(without, Err(PageFaultsError::NoRight { .. }));
        let file = File::open("/dev/null").unwrap();
        let by_other = PageFaults::open(Some(file.as_fd())).is_ok();
        changed && (is_refused || by_other) && PageFaults::open(Some(device.as_fd())).is_ok()
    });
    assert_eq!(end_of(child.unwrap()), 0);
}

/// Locked memory is populated when it is mapped: with zeros, if it were accessible by then.
#[test]
fn memory_that_is_locked_as_it_is_mapped_has_no_zeros() {
    let child = trial::in_child(|| {
        // SAFETY: affects this child alone.
        let is_locked = unsafe { libc::mlockall(libc::MCL_FUTURE) } == 0;
        let Some(world) = LazyFixture::new(Serving::Fill) else { return true };
        !is_locked || (0..PAGES).all(|number| world.bytes(number).as_ref() == content(number))
    });
    assert_eq!(end_of(child.unwrap()), 0);
}

#[test]
fn many_threads_read_the_same_pages() {
    let Some(world) = LazyFixture::new(Serving::Fill) else { return };
    std::thread::scope(|scope| {
        for first in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for step in 0..PAGES {
                    let number = (first * 5 + step) % PAGES;
                    assert_eq!(world.bytes(number).as_ref(), content(number));
                }
            });
        }
    });
}

/// A thread that stands for another process, and one that takes over when that ends.
#[test]
fn faults_are_served_by_the_thread_that_has_the_queue() {
    let Some(mut world) = LazyFixture::new(Serving::Fill) else { return };
    world.stop_server();
    let remote = RemoteFaults::new(world.map.handover().unwrap()).unwrap();
    let shown = ShownChunks::new(remote.span()).unwrap();
    assert_eq!(remote.span(), world.map.span());
    let read = |number: u64| {
        let bytes = world.bytes(number);
        std::thread::spawn(move || bytes.as_ref().to_vec())
    };
    let take = || {
        let mut watched = [PollFd::new(&remote, PollFlags::IN)];
        poll(&mut watched, None).unwrap();
        remote.take().unwrap()
    };
    let reader = read(3);
    assert_eq!(take(), [Offset(3 * page_bytes())]);
    world.fill.write(Offset(3 * page_bytes()), &content(3)).unwrap();
    remote.show(page_at(3)).unwrap();
    assert_eq!(reader.join().unwrap(), content(3));
    // Taken, and never served.
    let reader = read(5);
    assert_eq!(take(), [Offset(5 * page_bytes())]);
    assert!(!shown.has(Offset(5 * page_bytes())));
    drop(remote);
    world.start_server();
    world.map.fault_again().unwrap();
    assert_eq!(reader.join().unwrap(), content(5));
    assert_eq!(world.bytes(6).as_ref(), content(6));
}

#[test]
fn what_is_no_queue_of_faults_is_refused() {
    let Some(world) = LazyFixture::new(Serving::Fill) else { return };
    let pipe = rustix::pipe::pipe().unwrap().0;
    let handover = world.map.handover().unwrap();
    let FaultsHandover { faults, address, span } = handover;
    let refused = RemoteFaults::new(FaultsHandover { faults: pipe, address, span });
    assert!(matches!(refused, Err(PageFaultsError::System { .. })), "{refused:?}");
    let half = Span::new(span.offset, Length(page_bytes() / 2));
    let far = Span::new(Offset(u64::MAX - page_bytes() + 1), Length(page_bytes()));
    for (address, span) in [(address + 1, span), (address, half), (address, far), (!0, span)] {
        let faults = faults.try_clone().unwrap();
        let refused = RemoteFaults::new(FaultsHandover { faults, address, span });
        assert!(matches!(refused, Err(PageFaultsError::System { .. })), "{refused:?}");
    }
}

#[test]
fn only_chunks_that_were_shown_as_a_whole_are_noted() {
    let at = |chunk: u64| Offset(chunk * CHUNK_BYTES);
    let span = |start: u64, end: u64| Span::new(Offset(start), Length(end - start));
    let map = span(10 * CHUNK_BYTES + 4096, 20 * CHUNK_BYTES + 8192);
    let (ours, first) = (ShownChunks::new(map).unwrap(), map.offset.0);
    let theirs = ShownChunks::passed(ours.as_file().try_clone().unwrap().into(), map).unwrap();
    let (pipe, _) = std::io::pipe().unwrap();
    assert!(ShownChunks::passed(pipe.into(), map).is_err(), "a write might block");
    assert!((0..30).all(|chunk| !ours.has(at(chunk))));
    for (shown, chunks) in [
        (span(first, first + 4096), vec![]),
        (span(first, 11 * CHUNK_BYTES), vec![10]),
        (span(13 * CHUNK_BYTES, 15 * CHUNK_BYTES + 4096), vec![10, 13, 14]),
        (span(16 * CHUNK_BYTES + 4096, 17 * CHUNK_BYTES), vec![10, 13, 14]),
        (span(20 * CHUNK_BYTES, 20 * CHUNK_BYTES + 8192), vec![10, 13, 14, 20]),
    ] {
        theirs.note(shown, map).unwrap();
        let noted: Vec<u64> = (0..30).filter(|chunk| ours.has(at(*chunk))).collect();
        assert_eq!(noted, chunks, "{shown}");
    }
}

#[test]
fn pages_of_blocks_are_joined_where_they_share_some() {
    let page = page_bytes();
    let span = |offset, length| Span::new(Offset(offset), Length(length));
    let blocks = [span(5 * page, 10), span(128, 1), span(page - 1, 2), span(3 * page, 0)];
    assert_eq!(pages_of(blocks), Some(vec![span(0, 2 * page), span(5 * page, page)]));
    assert_eq!(pages_of([span(u64::MAX - 5, 5)]), None);
}

fn end_of(pid: u32) -> i32 {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        if let Some(code) = trial::ended(pid).unwrap() {
            return code;
        }
        assert!(std::time::Instant::now() < until, "a child ends");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
