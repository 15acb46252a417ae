//! Limits of one client and of one namespace.
//!
//! Bytes count from the grant until the memory is free again, so a deleted object counts for its
//! maker until the last reader releases it. Objects count while they are sealed, and before that
//! while they are reserved. A client with a limit of objects gets no entry pages, so that the
//! daemon handles each of its seals.

use farrow_memory::Length;
use farrow_store::{ClientSlot, Namespace, NamespaceId};
use farrow_wire::WireError;

use super::convert::{store_error, too_many};
use super::parts::limits::{Limit, Quotas, Scope};
use super::state::NodeState;

impl NodeState {
    /// Sets the limits. A client beyond them keeps what it has and gets no more.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
    }

    /// Bytes from `min` to `want`, in whole pages, that a client may have in addition.
    pub(super) fn allowance(
        &self,
        slot: ClientSlot,
        min: Length,
        want: Length,
    ) -> Result<Length, WireError> {
        let page = self.home.layout().page.0;
        let least = min.0.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let within = |limit: Limit, want: Length| {
            let left = limit.max.saturating_sub(limit.used);
            if least > left {
                return Err(self.exceeded(limit, "bytes", min.0, (0, 0)));
            }
            Ok(Length(want.0.min(left - left % page).max(min.0)))
        };
        let mut want = want;
        if let Some(max) = self.quotas.client_bytes_max {
            let used = self.home.usage_of(slot).bytes.0;
            want = within(Limit { scope: Scope::Client(slot), used, max }, want)?;
        }
        let Namespace { id, options, .. } = self.home.namespace_of(slot).map_err(store_error)?;
        if let Some(max) = options.bytes_max {
            let used = self.home.usage_of_namespace(*id).bytes.0;
            want = within(Limit { scope: Scope::Namespace(*id), used, max }, want)?;
        }
        Ok(want)
    }

    /// The limits of objects that apply to a client, with their use.
    pub(super) fn object_limits(&mut self, slot: ClientSlot) -> Result<Vec<Limit>, WireError> {
        let mut limits = Vec::new();
        if let Some(max) = self.quotas.client_objects_max {
            // The client may have pages from a time without a limit.
            if let Err(error) = self.home.register(slot) {
                tracing::debug!(slot = slot.0, %error, "objects stay out of the books");
            }
            let used =
                u64::from(self.home.usage_of(slot).objects) + u64::from(self.reservations.of(slot));
            limits.push(Limit { scope: Scope::Client(slot), used, max: max.into() });
        }
        let Namespace { id, options, .. } = self.home.namespace_of(slot).map_err(store_error)?;
        if let Some(max) = options.objects_max {
            let sealed = u64::from(self.home.usage_of_namespace(*id).objects);
            let promised =
                self.reservations.all().filter(|(slot, _)| self.namespace_is(*slot, *id));
            let used = sealed + promised.map(|(_, objects)| u64::from(objects)).sum::<u64>();
            limits.push(Limit { scope: Scope::Namespace(*id), used, max: max.into() });
        }
        Ok(limits)
    }

    fn namespace_is(&self, slot: ClientSlot, namespace: NamespaceId) -> bool {
        self.home.client(slot).is_ok_and(|record| record.namespace == namespace)
    }

    /// The limits that `objects` more objects would exceed, or for which others wait.
    pub(super) fn misfits(
        &mut self,
        slot: ClientSlot,
        objects: u32,
    ) -> Result<Vec<Limit>, WireError> {
        let mut limits = self.object_limits(slot)?;
        limits.retain(|limit| {
            let is_full = limit.used.saturating_add(objects.into()) > limit.max;
            is_full || self.reservations.is_blocked(limit.scope)
        });
        Ok(limits)
    }

    /// Whether a client may have `objects` more objects.
    pub(super) fn check_objects(
        &mut self,
        slot: ClientSlot,
        objects: u32,
    ) -> Result<(), WireError> {
        match self.misfits(slot, objects)?.first() {
            None => Ok(()),
            Some(limit) => {
                Err(self.objects_exceeded(*limit, objects, self.reservations.waiting().count(), 0))
            }
        }
    }

    /// Whether the objects of a client are counted. Such a client may not seal by itself.
    pub(super) fn are_objects_limited(&self, slot: ClientSlot) -> Result<bool, WireError> {
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        Ok(self.quotas.client_objects_max.is_some() || namespace.options.objects_max.is_some())
    }

    pub(super) fn check_unseen(&self, slot: ClientSlot) -> Result<(), WireError> {
        if self.are_objects_limited(slot)? {
            return Err(too_many("entry pages where objects are limited", 0_u64));
        }
        Ok(())
    }

    /// The error for a client without room; `before` is the number of requests in front in the
    /// queue.
    pub(super) fn objects_exceeded(
        &self,
        limit: Limit,
        objects: u32,
        before: usize,
        waited_ms: u64,
    ) -> WireError {
        let is_in = |slot: &ClientSlot| match limit.scope {
            Scope::Client(client) => *slot == client,
            Scope::Namespace(namespace) => self.namespace_is(*slot, namespace),
        };
        let waiting = self.reservations.waiting().take(before).filter(is_in).count() as u64;
        self.exceeded(limit, "objects", objects.into(), (waiting, waited_ms))
    }

    fn exceeded(
        &self,
        limit: Limit,
        what: &str,
        asked: u64,
        (waiting, waited_ms): (u64, u64),
    ) -> WireError {
        let whose = match limit.scope {
            Scope::Client(slot) => {
                let pid = self.home.client(slot).map(|record| record.pid);
                format!("client {} (process {})", slot.0, pid.unwrap_or_default())
            }
            Scope::Namespace(id) => {
                let name = self.home.namespaces().find(|one| one.id == id);
                format!("namespace {:?}", name.map_or("", |one| &one.options.name))
            }
        };
        let (used, limit) = (limit.used, limit.max);
        WireError::QuotaExceeded {
            whose,
            what: what.to_owned(),
            asked,
            used,
            limit,
            waiting,
            waited_ms,
        }
    }
}
