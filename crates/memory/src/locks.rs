//! Locks that belong to an open file description (`F_OFD_SETLK` of fcntl(2)).
//!
//! A mapping keeps the description that it was made from, in this process and in every process that
//! inherits it. So such a lock is there as long as anybody still maps through its description, or has
//! a descriptor of it, and it goes with the last of them however that one ends.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that are locked lie behind every byte that a file can have. Whoever holds a region's memory for
/// its node locks this one; places of clients start at [`PLACES_AT`].
pub(crate) const HELD_AT: u64 = 1 << 62;

/// Where the bytes of clients' places start, as [`crate::family`] counts them.
pub(crate) const PLACES_AT: u64 = 1 << 61;

/// Locks one byte for reading. The file may be shorter.
pub(crate) fn lock_byte(fd: BorrowedFd<'_>, at: u64) -> io::Result<()> {
    set(fd, record(libc::F_RDLCK, at, 1)?)
}

/// Locks a range for writing: no other description can have a lock on any of it.
pub(crate) fn lock_alone(fd: BorrowedFd<'_>, start: u64, bytes: u64) -> io::Result<()> {
    set(fd, record(libc::F_WRLCK, start, bytes)?)
}

fn set(fd: BorrowedFd<'_>, lock: libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open for the whole call and `lock` is a valid flock, only read.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether another description than this one has a lock on one of these bytes; 0 bytes reach to the end
/// of all files.
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
    // SAFETY: flock is plain integers, for which all zeros is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = i64::try_from(start).map_err(beyond)?;
    lock.l_len = i64::try_from(bytes).map_err(beyond)?;
    Ok(lock)
}
