//! Reservations of objects in creation, and the requests that wait for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_store::ClientSlot;
use farrow_wire::WireError;

use super::limits::Scope;
use crate::protocol::context::Asker;
use crate::protocol::convert::limit;
use crate::protocol::identity::SessionId;

/// Limits of waiting requests, of all clients and of one: as for memory.
pub(in crate::protocol) const WAITING_MAX: usize = 1024;

pub(in crate::protocol) const WAITING_PER_SESSION_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct WaitingReservation {
    pub(in crate::protocol) asker: Asker,
    pub(in crate::protocol) objects: u32,
    pub(in crate::protocol) since_ms: u64,
    pub(in crate::protocol) deadline_ms: u64,
}

/// Reservations, and the requests that wait for them.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Reservations {
    pub(in crate::protocol) of_client: BTreeMap<ClientSlot, u32>,
    pub(in crate::protocol) queue: VecDeque<WaitingReservation>,
    /// Quotas for which a request waits.
    pub(in crate::protocol) blocked: BTreeSet<Scope>,
    /// Number of changes to reservations so far.
    pub(in crate::protocol) changes: u64,
    /// State when the queue was last served; `None`: the queue must be served.
    pub(in crate::protocol) seen: Option<FreedMark>,
}

/// Numbers of objects, seals and changes of reservations. While they are unchanged, no quota has
/// gained room.
pub(in crate::protocol) type FreedMark = (u32, u64, u64);

impl Reservations {
    pub(in crate::protocol) fn of(&self, slot: ClientSlot) -> u32 {
        self.of_client.get(&slot).copied().unwrap_or_default()
    }

    pub(in crate::protocol) fn set(&mut self, slot: ClientSlot, objects: u32) {
        self.changes += 1;
        match objects {
            0 => self.of_client.remove(&slot),
            _ => self.of_client.insert(slot, objects),
        };
    }

    /// Gives up at most `objects` reservations; returns whether the client had any.
    pub(in crate::protocol) fn take_back(&mut self, slot: ClientSlot, objects: u32) -> bool {
        let had = self.of(slot);
        if had > 0 && objects > 0 {
            self.set(slot, had.saturating_sub(objects));
        }
        had > 0
    }

    pub(in crate::protocol) fn all(&self) -> impl Iterator<Item = (ClientSlot, u32)> + '_ {
        self.of_client.iter().map(|(slot, objects)| (*slot, *objects))
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.queue.retain(|waiting| waiting.asker.session != session);
        self.seen = None;
    }

    /// Forgets one request and returns whether there was one. The requests behind it are
    /// reconsidered.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|one| (one.asker.session, one.asker.seq) != (session, seq));
        let is_found = self.queue.len() < before;
        if is_found {
            self.seen = None;
        }
        is_found
    }

    /// Takes out all requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> impl Iterator<Item = Asker> + '_ {
        self.queue.drain(..).map(|waiting| waiting.asker)
    }

    pub(in crate::protocol) fn is_blocked(&self, scope: Scope) -> bool {
        !self.queue.is_empty() && self.blocked.contains(&scope)
    }

    /// Clients of the waiting requests, in order.
    pub(in crate::protocol) fn waiting(&self) -> impl Iterator<Item = ClientSlot> + '_ {
        self.queue.iter().map(|waiting| waiting.asker.slot)
    }

    pub(in crate::protocol) fn push(
        &mut self,
        waiting: WaitingReservation,
    ) -> Result<(), WireError> {
        let session = waiting.asker.session;
        let of_session = self.queue.iter().filter(|other| other.asker.session == session).count();
        limit("requests that wait for room for objects", self.queue.len() + 1, WAITING_MAX)?;
        limit("requests of a client that wait", of_session + 1, WAITING_PER_SESSION_MAX)?;
        self.queue.push_back(waiting);
        Ok(())
    }
}
