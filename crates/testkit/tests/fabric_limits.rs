//! The limits of a fabric: its errors, their numbers, and the files left behind.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::sync::{AtomicUsize, Ordering};
use farrow_memory::{
    Access, AccessError, CoherenceClass, Fabric, FabricError, FabricKind, Geometry, Length,
    MapError, Offset, PassedFabric, PassedParts, Region, Section, Span, page_bytes, survey,
};
use farrow_testkit::fabric::{data_pages, geometry, pass, shared_dir};
use farrow_testkit::probe;
use rustix::fs::{MemfdFlags, SealFlags};

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn expect_no_space(error: &FabricError, at_least: Length) {
    let FabricError::NoSpace { requested, free, .. } = error else { panic!("{error:?}") };
    assert!(*requested >= at_least, "{error}");
    assert!(free < requested, "{error}");
    assert!(error.to_string().contains(&requested.0.to_string()), "{error}");
}

#[test]
fn more_than_there_is_is_refused_with_numbers() {
    let dir = shared_dir();
    let page = page_bytes();
    // A quarter of the positive file offsets: more than any machine has, and a multiple of a page.
    let data = Length((1 << 61) - (1 << 61) % page);
    let huge = Geometry { control: Length(page), data };
    expect_no_space(&ShmFabric::create(dir.path(), "huge", huge).unwrap_err(), data);
    expect_no_space(&ShmFabric::memfd("huge", huge).unwrap_err(), data);
    assert!(entries(dir.path()).is_empty(), "nothing is left behind");
}

#[test]
fn a_full_tmpfs_is_an_error_with_numbers() {
    let dir = shared_dir();
    let page = page_bytes();
    probe::with_private_mounts(|| {
        probe::mount("tmpfs", dir.path(), &format!("size={}", 32 * page)).unwrap();
        let fits = |pages| Geometry { control: Length(page), data: Length(pages * page) };
        let error = ShmFabric::create(dir.path(), "large", fits(32)).unwrap_err();
        let FabricError::NoSpace { requested, free, path } = &error else { panic!("{error:?}") };
        assert_eq!((*requested, *free), (Length(33 * page), Length(32 * page)), "{error}");
        assert_eq!(path, dir.path());
        assert!(entries(dir.path()).is_empty());

        // All of it is usable, and every byte of it can be stored to.
        let fabric = ShmFabric::create(dir.path(), "exact", fits(31)).unwrap();
        let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None).unwrap());
        let data = region.geometry().span_of(Section::Data);
        region.make_writable(data).unwrap();
        region.write(data.offset, &vec![1; data.length.as_usize()]).unwrap();

        let error = ShmFabric::create(dir.path(), "more", fits(1)).unwrap_err();
        expect_no_space(&error, Length(2 * page));
        assert_eq!(entries(dir.path()), ["exact.control", "exact.data"]);
    });
}

#[test]
fn a_sparse_region_on_a_full_tmpfs_is_refused_when_its_pages_are_committed() {
    let dir = shared_dir();
    let page = page_bytes();
    probe::with_private_mounts(|| {
        probe::mount("tmpfs", dir.path(), &format!("size={}", 16 * page)).unwrap();
        // As copied by a tool that makes holes: the right length, with no pages allocated.
        for (section, pages) in [("control", 1), ("data", 64)] {
            let path = dir.path().join(format!("sparse.{section}"));
            File::create_new(&path).unwrap().set_len(pages * page).unwrap();
            set_private(&path);
        }
        let fabric = ShmFabric::open(dir.path(), "sparse").unwrap();
        let region = Region::map(Arc::new(fabric), Access::Home, None).unwrap();
        let error = region.commit(region.geometry().span_of(Section::Data)).unwrap_err();
        expect_no_space(&error, Length(64 * page));
        drop(region);
        let device = dir.path().join("device");
        File::create_new(&device).unwrap().set_len(64 * page).unwrap();
        let geometry = Geometry { control: Length(page), data: Length(63 * page) };
        let error = DeviceFabric::open(&device, 0, geometry, CoherenceClass::Coherent).unwrap_err();
        expect_no_space(&error, Length(64 * page));
    });
}

