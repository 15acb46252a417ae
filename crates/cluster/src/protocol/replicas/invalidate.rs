//! Objects that go: members hear of it, and an object is deleted when all have dropped their replicas.
//!
//! The object goes last. Were it gone at its home while another node still finds its replica, a reader
//! there would see it after one here did not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_net::source::MemberLife;
use farrow_store::{ObjectId, StoreError, Target};
use farrow_wire::{WireError, WireTarget};

use super::{Replicas, Replicated, WithoutReplicated};
use crate::protocol::Action;
use crate::protocol::cluster::{Answer, answer_peer};
use crate::protocol::convert::store_target;
use crate::protocol::node::NodeState;

/// A member that did not hear that an object is gone is told again after so long.
const TELL_AGAIN_MS: u64 = 100;

/// Stands for all objects of an earlier life of this node: which of them other nodes have replicas of
/// is not known any more.
pub(super) const EVERYTHING: ObjectId = ObjectId { hi: 0, lo: u64::MAX };

/// Objects whose replicas elsewhere are called in at a time, where memory is short.
const RECALLS_MAX: usize = 64;

/// Who deletes an object.
#[derive(Debug)]
pub(super) enum DeleteOrigin {
    /// The delete's number, and which of its objects.
    Client(u64, usize),
    Node(u64),
}

/// A delete of an object of this node that waits until no other node finds the object.
#[derive(Debug)]
pub(super) struct Withdrawal {
    asker: DeleteOrigin,
    pub(super) target: WireTarget,
    /// The object is closed under these ids.
    pub(super) ids: BTreeSet<ObjectId>,
    /// Of these, members have not dropped all replicas.
    left: BTreeSet<ObjectId>,
}

impl Withdrawal {
    pub(super) fn new(asker: DeleteOrigin, target: WireTarget) -> Self {
        Self { asker, target, ids: BTreeSet::new(), left: BTreeSet::new() }
    }
}

/// Members that have not dropped their replicas of an object; each with when it is told again, if it did
/// not hear.
pub(super) type Leaving = BTreeMap<MemberLife, Option<u64>>;

impl NodeState {
    /// A node says that objects of its go: it finds them until nobody else does.
    pub(in crate::protocol) fn objects_gone(
        &mut self,
        node: &str,
        objects: &[u64],
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(hi) = self.net_region_of(node) else { return };
        if objects.contains(&EVERYTHING.lo) {
            self.find_by_net_again(node, now_ms);
            self.drop_replicas_of(node, now_ms, out);
        }
        for lo in objects {
            let origin = ObjectId { hi, lo: *lo };
            for opening in self.replicas.openings.values_mut() {
                opening.gone.insert(origin);
            }
            match self.replicas.loading.get_mut(&origin) {
                Some(loading) if loading.is_on_its_way => loading.is_gone = true,
                Some(_) => self.open_again(origin, now_ms, out),
                None => {}
            }
            self.drop_replica(origin);
        }
        self.reclaim_soon(now_ms);
    }

