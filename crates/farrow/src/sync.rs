//! Barriers and flags, between clients on any nodes.

use std::time::Duration;

use farrow_wire::link::confused;
use farrow_wire::{ReplyBody, RequestBody, SyncAsk, WAIT_MS_MAX};

use crate::client::{Client, deadline_after, millis};
use crate::error::Error;

impl Client {
    /// Waits until `parties` clients have come to the barrier of this name, in this namespace, on
    /// whatever nodes. Then it is as new. No polling: who comes last wakes the others.
    ///
    /// # Errors
    ///
    /// [`Error::BarrierBroken`] names who does not come: a client that ended, one of those that
    /// passed the last time included, or one whose time is over, this one perhaps.
    /// [`Error::NodeLost`] when the node that keeps the barrier is lost.
    pub fn barrier(&self, name: &str, parties: u32, timeout: Duration) -> Result<(), Error> {
        let timeout_ms = millis(timeout).min(WAIT_MS_MAX);
        self.sync(name, SyncAsk::Arrive { parties, timeout_ms }, timeout).map(drop)
    }

    /// Sets flags of this name, after it cleared others: one step for all that wait. All are clear
    /// at first. Another node may keep them when nodes join or leave, and answers once it has them;
    /// the flags of a node that is killed or excluded are lost. Returns all flags.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`] when the node that keeps them is lost or has not received them in time;
    /// [`Error::CutOff`] when it is this node, which has not received them or has no lease.
    pub fn set_flags(&self, name: &str, set: u64, clear: u64) -> Result<u64, Error> {
        let (value, _) = self.sync(name, SyncAsk::SetFlags { set, clear }, Duration::ZERO)?;
        Ok(value)
    }

    /// Waits until all flags of `mask` are set, and returns all flags.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`]; [`Error::NodeLost`] and [`Error::CutOff`] as [`Self::set_flags`].
    pub fn wait_flags(&self, name: &str, mask: u64, timeout: Duration) -> Result<u64, Error> {
        let timeout_ms = millis(timeout).min(WAIT_MS_MAX);
        match self.sync(name, SyncAsk::WaitFlags { mask, timeout_ms }, timeout)? {
            (value, true) => Ok(value),
            (value, false) => Err(Error::Timeout {
                what: format!("flags {mask:#x} of {name:?}, of which {:#x} are set", value & mask),
                waited_ms: timeout_ms,
            }),
        }
    }

    /// The node keeps the time; its answer may take a little longer.
    fn sync(&self, name: &str, ask: SyncAsk, timeout: Duration) -> Result<(u64, bool), Error> {
        let own = self.nodes().own();
        let deadline = deadline_after(timeout);
        let deadline = deadline.checked_add(own.timeout).unwrap_or(deadline);
        let body = RequestBody::Sync { name: name.to_owned(), ask };
        match own.call_until(body, deadline)? {
            ReplyBody::Done => Ok((0, true)),
            ReplyBody::Flags { value, is_met } => Ok((value, is_met)),
            other => Err(confused(&other).into()),
        }
    }
}