#[test]
fn a_file_system_without_fallocate_gets_zeros() {
    let dir = shared_dir();
    probe::with_private_mounts(|| {
        if let Err(error) = probe::mount("ramfs", dir.path(), "") {
            eprintln!("skipped: no ramfs ({error})");
            return;
        }
        let fabric = ShmFabric::create(dir.path(), "zeros", geometry()).unwrap();
        let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None).unwrap());
        let bytes = region.sealed(geometry().span()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        let span = data_pages(2, 1);
        region.alias(span).unwrap().write(span.offset, b"kept").unwrap();
        drop((bytes, region));
        // Pages are allocated again, and existing bytes must not be overwritten.
        let fabric = ShmFabric::open(dir.path(), "zeros").unwrap();
        let region = Region::map(Arc::new(fabric), Access::Home, None).unwrap();
        region.commit(geometry().span_of(Section::Data)).unwrap();
        let mut back = [0; 4];
        region.copy_out(span.offset, &mut back).unwrap();
        assert_eq!(&back, b"kept");
    });
}

#[test]
fn a_tmpfs_with_huge_pages_says_so() {
    let dir = shared_dir();
    probe::with_private_mounts(|| {
        if probe::mount("tmpfs", dir.path(), "huge=always,size=64m").is_err() {
            eprintln!("skipped: this kernel has no huge pages on tmpfs");
            return;
        }
        let geometry = Geometry { control: Length(page_bytes()), data: Length(8 << 20) };
        let geometry = geometry.for_huge_pages();
        let fabric = ShmFabric::create(dir.path(), "huge", geometry).unwrap();
        let huge = fabric.huge_page_bytes().expect("mounted huge=always");
        let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None).unwrap());
        assert_eq!(region.base().0 % huge.as_usize(), 0);
        region.advise_huge();
        let data = geometry.span_of(Section::Data);
        region.prepare(data, &|| false).unwrap();
        region.alias(data).unwrap().write(data.offset, b"huge").unwrap();
        assert_eq!(&region.sealed(data).unwrap()[..4], b"huge");
        let mounts = survey::tmpfs_dirs();
        let found = mounts.iter().find(|mount| mount.dir == dir.path()).expect("listed");
        assert_eq!(found.huge.as_deref(), Some("always"));
        assert_eq!(found.size, Some(Length(64 << 20)));
        assert!(found.free < found.size);
    });
}

#[test]
fn a_region_is_created_adopted_and_removed() {
    let dir = shared_dir();
    let offset = data_pages(1, 1).offset;
    let fabric = ShmFabric::create(dir.path(), "life", geometry()).unwrap();
    let again = ShmFabric::create(dir.path(), "life", geometry()).unwrap_err();
    assert!(matches!(again, FabricError::AlreadyExists { .. }), "{again}");
    let second = ShmFabric::open(dir.path(), "life").unwrap_err();
    assert!(matches!(second, FabricError::Locked { .. }), "{second}");
    let region = Region::map(Arc::new(fabric), Access::Home, None).unwrap();
    region.write(Offset(0), b"header").unwrap();
    region.write_by_call(offset, b"data").unwrap();
    drop(region);

    let fabric = Arc::new(ShmFabric::open(dir.path(), "life").unwrap());
    assert_eq!(fabric.geometry(), geometry());
    assert!(fabric.describe().ends_with("/life"));
    let region = Region::map(fabric, Access::Home, None).unwrap();
    let mut back = [0; 6];
    region.copy_out(Offset(0), &mut back).unwrap();
    assert_eq!(&back, b"header");
    ShmFabric::unlink(dir.path(), "life").unwrap();
    assert!(entries(dir.path()).is_empty());
    region.copy_out(offset, &mut back).unwrap();
    assert_eq!(&back[..4], b"data", "a map outlives the name");
    let removed = ShmFabric::unlink(dir.path(), "life").unwrap_err();
    assert!(matches!(removed, FabricError::NotFound { .. }), "{removed}");
    assert!(matches!(ShmFabric::open(dir.path(), "life"), Err(FabricError::NotFound { .. })));
}

