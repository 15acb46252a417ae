//! Replies that arrive after the deadline of their call, and are still of use.

use std::sync::Arc;
use std::time::Instant;

use super::undo::Undo;
use super::{Link, LinkError, PendingCall, lock};
use crate::{ReplyBody, RequestBody};

/// Why a call of [`Link::call_to_keep`] has no reply.
#[derive(Debug)]
pub struct NoReply {
    /// The error of the call.
    pub error: LinkError,
    /// After a timeout: the request is sent, or is sent with the next one, and its reply is stored.
    pub pending: Option<PendingReply>,
}

impl From<LinkError> for NoReply {
    fn from(error: LinkError) -> Self {
        Self { error, pending: None }
    }
}

/// The place of a reply that has not arrived yet. A drop discards the reply.
#[derive(Debug)]
pub struct PendingReply {
    link: Arc<Link>,
    seq: u64,
}

impl Link {
    /// As [`Self::call`], for a request with an outcome that matters after the deadline too.
    ///
    /// # Errors
    ///
    /// As [`Self::call`]. After a `Timeout` without a pending reply nothing was sent.
    pub fn call_to_keep(
        self: &Arc<Self>,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<ReplyBody, NoReply> {
        let started = Instant::now();
        let seq = self.next_seq();
        let pending = PendingReply { link: Arc::clone(self), seq };
        lock(&self.receiving).waiting.insert(seq);
        let reply = match self.send(seq, body, deadline)? {
            true => self.receive(pending.call(started, deadline)),
            false => Err(self.timeout(started)),
        };
        reply.map_err(|error| {
            let is_late = matches!(error, LinkError::Timeout { .. });
            NoReply { error, pending: is_late.then_some(pending) }
        })
    }
}

impl PendingReply {
    /// Waits for the reply until the deadline. After a `Timeout` it may be called again.
    ///
    /// # Errors
    ///
    /// As [`Link::call`]; the request itself may have been served in any case.
    pub fn receive(&self, deadline: Instant) -> Result<ReplyBody, LinkError> {
        self.link.write_rest();
        self.link.receive(self.call(Instant::now(), deadline))
    }

    fn call(&self, started: Instant, deadline: Instant) -> PendingCall<'static> {
        PendingCall { seq: self.seq, undo: Undo::Keep, started, deadline, interrupt: None }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread of the parent, for good.
        if !self.link.is_own_process() {
            return;
        }
        let mut state = lock(&self.link.receiving);
        state.waiting.remove(&self.seq);
        state.replies.remove(&self.seq);
    }
}
