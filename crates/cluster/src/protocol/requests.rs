//! Requests of a client that has joined.

use std::collections::BTreeSet;

use farrow_memory::{Length, Span};
use farrow_store::{ClientSlot, ObjectId, ObjectKind, Replacement, SealRequest, StoreError};
use farrow_wire::{
    BATCH_ITEMS_MAX, EXTRA_BLOCKS_MAX, ReplyBody, RequestBody, SealItem, WAIT_MS_MAX, WireError,
    WireTarget,
};

use super::Action;
use super::action::answer_to;
use super::context::RequestContext;
use super::convert::{limit, span, store_error, store_target, wire_span};
use super::core::waits::{WAITS_PER_SESSION_MAX, Wait, wait_bytes};
use super::state::NodeState;
use crate::protocol::core::reclaim::reclaim;

impl NodeState {
    /// Serves a request that waits for no name, and answers it. The answer to a delete may follow
    /// later.
    pub(super) fn serve_now(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) {
        let RequestContext { session, slot, seq, now_ms } = context;
        let result = match body {
            RequestBody::Delete { targets } => {
                let allowed = self.check_right(slot, &RequestBody::Delete { targets: Vec::new() });
                let limited = limit("objects in one message", targets.len(), BATCH_ITEMS_MAX);
                let checked = allowed.and(limited);
                let deleted = checked.and_then(|()| self.delete_anywhere(context, &targets, out));
                self.reclaim.soon(&self.home, now_ms);
                deleted
            }
            RequestBody::Seal { items } if items.iter().any(|item| item.is_replacing) => {
                let sealed = self.seal_in_places(context, items, wall_ns, out);
                self.reclaim.soon(&self.home, now_ms);
                sealed
            }
            body => self.serve(slot, body, now_ms, wall_ns, out).map(Some),
        };
        match result {
            Ok(None) => {}
            Ok(Some(body)) => out.push(answer_to(session, seq, Ok(body))),
            Err(error) => out.push(answer_to(session, seq, Err(error))),
        }
    }

