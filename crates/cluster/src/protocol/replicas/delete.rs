//! Deletes of objects of other nodes: their homes are asked.

use farrow_store::{ClientSlot, ObjectId};
use farrow_wire::{ReplyBody, Rights, WireError, WireTarget};

use super::withdrawals::{DeleteOrigin, Forwarded, PendingDelete, Withdrawal};
use crate::protocol::Action;
use crate::protocol::action::answer_peer;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::{Answer, Question};
use crate::protocol::context::{ReplyTo, RequestContext};
use crate::protocol::convert::{store_error, store_target};
use crate::protocol::state::NodeState;

impl NodeState {
    /// Deletes objects for a client. Returns `None` if the answer follows later.
    pub(in crate::protocol) fn delete_anywhere(
        &mut self,
        context: RequestContext,
        targets: &[WireTarget],
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let RequestContext { session, slot, seq, now_ms } = context;
        let mut results = vec![Ok(()); targets.len()];
        let (mut own, mut far) = (Vec::new(), Vec::new());
        for (place, (target, result)) in targets.iter().zip(&mut results).enumerate() {
            match self.homes_of(slot, target) {
                Ok(nodes) if nodes.is_empty() => match self.target_to_change(slot, target) {
                    Ok(full) => own.push((place, full)),
                    Err(error) => *result = Err(error),
                },
                Ok(nodes) => far.push((place, nodes)),
                Err(error) => *result = Err(error),
            }
        }
        let number = self.replicas.token();
        let (mut places, mut here, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = 0;
        for (place, full) in own {
            let mut withdrawal = Withdrawal::new(DeleteOrigin::Client(number, place), full);
            if self.withdraw_elsewhere(&mut withdrawal, now_ms, out) {
                places.push(place);
                ids.extend(withdrawal.ids);
                here.push(withdrawal.target);
            } else {
                left += 1;
                if let Some(result) = results.get_mut(place) {
                    *result = Err(WireError::NotFound {
                        what: store_target(&withdrawal.target).to_string(),
                    });
                }
                self.replicas.withdrawals.push(withdrawal);
            }
        }
        let deleted = self.delete(&here);
        self.reopen(&ids);
        for (place, deleted) in places.into_iter().zip(deleted?) {
            if let Some(result) = results.get_mut(place) {
                *result = deleted;
            }
        }
        let full = targets.iter().map(|one| self.full_target(slot, one).unwrap_or(one.clone()));
        let full = full.collect::<Vec<_>>();
        if left == 0 && far.is_empty() {
            return Ok(Some(ReplyBody::Deleted(self.with_what_is_lost(&full, results))));
        }
        let waiter = ReplyTo { session, seq };
        let forwarded = Forwarded { number, waiter, targets: full, results, left };
        self.forward(forwarded, slot, targets, far, out);
        Ok(None)
    }

    /// The other nodes that may be the home of an object.
    fn homes_of(&self, slot: ClientSlot, target: &WireTarget) -> Result<Vec<String>, WireError> {
        if self.replicas.port.is_none() {
            return Ok(Vec::new());
        }
        let full = self.full_target(slot, target)?;
        let found = match &full {
            WireTarget::Id(id) if id.hi != self.home.uid().0 => {
                return Ok(self.cluster.net_node_of(id.hi).into_iter().collect());
            }
            full => self.home.find(store_target(full)),
        };
        match (found, &full) {
            (Ok(entry), _) if entry.is_replica => {
                let known = self.replicas.made.get_local(entry.id);
                let home = known.map(|(_, one)| one.node.clone());
                Ok(home.into_iter().collect())
            }
            (Ok(_), _) | (Err(_), WireTarget::Id(_)) => Ok(Vec::new()),
            (Err(_), full) if self.home.has(store_target(full)).unwrap_or(true) => Ok(Vec::new()),
            (Err(_), WireTarget::Name(_)) => Ok(self.cluster.net_nodes()),
        }
    }

    /// Asks other nodes to delete their objects.
    fn forward(
        &mut self,
        mut forwarded: Forwarded,
        slot: ClientSlot,
        targets: &[WireTarget],
        far: Vec<(usize, Vec<String>)>,
        out: &mut Vec<Action>,
    ) {
        let number = forwarded.number;
        for (place, nodes) in far {
            let Some(target) = targets.get(place) else { continue };
            let what = store_target(target).to_string();
            if let Some(result) = forwarded.results.get_mut(place) {
                *result = Err(WireError::NotFound { what });
            }
            let Ok(full) = self.full_target(slot, target) else { continue };
            let full = match (&full, self.home.find(store_target(&full))) {
                (WireTarget::Id(id), Ok(entry)) if id.hi == self.home.uid().0 => {
                    let known = self.replicas.made.get_local(entry.id);
                    known.map_or(full, |((origin, _), _)| WireTarget::Id((*origin).into()))
                }
                _ => full,
            };
            for node in nodes {
                let question = Question::Delete { target: full.clone() };
                let is_queried = self.cluster.ask_delete(&node, question, (number, place), out);
                forwarded.left += usize::from(is_queried);
            }
        }
        self.replicas.forwarded.insert(number, forwarded);
        self.settle_forwarded(number, out);
    }

    /// Records the result of one part of a delete: another node's answer, or its failure.
    pub(in crate::protocol) fn on_delete_response(
        &mut self,
        (number, place): (u64, usize),
        answer: Result<(), WireError>,
        out: &mut Vec<Action>,
    ) {
        let Some(forwarded) = self.replicas.forwarded.get_mut(&number) else { return };
        forwarded.left = forwarded.left.saturating_sub(1);
        if let Some(result) = forwarded.results.get_mut(place) {
            match (&answer, &result) {
                // One node that deleted it outweighs those that do not have it.
                (Ok(()), _) => *result = Ok(()),
                (Err(WireError::NotFound { .. }), _) | (_, Ok(())) => {}
                (Err(error), _) => *result = Err(error.clone()),
            }
        }
        self.settle_forwarded(number, out);
    }

    fn settle_forwarded(&mut self, number: u64, out: &mut Vec<Action>) {
        if self.replicas.forwarded.get(&number).is_some_and(|one| one.left == 0)
            && let Some(forwarded) = self.replicas.forwarded.remove(&number)
        {
            let Forwarded { waiter, targets, results, .. } = forwarded;
            let body = Ok(ReplyBody::Deleted(self.with_what_is_lost(&targets, results)));
            out.push(answer_to(waiter.session, waiter.seq, body));
        }
    }

    /// Replaces "not found" by an error about lost nodes for objects that may be on one.
    fn with_what_is_lost(
        &self,
        targets: &[WireTarget],
        mut results: Vec<Result<(), WireError>>,
    ) -> Vec<Result<(), WireError>> {
        if self.replicas.port.is_some() {
            for (target, result) in targets.iter().zip(&mut results) {
                if matches!(result, Err(WireError::NotFound { .. }))
                    && let Some(error) = self.cluster.perhaps_at_lost(target)
                {
                    *result = Err(error);
                }
            }
        }
        results
    }

    /// Deletes an object for a client of another node. Returns `None` if the answer follows later.
    pub(in crate::protocol) fn delete_for(
        &mut self,
        token: u64,
        from: &str,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        if self.cluster.is_in_debt(&self.home, target) || self.is_between_homes(target) {
            // Its name would not be free for all nodes yet.
            let (from, target) = (from.to_owned(), target.clone());
            // An authority that is silent for this long is excluded.
            let until_ms = now_ms.saturating_add(self.cluster.net_patience_ms());
            self.replicas.indebted.push(PendingDelete { token, from, target, until_ms });
            return None;
        }
        self.delete_free(token, from, target, now_ms, out)
    }

    fn delete_free(
        &mut self,
        token: u64,
        from: &str,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        if let Err(error) = self.check_delete_for(from, target) {
            return Some(Answer::Deleted(Err(error)));
        }
        let withdrawal = Withdrawal::new(DeleteOrigin::Node(token), target.clone());
        self.go_on_to_delete(withdrawal, now_ms, out);
        None
    }

    /// Resumes deletes for other nodes whose names may be free now.
    pub(in crate::protocol) fn serve_deletes_in_debt(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        for one in std::mem::take(&mut self.replicas.indebted) {
            let is_early = self.cluster.is_in_debt(&self.home, &one.target)
                || self.is_between_homes(&one.target);
            if now_ms < one.until_ms && is_early {
                self.replicas.indebted.push(one);
                continue;
            }
            let PendingDelete { token, from, target, .. } = one;
            if let Some(answer) = self.delete_free(token, &from, &target, now_ms, out) {
                out.push(answer_peer(token, &answer));
            }
        }
    }

    /// Deletes the objects of this node whose leases are over.
    pub(in crate::protocol) fn delete_leased(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        while let Some(id) = self.leases.take_due(now_ms) {
            let target = WireTarget::Id(id.into());
            self.go_on_to_delete(Withdrawal::new(DeleteOrigin::Lease, target), now_ms, out);
        }
    }

    fn check_delete_for(&self, from: &str, target: &WireTarget) -> Result<(), WireError> {
        let of_store = store_target(target);
        let missing = || WireError::NotFound { what: store_target(target).to_string() };
        if self.home.find(of_store).is_ok_and(|entry| entry.is_replica) {
            return Err(missing());
        }
        let full = match target {
            WireTarget::Name(full) => full.clone(),
            WireTarget::Id(id) => {
                let id = ObjectId::from(*id);
                let number = self.home.namespace_of_object(id).map_err(store_error)?;
                let mut all = self.home.namespaces();
                let name = all.find(|one| one.id == number).map(|one| one.options.name.clone());
                format!("{}\0", name.unwrap_or_default())
            }
        };
        self.rules.check(from, &full, Rights::DELETE)
    }
}