    /// Drops the replica of an object, and those of parts of it.
    fn drop_replica(&mut self, origin: ObjectId) {
        let Replicas { by_origin, named_parts, .. } = &mut self.replicas;
        let of_it = by_origin.range((origin, None)..).take_while(|((of, _), _)| *of == origin);
        let keys: Vec<_> = of_it.map(|(key, _)| key.clone()).collect();
        named_parts.retain(|_, of| *of != origin || keys.is_empty());
        for replica in keys.iter().filter_map(|key| by_origin.remove(key)) {
            match self.home.delete(Target::Id(replica.local)) {
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%origin, %error, "a replica cannot be dropped"),
            }
        }
    }

    /// A life of a node has ended, or this node does not know whether it has: what it had may be gone.
    pub(in crate::protocol) fn drop_replicas_of(
        &mut self,
        node: &str,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let of_it = self.replicas.by_origin.iter().filter(|(_, replica)| replica.node == node);
        for origin in of_it.map(|((origin, _), _)| *origin).collect::<BTreeSet<_>>() {
            self.drop_replica(origin);
        }
        for loading in self.replicas.loading.values_mut().filter(|one| one.node == node) {
            // Its end is told by who brings it.
            loading.is_gone = true;
        }
        let waiting = self.replicas.loading.iter();
        let waiting = waiting.filter(|(_, one)| one.node == node && !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.open_again(origin, now_ms, out);
        }
        self.reclaim_soon(now_ms);
    }

    /// This node is a member in its new life: the others drop what they have from the one before.
    pub(in crate::protocol) fn tell_new_life(
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
            self.tell_member_gone(&member, EVERYTHING, now_ms, out);
        }
        self.settle_leaving(now_ms, out);
    }

    /// A life of a member has ended: it has no replicas of objects of this node.
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

    /// Closes an object for other nodes, and has them drop their replicas. True: nobody has any more.
    pub(super) fn withdraw_elsewhere(
        &mut self,
        withdrawal: &mut Withdrawal,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(port) = &self.replicas.port else { return true };
        let interests = Arc::clone(&port.interests);
        let ids = self.ids_of(&withdrawal.target).unwrap_or_else(|error| {
            // The delete says so.
            tracing::error!(target = %withdrawal.target, %error, "an object to delete");
            BTreeSet::new()
        });
        let is_any = !ids.is_empty();
        for id in ids {
            // Its home may have taken it over meanwhile: then it has one more.
            if withdrawal.ids.insert(id) {
                for member in interests.close(id) {
                    self.tell_member_gone(&member, id, now_ms, out);
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

    /// Other nodes may open objects again, if they are there.
    pub(super) fn reopen<'a>(&self, ids: impl IntoIterator<Item = &'a ObjectId>) {
        if let Some(port) = &self.replicas.port {
            ids.into_iter().for_each(|id| port.interests.reopen(*id));
        }
    }

    /// Deletes an object if no other node finds it any more; else it waits.
    pub(super) fn go_on_to_delete(
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
        let result = self.delete(std::slice::from_ref(&target));
        self.reopen(&ids);
        let missing = || WireError::NotFound { what: target.to_string() };
        let result = result.and_then(|mut all| all.pop().unwrap_or_else(|| Err(missing())));
        match asker {
            DeleteOrigin::Client(number, place) => {
                self.delete_answered((number, place), result, out)
            }
            DeleteOrigin::Node(token) => out.push(answer_peer(token, &Answer::Deleted(result))),
        }
        self.reclaim_soon(now_ms);
        self.take_jobs(out);
    }

    pub(super) fn tell_member_gone(
        &mut self,
        member: &MemberLife,
        id: ObjectId,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if !self.is_in_life(member) {
            // It has ended, and its replicas with it.
            if let Some(leaving) = self.replicas.leaving.get_mut(&id) {
                leaving.remove(member);
            }
            return;
        }
        let is_asked = self.ask_gone(member, id, out);
        let leaving = self.replicas.leaving.entry(id).or_default();
        leaving.insert(member.clone(), (!is_asked).then_some(now_ms + TELL_AGAIN_MS));
    }

    /// A member has dropped its replica of an object, or did not answer.
    pub(in crate::protocol) fn gone_answered(
        &mut self,
        member: &MemberLife,
        id: ObjectId,
        is_done: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(leaving) = self.replicas.leaving.get_mut(&id) else { return };
        if is_done {
            leaving.remove(member);
        } else if let Some(again) = leaving.get_mut(member) {
            *again = Some(now_ms + TELL_AGAIN_MS);
        }
        self.settle_leaving(now_ms, out);
    }

    /// Goes on with deletes of which no member has a replica any more.
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
        // What could not be evicted may be now.
        self.admission.look_again();
    }

    /// Where memory is short and objects stay only because other nodes have replicas of them, these are
    /// called in.
    pub(super) fn recall_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut left = std::mem::take(&mut self.replicas.wanted_bytes);
        let Some(port) = self.replicas.port.as_ref().filter(|_| left > 0) else { return };
        let interests = Arc::clone(&port.interests);
        if self.spills.is_on() || !self.eviction.policy.is_automatic() {
            return;
        }
        let policy = self.eviction.policy.as_ref();
        let policy = Replicated(WithoutReplicated::new(policy, &self.replicas));
        let Ok(mut ranked) = self.home.candidates(&policy) else { return };
        ranked.truncate(RECALLS_MAX);
        for candidate in ranked {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(candidate.bytes.0);
            for member in interests.take(candidate.id) {
                self.tell_member_gone(&member, candidate.id, now_ms, out);
            }
        }
    }
}
