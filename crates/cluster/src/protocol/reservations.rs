//! Room in a quota of objects, reserved for objects in creation.
//!
//! Where objects are limited, a client requests a reservation before it writes an object. So it
//! learns at once, and not at the seal, that there is no room. A reservation counts like an object
//! until the object is sealed or the reservation is given up. A request with a wait time is queued;
//! later requests for the same quota stay behind it.
//!
//! Reservations are in private memory. The next daemon receives them from the previous one or,
//! after a kill, from the clients that reconnect. A client without room then gets the error at the
//! seal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_store::ClientSlot;
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, WAIT_MS_MAX, WireError};

use super::admission::{Asker, answer};
use super::convert::limit;
use super::node::NodeState;
use super::quota::Scope;
use super::{Action, SessionId};

/// Limits of waiting requests, of all clients and of one: as for memory.
const WAITING_MAX: usize = 1024;
const WAITING_PER_SESSION_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
struct WaitingReservation {
    asker: Asker,
    objects: u32,
    since_ms: u64,
    deadline_ms: u64,
}

/// Reservations, and the requests that wait for them.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    of_client: BTreeMap<ClientSlot, u32>,
    queue: VecDeque<WaitingReservation>,
    /// Quotas for which a request waits.
    blocked: BTreeSet<Scope>,
    /// Number of changes to reservations so far.
    changes: u64,
    /// State when the queue was last served; `None`: the queue must be served.
    seen: Option<FreedMark>,
}

/// Numbers of objects, seals and changes of reservations. While they are unchanged, no quota has
/// gained room.
type FreedMark = (u32, u64, u64);

impl Reservations {
    pub(super) fn of(&self, slot: ClientSlot) -> u32 {
        self.of_client.get(&slot).copied().unwrap_or_default()
    }

    fn set(&mut self, slot: ClientSlot, objects: u32) {
        self.changes += 1;
        match objects {
            0 => self.of_client.remove(&slot),
            _ => self.of_client.insert(slot, objects),
        };
    }

    /// Gives up at most `objects` reservations; returns whether the client had any.
    pub(super) fn take_back(&mut self, slot: ClientSlot, objects: u32) -> bool {
        let had = self.of(slot);
        if had > 0 && objects > 0 {
            self.set(slot, had.saturating_sub(objects));
        }
        had > 0
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (ClientSlot, u32)> + '_ {
        self.of_client.iter().map(|(slot, objects)| (*slot, *objects))
    }

    /// Forgets the requests of an ended session.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.queue.retain(|waiting| waiting.asker.session != session);
        self.seen = None;
    }

    /// Forgets one request and returns whether there was one. The requests behind it are
    /// reconsidered.
    pub(super) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.queue.len();
        self.queue.retain(|one| (one.asker.session, one.asker.seq) != (session, seq));
        let is_found = self.queue.len() < before;
        if is_found {
            self.seen = None;
        }
        is_found
    }

    /// Takes out all requests at shutdown.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Asker> + '_ {
        self.queue.drain(..).map(|waiting| waiting.asker)
    }

    pub(super) fn is_blocked(&self, scope: Scope) -> bool {
        !self.queue.is_empty() && self.blocked.contains(&scope)
    }

    /// Clients of the waiting requests, in order.
    pub(super) fn waiting(&self) -> impl Iterator<Item = ClientSlot> + '_ {
        self.queue.iter().map(|waiting| waiting.asker.slot)
    }

    fn push(&mut self, waiting: WaitingReservation) -> Result<(), WireError> {
        let session = waiting.asker.session;
        let of_session = self.queue.iter().filter(|other| other.asker.session == session).count();
        limit("requests that wait for room for objects", self.queue.len() + 1, WAITING_MAX)?;
        limit("requests of a client that wait", of_session + 1, WAITING_PER_SESSION_MAX)?;
        self.queue.push_back(waiting);
        Ok(())
    }
}