/// A killed home's clients retain their descriptors and maps; the next home must still get its
/// lock.
#[test]
fn a_region_is_adopted_while_clients_live() {
    let dir = shared_dir();
    let path = dir.path().join("device");
    File::create_new(&path).unwrap().set_len(geometry().total().0).unwrap();
    let device = || DeviceFabric::open(&path, 0, geometry(), CoherenceClass::Coherent);
    let shm = || ShmFabric::open(dir.path(), "shm");
    drop(ShmFabric::create(dir.path(), "shm", geometry()).unwrap());
    let open: [&dyn Fn() -> Result<Arc<dyn Fabric>, FabricError>; 2] =
        [&|| Ok(Arc::new(device()?)), &|| Ok(Arc::new(shm()?))];
    for open in open {
        let first = open().unwrap();
        let passed = Arc::new(pass(&*first, CoherenceClass::Coherent).unwrap());
        let client = Arc::new(Region::map(passed, Access::Client, None).unwrap());
        client.make_writable(data_pages(0, 1)).unwrap();
        assert!(matches!(open(), Err(FabricError::Locked { .. })));
        drop(first);
        let second = Region::map(open().unwrap(), Access::Home, None).unwrap();
        client.write(data_pages(0, 1).offset, b"client").unwrap();
        let mut back = [0; 6];
        second.copy_out(data_pages(0, 1).offset, &mut back).unwrap();
        assert_eq!(&back, b"client");
    }
}

#[test]
fn a_failed_create_takes_nothing_of_others_away() {
    let dir = shared_dir();
    fs::write(dir.path().join("half.data"), b"someone's").unwrap();
    let error = ShmFabric::create(dir.path(), "half", geometry()).unwrap_err();
    let FabricError::AlreadyExists { path } = &error else { panic!("{error:?}") };
    assert!(path.ends_with("half.data"));
    assert_eq!(entries(dir.path()), ["half.data"]);
    assert_eq!(fs::read(dir.path().join("half.data")).unwrap(), b"someone's");
}

#[test]
fn names_and_lengths_are_checked() {
    let dir = shared_dir();
    let long = "n".repeat(201);
    for name in ["", ".hidden", "a/b", "../up", "line\nbreak", long.as_str()] {
        let error = ShmFabric::create(dir.path(), name, geometry()).unwrap_err();
        let FabricError::NameInvalid { bytes, .. } = error else { panic!("{name:?}: {error}") };
        assert_eq!(bytes, name.len());
        assert!(ShmFabric::open(dir.path(), name).is_err());
        assert!(ShmFabric::unlink(dir.path(), name).is_err());
    }
    let page = page_bytes();
    for (control, data) in
        [(0, page), (page, 0), (page + 1, page), (page, page - 1), (page, 1 << 63)]
    {
        let bad = Geometry { control: Length(control), data: Length(data) };
        for error in [
            ShmFabric::create(dir.path(), "bad", bad).unwrap_err(),
            ShmFabric::memfd("bad", bad).unwrap_err(),
        ] {
            assert!(matches!(error, FabricError::BadGeometry { .. }), "{error}");
        }
    }
    assert!(entries(dir.path()).is_empty());
}

#[test]
fn a_file_open_to_others_is_not_adopted() {
    use std::os::unix::fs::PermissionsExt;
    let dir = shared_dir();
    drop(ShmFabric::create(dir.path(), "open", geometry()).unwrap());
    let path = dir.path().join("open.data");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = ShmFabric::open(dir.path(), "open").unwrap_err();
    let FabricError::NotPrivate { mode, .. } = error else { panic!("{error}") };
    assert_eq!(mode, 0o644);
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(ShmFabric::open(dir.path(), "open").is_err(), "no links");
}

#[test]
fn a_short_device_is_refused_with_numbers() {
    let dir = shared_dir();
    let page = page_bytes();
    let path = dir.path().join("device");
    let file = File::create_new(&path).unwrap();
    file.set_len(geometry().total().0 + page - 1).unwrap();
    let open =
        |file_offset| DeviceFabric::open(&path, file_offset, geometry(), CoherenceClass::NodeLocal);
    let error = open(page).unwrap_err();
    let FabricError::TooShort { needed, found, .. } = error else { panic!("{error}") };
    assert_eq!(needed, Length(geometry().total().0 + page));
    assert_eq!(found, Length(geometry().total().0 + page - 1));
    assert!(matches!(open(8), Err(FabricError::BadGeometry { .. })));
    assert!(matches!(open(u64::MAX - page + 1), Err(FabricError::BadGeometry { .. })));
    let fabric = open(0).unwrap();
    assert_eq!(fabric.coherence_class(), CoherenceClass::NodeLocal);
    assert!(matches!(open(0), Err(FabricError::Locked { .. })), "one home");
    let missing = dir.path().join("missing");
    let error = DeviceFabric::open(&missing, 0, geometry(), CoherenceClass::Coherent).unwrap_err();
    assert!(matches!(error, FabricError::NotFound { .. }), "{error}");
    let error = DeviceFabric::open(dir.path(), 0, geometry(), CoherenceClass::Coherent);
    assert!(error.is_err(), "a directory");
}

