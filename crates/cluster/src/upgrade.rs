//! How a daemon follows another without anybody noticing: it takes over the listening socket, the
//! lock and the region, in this order, and the old one is there to take them back until the new
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

/// The old daemon answers what has arrived first, in 4 s at most.
const HANDOVER_MAX: Duration = Duration::from_secs(15);

/// The old daemon waits so long for the new one to serve; a million objects take one second.
/// After that nobody knows which of the two writes the region, and the old one lets go.
const SUCCESSOR_MAX: Duration = Duration::from_secs(60);

/// A node that ends has ended after so long.
const ENDING_MAX: Duration = Duration::from_secs(5);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// What a new daemon has got from the old one.
#[derive(Debug)]
pub(crate) struct UpgradeState {
    pub(crate) listener: UnixListener,
    pub(crate) lock: File,
    /// The region, if it has no name.
    pub(crate) memory: Option<HeldMemory>,
    pub(crate) inheritance: Inheritance,
    /// The old one takes everything back when this is closed without a word.
    pub(crate) predecessor: Option<UnixStream>,
}

/// How it went with the next daemon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// It serves, or it is not known what it does: this daemon is to end and touch nothing.
    Over,
    /// It ended before it served.
    Failed,
}

/// What came of asking.
#[derive(Debug)]
pub(crate) enum TakenOver {
    /// Everything.
    All(Box<UpgradeState>),
    /// No node serves, or none any more: of one that ended meanwhile the memory may be left.
    Nobody(Option<HeldMemory>),
}

/// How one try failed.
enum UpgradeFailure {
    /// The node that was asked ends: another try tells whether it has.
    Ending(NodeError),
    /// Another try would fail too.
    Refused(NodeError),
}

/// Asks the daemon that serves, if one does, for its place. Everything that can be known to fail
/// is tried before.
pub(crate) fn take_over(options: &NodeOptions, region_name: &str) -> Result<TakenOver, NodeError> {
    let until = Instant::now() + ENDING_MAX;
    let mut held = None;
    loop {
        match try_take_over(options, region_name, &mut held) {
            Ok(Some(inherited)) => return Ok(TakenOver::All(Box::new(inherited))),
            Ok(None) => return Ok(TakenOver::Nobody(held)),
            Err(UpgradeFailure::Ending(error)) if Instant::now() < until => {
                tracing::info!(%error, "asked again");
                std::thread::sleep(ENDING_PAUSE);
            }
            Err(UpgradeFailure::Ending(error) | UpgradeFailure::Refused(error)) => {
                return Err(error);
            }
        }
    }
}

/// `None`: nobody is there. Memory without a name is left in `held`.
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
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(refused(error.to_string())),
    }
    // Who held memory without a name may just have been killed.
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

fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Tells the old daemon that this one serves.
pub(crate) fn confirm(mut predecessor: &UnixStream) {
    if let Err(error) = predecessor.write_all(&[1]) {
        // It takes nothing back by itself, so it has ended, or was ended, before it was told to.
        tracing::info!(%error, "the old daemon is gone already");
    }
}

/// Waits until the next daemon serves, fails, or `wake` says that this one is to end.
pub(crate) fn await_successor(mut successor: UnixStream, wake: &UnixStream) -> Succession {
    let until = Instant::now() + SUCCESSOR_MAX;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut both = [PollFd::new(&successor, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        let waited = poll(&mut both, Timespec::try_from(left).ok().as_ref());
        let is_asked = !both.get(1).is_none_or(|wake| wake.revents().is_empty());
        match waited {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => {
                tracing::error!(%error, "the next daemon cannot be watched");
                return Succession::Over;
            }
            Ok(_) if is_asked => return Succession::Over,
            Ok(0) => {
                tracing::error!("the next daemon neither serves nor ends; leaving it the region");
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
