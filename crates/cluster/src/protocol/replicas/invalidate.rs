//! Invalidation: an object is deleted once all members have dropped their replicas of it.
//!
//! The object is deleted last. If it disappeared while another node still finds its replica, a
//! reader there would see the object after a reader here did not.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrow_net::source::MemberLife;
use farrow_store::{Home, ObjectId, StoreError, Target};
use farrow_wire::WireTarget;

use super::context::ReplicaContext;
use super::invalidation_notice::{InvalidationNotice, LastNotice};
use super::state::Replicas;
use super::withdrawals::{EVERYTHING, Withdrawal};
use crate::protocol::convert::store_target;

/// Pause before a member that was not reached is notified again.
const NOTIFY_AGAIN_MS: u64 = 100;

/// Limit of objects whose replicas are recalled at a time when memory is short.
const RECALLS_MAX: usize = 64;

impl Replicas {
    /// Handles the invalidation of objects by their home, which finds them until no other node
    /// does.
    pub(in crate::protocol) fn on_invalidation(
        &mut self,
        node: &str,
        objects: &[u64],
        context: &mut ReplicaContext<'_>,
    ) {
        // Also of a node whose memory was mapped meanwhile: its replicas may still be here.
        let Some(hi) = context.cluster.region_offered_by(node) else { return };
        if objects.contains(&EVERYTHING.lo) {
            context.cluster.find_by_net_again(node, context.now_ms);
            self.drop_of(node, context);
        }
        for lo in objects {
            let origin = ObjectId { hi, lo: *lo };
            for opening in self.openings.values_mut() {
                opening.invalidated.insert(origin);
            }
            if let Some(loading) = self.loading.get_mut(&origin) {
                loading.is_recalled = true;
            }
            match self.loading.get_mut(&origin) {
                Some(loading) if loading.is_on_its_way => loading.is_invalidated = true,
                Some(_) => self.open_again(origin, context),
                None => {}
            }
            self.drop_replica(origin, context.home);
        }
        context.reclaim_soon();
    }

