//! Limits of one client and of one namespace, and reservations of objects in creation.
//!
//! Bytes count from the grant until the memory is free again, so a deleted object counts for its
//! maker until the last reader releases it. Objects count while they are sealed or spilled, and
//! before that while they are reserved. Bytes in files count for no client. A client with a limit of objects gets no entry pages, so that the
//! daemon handles each of its seals.
//!
//! Where objects are limited, a client requests a reservation before it writes an object. So it
//! learns at once, and not at the seal, that there is no room. A reservation counts like an object
//! until the object is sealed or the reservation is given up. A request with a wait time is queued;
//! later requests for the same quota stay behind it.
//!
//! Reservations are in private memory. The next daemon receives them from the previous one or,
//! after a kill, from the clients that reconnect. A client without room then gets the error at the
//! seal.

use farrow_memory::Length;
use farrow_store::{ClientSlot, Home, Namespace, NamespaceId};
use farrow_wire::{QuotaExceeded, ReplyBody, WAIT_MS_MAX, WireError};

use super::reservations::{Reservations, WaitingReservation};
use crate::protocol::action::{Action, answer};
use crate::protocol::context::{Asker, QueueWait};
use crate::protocol::convert::{store_error, too_many};

/// Limits for each client; `None`: no limit but the region's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Bytes of grants and objects.
    pub client_bytes_max: Option<u64>,
    /// Sealed objects, also spilled ones.
    pub client_objects_max: Option<u32>,
}

/// Client or namespace that a limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    Client(ClientSlot),
    Namespace(NamespaceId),
}

/// Used amount and maximum.
#[derive(Debug, Clone, Copy)]
struct Limit {
    scope: Scope,
    used: u64,
    max: u64,
}

/// A request for room for objects.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct ReservationRequest {
    pub(in crate::protocol) asker: Asker,
    pub(in crate::protocol) objects: u32,
    pub(in crate::protocol) wait_ms: u64,
}

/// The limits, the reservations, and the requests that wait for room.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Quota {
    limits: Quotas,
    /// No client may seal by itself.
    is_audited: bool,
    pub(in crate::protocol) reservations: Reservations,
}

impl Quota {
    /// Sets the limits. A client beyond them keeps what it has and gets no more.
    pub(in crate::protocol) fn set_limits(&mut self, limits: Quotas) {
        self.limits = limits;
    }

    /// From here on every seal is a request, so that it can be recorded.
    pub(in crate::protocol) fn set_audited(&mut self) {
        self.is_audited = true;
    }

    /// Bytes from `min` to `want`, in whole pages, that a client may have in addition.
    pub(in crate::protocol) fn allowance(
        &self,
        home: &Home,
        slot: ClientSlot,
        min: Length,
        want: Length,
    ) -> Result<Length, WireError> {
        let page = home.layout().page.0;
        let least = min.0.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let within = |limit: Limit, want: Length| {
            let left = limit.max.saturating_sub(limit.used);
            if least > left {
                return Err(exceeded(home, limit, "bytes", min.0, QueueWait::default()));
            }
            Ok(Length(want.0.min(left - left % page).max(min.0)))
        };
        let mut want = want;
        if let Some(max) = self.limits.client_bytes_max {
            let used = home.usage_of(slot).bytes.0;
            want = within(Limit { scope: Scope::Client(slot), used, max }, want)?;
        }
        let Namespace { id, options, .. } = home.namespace_of(slot).map_err(store_error)?;
        if let Some(max) = options.bytes_max {
            let used = home.usage_of_namespace(*id).bytes.0;
            want = within(Limit { scope: Scope::Namespace(*id), used, max }, want)?;
        }
        Ok(want)
    }

