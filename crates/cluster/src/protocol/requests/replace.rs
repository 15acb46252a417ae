//! Objects that take the place of others: the old ones are deleted once no other node finds a replica
//! of them.

use std::collections::BTreeSet;

use farrow_store::ObjectId;
use farrow_wire::{ReplyBody, SealItem, WireError, WireTarget};

use crate::protocol::Action;
use crate::protocol::context::RequestContext;
use crate::protocol::core::namespaces::full_name;
use crate::protocol::limits::check_limit;
use crate::protocol::replicas::withdrawals::{
    DeleteOrigin, PendingReplacement, ReplacingSeal, Withdrawal,
};
use crate::protocol::state::NodeState;

/// Most seals that wait for replicas at a time.
const REPLACEMENTS_MAX: usize = 64;

impl NodeState {
    /// Seals objects. Returns `None` if the answer follows later.
    pub(in crate::protocol) fn seal_items(
        &mut self,
        context: RequestContext,
        items: Vec<SealItem>,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        if items.iter().any(|item| item.is_replacing) {
            return self.seal_in_places(ReplacingSeal { context, items, granted: Vec::new() }, out);
        }
        self.seal_all(context.slot, items, context.now_ms, out).map(Some)
    }

    /// Seals objects, some of which replace others. Returns `None` if the answer follows later:
    /// names that were granted for them are settled then.
    pub(in crate::protocol) fn seal_in_places(
        &mut self,
        seal: ReplacingSeal,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let RequestContext { slot, now_ms, .. } = seal.context;
        // All errors come first: an object that is closed to other nodes has to be reopened.
        let names = self.names_to_replace(seal.context, &seal.items)?;
        if names.is_empty() {
            return self.seal_all(slot, seal.items, now_ms, out).map(Some);
        }
        let waiting = self.replicas.replacements.len();
        check_limit("seals that wait for replicas", waiting + 1, REPLACEMENTS_MAX)?;
        let number = self.replicas.token();
        let (mut ids, mut left): (BTreeSet<ObjectId>, usize) = Default::default();
        if self.replicas.port.is_some() {
            let (replicas, mut rest) = self.replicas(now_ms, out);
            for full in names {
                let asker = DeleteOrigin::Replacement(number);
                let mut withdrawal = Withdrawal::new(asker, WireTarget::Name(full));
                if replicas.withdraw_elsewhere(&mut withdrawal, &mut rest) {
                    ids.extend(withdrawal.ids);
                } else {
                    left += 1;
                    replicas.withdrawals.push(withdrawal);
                }
            }
        }
        if left > 0 {
            let pending = PendingReplacement { seal, left, ids };
            self.replicas.replacements.insert(number, pending);
            return Ok(None);
        }
        let sealed = self.seal_all(slot, seal.items, now_ms, out);
        self.replicas.reopen(&ids);
        sealed.map(Some)
    }

    /// Full names of the objects that a seal replaces. Their replacement deletes them.
    fn names_to_replace(
        &self,
        context: RequestContext,
        items: &[SealItem],
    ) -> Result<BTreeSet<String>, WireError> {
        let replacing = items.iter().filter(|one| one.is_replacing);
        let mut names = BTreeSet::new();
        for name in replacing.filter_map(|one| one.name.as_ref()) {
            let full = full_name(&self.home, context.slot, name)?;
            if self.is_replaceable(&full)? {
                names.insert(full);
            }
        }
        if !names.is_empty() {
            self.check_may_delete(context.session)?;
        }
        Ok(names)
    }

    /// No other node finds one of the objects any more that a seal replaces.
    pub(in crate::protocol) fn withdrawn_to_replace(
        &mut self,
        number: u64,
        ids: &BTreeSet<ObjectId>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(pending) = self.replicas.replacements.get_mut(&number) else { return };
        pending.left = pending.left.saturating_sub(1);
        pending.ids.extend(ids);
        if pending.left > 0 {
            return;
        }
        let Some(PendingReplacement { mut seal, ids, .. }) =
            self.replicas.replacements.remove(&number)
        else {
            return;
        };
        if self.clients.is_of(seal.context.session, seal.context.slot) {
            seal.context.now_ms = now_ms;
            self.seal_granted(seal, out);
        } else {
            self.settle(seal.granted);
        }
        // Where nothing was sealed the old objects are there as before.
        self.replicas.reopen(&ids);
    }
}
