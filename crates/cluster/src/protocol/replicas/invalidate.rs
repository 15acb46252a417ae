//! Invalidation: an object is deleted once all members have dropped their replicas of it.
//!
//! The object is deleted last. If it disappeared while another node still finds its replica, a
//! reader there would see the object after a reader here did not.

use std::collections::BTreeSet;
use std::sync::Arc;

use farrow_net::source::MemberLife;
use farrow_store::{ObjectId, StoreError, Target};
use farrow_wire::{WireError, WireTarget};

use super::invalidation_notice::{InvalidationNotice, LastNotice};
use super::state::Replicas;
use super::withdrawals::{DeleteOrigin, EVERYTHING, Withdrawal};
use crate::protocol::Action;
use crate::protocol::action::answer_peer;
use crate::protocol::cluster::Answer;
use crate::protocol::convert::store_target;
use crate::protocol::state::NodeState;

/// Pause before a member that was not reached is notified again.
const NOTIFY_AGAIN_MS: u64 = 100;

/// Limit of objects whose replicas are recalled at a time when memory is short.
const RECALLS_MAX: usize = 64;

impl NodeState {
    /// Handles the invalidation of objects by their home, which finds them until no other node
    /// does.
    pub(in crate::protocol) fn on_invalidation(
        &mut self,
        node: &str,
        objects: &[u64],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        // Also of a node whose memory was mapped meanwhile: its replicas may still be here.
        let Some(hi) = self.cluster.region_offered_by(node) else { return };
        if objects.contains(&EVERYTHING.lo) {
            self.cluster.find_by_net_again(node, now_ms);
            self.drop_replicas_of(node, now_ms, out);
        }
        for lo in objects {
            let origin = ObjectId { hi, lo: *lo };
            for opening in self.replicas.openings.values_mut() {
                opening.invalidated.insert(origin);
            }
            if let Some(loading) = self.replicas.loading.get_mut(&origin) {
                loading.is_recalled = true;
            }
            match self.replicas.loading.get_mut(&origin) {
                Some(loading) if loading.is_on_its_way => loading.is_invalidated = true,
                Some(_) => self.open_again(origin, now_ms, out),
                None => {}
            }
            self.drop_replica(origin);
        }
        self.reclaim.soon(&self.home, now_ms);
    }