    /// The limits of objects that apply to a client, with their use.
    fn object_limits(&self, home: &mut Home, slot: ClientSlot) -> Result<Vec<Limit>, WireError> {
        let mut limits = Vec::new();
        if let Some(max) = self.limits.client_objects_max {
            // The client may have pages from a time without a limit.
            if let Err(error) = home.register_in_batch(slot) {
                tracing::debug!(slot = slot.0, %error, "objects are not registered");
            }
            let sealed = u64::from(home.usage_of(slot).objects) + u64::from(home.spilled_of(slot));
            let used = sealed + u64::from(self.reservations.of(slot));
            limits.push(Limit { scope: Scope::Client(slot), used, max: max.into() });
        }
        let Namespace { id, options, .. } = home.namespace_of(slot).map_err(store_error)?;
        if let Some((id, max)) = options.objects_max.map(|max| (*id, max)) {
            // Clients may have pages from the time before the limit was set.
            let clients: Vec<ClientSlot> = home.clients_in(id).collect();
            for client in clients {
                if let Err(error) = home.register_in_batch(client) {
                    tracing::debug!(slot = client.0, %error, "objects are not registered");
                }
            }
            let sealed = home.usage_of_namespace(id).objects;
            let sealed = u64::from(sealed) + u64::from(home.spilled_of_namespace(id));
            let reserved = self.reservations.all().filter(|(slot, _)| is_in(home, *slot, id));
            let used = sealed + reserved.map(|(_, objects)| u64::from(objects)).sum::<u64>();
            limits.push(Limit { scope: Scope::Namespace(id), used, max: max.into() });
        }
        Ok(limits)
    }

    /// The limits that `objects` more objects would exceed, or for which others wait.
    fn misfits(
        &self,
        home: &mut Home,
        slot: ClientSlot,
        objects: u32,
    ) -> Result<Vec<Limit>, WireError> {
        let mut limits = self.object_limits(home, slot)?;
        limits.retain(|limit| {
            let is_full = limit.used.saturating_add(objects.into()) > limit.max;
            is_full || self.reservations.is_blocked(limit.scope)
        });
        Ok(limits)
    }

    /// Whether a client may have `objects` more objects.
    pub(in crate::protocol) fn check_objects(
        &self,
        home: &mut Home,
        slot: ClientSlot,
        objects: u32,
    ) -> Result<(), WireError> {
        match self.misfits(home, slot, objects)?.first() {
            None => Ok(()),
            Some(limit) => {
                let waited = QueueWait { ahead: self.reservations.waiting().count(), ms: 0 };
                Err(self.objects_exceeded(home, *limit, objects, waited))
            }
        }
    }

    /// Whether the objects of a client are counted. Such a client may not seal by itself.
    pub(in crate::protocol) fn are_objects_limited(
        &self,
        home: &Home,
        slot: ClientSlot,
    ) -> Result<bool, WireError> {
        let namespace = home.namespace_of(slot).map_err(store_error)?;
        Ok(self.limits.client_objects_max.is_some() || namespace.options.objects_max.is_some())
    }

    /// Refuses entry pages to a client whose objects are counted or recorded.
    pub(in crate::protocol) fn check_unseen(
        &self,
        home: &Home,
        slot: ClientSlot,
    ) -> Result<(), WireError> {
        if self.is_audited {
            return Err(too_many("entry pages of a node with an audit log", 0_u64));
        }
        if self.are_objects_limited(home, slot)? {
            return Err(too_many("entry pages where objects are limited", 0_u64));
        }
        Ok(())
    }

    /// The error for a client without room.
    fn objects_exceeded(
        &self,
        home: &Home,
        limit: Limit,
        objects: u32,
        waited: QueueWait,
    ) -> WireError {
        let is_of_it = |slot: &ClientSlot| match limit.scope {
            Scope::Client(client) => *slot == client,
            Scope::Namespace(namespace) => is_in(home, *slot, namespace),
        };
        let ahead = self.reservations.waiting().take(waited.ahead).filter(is_of_it).count();
        exceeded(home, limit, "objects", objects.into(), QueueWait { ahead, ..waited })
    }

