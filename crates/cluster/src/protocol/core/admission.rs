//! Requests that wait for memory, in order of arrival.

use std::collections::VecDeque;

use farrow_memory::Span;
use farrow_store::{Freed, Room};
use farrow_wire::{ReplyBody, WireError};

use crate::protocol::context::Asker;
use crate::protocol::convert::{limit, wire_span};
use crate::protocol::identity::SessionId;

/// Limit of waiting requests of all clients: a scan of the queue stays within microseconds.
pub(in crate::protocol) const WAITING_MAX: usize = 1024;

/// Limit of waiting requests of one client: room for sixteen such clients.
pub(in crate::protocol) const WAITING_PER_SESSION_MAX: usize = 64;

/// Limit of names of all waiting requests: half a megabyte.
pub(in crate::protocol) const NAMES_WAITING_MAX: usize = 65_536;

/// Requested room, its purpose and its longest wait.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct RoomRequest {
    pub(in crate::protocol) room: Room,
    /// Number of objects to be sealed.
    pub(in crate::protocol) objects: u32,
    pub(in crate::protocol) want: u64,
    pub(in crate::protocol) wait_ms: u64,
    /// Whether objects may be evicted for it.
    pub(in crate::protocol) may_evict: bool,
    /// Whether the answer is one range instead of a list.
    pub(in crate::protocol) is_single: bool,
}

impl RoomRequest {
    /// Bytes of all ranges.
    pub(in crate::protocol) fn bytes(&self) -> u64 {
        self.room.runs.iter().fold(0, |sum, run| sum.saturating_add(run.0))
    }

    pub(in crate::protocol) fn answer(&self, granted: &[Span]) -> ReplyBody {
        match granted {
            [one] if self.is_single => ReplyBody::Granted(wire_span(*one)),
            all => ReplyBody::Room(all.iter().copied().map(wire_span).collect()),
        }
    }
}

#[derive(Debug, Clone)]
pub(in crate::protocol) struct WaitingGrant {
    pub(in crate::protocol) asker: Asker,
    pub(in crate::protocol) ask: RoomRequest,
    pub(in crate::protocol) since_ms: u64,
    pub(in crate::protocol) deadline_ms: u64,
    /// Waits only while memory is being freed.
    pub(in crate::protocol) is_for_spills: bool,
}

/// Requests that wait for memory, in order of arrival.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Admission {
    pub(in crate::protocol) queue: VecDeque<WaitingGrant>,
    /// Bytes granted to others since the first of the queue became the first.
    pub(in crate::protocol) passed_bytes: u64,
    /// The store's freed amount when the queue was last served; `None`: the queue must be served.
    pub(in crate::protocol) seen: Option<Freed>,
}

impl Admission {
    /// Number of waiting requests.
    pub(in crate::protocol) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the waiting requests.
    pub(in crate::protocol) fn waiting_bytes(&self) -> u64 {
        self.queue.iter().fold(0, |sum, waiting| sum.saturating_add(waiting.ask.bytes()))
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        let first = self.queue.front().map(|waiting| waiting.asker.session);
        self.queue.retain(|waiting| waiting.asker.session != session);
        if first == Some(session) {
            self.passed_bytes = 0;
            self.seen = None;
        }
    }

    /// Forgets one request and returns whether there was one. The requests behind it are
    /// reconsidered.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let of =
            |waiting: &WaitingGrant| (waiting.asker.session, waiting.asker.seq) == (session, seq);
        let Some(place) = self.queue.iter().position(of) else {
            return false;
        };
        self.remove(place, 0);
        self.seen = None;
        true
    }

    /// Takes out all requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> impl Iterator<Item = Asker> + '_ {
        self.passed_bytes = 0;
        self.queue.drain(..).map(|waiting| waiting.asker)
    }

    /// When the queue must be served: at once if memory became free, otherwise at its next
    /// deadline.
    pub(in crate::protocol) fn next_deadline_ms(&self, freed: Freed) -> Option<u64> {
        if !self.queue.is_empty() && self.seen != Some(freed) {
            return Some(0);
        }
        self.queue.iter().map(|waiting| waiting.deadline_ms).min()
    }

    /// Has the queue served again after a change other than freed memory.
    pub(in crate::protocol) fn look_again(&mut self) {
        self.seen = None;
    }

    /// Whether a request that is not the first of the queue may take `bytes`.
    pub(in crate::protocol) fn may_pass(&self, bytes: u64) -> bool {
        let first = self.queue.front();
        first.is_none_or(|first| self.passed_bytes.saturating_add(bytes) <= first.ask.bytes())
    }

    pub(in crate::protocol) fn push(&mut self, waiting: WaitingGrant) -> Result<(), WireError> {
        let session = waiting.asker.session;
        let of_session = self.queue.iter().filter(|other| other.asker.session == session).count();
        limit("requests that wait for memory", self.queue.len() + 1, WAITING_MAX)?;
        limit("requests of a client that wait", of_session + 1, WAITING_PER_SESSION_MAX)?;
        let names = |waiting: &WaitingGrant| waiting.ask.room.names.len();
        let all_names = self.queue.iter().chain([&waiting]).map(names).sum();
        limit("names that wait for room", all_names, NAMES_WAITING_MAX)?;
        if self.queue.is_empty() {
            self.passed_bytes = 0;
        }
        self.queue.push_back(waiting);
        Ok(())
    }

    /// Takes out a request that received `bytes`, or an error.
    pub(in crate::protocol) fn remove(&mut self, place: usize, bytes: u64) {
        self.queue.remove(place);
        self.passed_bytes = if place == 0 { 0 } else { self.passed_bytes.saturating_add(bytes) };
    }
}
