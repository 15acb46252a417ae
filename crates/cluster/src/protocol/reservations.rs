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

use farrow_store::ClientSlot;
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, WAIT_MS_MAX, WireError};

use super::Action;
use super::action::answer;
use super::context::Asker;
use super::convert::limit;
use super::parts::reservations::{FreedMark, WaitingReservation};
use super::state::NodeState;

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
