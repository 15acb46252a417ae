//! Replaces a daemon without interrupting its clients. The new daemon takes over the listening
//! socket, the lock and the region, in this order. The old one can take them back until the new
//! one serves.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use farrow_wire::link::{Link, LinkError};
use farrow_wire::{Inheritance, WireError, paths};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use farrow_memory::HeldMemory;

use crate::memory;
use crate::node::{MemorySource, NodeError, NodeOptions};

/// Time limit for the handover. The old daemon first answers requests that have arrived, in 4 s at
/// most.
const HANDOVER_MAX: Duration = Duration::from_secs(15);

/// Time limit of the old daemon for the new one to serve. A million objects take one second. After
/// it, either daemon might write the region, so the old one gives it up.
const SUCCESSOR_MAX: Duration = Duration::from_secs(60);

/// Time limit for a node that is shutting down.
const ENDING_MAX: Duration = Duration::from_secs(5);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Resources that a new daemon received from the old one.
#[derive(Debug)]
pub(crate) struct UpgradeState {
    pub(crate) listener: UnixListener,
    pub(crate) lock: File,
    /// The region, if it has no name.
    pub(crate) memory: Option<HeldMemory>,
    pub(crate) inheritance: Inheritance,
    /// Connection to the old daemon. It takes everything back if this is closed without a
    /// confirmation.
    pub(crate) predecessor: Option<UnixStream>,
}

/// The outcome of a handover to the next daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// The next daemon serves, or its state is unknown. This daemon must end and touch nothing.
    Over,
    /// The next daemon ended before it served.
    Failed,
}

/// The outcome of a request to take over.
#[derive(Debug)]
pub(crate) enum TakenOver {
    /// Everything was handed over.
    All(Box<UpgradeState>),
    /// No node serves. Memory of a node that ended meanwhile may be left.
    NoDaemon(Option<HeldMemory>),
}

/// Why one attempt failed.
enum UpgradeFailure {
    /// The node is shutting down, so another attempt may succeed.
    Ending(NodeError),
    /// Another attempt would fail too.
    Refused(NodeError),
}

/// Asks the daemon that serves, if any, to hand over. All checks that can fail run first.
pub(crate) fn take_over(options: &NodeOptions, region_name: &str) -> Result<TakenOver, NodeError> {
    let until = Instant::now() + ENDING_MAX;
    let mut held = None;
    loop {
        match try_take_over(options, region_name, &mut held) {
            Ok(Some(inherited)) => return Ok(TakenOver::All(Box::new(inherited))),
            Ok(None) => return Ok(TakenOver::NoDaemon(held)),
            Err(UpgradeFailure::Ending(error)) if Instant::now() < until => {
                tracing::info!(
                    %error,
                    "the earlier daemon has not ended yet: the takeover is retried"
                );
                std::thread::sleep(ENDING_PAUSE);
            }
            Err(UpgradeFailure::Ending(error) | UpgradeFailure::Refused(error)) => {
                return Err(error);
            }
        }
    }
}

/// Makes one attempt. `None`: no node serves. Memory without a name is left in `held`.
fn try_take_over(
    options: &NodeOptions,
    region_name: &str,
    held: &mut Option<HeldMemory>,
) -> Result<Option<UpgradeState>, UpgradeFailure> {
    let socket = &options.socket;
    let not_handed = |reason: String| NodeError::NotHandedOver { socket: socket.clone(), reason };
    let refused = |reason: String| UpgradeFailure::Refused(not_handed(reason));
    match UnixStream::connect(socket) {
        Ok(stream) => {
            let theirs = getsockopt(&stream, PeerCredentials)
                .map_err(|error| refused(error.to_string()))?
                .uid();
            if theirs != paths::own_uid() {
                return Err(refused(format!("it belongs to user {theirs}")));
            }
        }
        Err(error) if is_without_daemon(&error) => return Ok(None),
        Err(error) => return Err(refused(error.to_string())),
    }
    // The holder of memory without a name may just have been killed.
    let region_uid = match memory::find_existing(options, region_name) {
        Ok((uid, found)) => {
            *held = found;
            uid
        }
        Err(error) if matches!(options.source, MemorySource::Automatic) => {
            return Err(UpgradeFailure::Ending(error));
        }
        Err(error) => return Err(UpgradeFailure::Refused(error)),
    };
    let deadline = Instant::now() + HANDOVER_MAX;
    let taken = Link::take_over(socket, region_uid.0, deadline);
    let (stream, inheritance, descriptors) = taken.map_err(|error| match error {
        LinkError::Refused(WireError::OtherRegion { new, .. }) => {
            refused(format!("it serves region {new:#018x}, not the {region_uid} that lies there"))
        }
        LinkError::Refused(WireError::Closing) | LinkError::Closed { .. } => {
            UpgradeFailure::Ending(not_handed(error.to_string()))
        }
        LinkError::Unwelcome { reason, .. } => UpgradeFailure::Ending(not_handed(format!(
            "{reason}: if it is too old to hand over, stop it with its memory kept (--keep)"
        ))),
        error => refused(error.to_string()),
    })?;
    let count = descriptors.len();
    let Ok([listener, lock]) = <[_; 2]>::try_from(descriptors) else {
        return Err(refused(format!("{count} descriptors came, 2 were expected")));
    };
    Ok(Some(UpgradeState {
        listener: UnixListener::from(listener),
        lock: File::from(lock),
        memory: held.take(),
        inheritance,
        predecessor: Some(stream),
    }))
}

fn is_without_daemon(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Reports to the old daemon that this one serves.
pub(crate) fn confirm(mut predecessor: &UnixStream) {
    if let Err(error) = predecessor.write_all(&[1]) {
        // The old daemon takes nothing back while this connection is open, so it has ended.
        tracing::info!(%error, "the earlier daemon has already ended");
    }
}

/// Waits until the next daemon serves or fails, or `wake` requests that this daemon ends.
pub(crate) fn await_successor(mut successor: UnixStream, wake: &UnixStream) -> Succession {
    let until = Instant::now() + SUCCESSOR_MAX;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut both = [PollFd::new(&successor, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        let waited = poll(&mut both, Timespec::try_from(left).ok().as_ref());
        let is_queried = !both.get(1).is_none_or(|wake| wake.revents().is_empty());
        match waited {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "the next daemon cannot be watched");
                return Succession::Over;
            }
            Ok(_) if is_queried => return Succession::Over,
            Ok(0) => {
                tracing::error!("the next daemon neither serves nor ends: it gets the region");
                return Succession::Over;
            }
            Ok(_) => {}
        }
        return match successor.read(&mut [0; 1]) {
            Ok(1) => Succession::Over,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(_) | Err(_) => Succession::Failed,
        };
    }
}
