//! The process at the other end of a connection, and the detection of its end.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::protocol::PeerIdentity;

/// The peer's credentials from the kernel, with one system call. The start time is not known yet.
pub(super) fn credentials_of(stream: &UnixStream) -> io::Result<PeerIdentity> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    let pid = u32::try_from(credentials.pid()).unwrap_or(0);
    Ok(PeerIdentity { pid, start_time: 0, uid: credentials.uid(), remote_client: None })
}

/// Adds the start time of the process.
///
/// # Errors
///
/// As [`watch`].
pub(super) fn with_start_time(peer: PeerIdentity) -> io::Result<PeerIdentity> {
    let start_time = start_time_of(peer.pid)?.unwrap_or(0);
    Ok(PeerIdentity { start_time, ..peer })
}

/// Whether the process has an identity here. One in a PID namespace that this daemon does not see
/// has no number, and one that `hidepid` hides has no start time. Neither can be watched.
pub(super) fn is_identified(peer: &PeerIdentity) -> bool {
    peer.pid != 0 && peer.start_time != 0
}

/// A descriptor that becomes readable when the process ends. `None` if the process is not visible
/// here or its id has been reused.
///
/// # Errors
///
/// There are no more descriptors, or no memory: the process may be alive.
pub(super) fn watch(peer: &PeerIdentity) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(peer.pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    let watch = match pidfd_open(pid, PidfdFlags::NONBLOCK) {
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno.into()),
        Err(_) => return Ok(None),
        Ok(watch) => watch,
    };
    // The start time is compared after the descriptor is open, so the id cannot be reused in
    // between.
    let is_same = peer.start_time != 0 && start_time_of(peer.pid)? == Some(peer.start_time);
    Ok(is_same.then_some(watch))
}

/// As [`watch`], with the end of the process as an event of `poll`.
///
/// # Errors
///
/// As [`watch`], and if `poll` has no room: that says nothing about the process either.
pub(super) fn watch_by(
    poll: BorrowedFd<'_>,
    peer: &PeerIdentity,
    token: u64,
) -> io::Result<Option<OwnedFd>> {
    let Some(process) = watch(peer)? else {
        return Ok(None);
    };
    epoll::add(poll, &process, EventData::new_u64(token), EventFlags::IN)?;
    Ok(Some(process))
}

/// Field 22 of `/proc/PID/stat`: start time in clock ticks since boot (proc(5)).
///
/// # Errors
///
/// As [`watch`].
pub(super) fn start_time_of(pid: u32) -> io::Result<Option<u64>> {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) => {
            let errno = Errno::from_io_error(&error);
            let is_short = matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM));
            return if is_short { Err(error) } else { Ok(None) };
        }
    };
    // The command in parentheses may itself contain spaces and parentheses.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    let field = fields.and_then(|fields| fields.split_ascii_whitespace().nth(19));
    Ok(field.and_then(|field| field.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_seen_to_live_and_to_die() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let start_time = start_time_of(pid).unwrap().unwrap();
        let peer = PeerIdentity { pid, start_time, uid: 0, remote_client: None };
        assert!(watch(&peer).unwrap().is_some());
        let other_life = PeerIdentity { start_time: start_time + 1, ..peer };
        assert!(watch(&other_life).unwrap().is_none(), "same number, another process");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watch(&peer).unwrap().is_none());
    }
}
