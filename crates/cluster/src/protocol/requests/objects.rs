//! Seals, waits, pins, reserved names and released memory of a client.

use std::collections::BTreeSet;

use farrow_memory::{Length, Span};
use farrow_store::{ClientSlot, ObjectKind, Replacement, SealRequest, StoreError};
use farrow_wire::{
    ReplyBody, SealItem, WAIT_MS_MAX, WireError, WireObjectId, WireSpan, WireTarget, span,
};

use crate::protocol::Action;
use crate::protocol::context::RequestContext;
use crate::protocol::convert::{store_error, store_target};
use crate::protocol::core::namespaces::{full_name, full_names, full_target, target_to_change};
use crate::protocol::core::waits::{WAITS_PER_SESSION_MAX, Wait, wait_bytes};
use crate::protocol::limits::check_limit;
use crate::protocol::state::NodeState;

impl NodeState {
    pub(in crate::protocol) fn release(
        &mut self,
        slot: ClientSlot,
        spans: Vec<WireSpan>,
    ) -> Result<ReplyBody, WireError> {
        let spans: Vec<Span> = spans.into_iter().map(span).collect();
        self.home.release(slot, &spans).map_err(store_error)?;
        Ok(ReplyBody::Done)
    }

    /// Reserves names again after a new connection; returns which of them are still the client's.
    pub(in crate::protocol) fn renew(
        &mut self,
        slot: ClientSlot,
        names: &[String],
        are_all: bool,
    ) -> Result<ReplyBody, WireError> {
        let full = full_names(&self.home, slot, names)?;
        let held: Vec<bool> =
            full.iter().map(|name| self.cluster.check_held(name).is_ok()).collect();
        let left = full.into_iter().zip(&held).filter(|(_, held)| **held);
        let left: Vec<String> = left.map(|(name, _)| name).collect();
        self.cluster.note_reservations();
        let mut renewed = self.home.renew(slot, &left, are_all).into_iter();
        let ready = held.iter().map(|held| *held && renewed.next().unwrap_or(false));
        Ok(ReplyBody::Ready(ready.collect()))
    }

    pub(in crate::protocol) fn unreserve(
        &mut self,
        slot: ClientSlot,
        names: &[String],
    ) -> Result<ReplyBody, WireError> {
        let full = full_names(&self.home, slot, names)?;
        let results = full.iter().map(|name| self.home.unreserve(slot, name));
        // An error of one name does not stop the others.
        let failed = results.fold(Ok(()), Result::and);
        self.cluster.note_reservations();
        failed.map(|()| ReplyBody::Done).map_err(store_error)
    }

