//! Replies of the daemon, and the calls that they belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::notifications::Notification;
use super::undo::Undo;
use crate::{Reply, ReplyBody, Spin, WireError};

/// Bytes read at once: most replies are short.
const READ_BYTES: usize = 8 << 10;

/// Most requests with late replies to undo: more than a client can have in flight at a node.
const ABANDONED_MAX: usize = 8192;

/// Replies that have arrived, and requests without one.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Requests whose callers wait, or whose replies are stored for them.
    pub(super) waiting: BTreeSet<u64>,
    pub(super) replies: BTreeMap<u64, Result<ReplyBody, WireError>>,
    pub(super) has_reader: bool,
    /// Threads that sleep until the reader has read.
    pub(super) sleeper_count: usize,
    /// Bytes of replies that are not complete.
    pub(super) input: Vec<u8>,
    /// Why the connection is closed.
    pub(super) dead: Option<String>,
    /// Why nothing can be sent any more. Replies to what was sent may still arrive: a daemon that
    /// another one replaces takes no more requests and answers those that it has.
    pub(super) unsendable: Option<String>,
    /// Requests whose callers have stopped waiting, and how to undo their late replies.
    abandoned: BTreeMap<u64, Undo>,
    /// What undoes the late replies that have arrived.
    pub(super) undoing: Vec<Notification>,
    /// Threads that are about to send some of it.
    pub(super) undoing_count: usize,
}

impl Inbox {
    /// Whether a reply is awaited only to be undone.
    pub(super) fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Whether one of these names may still be reserved for a caller that has stopped waiting.
    pub(super) fn may_reserve(&self, names: &[String]) -> bool {
        self.undoing_count > 0 || self.abandoned.values().any(|undo| undo.reserves(names))
    }

    /// Registers that no caller waits for this reply any more, unless it is stored for one.
    pub(super) fn abandon(&mut self, seq: u64, undo: Undo) {
        if matches!(undo, Undo::Keep) {
            return;
        }
        self.waiting.remove(&seq);
        if undo.is_needed() && self.abandoned.len() < ABANDONED_MAX {
            self.abandoned.insert(seq, undo);
        }
    }

    /// Stores each complete reply for its caller. An error is the reason why the link is dead.
    pub(super) fn hand_out(&mut self, input: &mut Vec<u8>) -> Result<(), String> {
        let mut used = 0;
        let result = loop {
            match crate::decode::<Reply>(input.get(used..).unwrap_or(&[])) {
                Ok(Some((reply, bytes))) => {
                    used += bytes;
                    if self.waiting.remove(&reply.seq) {
                        self.replies.insert(reply.seq, reply.body);
                    } else if let Some(undo) = self.abandoned.remove(&reply.seq)
                        && let Ok(body) = reply.body
                    {
                        self.undoing.extend(undo.after(body));
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.to_string()),
            }
        };
        input.drain(..used);
        result
    }
}

/// Reads once, for at most the read timeout of the stream. Returns true if a signal ended the read.
/// An error is the reason why the link is dead.
pub(super) fn read_some(stream: &UnixStream, input: &mut Vec<u8>) -> Result<bool, String> {
    let mut bytes = [MaybeUninit::uninit(); READ_BYTES];
    let read = match read_at_once(stream, &mut bytes, input) {
        // Sleeps for the read timeout of the stream.
        None => receive(stream, &mut bytes, RecvFlags::empty(), input),
        Some(read) => read,
    };
    match read {
        Ok(0) => Err("the node went away".to_owned()),
        Ok(_) => Ok(false),
        Err(Errno::INTR) => Ok(true),
        Err(Errno::AGAIN | Errno::TIMEDOUT) => Ok(false),
        Err(error) => Err(io::Error::from(error).to_string()),
    }
}

/// Appends what one call of the kernel receives. Returns the number of bytes.
fn receive(
    stream: &UnixStream,
    bytes: &mut [MaybeUninit<u8>],
    flags: RecvFlags,
    input: &mut Vec<u8>,
) -> Result<usize, Errno> {
    let ((read, _), count) = rustix::net::recv(stream, bytes, flags)?;
    input.extend_from_slice(read);
    Ok(count)
}

/// Reads input that arrives soon, without sleeping: most replies do.
fn read_at_once(
    stream: &UnixStream,
    bytes: &mut [MaybeUninit<u8>],
    input: &mut Vec<u8>,
) -> Option<Result<usize, Errno>> {
    let mut spin = Spin::begin();
    loop {
        match receive(stream, bytes, RecvFlags::DONTWAIT, input) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return Some(done),
        }
        if !spin.goes_on() {
            return None;
        }
        spin.give_way();
    }
}

/// Whether a read ended without input on a connection that lives on.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}
