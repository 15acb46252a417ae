//! Bytes that clients and other nodes have the daemon buffer: the limits applied to each session.

use farrow_store::ClientSlot;
use farrow_wire::{RequestBody, SealItem, WireError, WireSpan, WireTarget};

use crate::protocol::core::buffers::{Buffers, SessionBuffers};
use crate::protocol::identity::SessionId;
use crate::protocol::state::NodeState;

/// Cost of a reserved name beside its bytes.
const NAME_COST_BYTES: usize = 64;

/// Memory of the body of a request that may wait for other nodes.
pub(in crate::protocol) fn body_bytes(body: &RequestBody) -> usize {
    match body {
        RequestBody::Delete { targets } | RequestBody::Pin { targets, .. } => {
            let names = targets.iter().map(|target| match target {
                WireTarget::Name(name) => name.len(),
                WireTarget::Id(_) => 0,
            });
            targets.len() * size_of::<WireTarget>() + names.sum::<usize>()
        }
        RequestBody::Seal { items } => {
            let heap = items.iter().map(|item| {
                let extra = item.extra.len() * size_of::<WireSpan>();
                extra + item.name.as_ref().map_or(0, String::len)
            });
            items.len() * size_of::<SealItem>() + heap.sum::<usize>()
        }
        RequestBody::Reserve { names } => {
            names.iter().map(|name| size_of::<String>() + name.len()).sum()
        }
        _ => 0,
    }
}

impl NodeState {
    /// The bytes of all sessions.
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// As [`Self::buffers`], to set limits and bytes of others than clients.
    pub(crate) fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// Notes the bytes of requests and replies that a session buffers now.
    pub fn note_buffered(&mut self, session: SessionId, buffered: usize) {
        let waiting = self.waiting_bytes(session);
        self.buffers.set(session, SessionBuffers { buffered, waiting });
    }

    /// Bytes that wait for a session: requests, and the names of its client.
    fn waiting_bytes(&self, session: SessionId) -> usize {
        let slot = self.clients.session(session).and_then(|one| one.slot);
        let names = slot.map_or(0, |slot: ClientSlot| self.home.reserved_bytes(slot));
        let parked = self.cluster.parked_bytes(session);
        let moving = self.drain.bytes_of(session);
        names + parked + moving + self.waits.bytes_of(session) + self.watches.bytes_of(session)
    }

    /// Rejects a request if its names exceed the limit of its client.
    pub(in crate::protocol) fn check_names(
        &mut self,
        session: SessionId,
        body: &RequestBody,
    ) -> Result<(), WireError> {
        match body {
            RequestBody::Reserve { names } | RequestBody::Renew { names, .. } => {
                let bytes = names.iter().map(|name| name.len() + NAME_COST_BYTES).sum();
                self.check_waiting(session, bytes)
            }
            _ => Ok(()),
        }
    }

    /// Rejects a request that would exceed the waiting bytes of the session.
    pub(in crate::protocol) fn check_waiting(
        &mut self,
        session: SessionId,
        more: usize,
    ) -> Result<(), WireError> {
        let buffered = self.buffers.held(session).buffered;
        self.note_buffered(session, buffered);
        match self.buffers.may_wait(session, more) {
            true => Ok(()),
            false => Err(self.buffers.refused(session, more)),
        }
    }
}
