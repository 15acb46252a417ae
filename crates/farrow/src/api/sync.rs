//! Barriers and flags between clients on any nodes.

use std::time::Duration;

use farrow_wire::link::confused;
use farrow_wire::{ReplyBody, RequestBody, SyncAsk, WAIT_MS_MAX};

use crate::api::Client;
use crate::clock::{deadline_after, millis};
use crate::error::Error;

impl Client {
    /// Waits until `parties` clients have arrived at the barrier of this name, in this namespace,
    /// on any nodes. Then the barrier is reset. No polling: the last arrival wakes the others.
    ///
    /// # Errors
    ///
    /// [`Error::BarrierBroken`] names the missing client: one that ended, even if it passed the
    /// previous round, or one that timed out, possibly this one. [`Error::NodeLost`] when the node
    /// that owns the barrier is lost.
    pub fn barrier(&self, name: &str, parties: u32, timeout: Duration) -> Result<(), Error> {
        let timeout_ms = millis(timeout).min(WAIT_MS_MAX);
        self.sync(name, SyncAsk::Arrive { parties, timeout_ms }, timeout).map(drop)
    }

    /// Sets flags of this name after clearing others, as one step for all waiters. Initially all
    /// flags are clear. When nodes join or leave, the flags may move to another node, which answers
    /// once it has received them. The flags of a killed or excluded node are lost. Returns all
    /// flags.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`] when the node that owns the flags is lost or has not received them in
    /// time; [`Error::CutOff`] when it is this node, and it has not received them or has no lease.
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

    /// Sends a request. The node enforces the timeout; its answer may take a little longer.
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
