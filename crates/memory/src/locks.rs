//! Locks that belong to an open file description (`F_OFD_SETLK` of fcntl(2)).
//!
//! A mapping keeps its open file description alive, in this process and in every process that
//! inherits the mapping. The lock therefore exists as long as any process has a mapping or a
//! descriptor of that description. The kernel removes it with the last one, even if the process was
//! killed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Position of the lock of a process that holds a region's memory for its node. All locked bytes
/// lie beyond the end of any real file. The bytes of clients start at [`PLACES_AT`].
pub(crate) const HELD_AT: u64 = 1 << 62;

/// Position of the first client lock, see [`crate::family`].
pub(crate) const PLACES_AT: u64 = 1 << 61;

/// Locks one byte for reading. It may lie beyond the end of the file.
pub(crate) fn lock_byte(fd: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    set(fd, record(libc::F_RDLCK, at, 1)?)
}

/// Locks a range for writing: no other open file description can have a lock in it.
pub(crate) fn lock_alone(fd: BorrowedFd<'_>, start: u64, bytes: u64) -> io::Result<()> {
    set(fd, record(libc::F_WRLCK, start, bytes)?)
}

fn set(fd: BorrowedFd<'_>, lock: libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open for the whole call and `lock` is a valid flock, only read.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether another open file description has a lock on any of these bytes. `bytes == 0` means up to
/// the largest possible file offset.
pub(crate) fn is_locked(fd: BorrowedFd<'_>, start: u64, bytes: u64) -> io::Result<bool> {
    let mut lock = record(libc::F_WRLCK, start, bytes)?;
    // SAFETY: the descriptor is open for the whole call, and `lock` is a valid flock of our own.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn record(kind: libc::c_int, start: u64, bytes: u64) -> io::Result<libc::flock> {
    let beyond = |_| io::Error::from_raw_os_error(libc::EOVERFLOW);
    // SAFETY: flock consists of plain integers, for which all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = i64::try_from(start).map_err(beyond)?;
    lock.l_len = i64::try_from(bytes).map_err(beyond)?;
    Ok(lock)
}