    /// Drops the replica of an object, and those of parts of it.
    pub(in crate::protocol) fn drop_replica(&mut self, origin: ObjectId) {
        #[cfg(feature = "failpoints")]
        if farrow_store::failpoints::is_faulty("replicas.retained") {
            return;
        }
        let Replicas { made, named_parts, port, lazy, .. } = &mut self.replicas;
        lazy.outdate(|of, _| of == origin);
        if let Some(port) = port {
            port.readers.hide_replica(origin);
        }
        let removed = made.remove_all_of(origin);
        named_parts.retain(|_, of| *of != origin || removed.is_empty());
        for replica in removed {
            match self.home.delete(Target::Id(replica.local)) {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%origin, %error, "a replica cannot be dropped"),
            }
        }
    }

    /// Drops all replicas: this node's incarnation is over, and no home recalls them any more.
    pub(in crate::protocol) fn drop_all_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.replicas.lazy.outdate(|_, _| true);
        let replicas = self.replicas.made.iter().map(|(_, one)| one.node.clone());
        let loading = self.replicas.loading.values().map(|one| one.node.clone());
        let openings = self.replicas.openings.values().flat_map(|one| one.left.iter().cloned());
        for node in replicas.chain(loading).chain(openings).collect::<BTreeSet<_>>() {
            self.drop_replicas_of(&node, now_ms, out);
        }
    }

    /// Drops the replicas of a node whose incarnation has ended, or may have: its objects may no
    /// longer exist.
    pub(in crate::protocol) fn drop_replicas_of(
        &mut self,
        node: &str,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        self.replicas.lazy.outdate(|_, of| of == node);
        let of_it = self.replicas.made.iter().filter(|(_, replica)| replica.node == node);
        for origin in of_it.map(|((origin, _), _)| *origin).collect::<BTreeSet<_>>() {
            self.drop_replica(origin);
        }
        for opening in self.replicas.openings.values_mut().filter(|one| one.left.contains(node)) {
            opening.outdated.insert(node.to_owned());
        }
        for loading in self.replicas.loading.values_mut().filter(|one| one.node == node) {
            // The transfer in progress reports its end itself.
            loading.is_invalidated = true;
        }
        let waiting = self.replicas.loading.iter();
        let waiting = waiting.filter(|(_, one)| one.node == node && !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.open_again(origin, now_ms, out);
        }
        self.reclaim.soon(&self.home, now_ms);
    }

    /// After this node joined in a new incarnation: the members drop their replicas of the previous
    /// one.
    pub(in crate::protocol) fn announce_new_life(
        &mut self,
        members: impl IntoIterator<Item = (String, u64)>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !std::mem::take(&mut self.replicas.is_new_life) {
            return;
        }
        for (name, incarnation) in members {
            let member = MemberLife { name, incarnation };
            self.invalidate_at_member(&member, EVERYTHING, now_ms, out);
        }
        self.settle_leaving(now_ms, out);
    }

    /// An incarnation of a member has ended: it has no replicas of objects of this node.
    pub(in crate::protocol) fn member_has_ended(
        &mut self,
        node: &str,
        incarnation: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let member = MemberLife { name: node.to_owned(), incarnation };
        for leaving in self.replicas.leaving.values_mut() {
            leaving.remove(&member);
        }
        self.settle_leaving(now_ms, out);
    }

    /// The ids by which other nodes may know an object.
    fn ids_of(&self, target: &WireTarget) -> Result<BTreeSet<ObjectId>, StoreError> {
        let of_store = store_target(target);
        let entry = match self.home.find(of_store) {
            Ok(entry) => Some(entry),
            Err(StoreError::NotFound { .. }) => self.home.find_spilled(of_store)?,
            Err(error) => return Err(error),
        };
        let now = entry.map(|entry| entry.id);
        let before = now.and_then(|id| self.home.former_id(id));
        Ok(now.into_iter().chain(before).collect())
    }

    /// Closes an object to other nodes and has them drop their replicas. Returns whether no replica
    /// is left.
    pub(super) fn withdraw_elsewhere(
        &mut self,
        withdrawal: &mut Withdrawal,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(port) = &self.replicas.port else { return true };
        let readers = Arc::clone(&port.readers);
        let ids = self.ids_of(&withdrawal.target).unwrap_or_else(|error| {
            // The delete reports the error.
            tracing::error!(target = %withdrawal.target, %error, "an object to delete");
            BTreeSet::new()
        });
        let is_any = !ids.is_empty();
        for id in ids {
            // The home may have taken the object over meanwhile, under one more id.
            if withdrawal.ids.insert(id) {
                for member in readers.close(id) {
                    self.invalidate_at_member(&member, id, now_ms, out);
                }
            }
        }
        let Replicas { leaving, is_new_life, .. } = &self.replicas;
        let is_left = |id: &&ObjectId| leaving.get(id).is_some_and(|members| !members.is_empty());
        withdrawal.left = withdrawal.ids.iter().filter(is_left).copied().collect();
        if is_any && (*is_new_life || leaving.contains_key(&EVERYTHING)) {
            withdrawal.left.insert(EVERYTHING);
        }
        withdrawal.left.is_empty()
    }

    /// Lets other nodes open objects again, if these still exist.
    pub(super) fn reopen<'a>(&self, ids: impl IntoIterator<Item = &'a ObjectId>) {
        if let Some(port) = &self.replicas.port {
            ids.into_iter().for_each(|id| port.readers.reopen(*id));
        }
    }

    /// Deletes an object if no other node finds it any more; otherwise the delete waits.
    pub(in crate::protocol) fn go_on_to_delete(
        &mut self,
        mut withdrawal: Withdrawal,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !self.withdraw_elsewhere(&mut withdrawal, now_ms, out) {
            self.replicas.withdrawals.push(withdrawal);
            return;
        }
        let Withdrawal { asker, target, ids, .. } = withdrawal;
        if let DeleteOrigin::Replacement(number) = asker {
            return self.withdrawn_to_replace(number, &ids, now_ms, out);
        }
        if matches!(asker, DeleteOrigin::Name) {
            self.name_withdrawn(&target, now_ms, out);
            return self.reopen(&ids);
        }
        let result = self.delete(std::slice::from_ref(&target));
        self.reopen(&ids);
        let missing = || WireError::NotFound { what: store_target(&target).to_string() };
        let result = result.and_then(|mut all| all.pop().unwrap_or_else(|| Err(missing())));
        match asker {
            DeleteOrigin::Client(number, place) => {
                self.on_delete_response((number, place), result, out)
            }
            DeleteOrigin::Node(token) => out.push(answer_peer(token, &Answer::Deleted(result))),
            // Its client, or another one, may have deleted it meanwhile.
            DeleteOrigin::Lease => {
                if let Err(error) = result {
                    tracing::debug!(%error, %target, "not deleted at the end of its lease");
                }
            }
            DeleteOrigin::Move => self.moved_away(result, now_ms, out),
            DeleteOrigin::Replacement(_) | DeleteOrigin::Name => {}
        }
        self.reclaim.soon(&self.home, now_ms);
        self.residency.take_jobs(out);
    }

    pub(super) fn invalidate_at_member(
        &mut self,
        member: &MemberLife,
        id: ObjectId,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !self.cluster.is_in_life(member) {
            // That incarnation has ended, and its replicas with it.
            if let Some(leaving) = self.replicas.leaving.get_mut(&id) {
                leaving.remove(member);
            }
            return;
        }
        let number = self.replicas.token();
        let notice = InvalidationNotice { member: member.clone(), id, number };
        let is_queried = self.cluster.send_invalidation_notice(notice, out);
        let again_at_ms = (!is_queried).then_some(now_ms + NOTIFY_AGAIN_MS);
        let leaving = self.replicas.leaving.entry(id).or_default();
        leaving.insert(member.clone(), LastNotice { number, again_at_ms });
    }

    /// A member has dropped its replica of an object, or did not answer.
    pub(in crate::protocol) fn on_invalidation_response(
        &mut self,
        notice: &InvalidationNotice,
        is_done: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let InvalidationNotice { member, id, number } = notice;
        let Some(leaving) = self.replicas.leaving.get_mut(id) else { return };
        let Some(last) = leaving.get_mut(member).filter(|last| last.number == *number) else {
            return;
        };
        if is_done {
            leaving.remove(member);
        } else {
            last.again_at_ms = Some(now_ms + NOTIFY_AGAIN_MS);
        }
        self.settle_leaving(now_ms, out);
    }

    /// Resumes deletes of objects that have no replicas any more.
    pub(super) fn settle_leaving(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Replicas { leaving, withdrawals, is_new_life, .. } = &mut self.replicas;
        leaving.retain(|_, members| !members.is_empty());
        for one in &mut *withdrawals {
            let is_left =
                |id: &ObjectId| leaving.contains_key(id) || (*is_new_life && *id == EVERYTHING);
            one.left.retain(is_left);
        }
        for over in withdrawals.extract_if(.., |one| one.left.is_empty()).collect::<Vec<_>>() {
            self.go_on_to_delete(over, now_ms, out);
        }
        // Objects that could not be evicted may be evictable now.
        self.admission.look_again();
    }

    /// Recalls replicas while memory is short and only replicas on other nodes prevent evictions.
    pub(super) fn recall_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut left = std::mem::take(&mut self.replicas.wanted_bytes);
        let Some(port) = self.replicas.port.as_ref().filter(|_| left > 0) else { return };
        let readers = Arc::clone(&port.readers);
        let ranked = self.residency.held_by_replicas(&self.home, &self.replicas);
        let Ok(mut ranked) = ranked else { return };
        ranked.truncate(RECALLS_MAX);
        for candidate in ranked {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(candidate.bytes.0);
            for id in [Some(candidate.id), candidate.former].into_iter().flatten() {
                for member in readers.take(id) {
                    self.invalidate_at_member(&member, id, now_ms, out);
                }
            }
        }
    }
}