    /// Seals objects that replace none, or that no other node has to forget first.
    pub(in crate::protocol) fn seal_all(
        &mut self,
        slot: ClientSlot,
        items: Vec<SealItem>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<ReplyBody, WireError> {
        if items.len() > 1
            && let Err(error) = self.check_names_of(slot, &items)
        {
            return Ok(ReplyBody::Sealed(vec![Err(error); items.len()]));
        }
        self.home.begin_batch();
        let sealed = items.into_iter().map(|item| self.seal(slot, item, now_ms, out)).collect();
        self.home.end_batch();
        Ok(ReplyBody::Sealed(sealed))
    }

    pub(in crate::protocol) fn confirm(
        &mut self,
        slot: ClientSlot,
        ids: &[WireObjectId],
        now_ms: u64,
    ) -> Result<ReplyBody, WireError> {
        for id in ids {
            self.home.confirm(slot, (*id).into());
        }
        self.admission.look_again();
        self.reclaim.soon(&self.home, now_ms);
        Ok(ReplyBody::Done)
    }

    pub(in crate::protocol) fn confirm_earlier(
        &mut self,
        slot: ClientSlot,
        now_ms: u64,
    ) -> Result<ReplyBody, WireError> {
        self.home.confirm_earlier(slot);
        self.admission.look_again();
        self.reclaim.soon(&self.home, now_ms);
        Ok(ReplyBody::Done)
    }

    pub(in crate::protocol) fn reserve(
        &mut self,
        slot: ClientSlot,
        names: &[String],
    ) -> Result<ReplyBody, WireError> {
        let names = full_names(&self.home, slot, names)?;
        for (count, name) in names.iter().enumerate() {
            let reserved = self.cluster.check_held(name);
            let reserved =
                reserved.and_then(|()| self.home.reserve(slot, name).map_err(store_error));
            if let Err(error) = reserved {
                for taken in names.iter().take(count) {
                    let _ = self.home.unreserve(slot, taken);
                }
                return Err(error);
            }
        }
        Ok(ReplyBody::Done)
    }

    /// If one of the names is taken, no object of the message becomes visible.
    fn check_names_of(&self, slot: ClientSlot, items: &[SealItem]) -> Result<(), WireError> {
        let mut seen = BTreeSet::new();
        for item in items.iter().filter(|item| item.name.is_some()) {
            let name = item.name.as_deref().unwrap_or_default();
            let full = full_name(&self.home, slot, name)?;
            let replaces = item.is_replacing && self.is_replaceable(&full)?;
            if !replaces {
                self.cluster.check_held(&full)?;
            }
            let is_taken = (self.home.has_name(&full).map_err(store_error)? && !replaces)
                || (self.home.is_reserved(&full) && !item.is_reserved);
            if is_taken || !seen.insert(full) {
                return Err(WireError::NameTaken { name: name.to_owned() });
            }
        }
        Ok(())
    }

    fn seal(
        &mut self,
        slot: ClientSlot,
        item: SealItem,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<WireObjectId, WireError> {
        let Some(kind) = ObjectKind::from_u8(item.kind) else {
            return Err(WireError::Invalid(format!("kind {} is unknown", item.kind)));
        };
        let is_reserved_object = item.is_reserved_object && self.quota.reservations.of(slot) > 0;
        if !is_reserved_object {
            // Room that became free is for the waiting requests first.
            self.quota.serve(&mut self.home, now_ms, out);
            self.quota.check_objects(&mut self.home, slot, 1)?;
        }
        let name =
            item.name.as_deref().map(|name| full_name(&self.home, slot, name)).transpose()?;
        let replaces = match name.as_deref() {
            Some(name) if item.is_replacing && self.is_replaceable(name)? => true,
            Some(name) => self.cluster.check_held(name).map(|()| false)?,
            None => false,
        };
        let request = SealRequest {
            kind,
            primary: span(item.primary),
            descriptor: span(item.descriptor),
            descriptor_crc: item.descriptor_crc,
            extra: item.extra.into_iter().map(span).collect(),
            extra_crc: item.extra_crc,
            size: Length(item.size),
            metadata_bytes: item.metadata_bytes,
            metadata_crc: item.metadata_crc,
            name: name.as_deref(),
            is_reserved: item.is_reserved,
            is_staged: item.is_staged,
        };
        let Replacement { id, replaced } = self.seal_in_store(slot, &request, replaces)?;
        self.counts.sealed += 1;
        self.quota.reservations.note_sealed();
        if let Some(deleted) = replaced {
            self.note_deleted(deleted);
        }
        if is_reserved_object {
            self.quota.reservations.take_back(slot, 1);
        }
        if item.is_held_by_creator {
            self.home.keep_for(slot, id);
        }
        if item.is_staged {
            self.staged.insert(slot, id);
        }
        if item.lease_ms > 0 {
            self.leases.begin(&mut self.home, id, slot, item.lease_ms);
        }
        if item.is_reserved {
            self.cluster.note_reservations();
        }
        if let Some(name) = &name {
            if !replaces {
                self.cluster.note_named(slot, id);
            }
            self.waits.sealed(name);
            self.fan_out.answer(&mut self.waits, out);
            self.cluster.notify_sealed(name, &self.rules, out);
        }
        Ok(id.into())
    }

    /// Seals an object, with room for its entry if there is none at first.
    fn seal_in_store(
        &mut self,
        slot: ClientSlot,
        request: &SealRequest<'_>,
        replaces: bool,
    ) -> Result<Replacement, WireError> {
        let wall_ns = self.home.now_ns();
        let seal = |node: &mut Self| match replaces {
            true => node.home.seal_replacing(slot, request, wall_ns),
            false => {
                let id = node.home.seal(slot, request, wall_ns)?;
                Ok(Replacement { id, replaced: None })
            }
        };
        let mut sealed = seal(self);
        let is_full = matches!(
            sealed,
            Err(StoreError::TooManyObjects { .. } | StoreError::NameSpaceFull { .. })
        );
        // The store checks for room last: the rest of the request is valid.
        if is_full && self.find_entry(request.name)? {
            sealed = seal(self);
        }
        sealed.map_err(store_error)
    }

    /// Makes room for an entry of the directory. Returns whether there is room.
    fn find_entry(&mut self, name: Option<&str>) -> Result<bool, WireError> {
        let Self { home, residency, replicas, .. } = self;
        residency.find_entry(home, replicas, name).map_err(store_error)
    }

    pub(in crate::protocol) fn pin(
        &mut self,
        slot: ClientSlot,
        targets: &[WireTarget],
        is_pinned: bool,
    ) -> Result<ReplyBody, WireError> {
        let pin = |target| {
            let target = target_to_change(&self.home, slot, target)?;
            self.home.pin(store_target(&target), is_pinned).map(drop).map_err(store_error)
        };
        let pinned = targets.iter().map(pin);
        Ok(ReplyBody::Pinned(pinned.collect()))
    }

    pub(in crate::protocol) fn end_leases(
        &mut self,
        slot: ClientSlot,
        ids: &[WireObjectId],
        now_ms: u64,
    ) -> ReplyBody {
        self.leases.end_some(ids, slot, now_ms);
        ReplyBody::Done
    }

    /// Asks whether a name is in the memory of a lost node. `None`: the answer follows later.
    pub(in crate::protocol) fn find_lost(
        &mut self,
        context: RequestContext,
        name: &str,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let full = full_name(&self.home, context.slot, name)?;
        self.cluster.find_lost(&self.home, context.reply_to(), &full, out)
    }

    /// Waits for objects. `None`: the answer follows later.
    pub(in crate::protocol) fn wait(
        &mut self,
        context: RequestContext,
        targets: &[WireTarget],
        count: u32,
        timeout_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let RequestContext { session, slot, seq, now_ms } = context;
        let targets: Vec<WireTarget> = targets
            .iter()
            .map(|target| full_target(&self.home, slot, target))
            .collect::<Result<_, _>>()?;
        let ready: Vec<bool> = targets.iter().map(|target| self.is_there(target)).collect();
        let have = ready.iter().filter(|ready| **ready).count();
        let count = (count as usize).min(targets.len());
        // An id exists from the seal on, so only a name can still appear.
        let names: Vec<(String, usize)> = targets
            .iter()
            .enumerate()
            .filter(|(place, _)| !ready.get(*place).copied().unwrap_or(true))
            .filter_map(|(place, target)| match target {
                WireTarget::Name(name) => Some((name.clone(), place)),
                WireTarget::Id(_) => None,
            })
            .collect();
        if have >= count || timeout_ms == 0 || have + names.len() < count {
            return Ok(Some(ReplyBody::Ready(ready)));
        }
        let waiting = self.waits.count_of(session);
        check_limit("waits under way", waiting + 1, WAITS_PER_SESSION_MAX)?;
        self.check_waiting(session, wait_bytes(&ready, &names))?;
        let deadline_ms = now_ms.saturating_add(timeout_ms.min(WAIT_MS_MAX));
        let awaited: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
        self.waits.add(Wait { session, seq, ready, count, deadline_ms, names });
        self.cluster.await_names(&awaited, out);
        Ok(None)
    }

    /// Whether an object is sealed, in the memory of any node.
    fn is_there(&self, target: &WireTarget) -> bool {
        let look = || {
            matches!(self.home.has(store_target(target)), Ok(true))
                || self.cluster.is_elsewhere(target)
        };
        // It may have moved to a node that was looked at before its old one.
        look() || (self.cluster.is_any_draining(&self.drain.record) && look())
    }
}