    /// Reserves room for objects. Returns `None` if the answer follows later.
    pub(in crate::protocol) fn reserve(
        &mut self,
        home: &mut Home,
        request: ReservationRequest,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let ReservationRequest { asker, objects, wait_ms } = request;
        self.serve(home, now_ms, out);
        match self.check_objects(home, asker.slot, objects) {
            Ok(()) => {
                self.reservations.add(asker.slot, objects);
                Ok(Some(ReplyBody::Done))
            }
            Err(WireError::QuotaExceeded(_)) if wait_ms > 0 => {
                // A request beyond the limit itself can never succeed, so it does not wait.
                let limits = self.object_limits(home, asker.slot)?;
                if let Some(limit) = limits.iter().find(|one| u64::from(objects) > one.max) {
                    let waited = QueueWait { ahead: self.reservations.waiting().count(), ms: 0 };
                    return Err(self.objects_exceeded(home, *limit, objects, waited));
                }
                let deadline_ms = now_ms.saturating_add(wait_ms.min(WAIT_MS_MAX));
                let since_ms = now_ms;
                let waiting = WaitingReservation { asker, objects, since_ms, deadline_ms };
                self.reservations.push(waiting)?;
                let misfits = self.misfits(home, asker.slot, objects)?;
                self.reservations.block(misfits.into_iter().map(|limit| limit.scope));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Restores the reservations of a reconnected client, as far as its quotas have room.
    pub(in crate::protocol) fn renew(&mut self, home: &mut Home, slot: ClientSlot, objects: u32) {
        self.reservations.set(slot, 0);
        let limits = self.object_limits(home, slot).unwrap_or_default();
        let left = limits.iter().map(|limit| limit.max.saturating_sub(limit.used)).min();
        let retained = left.map_or(0, |left| objects.min(u32::try_from(left).unwrap_or(u32::MAX)));
        if retained < objects {
            tracing::warn!(slot = slot.0, retained, objects, "reserved objects are lost");
        }
        self.reservations.set(slot, retained);
    }

    /// Resumes the reservations of the previous daemon.
    pub(in crate::protocol) fn inherit(&mut self, home: &mut Home, reserved: &[(u32, u32)]) {
        for (slot, objects) in reserved {
            let slot = ClientSlot(*slot);
            if home.client(slot).is_ok() {
                self.renew(home, slot, *objects);
            }
        }
    }

    /// Rejects expired requests and answers those for which there is room now.
    pub(in crate::protocol) fn serve(
        &mut self,
        home: &mut Home,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !self.reservations.is_due(home.objects_with_spilled(), now_ms) {
            return;
        }
        self.reservations.unblock_all();
        let mut place = 0;
        while let Some(waiting) = self.reservations.at(place) {
            let WaitingReservation { asker, objects, .. } = waiting;
            let body = match self.misfits(home, asker.slot, objects) {
                Ok(misfits) => match misfits.first() {
                    None => {
                        self.reservations.add(asker.slot, objects);
                        Ok(ReplyBody::Done)
                    }
                    Some(limit) if waiting.deadline_ms <= now_ms => {
                        let ms = now_ms.saturating_sub(waiting.since_ms);
                        let waited = QueueWait { ahead: place, ms };
                        Err(self.objects_exceeded(home, *limit, objects, waited))
                    }
                    Some(_) => {
                        self.reservations.block(misfits.iter().map(|limit| limit.scope));
                        place += 1;
                        continue;
                    }
                },
                Err(error) => Err(error),
            };
            self.reservations.remove(place);
            out.push(answer(asker, body));
        }
        self.reservations.is_served(home.objects_with_spilled());
    }

    pub(in crate::protocol) fn next_deadline_ms(&self, home: &Home) -> Option<u64> {
        self.reservations.next_deadline_ms(home.objects_with_spilled())
    }
}

fn is_in(home: &Home, slot: ClientSlot, namespace: NamespaceId) -> bool {
    home.client(slot).is_ok_and(|record| record.namespace == namespace)
}

fn exceeded(home: &Home, limit: Limit, what: &str, requested: u64, waited: QueueWait) -> WireError {
    let whose = match limit.scope {
        Scope::Client(slot) => {
            let pid = home.client(slot).map(|record| record.pid);
            format!("client {} (process {})", slot.0, pid.unwrap_or_default())
        }
        Scope::Namespace(id) => {
            let name = home.namespaces().find(|one| one.id == id);
            format!("namespace {:?}", name.map_or("", |one| &one.options.name))
        }
    };
    WireError::QuotaExceeded(QuotaExceeded {
        whose,
        what: what.to_owned(),
        requested,
        used: limit.used,
        limit: limit.max,
        waiting: waited.ahead as u64,
        waited_ms: waited.ms,
    })
}