#[test]
fn the_length_of_a_character_device_is_the_callers() {
    // Its stat says 0 bytes; it can be mapped at any length.
    let open =
        |path: &str| DeviceFabric::open(Path::new(path), 0, geometry(), CoherenceClass::NodeLocal);
    let fabric = open("/dev/zero").unwrap();
    assert_eq!(fabric.kind(), FabricKind::Device);
    let region = Region::map(Arc::new(fabric), Access::Client, None).unwrap();
    let words = region.words(Span::new(Offset(0), Length(8))).unwrap();
    assert_eq!(words.load(0, farrow_memory::sync::Ordering::Relaxed), Some(0));
    // This one cannot be mapped, and opening it reports that.
    let error = open("/dev/null").unwrap_err();
    assert!(matches!(error, FabricError::NotMappable { .. }), "{error}");
}

/// Parts over one unsealed memory file of a given length for each role.
fn parts(control_bytes: u64, data_bytes: u64, seals: SealFlags) -> PassedParts {
    let make = |bytes| -> (OwnedFd, OwnedFd) {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let writer = rustix::fs::memfd_create("parts", flags).unwrap();
        rustix::fs::ftruncate(&writer, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&writer, seals).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        (File::open(path).unwrap().into(), writer)
    };
    let (control_read, _) = make(control_bytes);
    let (data_read, data_write) = make(data_bytes);
    PassedParts {
        kind: FabricKind::Shm,
        coherence: CoherenceClass::Coherent,
        geometry: geometry(),
        control_read,
        control_file_offset: 0,
        data_read,
        data_write: Some(data_write),
        data_file_offset: 0,
    }
}

#[test]
fn passed_files_that_are_short_are_refused_with_numbers() {
    let (control, data) = (geometry().control.0, geometry().data.0);
    for (control_bytes, data_bytes, section) in [
        (control - 1, data, Section::Control),
        (control, data - 1, Section::Data),
        (control, 0, Section::Data),
    ] {
        let error =
            PassedFabric::new(parts(control_bytes, data_bytes, SealFlags::SHRINK)).unwrap_err();
        let FabricError::TooShort { section: found_section, needed, found } = error else {
            panic!("{error}")
        };
        assert_eq!(found_section, section);
        assert!(found < needed, "{found} {needed}");
    }
    let late =
        PassedParts { data_file_offset: page_bytes(), ..parts(control, data, SealFlags::SHRINK) };
    assert!(matches!(PassedFabric::new(late), Err(FabricError::TooShort { .. })));
    assert!(PassedFabric::new(parts(control, data, SealFlags::SHRINK)).is_ok());
}

#[test]
fn passed_files_that_can_shrink_are_refused() {
    let (control, data) = (geometry().control.0, geometry().data.0);
    let error = PassedFabric::new(parts(control, data, SealFlags::GROW)).unwrap_err();
    assert!(matches!(error, FabricError::CanShrink { section: Section::Control, .. }), "{error}");
}

#[test]
fn passed_descriptors_must_have_their_modes() {
    let (control, data) = (geometry().control.0, geometry().data.0);
    let mut swapped = parts(control, data, SealFlags::SHRINK);
    let writer = swapped.data_write.take().unwrap();
    swapped.data_write = Some(std::mem::replace(&mut swapped.data_read, writer));
    let error = PassedFabric::new(swapped).unwrap_err();
    assert!(matches!(error, FabricError::WrongMode { section: Section::Data, .. }), "{error}");

    let (reader, _writer) = std::io::pipe().unwrap();
    let pipe =
        PassedParts { control_read: reader.into(), ..parts(control, data, SealFlags::SHRINK) };
    let error = PassedFabric::new(pipe).unwrap_err();
    assert!(matches!(error, FabricError::NotMappable { .. }), "{error}");
}

#[test]
fn a_client_without_a_writer_only_reads() {
    let (control, data) = (geometry().control.0, geometry().data.0);
    let readers = PassedParts { data_write: None, ..parts(control, data, SealFlags::SHRINK) };
    let fabric: Arc<dyn Fabric> = Arc::new(PassedFabric::new(readers).unwrap());
    let error = Region::map(Arc::clone(&fabric), Access::Home, None).unwrap_err();
    assert!(matches!(error, MapError::NoWriter { section: Section::Control }), "{error}");
    let region = Arc::new(Region::map(fabric, Access::Client, None).unwrap());
    let span = data_pages(0, 1);
    for error in [
        region.make_writable(span).unwrap_err(),
        region.alias(span).unwrap_err(),
        region.prepare(span, &|| false).unwrap_err(),
    ] {
        assert!(matches!(error, MapError::NoWriter { section: Section::Data }), "{error}");
    }
    assert!(matches!(region.write_by_call(span.offset, b"x"), Err(AccessError::ReadOnly { .. })));
    region.make_read_only(span).unwrap();
}

