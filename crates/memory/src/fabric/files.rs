//! Functions shared by the back ends: checks of names and lengths, committing pages, free space,
//! locks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::FabricError;
use crate::locks;
use crate::system::free_memory;
use crate::units::{Geometry, Length, Section, page_bytes};

/// Pages are committed in pieces, so that a signal interrupts one piece and not the whole, and a
/// full file system is detected before it is filled by a large region. 256 MiB takes about 50 ms.
const COMMIT_PIECE_BYTES: u64 = 256 << 20;

/// Size of one write of zeros, for file systems that cannot allocate without writing.
const ZERO_PIECE_BYTES: usize = 1 << 20;

/// Longest region name: a file name may have 255 bytes, less room for the suffix.
const NAME_BYTES_MAX: usize = 200;

/// A home that was just killed, or a child between fork and exec, keeps its lock for a short time.
/// The retries wait for that, up to half a second in total.
const LOCK_TRIES_MAX: u32 = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn system(call: &'static str, path: &Path, errno: Errno) -> FabricError {
    FabricError::System { call, path: path.to_owned(), source: errno.into() }
}

pub(super) fn check_name(name: &str) -> Result<(), FabricError> {
    let reason = if name.is_empty() {
        "empty"
    } else if name.len() > NAME_BYTES_MAX {
        "over 200 bytes"
    } else if name.starts_with('.') {
        "starts with a dot"
    } else if name.bytes().any(|byte| byte == b'/' || byte < b' ' || byte == 0x7f) {
        "holds a slash or a control character"
    } else {
        return Ok(());
    };
    Err(FabricError::NameInvalid { bytes: name.len(), reason })
}

/// Checks that both lengths are whole pages and above 0, and that the end fits in a file offset.
pub(super) fn check_geometry(geometry: Geometry, file_offset: u64) -> Result<(), FabricError> {
    let page = page_bytes();
    let bad = |what, bytes| Err(FabricError::BadGeometry { what, bytes, page });
    for (what, bytes) in
        [("control section", geometry.control.0), ("data section", geometry.data.0)]
    {
        if bytes == 0 || !bytes.is_multiple_of(page) || i64::try_from(bytes).is_err() {
            return bad(what, bytes);
        }
    }
    if !file_offset.is_multiple_of(page) {
        return bad("file offset", file_offset);
    }
    let end = geometry.total().0.saturating_add(file_offset);
    if i64::try_from(end).is_err() {
        return bad("end of the region in its file", end);
    }
    Ok(())
}

/// Rejects a file that belongs to another user or that other users may open.
pub(crate) fn check_private(fd: BorrowedFd<'_>, path: &Path) -> Result<(), FabricError> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| system("fstat", path, errno))?;
    let mode = stat.st_mode & 0o777;
    if stat.st_uid != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 {
        return Err(FabricError::NotPrivate { path: path.to_owned(), owner: stat.st_uid, mode });
    }
    Ok(())
}

/// Opens a file a second time, read-only. No mapping made from the result can become writable.
pub(super) fn reopen_read_only(fd: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, FabricError> {
    reopen(fd, path, OFlags::RDONLY)
}

/// Opens a file a second time: a new open file description with its own locks.
pub(crate) fn reopen(
    fd: BorrowedFd<'_>,
    path: &Path,
    mode: OFlags,
) -> Result<OwnedFd, FabricError> {
    // By descriptor, so that it is the same file even if the path now refers to another one.
    let through = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(through, mode | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| system("open again", path, errno))
}

/// Fails early if the file system has less free space than requested or, for files in memory, if
/// the machine has less memory. If the free space is unknown, the allocation itself detects the
/// error.
pub(crate) fn check_room(requested: Length, at: &PageSource<'_>) -> Result<(), FabricError> {
    if let Some(free) = at.free_on_disk().filter(|free| *free < requested) {
        return Err(FabricError::NoSpace { requested, free, path: at.path.to_owned() });
    }
    if at.is_memory
        && let Some((free, whose)) =
            free_memory::memory_room().filter(|(free, _)| *free < requested)
    {
        return Err(FabricError::NoSpace { requested, free, path: PathBuf::from(whose) });
    }
    Ok(())
}

/// Where pages are allocated.
pub(crate) struct PageSource<'a> {
    /// The path, for error messages.
    pub path: &'a Path,
    /// An open file on this file system.
    pub fd: BorrowedFd<'a>,
    /// Whether the pages use main memory.
    pub is_memory: bool,
    /// Whether the file system has a size limit. A memory file (memfd) has none.
    pub has_size: bool,
}

impl<'a> PageSource<'a> {
    /// The file system that contains `fd`.
    pub(crate) fn of(path: &'a Path, fd: BorrowedFd<'a>) -> Self {
        let is_memory = is_tmpfs(fd);
        Self { path, fd, is_memory, has_size: true }
    }

    /// A memory file (memfd): limited by memory, not by a file system.
    pub(super) fn memory(path: &'a Path, fd: BorrowedFd<'a>) -> Self {
        Self { path, fd, is_memory: true, has_size: false }
    }

