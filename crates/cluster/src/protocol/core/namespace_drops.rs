//! Drops of namespaces that wait until deleted objects are freed: an object that a client held may
//! have been the last one of its namespace.

use crate::protocol::SessionId;
use crate::protocol::context::ReplyTo;
use crate::protocol::convert::too_many;
use farrow_wire::WireError;

/// Limit of drops of one session that wait.
const DROPS_PER_SESSION_MAX: u32 = 64;

/// The requests that wait, in the order of their arrival.
#[derive(Debug, Default)]
pub(in crate::protocol) struct NamespaceDrops {
    waiting: Vec<(ReplyTo, String)>,
}

impl NamespaceDrops {
    /// Adds a request.
    pub(in crate::protocol) fn push(&mut self, to: ReplyTo, name: &str) -> Result<(), WireError> {
        let of_session = self.waiting.iter().filter(|(one, _)| one.session == to.session).count();
        if of_session >= DROPS_PER_SESSION_MAX as usize {
            return Err(too_many("requests to delete namespaces", DROPS_PER_SESSION_MAX));
        }
        self.waiting.push((to, name.to_owned()));
        Ok(())
    }

    /// Whether none waits.
    pub(in crate::protocol) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes out all requests.
    pub(in crate::protocol) fn take(&mut self) -> Vec<(ReplyTo, String)> {
        std::mem::take(&mut self.waiting)
    }

    /// Forgets one request. Returns whether it waited.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(to, _)| *to != ReplyTo { session, seq });
        self.waiting.len() < before
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|(to, _)| to.session != session);
    }

    /// Takes out all requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> impl Iterator<Item = (SessionId, u64)> {
        self.take().into_iter().map(|(to, _)| (to.session, to.seq))
    }
}