#[test]
fn no_process_can_shorten_a_memory_region() {
    let fabric = ShmFabric::memfd("sealed", geometry()).unwrap();
    for section in [Section::Control, Section::Data] {
        let (fd, _) = fabric.write_fd(section).unwrap();
        assert_eq!(rustix::fs::ftruncate(fd, 0), Err(rustix::io::Errno::PERM), "{section}");
        let more = geometry().span_of(section).length.0 + page_bytes();
        assert_eq!(rustix::fs::ftruncate(fd, more), Err(rustix::io::Errno::PERM), "{section}");
    }
    assert!(pass(&fabric, CoherenceClass::Coherent).is_ok());
}

/// A file of a mounted tmpfs takes no seals, so a process of the same user can truncate it. Loads
/// from the map would then end in SIGBUS; system calls return errors.
#[test]
fn a_region_cut_short_is_an_error_by_call() {
    let dir = shared_dir();
    let fabric = Arc::new(ShmFabric::create(dir.path(), "cut", geometry()).unwrap());
    let region = Region::map(fabric, Access::Home, None).unwrap();
    let span = data_pages(9, 1);
    region.write_by_call(span.offset, b"there").unwrap();
    let path = dir.path().join("cut.data");
    File::options().write(true).open(&path).unwrap().set_len(page_bytes()).unwrap();
    let mut back = [0; 5];
    let error = region.read_by_call(span.offset, &mut back).unwrap_err();
    let AccessError::System { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::UnexpectedEof, "{error}");
    let address = region.address_of(span).unwrap();
    assert_eq!(probe::load_in_child(address).unwrap(), probe::End::Signal(libc::SIGBUS));
    let error = ShmFabric::open(dir.path(), "cut").unwrap_err();
    assert!(matches!(error, FabricError::Locked { .. }), "{error}");
}

fn set_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_fresh_write_by_several_threads_is_whole_and_in_bounds() {
    let geometry = Geometry { control: Length(page_bytes()), data: Length(16 << 20) };
    let fabric = Arc::new(ShmFabric::memfd("fresh", geometry).unwrap());
    let home = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
    let data = Span::new(Offset(geometry.control.0), geometry.data);
    let alias = home.alias(data).unwrap();
    // Neither the start nor the length is a multiple of the parts that threads copy.
    let source: Vec<u8> = (0..(9_usize << 20) + 77).map(|at| (at * 7 + at / 251) as u8).collect();
    let at = Offset(data.offset.0 + 12_345);
    alias.write_fresh(at, &source, None).unwrap();
    alias.write_fresh(data.offset, b"", None).unwrap();
    let mut back = vec![0; source.len() + 200];
    home.copy_out(Offset(at.0 - 100), &mut back).unwrap();
    assert!(back[100..100 + source.len()] == source);
    assert!(back[..100].iter().chain(&back[100 + source.len()..]).all(|byte| *byte == 0));
    // Each byte is seen once, in pieces, after it was copied.
    let seen = AtomicUsize::new(0);
    let see = |piece: &[u8]| {
        assert!(piece.len() <= 256 << 10);
        let from_start = (piece.as_ptr().addr() - source.as_ptr().addr()) as u64;
        let mut copied = vec![0; piece.len()];
        home.copy_out(Offset(data.offset.0 + from_start), &mut copied).unwrap();
        assert!(copied == piece);
        seen.fetch_add(piece.iter().map(|byte| *byte as usize).sum(), Ordering::Relaxed);
    };
    alias.write_fresh(data.offset, &source, Some(&see)).unwrap();
    assert_eq!(seen.into_inner(), source.iter().map(|byte| *byte as usize).sum::<usize>());
    let mut back = vec![0; source.len()];
    home.copy_out(data.offset, &mut back).unwrap();
    assert!(back == source);
    let late = Offset(data.end().unwrap().0 - source.len() as u64 + 1);
    let error = alias.write_fresh(late, &source, None).unwrap_err();
    assert!(matches!(error, AccessError::OutsideHeld { .. }), "{error:?}");
}