    /// Drops the replica of an object, and those of parts of it.
    pub(in crate::protocol) fn drop_replica(&mut self, origin: ObjectId, home: &mut Home) {
        #[cfg(feature = "failpoints")]
        if farrow_store::failpoints::is_faulty("replicas.retained") {
            return;
        }
        let Replicas { made, named_parts, port, lazy, .. } = self;
        lazy.outdate(|of, _| of == origin);
        if let Some(port) = port {
            port.readers.hide_replica(origin);
        }
        let removed = made.remove_all_of(origin);
        named_parts.retain(|_, of| *of != origin || removed.is_empty());
        for replica in removed {
            match home.delete(Target::Id(replica.local)) {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%origin, %error, "a replica cannot be dropped"),
            }
        }
    }

    /// Drops all replicas: this node's incarnation is over, and no home recalls them any more.
    pub(in crate::protocol) fn drop_all(&mut self, context: &mut ReplicaContext<'_>) {
        self.lazy.outdate(|_, _| true);
        let replicas = self.made.iter().map(|(_, one)| one.node.clone());
        let loading = self.loading.values().map(|one| one.node.clone());
        let openings = self.openings.values().flat_map(|one| one.left.iter().cloned());
        for node in replicas.chain(loading).chain(openings).collect::<BTreeSet<_>>() {
            self.drop_of(&node, context);
        }
    }

    /// Drops the replicas of a node whose incarnation has ended, or may have: its objects may no
    /// longer exist.
    pub(in crate::protocol) fn drop_of(&mut self, node: &str, context: &mut ReplicaContext<'_>) {
        self.lazy.outdate(|_, of| of == node);
        let of_it = self.made.iter().filter(|(_, replica)| replica.node == node);
        for origin in of_it.map(|((origin, _), _)| *origin).collect::<BTreeSet<_>>() {
            self.drop_replica(origin, context.home);
        }
        for opening in self.openings.values_mut().filter(|one| one.left.contains(node)) {
            opening.outdated.insert(node.to_owned());
        }
        for loading in self.loading.values_mut().filter(|one| one.node == node) {
            // The transfer in progress reports its end itself.
            loading.is_invalidated = true;
        }
        let waiting = self.loading.iter();
        let waiting = waiting.filter(|(_, one)| one.node == node && !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.open_again(origin, context);
        }
        context.reclaim_soon();
    }

    /// After this node joined in a new incarnation: the members drop their replicas of the previous
    /// one. `false`: no daemon before this one had any read.
    pub(in crate::protocol) fn announce_new_life(
        &mut self,
        members: impl IntoIterator<Item = (String, u64)>,
        context: &mut ReplicaContext<'_>,
    ) -> bool {
        if !std::mem::take(&mut self.is_new_life) {
            return false;
        }
        for (name, incarnation) in members {
            let member = MemberLife { name, incarnation };
            self.invalidate_at_member(&member, EVERYTHING, context);
        }
        true
    }

    /// An incarnation of a member has ended: it has no replicas of objects of this node.
    pub(in crate::protocol) fn member_has_ended(&mut self, node: &str, incarnation: u64) {
        let member = MemberLife { name: node.to_owned(), incarnation };
        for leaving in self.leaving.values_mut() {
            leaving.remove(&member);
        }
    }

    /// Closes an object to other nodes and has them drop their replicas. Returns whether no replica
    /// is left.
    pub(in crate::protocol) fn withdraw_elsewhere(
        &mut self,
        withdrawal: &mut Withdrawal,
        context: &mut ReplicaContext<'_>,
    ) -> bool {
        let Some(port) = &self.port else { return true };
        let readers = Arc::clone(&port.readers);
        let ids = ids_of(&withdrawal.target, context.home).unwrap_or_else(|error| {
            // The delete reports the error.
            tracing::error!(target = %withdrawal.target, %error, "an object to delete");
            BTreeSet::new()
        });
        let is_any = !ids.is_empty();
        for id in ids {
            // The home may have taken the object over meanwhile, under one more id.
            if withdrawal.ids.insert(id) {
                for member in readers.close(id) {
                    self.invalidate_at_member(&member, id, context);
                }
            }
        }
        let Replicas { leaving, is_new_life, .. } = self;
        let is_left = |id: &&ObjectId| leaving.get(id).is_some_and(|members| !members.is_empty());
        withdrawal.left = withdrawal.ids.iter().filter(is_left).copied().collect();
        if is_any && (*is_new_life || leaving.contains_key(&EVERYTHING)) {
            withdrawal.left.insert(EVERYTHING);
        }
        withdrawal.left.is_empty()
    }

    /// Lets other nodes open objects again, if these still exist.
    pub(in crate::protocol) fn reopen<'a>(&self, ids: impl IntoIterator<Item = &'a ObjectId>) {
        if let Some(port) = &self.port {
            ids.into_iter().for_each(|id| port.readers.reopen(*id));
        }
    }

    pub(super) fn invalidate_at_member(
        &mut self,
        member: &MemberLife,
        id: ObjectId,
        context: &mut ReplicaContext<'_>,
    ) {
        if !context.cluster.is_in_life(member) {
            // That incarnation has ended, and its replicas with it.
            if let Some(leaving) = self.leaving.get_mut(&id) {
                leaving.remove(member);
            }
            return;
        }
        let number = self.token();
        let notice = InvalidationNotice { member: member.clone(), id, number };
        let is_queried = context.cluster.send_invalidation_notice(notice, context.out);
        let again_at_ms = (!is_queried).then_some(context.now_ms + NOTIFY_AGAIN_MS);
        let leaving = self.leaving.entry(id).or_default();
        leaving.insert(member.clone(), LastNotice { number, again_at_ms });
    }

    /// A member has dropped its replica of an object, or did not answer. `false`: another notice
    /// followed this one.
    pub(in crate::protocol) fn on_invalidation_response(
        &mut self,
        notice: &InvalidationNotice,
        is_done: bool,
        now_ms: u64,
    ) -> bool {
        let InvalidationNotice { member, id, number } = notice;
        let Some(leaving) = self.leaving.get_mut(id) else { return false };
        let Some(last) = leaving.get_mut(member).filter(|last| last.number == *number) else {
            return false;
        };
        if is_done {
            leaving.remove(member);
        } else {
            last.again_at_ms = Some(now_ms + NOTIFY_AGAIN_MS);
        }
        true
    }

    /// Notifies the members again that were not reached; `false`: there were none.
    pub(in crate::protocol) fn notify_late(&mut self, context: &mut ReplicaContext<'_>) -> bool {
        let now_ms = context.now_ms;
        let late = self.leaving.iter().flat_map(|(id, members)| {
            let is_late = |last: &LastNotice| last.again_at_ms.is_some_and(|at| at <= now_ms);
            let late = members.iter().filter(|(_, last)| is_late(last));
            late.map(|(member, _)| (*id, member.clone())).collect::<Vec<_>>()
        });
        let late = late.collect::<Vec<_>>();
        for (id, member) in &late {
            self.invalidate_at_member(member, *id, context);
        }
        !late.is_empty()
    }

    /// Takes out the deletes of objects that have no replicas any more.
    pub(in crate::protocol) fn take_withdrawn(&mut self) -> Vec<Withdrawal> {
        let Replicas { leaving, withdrawals, is_new_life, .. } = self;
        leaving.retain(|_, members| !members.is_empty());
        for one in &mut *withdrawals {
            let is_left =
                |id: &ObjectId| leaving.contains_key(id) || (*is_new_life && *id == EVERYTHING);
            one.left.retain(is_left);
        }
        withdrawals.extract_if(.., |one| one.left.is_empty()).collect()
    }

    /// Recalls replicas while memory is short and only replicas on other nodes prevent evictions.
    pub(super) fn recall_replicas(&mut self, context: &mut ReplicaContext<'_>) {
        let mut left = std::mem::take(&mut self.wanted_bytes);
        let Some(port) = self.port.as_ref().filter(|_| left > 0) else { return };
        let readers = Arc::clone(&port.readers);
        let ranked = context.residency.held_by_replicas(context.home, self);
        let Ok(mut ranked) = ranked else { return };
        ranked.truncate(RECALLS_MAX);
        for candidate in ranked {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(candidate.bytes.0);
            for id in [Some(candidate.id), candidate.former].into_iter().flatten() {
                for member in readers.take(id) {
                    self.invalidate_at_member(&member, id, context);
                }
            }
        }
    }
}

/// The ids by which other nodes may know an object.
fn ids_of(target: &WireTarget, home: &Home) -> Result<BTreeSet<ObjectId>, StoreError> {
    let of_store = store_target(target);
    let entry = match home.find(of_store) {
        Ok(entry) => Some(entry),
        Err(StoreError::NotFound { .. }) => home.find_spilled(of_store)?,
        Err(error) => return Err(error),
    };
    let now = entry.map(|entry| entry.id);
    let before = now.and_then(|id| home.former_id(id));
    Ok(now.into_iter().chain(before).collect())
}
