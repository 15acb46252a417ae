//! Objects that are gone: members hear of it, and a delete is answered when all have dropped their
//! replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use farrow_net::source::Member;
use farrow_store::{ObjectId, StoreError, Target};
use farrow_wire::ReplyBody;

use super::{Replica, Replicas, Replicated, Waiter, WithoutReplicated};
use crate::protocol::Action;
use crate::protocol::admission::answer_to;
use crate::protocol::cluster::{Answer, answer_peer};
use crate::protocol::node::NodeState;

/// A member that did not hear that an object is gone is told again after so long.
const TELL_AGAIN_MS: u64 = 100;

/// Stands for all objects of an earlier life of this node: which of them other nodes have replicas of
/// is not known any more.
pub(super) const EVERYTHING: ObjectId = ObjectId { hi: 0, lo: u64::MAX };

/// Objects whose replicas elsewhere are called in at a time, where memory is short.
const RECALLS_MAX: usize = 64;

/// Who waits until an object is gone everywhere.
#[derive(Debug)]
pub(super) enum Asker {
    Client(Waiter, ReplyBody),
    Node(u64, Answer),
}

#[derive(Debug)]
pub(super) struct Parked {
    pub(super) asker: Asker,
    /// Objects that members have not dropped.
    left: BTreeSet<ObjectId>,
}

/// Members that have not dropped their replicas of an object that is gone; each with when it is told
/// again, if it did not hear.
pub(super) type Leaving = BTreeMap<Member, Option<u64>>;

impl NodeState {
    /// A node says that objects of its are gone.
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
                Some(_) => self.end_load(origin, Ok(None), out),
                None => {}
            }
            self.drop_replica(origin);
        }
        self.reclaim_soon(now_ms);
    }

    fn drop_replica(&mut self, origin: ObjectId) {
        if let Some(replica) = self.replicas.by_origin.remove(&origin) {
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
        let of_it = |(_, replica): &(&ObjectId, &Replica)| replica.node == node;
        let origins = self.replicas.by_origin.iter().filter(of_it).map(|(origin, _)| *origin);
        for origin in origins.collect::<Vec<_>>() {
            self.drop_replica(origin);
        }
        for loading in self.replicas.loading.values_mut().filter(|one| one.node == node) {
            // Its end is told by who brings it.
            loading.is_gone = true;
        }
        let waiting = self.replicas.loading.iter();
        let waiting = waiting.filter(|(_, one)| one.node == node && !one.is_on_its_way);
        for origin in waiting.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.end_load(origin, Ok(None), out);
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
            let member = Member { name, incarnation };
            self.tell_member_gone(&member, EVERYTHING, now_ms, out);
        }
        self.settle_leaving(out);
    }

    /// A life of a member has ended: it has no replicas of objects of this node.
    pub(in crate::protocol) fn member_has_ended(
        &mut self,
        node: &str,
        incarnation: u64,
        out: &mut Vec<Action>,
    ) {
        let member = Member { name: node.to_owned(), incarnation };
        for leaving in self.replicas.leaving.values_mut() {
            leaving.remove(&member);
        }
        self.settle_leaving(out);
    }

    /// Objects of this node are gone. The answer comes when no member finds them any more.
    pub(super) fn tell_gone(
        &mut self,
        ids: impl IntoIterator<Item = ObjectId>,
        asker: Option<Asker>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let mut left = BTreeSet::new();
        let mut ids = ids.into_iter().peekable();
        let is_any = ids.peek().is_some();
        if is_any && (self.replicas.is_new_life || self.replicas.leaving.contains_key(&EVERYTHING))
        {
            left.insert(EVERYTHING);
        }
        for id in ids {
            let Some(port) = &self.replicas.port else { break };
            let members = port.interests.take(id);
            if members.is_empty() {
                continue;
            }
            for member in &members {
                self.tell_member_gone(member, id, now_ms, out);
            }
            left.insert(id);
        }
        match asker {
            Some(asker) if left.is_empty() => answer_asker(asker, out),
            Some(asker) => self.replicas.parked.push(Parked { asker, left }),
            None => {}
        }
        self.settle_leaving(out);
    }

    pub(super) fn tell_member_gone(
        &mut self,
        member: &Member,
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
        member: &Member,
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
        self.settle_leaving(out);
    }

    fn settle_leaving(&mut self, out: &mut Vec<Action>) {
        let Replicas { leaving, parked, is_new_life, .. } = &mut self.replicas;
        leaving.retain(|_, members| !members.is_empty());
        for one in &mut *parked {
            let is_left =
                |id: &ObjectId| leaving.contains_key(id) || (*is_new_life && *id == EVERYTHING);
            one.left.retain(is_left);
        }
        for over in parked.extract_if(.., |one| one.left.is_empty()) {
            answer_asker(over.asker, out);
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

fn answer_asker(asker: Asker, out: &mut Vec<Action>) {
    match asker {
        Asker::Client(waiter, body) => out.push(answer_to(waiter.session, waiter.seq, Ok(body))),
        Asker::Node(token, answer) => out.push(answer_peer(token, &answer)),
    }
}