    pub(super) fn serve(
        &mut self,
        slot: ClientSlot,
        body: RequestBody,
        now_ms: u64,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) -> Result<ReplyBody, WireError> {
        self.check_right(slot, &body)?;
        match body {
            RequestBody::Release { spans } => {
                limit("spans in one message", spans.len(), BATCH_ITEMS_MAX)?;
                let spans: Vec<Span> = spans.into_iter().map(span).collect();
                self.home.release(slot, &spans).map_err(store_error)?;
                Ok(ReplyBody::Done)
            }
            RequestBody::Reserve { names } => self.reserve(slot, &names),
            RequestBody::Renew { names, are_all } => {
                limit("names in one message", names.len(), BATCH_ITEMS_MAX)?;
                let names = self.full_names(slot, &names)?;
                let held: Vec<bool> =
                    names.iter().map(|name| self.cluster.check_held(name).is_ok()).collect();
                let left = names.into_iter().zip(&held).filter(|(_, held)| **held);
                let left: Vec<String> = left.map(|(name, _)| name).collect();
                self.cluster.note_reservations();
                let mut renewed = self.home.renew(slot, &left, are_all).into_iter();
                let ready = held.iter().map(|held| *held && renewed.next().unwrap_or(false));
                Ok(ReplyBody::Ready(ready.collect()))
            }
            RequestBody::Unreserve { names } => {
                limit("names in one message", names.len(), BATCH_ITEMS_MAX)?;
                let names = self.full_names(slot, &names)?;
                let results = names.iter().map(|name| self.home.unreserve(slot, name));
                // An error of one name does not stop the others.
                let failed = results.fold(Ok(()), Result::and);
                self.cluster.note_reservations();
                failed.map(|()| ReplyBody::Done).map_err(store_error)
            }
            RequestBody::UnreserveObjects { objects } => {
                self.quota.reservations.take_back(slot, objects);
                Ok(ReplyBody::Done)
            }
            RequestBody::ReservedObjects { objects } => {
                self.quota.renew(&mut self.home, slot, objects);
                Ok(ReplyBody::Done)
            }
            RequestBody::Seal { items } => {
                limit("objects in one message", items.len(), BATCH_ITEMS_MAX)?;
                if items.len() > 1
                    && let Err(error) = self.check_names_of(slot, &items)
                {
                    return Ok(ReplyBody::Sealed(vec![Err(error); items.len()]));
                }
                let sealed =
                    items.into_iter().map(|item| self.seal(slot, item, now_ms, wall_ns, out));
                Ok(ReplyBody::Sealed(sealed.collect()))
            }
            RequestBody::Confirm { ids } => {
                limit("objects in one message", ids.len(), BATCH_ITEMS_MAX)?;
                for (hi, lo) in ids {
                    self.home.confirm(slot, ObjectId { hi, lo });
                }
                self.admission.look_again();
                self.reclaim.soon(&self.home, now_ms);
                Ok(ReplyBody::Done)
            }
            RequestBody::ConfirmEarlier => {
                self.home.confirm_earlier(slot);
                self.admission.look_again();
                self.reclaim.soon(&self.home, now_ms);
                Ok(ReplyBody::Done)
            }
            RequestBody::HoldBlock => {
                let block = self.home.hold_block(slot).map_err(store_error)?;
                Ok(ReplyBody::HoldBlock(wire_span(block)))
            }
            RequestBody::EntryPages { count } => {
                self.quota.check_unseen(&self.home, slot)?;
                let pages = self.home.entry_pages(slot, count).map_err(store_error)?;
                Ok(ReplyBody::EntryPages(wire_span(pages)))
            }
            RequestBody::Reclaim => {
                reclaim(&mut self.home);
                Ok(ReplyBody::Done)
            }
            RequestBody::Overview { cells } => {
                self.overview(cells).map(ReplyBody::Overview).map_err(store_error)
            }
            RequestBody::Stats => self
                .current_stats(now_ms)
                .map(|stats| ReplyBody::Stats(Box::new(stats)))
                .map_err(store_error),
            RequestBody::EndLeases { ids } => self.end_leases(slot, &ids, now_ms),
            RequestBody::Pin { targets, is_pinned } => self.pin(slot, &targets, is_pinned),
            RequestBody::CreateNamespace(spec) => self.create_namespace(spec),
            RequestBody::DropNamespace { name } => {
                self.home.drop_namespace(&name).map_err(store_error)?;
                self.replicas.tell_rules(&self.rules, &self.home);
                Ok(ReplyBody::Done)
            }
            RequestBody::Namespaces => self.namespaces(),
            RequestBody::SetRule(rule) => self.set_rule(rule),
            RequestBody::RemoveRule { namespace, node } => self.remove_rule(&namespace, &node),
            RequestBody::Rules => Ok(self.rules()),
            RequestBody::Nodes => Ok(self.nodes()),
            RequestBody::Forget { node } => self.forget_node(&node, now_ms),
            RequestBody::Shutdown => {
                out.push(Action::Stop);
                Ok(ReplyBody::Done)
            }
            RequestBody::Hello(_)
            | RequestBody::Handover { .. }
            | RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::ReserveObjects { .. }
            | RequestBody::Wait { .. }
            | RequestBody::Evict { .. }
            | RequestBody::Restore { .. }
            | RequestBody::FindLost { .. }
            | RequestBody::Fetch { .. }
            | RequestBody::ListAt { .. }
            | RequestBody::FindAt { .. }
            | RequestBody::Import { .. }
            | RequestBody::Delete { .. }
            | RequestBody::Sync { .. }
            | RequestBody::Cancel { .. }
            | RequestBody::Goodbye
            | RequestBody::Listen(_)
            | RequestBody::Watch(_) => Err(WireError::Invalid("not here".into())),
        }
    }

