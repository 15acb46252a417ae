//! Bytes that clients and other nodes have the daemon buffer: the limits applied to each session.

use farrow_store::ClientSlot;
use farrow_wire::{RequestBody, WireError};

use super::core::buffers::{BUFFERS_BYTES_MIN, SessionBuffers};
use super::identity::SessionId;
use super::state::NodeState;

/// Cost of a reserved name beside its bytes.
const NAME_COST_BYTES: usize = 64;

impl NodeState {
    /// Sets the memory that all clients and other nodes together may occupy.
    pub fn set_buffers_max(&mut self, bytes: u64) {
        let bytes = bytes.max(BUFFERS_BYTES_MIN);
        self.buffers.max = usize::try_from(bytes).unwrap_or(usize::MAX);
    }

    /// Bytes held now, and their limit.
    pub fn buffers(&self) -> (u64, u64) {
        let (of_peers, of_peers_max) = self.buffers.of_peers;
        ((self.buffers.total + of_peers) as u64, (self.buffers.max + of_peers_max) as u64)
    }

    /// Notes the bytes of unprocessed messages of other nodes, and their limit.
    pub fn note_peers_buffered(&mut self, of_peers: (usize, usize)) {
        self.buffers.of_peers = of_peers;
    }

    /// Notes the bytes of requests and replies that a session buffers now.
    pub fn note_buffered(&mut self, session: SessionId, buffered: usize) {
        let waiting = self.waiting_bytes(session);
        self.buffers.set(session, SessionBuffers { buffered, waiting });
    }

    /// Whether a session may buffer `more` bytes more.
    pub fn may_buffer(&self, session: SessionId, more: usize) -> bool {
        self.buffers.may_buffer(session, more)
    }

    /// Bytes of unread replies above which a session is no longer served.
    pub fn replies_max(&self, max: usize) -> usize {
        let is_scarce = self.buffers.total > self.buffers.max / 2;
        if is_scarce { max.min(self.buffers.share() / 2) } else { max }
    }

    /// While the total is exceeded: the session to displace, and the error for it.
    pub fn to_displace(&self) -> Option<(SessionId, WireError)> {
        let session = self.buffers.over()?;
        Some((session, self.buffers.refused(session, 0)))
    }

    /// The error for a session whose request got no room in time.
    pub fn no_room_to_buffer(&self, session: SessionId, more: usize) -> WireError {
        self.buffers.refused(session, more)
    }

    /// Bytes that wait for a session: requests, and the names of its client.
    fn waiting_bytes(&self, session: SessionId) -> usize {
        let slot = self.clients.session(session).and_then(|one| one.slot);
        let names = slot.map_or(0, |slot: ClientSlot| self.home.reserved_bytes(slot));
        let parked = self.cluster.parked_bytes(session);
        names + parked + self.waits.bytes_of(session) + self.watches.bytes_of(session)
    }

    /// Rejects a request if its names exceed the limit of its client.
    pub(super) fn check_names(
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
    pub(super) fn check_waiting(
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

    /// Forgets the buffers of an ended session.
    pub(super) fn forget_buffers(&mut self, session: SessionId) {
        self.buffers.set(session, SessionBuffers::default());
    }
}
