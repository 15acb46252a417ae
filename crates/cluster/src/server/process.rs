//! Which process is at the other end, and how to notice that it has gone.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::protocol::PeerIdentity;

/// Who connected, as the kernel says.
pub(super) fn peer_of(stream: &UnixStream) -> std::io::Result<PeerIdentity> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    let pid = u32::try_from(credentials.pid()).unwrap_or(0);
    let start_time = start_time_of(pid).unwrap_or(0);
    Ok(PeerIdentity { pid, start_time, uid: credentials.uid(), guest: None })
}

/// A descriptor that becomes readable when the process ends; `None` when it is not visible
/// here or another process has its number by now.
pub(super) fn watch(peer: &PeerIdentity) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(peer.pid).ok()?)?;
    let watch = pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    // Opened first, compared after: the number cannot change hands between the two.
    (peer.start_time != 0 && start_time_of(peer.pid) == Some(peer.start_time)).then_some(watch)
}

/// Field 22 of `/proc/PID/stat`: start time in clock ticks since boot (proc(5)).
pub(super) fn start_time_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may hold spaces and parentheses itself.
    let fields = stat.rsplit_once(')')?.1;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_seen_to_live_and_to_die() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let start_time = start_time_of(pid).unwrap();
        let peer = PeerIdentity { pid, start_time, uid: 0, guest: None };
        assert!(watch(&peer).is_some());
        let other_life = PeerIdentity { start_time: start_time + 1, ..peer };
        assert!(watch(&other_life).is_none(), "same number, another process");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(watch(&peer).is_none());
    }
}