    fn reserve(&mut self, slot: ClientSlot, names: &[String]) -> Result<ReplyBody, WireError> {
        limit("names in one message", names.len(), BATCH_ITEMS_MAX)?;
        let names = self.full_names(slot, names)?;
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
            let full = self.full_name(slot, name)?;
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
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) -> Result<(u64, u64), WireError> {
        limit("blocks in one object", item.extra.len(), EXTRA_BLOCKS_MAX)?;
        let Some(kind) = ObjectKind::from_u8(item.kind) else {
            return Err(WireError::Invalid(format!("kind {} is unknown", item.kind)));
        };
        let is_reserved_object = item.is_reserved_object && self.quota.reservations.of(slot) > 0;
        if !is_reserved_object {
            // Room that became free is for the waiting requests first.
            self.quota.serve(&mut self.home, now_ms, out);
            self.quota.check_objects(&mut self.home, slot, 1)?;
        }
        let name = item.name.as_deref().map(|name| self.full_name(slot, name)).transpose()?;
        let replaces = match name.as_deref() {
            Some(name) if item.is_replacing && self.is_replaceable(name)? => {
                self.check_right(slot, &RequestBody::Delete { targets: Vec::new() })?;
                true
            }
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
        };
        let seal = |node: &mut Self| match replaces {
            true => node.home.seal_replacing(slot, &request, wall_ns),
            false => {
                let id = node.home.seal(slot, &request, wall_ns)?;
                Ok(Replacement { id, replaced: None })
            }
        };
        let mut sealed = seal(self);
        let is_full = matches!(
            sealed,
            Err(StoreError::TooManyObjects { .. } | StoreError::NameSpaceFull { .. })
        );
        // The store checks for room last: the rest of the request is valid.
        if is_full && self.find_entry(name.as_deref())? {
            sealed = seal(self);
        }
        let Replacement { id, replaced } = sealed.map_err(store_error)?;
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
            self.staged.entry(slot).or_default().insert(id);
        }
        if item.lease_ms > 0 {
            self.begin_lease(slot, id, item.lease_ms);
        }
        if item.is_reserved {
            self.cluster.note_reservations();
        }
        if let Some(name) = &name {
            self.waits.sealed(name);
            self.answer_waits(out);
            self.tell_sealed(name, now_ms, out);
        }
        Ok((id.hi, id.lo))
    }

    /// Makes room for an entry of the directory. Returns whether there is room.
    fn find_entry(&mut self, name: Option<&str>) -> Result<bool, WireError> {
        let Self { home, residency, replicas, .. } = self;
        residency.find_entry(home, replicas, name).map_err(store_error)
    }

    fn pin(
        &mut self,
        slot: ClientSlot,
        targets: &[WireTarget],
        is_pinned: bool,
    ) -> Result<ReplyBody, WireError> {
        limit("objects in one message", targets.len(), BATCH_ITEMS_MAX)?;
        let pin = |target| {
            let target = self.target_to_change(slot, target)?;
            self.home.pin(store_target(&target), is_pinned).map(drop).map_err(store_error)
        };
        let pinned = targets.iter().map(pin);
        Ok(ReplyBody::Pinned(pinned.collect()))
    }

    pub(super) fn wait(
        &mut self,
        context: RequestContext,
        targets: &[WireTarget],
        count: u32,
        timeout_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<Vec<bool>>, WireError> {
        let RequestContext { session, slot, seq, now_ms } = context;
        limit("objects in one message", targets.len(), BATCH_ITEMS_MAX)?;
        let targets: Vec<WireTarget> = targets
            .iter()
            .map(|target| self.full_target(slot, target))
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
                WireTarget::Id(..) => None,
            })
            .collect();
        if have >= count || timeout_ms == 0 || have + names.len() < count {
            return Ok(Some(ready));
        }
        let waiting = self.waits.count_of(session);
        limit("waits under way", waiting + 1, WAITS_PER_SESSION_MAX)?;
        self.check_waiting(session, wait_bytes(&ready, &names))?;
        let deadline_ms = now_ms.saturating_add(timeout_ms.min(WAIT_MS_MAX));
        let awaited: Vec<String> = names.iter().map(|(name, _)| name.clone()).collect();
        self.waits.add(Wait { session, seq, ready, count, deadline_ms, names });
        self.cluster.await_names(&awaited, out);
        Ok(None)
    }

    /// Whether an object is sealed, in the memory of any node.
    fn is_there(&self, target: &WireTarget) -> bool {
        matches!(self.home.has(store_target(target)), Ok(true)) || self.cluster.is_elsewhere(target)
    }
}