    fn free_on_disk(&self) -> Option<Length> {
        if !self.has_size {
            return None;
        }
        let stat = rustix::fs::fstatvfs(self.fd).ok()?;
        // A tmpfs without a limit reports no blocks at all.
        (stat.f_blocks > 0).then(|| Length(stat.f_bavail.saturating_mul(stat.f_frsize)))
    }

    fn no_space(&self, requested: Length) -> FabricError {
        let (free, path) = match self.free_on_disk() {
            Some(free) => (free, self.path.to_owned()),
            None => {
                let (free, whose) = free_memory::memory_room().unwrap_or_default();
                (free, PathBuf::from(whose))
            }
        };
        FabricError::NoSpace { requested, free, path }
    }
}

pub(crate) fn is_tmpfs(fd: BorrowedFd<'_>) -> bool {
    // TMPFS_MAGIC of linux/magic.h.
    rustix::fs::fstatfs(fd).is_ok_and(|stat| i128::from(stat.f_type) == 0x0102_1994)
}

/// The contents of a file before its pages are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Nothing: the file was just created.
    New,
    /// A region, possibly with clients that are writing to it.
    Retained,
}

/// Allocates every page of the range in the file system, so that no later store can fail. Existing
/// contents do not change. If the file system supports neither `fallocate` nor `SEEK_HOLE`, an
/// existing file is left as it is: the Farrow process that created it has already filled it.
pub(crate) fn commit_pages(
    fd: BorrowedFd<'_>,
    start: u64,
    length: Length,
    room: &PageSource<'_>,
    contents: Contents,
) -> Result<(), FabricError> {
    let end = start + length.0;
    let mut at = start;
    while at < end {
        let piece = (end - at).min(COMMIT_PIECE_BYTES);
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), at, piece) {
            Ok(()) => at += piece,
            Err(Errno::INTR) => {}
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM) => {
                return Err(room.no_space(length));
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                tracing::debug!(path = %room.path.display(), ?contents, "no fallocate: zeros");
                let written = match contents {
                    Contents::New => write_zeros(fd, at, end),
                    Contents::Retained => fill_holes(fd, at, end),
                };
                return written.map_err(|errno| match errno {
                    Errno::NOSPC | Errno::DQUOT | Errno::FBIG => room.no_space(length),
                    errno => system("write zeros", room.path, errno),
                });
            }
            Err(errno) => return Err(system("fallocate", room.path, errno)),
        }
    }
    Ok(())
}

