//! Descriptors that keep the memory of a region alive, and queries to the kernel whether a region
//! is held or mapped.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::fd_passing::{PassedFabric, PassedParts};
use super::files::{self, FileShape, FileUsers, system};
use super::{CoherenceClass, FabricKind};
use crate::error::FabricError;
use crate::units::{Geometry, Length, Section, page_bytes};

/// Both sections of a region, open for reading and writing, without the lock of its home. The
/// memory exists at least as long as this value.
#[derive(Debug)]
pub struct HeldMemory {
    control: OwnedFd,
    data: OwnedFd,
}

/// Stands for the path in error messages: the files may have none.
fn described() -> &'static Path {
    Path::new("held memory")
}

impl HeldMemory {
    /// Takes descriptors that another process of this user has passed.
    ///
    /// # Errors
    /// [`FabricError::NotMappable`] or [`FabricError::NotPrivate`] if they are not files of a
    /// region, [`FabricError::WrongMode`] if they are not writable, [`FabricError::BadGeometry`].
    pub fn new(control: OwnedFd, data: OwnedFd) -> Result<Self, FabricError> {
        for (fd, section) in [(&control, Section::Control), (&data, Section::Data)] {
            check_file(fd.as_fd(), described())?;
            files::check_mode(fd.as_fd(), section, true)?;
        }
        let held = Self { control, data };
        held.geometry()?;
        Ok(held)
    }

    /// Opens both files a second time and locks a byte of control. The lock shows [`is_lent`] that
    /// a process with these descriptors is alive.
    pub(super) fn reopen(
        control: BorrowedFd<'_>,
        data: BorrowedFd<'_>,
    ) -> Result<Self, FabricError> {
        let again = |fd| files::reopen(fd, described(), OFlags::RDWR);
        let held = Self { control: again(control)?, data: again(data)? };
        files::mark_held(held.control.as_fd(), described())?;
        Ok(held)
    }

    /// Opens the files that another process of this user holds, given its process id and its
    /// descriptor numbers. The process id may have been reused: the caller must check the uid of
    /// the region.
    ///
    /// # Errors
    /// The process has exited or belongs to another user, or the descriptors are not files of a
    /// region.
    pub fn of_process(pid: u32, control: u32, data: u32) -> Result<Self, FabricError> {
        let open = |number: u32| {
            let path = PathBuf::from(format!("/proc/{pid}/fd/{number}"));
            // O_PATH first: opening another kind of file, such as a pipe or a device, could have
            // side effects.
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let seen = rustix::fs::open(&path, flags, Mode::empty())
                .map_err(|errno| system("open", &path, errno))?;
            check_file(seen.as_fd(), &path)?;
            files::reopen(seen.as_fd(), &path, OFlags::RDWR)
        };
        Self::new(open(control)?, open(data)?)
    }

    /// The descriptors of control and data, in this order.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.control.as_fd(), self.data.as_fd()]
    }

    /// Whether the files have no path: they never had one, or it was removed.
    #[must_use]
    pub fn is_nameless(&self) -> bool {
        rustix::fs::fstat(&self.control).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Lengths of the sections.
    ///
    /// # Errors
    /// [`FabricError::BadGeometry`], or [`FabricError::System`] if `fstat` fails.
    pub fn geometry(&self) -> Result<Geometry, FabricError> {
        let length = |fd: &OwnedFd| -> Result<Length, FabricError> {
            let stat =
                rustix::fs::fstat(fd).map_err(|errno| system("fstat", described(), errno))?;
            let length = Length(u64::try_from(stat.st_size).unwrap_or(0));
            if !length.0.is_multiple_of(page_bytes()) {
                let page = page_bytes();
                let what = "file length";
                return Err(FabricError::BadGeometry { what, bytes: length.0, page });
            }
            Ok(length)
        };
        let geometry = Geometry { control: length(&self.control)?, data: length(&self.data)? };
        files::check_geometry(geometry, 0)?;
        Ok(geometry)
    }

    /// The region in the form in which another node passes it to its clients. The clients write
    /// only to memory that the home grants them.
    ///
    /// # Errors
    /// As [`PassedFabric::new`].
    pub fn join(&self) -> Result<PassedFabric, FabricError> {
        let again = |fd: &OwnedFd, mode| files::reopen(fd.as_fd(), described(), mode);
        PassedFabric::new(PassedParts {
            kind: FabricKind::Shm,
            coherence: CoherenceClass::Coherent,
            geometry: self.geometry()?,
            control_read: again(&self.control, OFlags::RDONLY)?,
            control_file_offset: 0,
            data_read: again(&self.data, OFlags::RDONLY)?,
            data_write: Some(again(&self.data, OFlags::RDWR)?),
            data_file_offset: 0,
        })
    }
}

/// Checks that a file is regular, in memory, owned by this user and closed to others.
fn check_file(fd: BorrowedFd<'_>, path: &Path) -> Result<(), FabricError> {
    let is_regular = matches!(files::shape_of(fd, path)?, FileShape::Regular(_));
    if !is_regular || !files::is_tmpfs(fd) {
        let reason = "it is no file in memory".to_owned();
        return Err(FabricError::NotMappable { path: path.to_owned(), reason });
    }
    files::check_private(fd, path)
}

