//! Reservations of objects in creation, and the requests that wait for them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_store::ClientSlot;
use farrow_wire::WireError;

use super::quota::Scope;
use crate::protocol::context::Asker;
use crate::protocol::identity::SessionId;
use crate::protocol::limits::check_limit;

/// Limits of waiting requests, of all clients and of one: as for memory.
const WAITING_MAX: usize = 1024;

const WAITING_PER_SESSION_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct WaitingReservation {
    pub(super) asker: Asker,
    pub(super) objects: u32,
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
}

/// Reservations, and the requests that wait for them.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Reservations {
    of_client: BTreeMap<ClientSlot, u32>,
    queue: VecDeque<WaitingReservation>,
    /// Quotas for which a request waits.
    blocked: BTreeSet<Scope>,
    /// Number of seals and of changes to reservations so far.
    changes: u64,
    /// State when the queue was last served; `None`: the queue must be served.
    seen: Option<FreedMark>,
}

/// Number of objects, and of changes. While both are unchanged, no quota has gained room.
type FreedMark = (u32, u64);

impl Reservations {
    pub(in crate::protocol) fn of(&self, slot: ClientSlot) -> u32 {
        self.of_client.get(&slot).copied().unwrap_or_default()
    }

    pub(super) fn set(&mut self, slot: ClientSlot, objects: u32) {
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

    pub(super) fn is_blocked(&self, scope: Scope) -> bool {
        !self.queue.is_empty() && self.blocked.contains(&scope)
    }

    /// Clients of the waiting requests, in order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = ClientSlot> + '_ {
        self.queue.iter().map(|waiting| waiting.asker.slot)
    }

    pub(super) fn push(&mut self, waiting: WaitingReservation) -> Result<(), WireError> {
        let session = waiting.asker.session;
        let of_session = self.queue.iter().filter(|other| other.asker.session == session).count();
        check_limit("requests that wait for room for objects", self.queue.len() + 1, WAITING_MAX)?;
        check_limit("requests of a client that wait", of_session + 1, WAITING_PER_SESSION_MAX)?;
        self.queue.push_back(waiting);
        Ok(())
    }

    /// Notes a seal: a quota may have gained or lost room by it.
    pub(in crate::protocol) fn note_sealed(&mut self) {
        self.changes += 1;
    }

    /// Waiting requests are looked at again: a limit has changed.
    pub(in crate::protocol) fn look_again(&mut self) {
        self.seen = None;
    }

    pub(super) fn add(&mut self, slot: ClientSlot, objects: u32) {
        self.set(slot, self.of(slot).saturating_add(objects));
    }

    pub(super) fn block(&mut self, scopes: impl Iterator<Item = Scope>) {
        self.blocked.extend(scopes);
    }

    pub(super) fn unblock_all(&mut self) {
        self.blocked.clear();
    }

    /// The request at a place of the queue.
    pub(super) fn at(&self, place: usize) -> Option<WaitingReservation> {
        self.queue.get(place).copied()
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.queue.remove(place);
    }

    /// Whether a request may be answered now, in a region with this number of objects.
    pub(super) fn is_due(&self, objects: u32, now_ms: u64) -> bool {
        let is_late = |waiting: &WaitingReservation| waiting.deadline_ms <= now_ms;
        !self.queue.is_empty()
            && (self.seen != Some((objects, self.changes)) || self.queue.iter().any(is_late))
    }

    /// Notes that the queue was served.
    pub(super) fn is_served(&mut self, objects: u32) {
        self.seen = Some((objects, self.changes));
    }

    pub(super) fn next_deadline_ms(&self, objects: u32) -> Option<u64> {
        let first = self.queue.iter().map(|waiting| waiting.deadline_ms).min()?;
        Some(if self.seen == Some((objects, self.changes)) { first } else { 0 })
    }
}