impl NodeState {
    /// Reserves room for `objects` objects. Returns `None` if the answer follows later.
    pub(super) fn reservation(
        &mut self,
        asker: Asker,
        objects: u32,
        wait_ms: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        limit("objects in one message", objects as usize, BATCH_ITEMS_MAX)?;
        self.serve_reservations(now_ms, out);
        match self.check_objects(asker.slot, objects) {
            Ok(()) => {
                self.reservations
                    .set(asker.slot, self.reservations.of(asker.slot).saturating_add(objects));
                Ok(Some(ReplyBody::Done))
            }
            Err(WireError::QuotaExceeded { .. }) if wait_ms > 0 => {
                // A request beyond the limit itself can never succeed, so it does not wait.
                let limits = self.object_limits(asker.slot)?;
                if let Some(limit) = limits.iter().find(|one| u64::from(objects) > one.max) {
                    let before = self.reservations.waiting().count();
                    return Err(self.objects_exceeded(*limit, objects, before, 0));
                }
                let deadline_ms = now_ms.saturating_add(wait_ms.min(WAIT_MS_MAX));
                let since_ms = now_ms;
                self.reservations.push(WaitingReservation {
                    asker,
                    objects,
                    since_ms,
                    deadline_ms,
                })?;
                let misfits = self.misfits(asker.slot, objects)?;
                self.reservations.blocked.extend(misfits.into_iter().map(|limit| limit.scope));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Restores the reservations of a reconnected client, as far as its quotas have room.
    pub(super) fn renew_reservations(&mut self, slot: ClientSlot, objects: u32) {
        self.reservations.set(slot, 0);
        let limits = self.object_limits(slot).unwrap_or_default();
        let left = limits.iter().map(|limit| limit.max.saturating_sub(limit.used)).min();
        let retained = left.map_or(0, |left| objects.min(u32::try_from(left).unwrap_or(u32::MAX)));
        if retained < objects {
            tracing::warn!(slot = slot.0, retained, objects, "promised objects are lost");
        }
        self.reservations.set(slot, retained);
    }

    /// Resumes the reservations of the previous daemon.
    pub(crate) fn inherit_reservations(&mut self, promised: &[(u32, u32)]) {
        for (slot, objects) in promised {
            let slot = ClientSlot(*slot);
            if self.home.client(slot).is_ok() {
                self.renew_reservations(slot, *objects);
            }
        }
    }

    /// Rejects expired requests and answers those for which there is room now.
    pub(super) fn serve_reservations(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if self.reservations.queue.is_empty() {
            return;
        }
        let late = |waiting: &WaitingReservation| waiting.deadline_ms <= now_ms;
        if self.reservations.seen == Some(self.seen_objects())
            && !self.reservations.queue.iter().any(late)
        {
            return;
        }
        self.reservations.blocked.clear();
        let mut place = 0;
        while let Some(waiting) = self.reservations.queue.get(place).copied() {
            let WaitingReservation { asker, objects, .. } = waiting;
            let body = match self.misfits(asker.slot, objects) {
                Ok(misfits) => match misfits.first() {
                    None => {
                        let had = self.reservations.of(asker.slot);
                        self.reservations.set(asker.slot, had.saturating_add(objects));
                        Ok(ReplyBody::Done)
                    }
                    Some(limit) if late(&waiting) => {
                        let waited_ms = now_ms.saturating_sub(waiting.since_ms);
                        Err(self.objects_exceeded(*limit, objects, place, waited_ms))
                    }
                    Some(_) => {
                        self.reservations.blocked.extend(misfits.iter().map(|limit| limit.scope));
                        place += 1;
                        continue;
                    }
                },
                Err(error) => Err(error),
            };
            self.reservations.queue.remove(place);
            out.push(answer(asker, body));
        }
        self.reservations.seen = Some(self.seen_objects());
    }

    fn seen_objects(&self) -> FreedMark {
        (self.home.objects(), self.counts.sealed, self.reservations.changes)
    }

    pub(super) fn next_reservation_deadline_ms(&self) -> Option<u64> {
        let first = self.reservations.queue.iter().map(|waiting| waiting.deadline_ms).min()?;
        Some(if self.reservations.seen == Some(self.seen_objects()) { first } else { 0 })
    }
}
