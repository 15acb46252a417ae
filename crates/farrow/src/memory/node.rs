//! What the parts of a session may ask of the node: memory, messages, and whose process this is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{Region, Retired, Span};
use farrow_store::Held;
use farrow_wire::link::{Notification, PendingReply};
use farrow_wire::{ReplyBody, RequestBody};

use crate::error::Error;

/// The number of a session's first connection.
pub(crate) const FIRST_CONNECTION: u64 = 1;

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) error: Error,
    /// `None`: nothing of the request was sent.
    pub(crate) lost: Option<Box<LostReply>>,
}

/// The missing reply to a request that was sent, or partly.
#[derive(Debug)]
pub(crate) struct LostReply {
    /// The connection that it was sent on.
    pub(crate) sent_on: u64,
    /// The reply to a seal, or to a request for pages of holds or entries, that may still arrive.
    pub(crate) pending: Option<PendingReply>,
}

impl Unanswered {
    pub(crate) fn unsent(error: Error) -> Self {
        Self { error, lost: None }
    }
}

impl From<Unanswered> for Error {
    fn from(unanswered: Unanswered) -> Self {
        unanswered.error
    }
}

/// The session, as its parts see it.
pub(crate) trait NodeAccess {
    /// The mapped region.
    fn region(&self) -> &Arc<Region>;

    /// The default limit of a call.
    fn timeout(&self) -> Duration;

    /// False in a forked child.
    fn is_own_process(&self) -> bool;

    /// Sends a request. Also returns the number of the connection that answered.
    fn call_numbered(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(ReplyBody, u64), Unanswered>;

    /// The number of the current connection.
    fn connection_number(&self) -> u64;

    /// Sends a request whose reply is not needed, without waiting. False if the daemon has ended.
    fn notify(&self, notification: Notification) -> bool;

    /// Returns unused ranges, if `connection` is still the current one.
    fn give_back(&self, spans: &[Span], connection: u64);

    /// Releases a hold.
    fn release(&self, held: Held);

    /// Ends all writing through the window to pages that are to be sealed.
    fn protect(
        &self,
        pages: Span,
        unpublished: &[Span],
        retired: &mut Retired,
    ) -> Result<(), Error>;

    /// Returns all retained memory. False if there is none.
    fn trim_all(&self) -> bool;
}

/// A node whose timeout ends at a deadline.
pub(crate) struct NodeUntil<'a> {
    pub(crate) node: &'a dyn NodeAccess,
    pub(crate) deadline: Instant,
}

impl NodeAccess for NodeUntil<'_> {
    fn region(&self) -> &Arc<Region> {
        self.node.region()
    }

    fn timeout(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn is_own_process(&self) -> bool {
        self.node.is_own_process()
    }

    fn call_numbered(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(ReplyBody, u64), Unanswered> {
        self.node.call_numbered(body, deadline)
    }

    fn connection_number(&self) -> u64 {
        self.node.connection_number()
    }

    fn notify(&self, notification: Notification) -> bool {
        self.node.notify(notification)
    }

    fn give_back(&self, spans: &[Span], connection: u64) {
        self.node.give_back(spans, connection);
    }

    fn release(&self, held: Held) {
        self.node.release(held);
    }

    fn protect(
        &self,
        pages: Span,
        unpublished: &[Span],
        retired: &mut Retired,
    ) -> Result<(), Error> {
        self.node.protect(pages, unpublished, retired)
    }

    fn trim_all(&self) -> bool {
        self.node.trim_all()
    }
}