/// Whether a process of the node that lends this region is alive, given a descriptor of the control
/// section. `None` if the system cannot tell.
#[must_use]
pub fn is_lent(control: BorrowedFd<'_>) -> Option<bool> {
    files::is_locked(control).ok()
}

/// Whether the files of a folder lie in memory, so that another process can hold them.
///
/// # Errors
/// The folder cannot be opened.
pub fn is_in_tmpfs(folder: &Path) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    Ok(files::is_tmpfs(folder.as_fd()))
}

/// Whether any process serves, holds, opens or maps a file. True if the system cannot tell.
///
/// # Errors
/// The file cannot be opened.
pub fn is_in_use(path: &Path) -> io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if files::is_locked(file.as_fd()).unwrap_or(false) {
        return Ok(true);
    }
    Ok(match files::usage(file.as_fd()) {
        FileUsers::Alone => false,
        FileUsers::Shared => true,
        FileUsers::Unknown => {
            let stat = rustix::fs::fstat(&file)?;
            is_seen_in_proc(stat.st_dev, stat.st_ino)
        }
    })
}

/// Whether another process maps or opens an inode, as far as `/proc` shows it to this user.
fn is_seen_in_proc(device: u64, inode: u64) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        return true;
    };
    let own = std::process::id().to_string();
    let device_text =
        format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let inode_text = inode.to_string();
    processes.flatten().any(|process| {
        let name = process.file_name();
        let is_process = name.to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
        if !is_process || name.to_str() == Some(own.as_str()) {
            return false;
        }
        let maps = fs::read(process.path().join("maps")).unwrap_or_default();
        let is_mapped = String::from_utf8_lossy(&maps).lines().any(|line| {
            let mut words = line.split_ascii_whitespace().skip(3);
            words.next() == Some(&device_text) && words.next() == Some(&inode_text)
        });
        let fds = fs::read_dir(process.path().join("fd"));
        is_mapped
            || fds.into_iter().flatten().flatten().any(|fd| {
                fs::metadata(fd.path()).is_ok_and(|it| it.dev() == device && it.ino() == inode)
            })
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::fabric::Fabric;
    use crate::fabric::shm::ShmFabric;
    use crate::mapping::Mapping;

    const GEOMETRY: Geometry = Geometry { control: Length(1 << 20), data: Length(4 << 20) };

    #[test]
    fn held_memory_is_adopted_and_the_kernel_says_whether_it_is_lent() {
        let home = ShmFabric::nameless_in(Path::new("/dev/shm"), GEOMETRY).unwrap();
        let held = home.hold().unwrap();
        assert!(held.is_nameless());
        let watcher = held.join().unwrap();
        let control = watcher.read_fd(Section::Control).0;
        rustix::io::pwrite(home.write_fd(Section::Data).unwrap().0, b"kept", 8).unwrap();
        assert!(
            matches!(ShmFabric::adopt(&held), Err(FabricError::Locked { .. })),
            "one home at a time"
        );
        drop(home);
        assert_eq!(is_lent(control), Some(true), "it is held");
        let next = ShmFabric::adopt(&held).unwrap();
        drop(held);
        assert_eq!(is_lent(control), Some(true), "it has a home");
        let mut bytes = [0; 4];
        rustix::io::pread(next.read_fd(Section::Data).0, &mut bytes, 8).unwrap();
        assert_eq!(&bytes, b"kept");
        assert_eq!(next.geometry(), GEOMETRY);
        drop(next);
        // A child that another test has just forked has the lock until it ends.
        let until = Instant::now() + Duration::from_secs(10);
        while is_lent(control) == Some(true) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(is_lent(control), Some(false), "who only joins does not lend");
    }

    #[test]
    fn what_is_no_region_is_not_opened_from_a_process() {
        let pid = std::process::id();
        let (read, _write) = std::io::pipe().unwrap();
        let number =
            |fd: &dyn AsFd| u32::try_from(std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd())).unwrap();
        let pipe = number(&read);
        assert!(matches!(
            HeldMemory::of_process(pid, pipe, pipe),
            Err(FabricError::NotMappable { .. })
        ));
        assert!(matches!(HeldMemory::of_process(pid, 9999, 9999), Err(FabricError::System { .. })));
        let home = ShmFabric::nameless_in(Path::new("/dev/shm"), GEOMETRY).unwrap();
        let held = home.hold().unwrap();
        let [control, data] = held.fds();
        let again = HeldMemory::of_process(pid, number(&control), number(&data)).unwrap();
        assert_eq!(again.geometry().unwrap(), GEOMETRY);
    }

    #[test]
    fn a_file_is_in_use_while_it_is_locked_open_or_mapped() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        fs::write(&path, vec![0; 4096]).unwrap();
        assert!(!is_in_use(&path).unwrap());
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        assert!(is_in_use(&path).unwrap(), "open");
        let mapping = Mapping::of_file(file.as_fd(), 0, Length(4096), false).unwrap();
        drop(file);
        assert!(is_in_use(&path).unwrap(), "mapped");
        drop(mapping);
        assert!(!is_in_use(&path).unwrap());
        let stat = rustix::fs::stat(&path).unwrap();
        // The search through /proc ignores this process.
        assert!(!is_seen_in_proc(stat.st_dev, stat.st_ino));
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .stdin(fs::File::open(&path).unwrap())
            .spawn()
            .unwrap();
        assert!(is_seen_in_proc(stat.st_dev, stat.st_ino));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