/// Writes zeros to the holes of the file.
fn fill_holes(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<(), Errno> {
    let mut at = start;
    while at < end {
        let hole = match rustix::fs::seek(fd, SeekFrom::Hole(at)) {
            Ok(hole) if hole < end => hole,
            // The hole is after the range, or the file system cannot tell.
            Ok(_) | Err(Errno::INVAL | Errno::NXIO) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let data = match rustix::fs::seek(fd, SeekFrom::Data(hole)) {
            Ok(data) if data > hole => data.min(end),
            // An empty hole is implausible, and there is nothing to fill.
            Ok(_) => return Ok(()),
            Err(Errno::NXIO) => end,
            Err(errno) => return Err(errno),
        };
        write_zeros(fd, hole, data)?;
        at = data;
    }
    Ok(())
}

fn write_zeros(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<(), Errno> {
    let zeros = vec![0u8; ZERO_PIECE_BYTES];
    let mut at = start;
    while at < end {
        let piece = usize::try_from(end - at).unwrap_or(usize::MAX).min(zeros.len());
        let part = zeros.get(..piece).unwrap_or(&zeros);
        match rustix::io::pwrite(fd, part, at) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(written) => at += written as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Locks the range, so that each region has only one home. The lock is released with the last copy
/// of the descriptor, at the latest when the process exits. The descriptor must be neither passed
/// to nor mapped by other processes: both would keep the lock. Files without lock support are used
/// without a lock.
pub(super) fn lock_range(
    fd: BorrowedFd<'_>,
    start: u64,
    length: Length,
    path: &Path,
) -> Result<(), FabricError> {
    let mut tries = 0;
    loop {
        let Err(error) = locks::lock_alone(fd, start, length.0) else {
            return Ok(());
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) if tries < LOCK_TRIES_MAX => {
                tries += 1;
                thread::sleep(LOCK_PAUSE);
            }
            Some(libc::EAGAIN | libc::EACCES) => {
                return Err(FabricError::Locked { path: path.to_owned() });
            }
            _ => {
                tracing::debug!(path = %path.display(), %error, "no lock on this file");
                return Ok(());
            }
        }
    }
}

/// Takes a lock that shows [`is_locked`] that a process with this open file description is alive.
pub(super) fn mark_held(fd: BorrowedFd<'_>, path: &Path) -> Result<(), FabricError> {
    locks::lock_byte(fd, locks::HELD_AT).map_err(|source| FabricError::System {
        call: "lock",
        path: path.to_owned(),
        source,
    })
}

/// Whether another open file description has a lock on any part of the file.
pub(super) fn is_locked(fd: BorrowedFd<'_>) -> io::Result<bool> {
    locks::is_locked(fd, 0, 0)
}

/// `F_SETSIG` of linux/fcntl.h, which is missing in the `libc` crate.
const F_SETSIG: libc::c_int = 10;

/// Whether other users of a file exist, according to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileUsers {
    /// Only the caller has it open.
    Alone,
    /// It is also open or mapped elsewhere.
    Shared,
    /// This file system cannot tell.
    Unknown,
}

/// Takes a write lease, which the kernel grants only to the sole user of a file, and releases it.
pub(super) fn usage(fd: BorrowedFd<'_>) -> FileUsers {
    let call = |command: libc::c_int, value: libc::c_int| {
        // SAFETY: the descriptor is open for the whole call, and the argument is an integer.
        let answer = unsafe { libc::fcntl(fd.as_raw_fd(), command, value) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // If the file is opened elsewhere during the lease, the kernel sends a signal to this process.
    // SIGURG is ignored by default; the standard signal (SIGIO) would terminate the process.
    if call(F_SETSIG, libc::SIGURG).is_err() {
        return FileUsers::Unknown;
    }
    match call(libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => {
            let _ = call(libc::F_SETLEASE, libc::F_UNLCK);
            FileUsers::Alone
        }
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => FileUsers::Shared,
        Err(_) => FileUsers::Unknown,
    }
}

/// What `stat` reports about a file for a section.
pub(super) enum FileShape {
    /// A regular file of this length.
    Regular(Length),
    /// A device, whose length `stat` does not report.
    Device {
        /// Its device number, for sysfs.
        rdev: u64,
    },
}

pub(super) fn shape_of(fd: BorrowedFd<'_>, path: &Path) -> Result<FileShape, FabricError> {
    let stat = rustix::fs::fstat(fd).map_err(|errno| system("fstat", path, errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            Ok(FileShape::Regular(Length(u64::try_from(stat.st_size).unwrap_or(0))))
        }
        FileType::CharacterDevice => Ok(FileShape::Device { rdev: stat.st_rdev }),
        other => Err(FabricError::NotMappable {
            path: path.to_owned(),
            reason: format!("it is neither a regular file nor a character device but {other:?}"),
        }),
    }
}

/// Checks that a regular file is long enough for the whole section.
pub(super) fn check_length(
    shape: &FileShape,
    section: Section,
    file_offset: u64,
    length: Length,
) -> Result<(), FabricError> {
    let needed = Length(file_offset.saturating_add(length.0));
    match shape {
        FileShape::Regular(found) if *found < needed => {
            Err(FabricError::TooShort { section, needed, found: *found })
        }
        _ => Ok(()),
    }
}

/// Checks that the access mode of the descriptor matches its role.
pub(super) fn check_mode(
    fd: BorrowedFd<'_>,
    section: Section,
    is_writer: bool,
) -> Result<(), FabricError> {
    let path = Path::new("passed descriptor");
    let flags =
        rustix::fs::fcntl_getfl(fd.as_fd()).map_err(|errno| system("fcntl", path, errno))?;
    let mode = flags & OFlags::RWMODE;
    let (is_right, expected) = if is_writer {
        (mode == OFlags::RDWR, "read and write")
    } else {
        (mode == OFlags::RDONLY, "read-only")
    };
    if is_right {
        return Ok(());
    }
    Err(FabricError::WrongMode { section, mode: mode.bits(), expected })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn holes_are_filled_and_the_rest_is_retained() {
        let page = page_bytes();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * page).unwrap();
        file.write_all_at(b"kept", 2 * page).unwrap();
        file.write_all_at(b"outside", 6 * page).unwrap();
        fill_holes(file.as_fd(), 0, 6 * page).unwrap();
        let mut bytes = vec![0xEE; 8 * page as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let at = |pages: u64| (pages * page) as usize;
        assert_eq!(bytes[at(2)..at(2) + 4], *b"kept");
        assert_eq!(bytes[at(6)..at(6) + 7], *b"outside");
        assert_eq!(bytes.iter().filter(|byte| **byte != 0).count(), 4 + 7);
        // A block is 512 bytes on every Linux file system.
        assert!(file.metadata().unwrap().blocks() * 512 >= 7 * page);
    }

    #[test]
    fn zeros_are_written_where_they_are_asked_for() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes = 2 * ZERO_PIECE_BYTES as u64 + 100;
        file.write_all(&vec![1; bytes as usize]).unwrap();
        write_zeros(file.as_fd(), 10, bytes - 10).unwrap();
        let mut back = vec![2; bytes as usize];
        file.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(back.iter().filter(|byte| **byte == 1).count(), 20);
        assert_eq!((back[9], back[10]), (1, 0));
    }

    #[test]
    fn a_lock_is_for_one_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("locked");
        let open = || File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        let (first, second) = (open(), open());
        locks::lock_alone(first.as_fd(), 0, 4096).unwrap();
        assert!(locks::lock_alone(second.as_fd(), 0, 4096).is_err());
        locks::lock_alone(second.as_fd(), 4096, 4096).expect("another range");
        locks::lock_alone(first.as_fd(), 0, 4096).expect("the same open file");
        drop(first);
        lock_range(second.as_fd(), 0, Length(4096), &path).unwrap();
    }
}
