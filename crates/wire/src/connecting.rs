//! Connects to the socket of a daemon within a deadline.
//!
//! Where the queue of a socket is full, a blocking `connect` sleeps until the daemon accepts, which
//! one that hangs never does.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::WireError;
use crate::interrupt::pause;
use crate::link::LinkError;

/// The first pause before another attempt, while the queue is full.
const PAUSE_FIRST: Duration = Duration::from_millis(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Connects; the stream is blocking.
///
/// # Errors
///
/// No daemon listens, another user's does, the deadline passes or an interrupt ends the wait.
pub(crate) fn connect(socket: &Path, deadline: Instant) -> Result<UnixStream, LinkError> {
    let started = Instant::now();
    let waited_ms = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut wait = PAUSE_FIRST;
    loop {
        match attempt(socket) {
            Ok(stream) => return Ok(stream),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::ACCESS | Errno::PERM) => {
                let error = io::Error::from(Errno::ACCESS);
                let reason = format!("the socket {} of another user: {error}", socket.display());
                return Err(WireError::Denied(reason).into());
            }
            Err(errno) => {
                let reason = io::Error::from(errno).to_string();
                return Err(LinkError::Closed { socket: socket.to_owned(), reason });
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let socket = socket.to_owned();
            return Err(LinkError::Timeout { socket, waited_ms: waited_ms() });
        }
        if !pause(wait.min(left)) {
            return Err(LinkError::Interrupted { waited_ms: waited_ms() });
        }
        wait = (wait * 2).min(PAUSE_MAX);
    }
}

fn attempt(socket: &Path) -> Result<UnixStream, Errno> {
    let address = SocketAddrUnix::new(socket)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&made, &address)?;
    rustix::io::ioctl_fionbio(&made, false)?;
    Ok(made.into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::link::Link;
    use crate::listener::Listener;
    use crate::{Hello, Listen, PROTOCOL_VERSION};

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(300);

    /// A socket with room for one connection in its queue, which nothing accepts.
    fn deaf() -> (tempfile::TempDir, std::path::PathBuf, rustix::fd::OwnedFd) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deaf.sock");
        let flags = SocketFlags::CLOEXEC;
        let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        net::bind(&made, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        net::listen(&made, 0).unwrap();
        (folder, path, made)
    }

    /// Regression: all but the first slept in `connect` until the daemon accepted.
    #[test]
    fn connections_to_a_full_queue_end_by_their_deadline() {
        let (_folder, path, _deaf) = deaf();
        let (sender, ended) = channel();
        for number in 0..6 {
            let (path, sender) = (path.clone(), sender.clone());
            std::thread::spawn(move || {
                let deadline = Instant::now() + SHORT;
                let error = if number % 2 == 0 {
                    let hello = Hello {
                        version: PROTOCOL_VERSION,
                        resume: None,
                        namespace: String::new(),
                        node: String::new(),
                        maps_memory: true,
                    };
                    Link::connect(&path, hello, deadline).map(drop).err()
                } else {
                    let version = PROTOCOL_VERSION;
                    let node = String::new();
                    let listen = Listen { version, region_uid: 1, slot: 0, nonce: 1, node };
                    Listener::connect(&path, listen, deadline).map(drop).err()
                };
                sender.send(error).unwrap();
            });
        }
        for _ in 0..6 {
            let error = ended.recv_timeout(LONG).expect("a thread connects without end");
            assert!(matches!(error, Some(LinkError::Timeout { .. })), "{error:?}");
        }
    }

    #[test]
    fn a_connection_is_made_once_the_queue_has_room() {
        let (_folder, path, deaf) = deaf();
        let _first = connect(&path, Instant::now() + LONG).unwrap();
        assert!(matches!(connect(&path, Instant::now()), Err(LinkError::Timeout { .. })));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| connect(&path, Instant::now() + LONG));
            let _accepted = net::accept(&deaf).unwrap();
            let stream = second.join().unwrap().unwrap();
            let flags = rustix::fs::fcntl_getfl(&stream).unwrap();
            assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
        });
    }

    #[test]
    fn a_socket_that_is_not_there_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let error = connect(&folder.path().join("none.sock"), Instant::now() + LONG).err();
        assert!(matches!(error, Some(LinkError::Closed { .. })), "{error:?}");
        let long = "x".repeat(200);
        let error = connect(&folder.path().join(long), Instant::now() + LONG).err();
        assert!(matches!(error, Some(LinkError::Closed { .. })), "{error:?}");
    }
}
