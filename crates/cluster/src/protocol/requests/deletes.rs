//! Deletes of objects: of clients, of other nodes, and at the end of a lease or a move. An object of
//! this node is deleted once no other node finds a replica of it.

use farrow_store::{ClientSlot, Deleted, Home, ObjectId, StoreError, Target};
use farrow_wire::{ReplyBody, Rights, WireError, WireTarget};

use crate::protocol::action::{Action, answer_peer};
use crate::protocol::cluster::Answer;
use crate::protocol::context::{ReplyTo, RequestContext};
use crate::protocol::convert::{store_error, store_target};
use crate::protocol::core::namespaces::{full_target, target_to_change};
use crate::protocol::replicas::withdrawals::{Forwarded, PendingDelete};
use crate::protocol::replicas::{DeleteOrigin, Withdrawal};
use crate::protocol::rights::RightsTable;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Deletes what a client that has ended sealed only to have it brought to other nodes.
    pub(in crate::protocol) fn drop_staged(&mut self, slot: ClientSlot) {
        for id in self.staged.take(slot) {
            self.home.confirm(slot, id);
            match self.home.delete(Target::Id(id)) {
                Ok(deleted) => self.residency.deleted(deleted.id, deleted.was_spilled),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%id, %error, "a staged object cannot be deleted"),
            }
        }
    }

    /// Deletes objects, by their full names; all of them at once, for one look at the holds is long beside
    /// the rest.
    pub(in crate::protocol) fn delete(
        &mut self,
        targets: &[WireTarget],
    ) -> Result<Vec<Result<(), WireError>>, WireError> {
        let deleted =
            self.home.delete_many(targets.iter().map(store_target)).map_err(store_error)?;
        let mut results = Vec::with_capacity(targets.len());
        for result in deleted {
            results.push(match result {
                Ok(deleted) => {
                    self.note_deleted(deleted);
                    Ok(())
                }
                Err(error) => Err(store_error(error)),
            });
        }
        Ok(results)
    }

    pub(in crate::protocol) fn note_deleted(&mut self, deleted: Deleted) {
        self.residency.deleted(deleted.id, deleted.was_spilled);
        self.staged.forget(deleted.id);
        self.leases.forget(deleted.id);
        self.counts.deleted += 1;
        if !deleted.freed_now {
            self.reclaim.next_turn();
        }
    }

    /// Whether an object of this node has the name, so that another one may take its place.
    pub(in crate::protocol) fn is_replaceable(&self, full: &str) -> Result<bool, WireError> {
        let entry = match self.home.find(Target::Name(full)) {
            Ok(entry) => Some(entry),
            Err(StoreError::NotFound { .. }) => {
                self.home.find_spilled(Target::Name(full)).map_err(store_error)?
            }
            Err(error) => return Err(store_error(error)),
        };
        Ok(entry.is_some_and(|entry| !entry.is_replica))
    }

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
        let (replicas, rest) = self.replicas(now_ms, out);
        for (place, (target, result)) in targets.iter().zip(&mut results).enumerate() {
            match replicas.homes_of(slot, target, &rest) {
                Ok(nodes) if nodes.is_empty() => match target_to_change(rest.home, slot, target) {
                    Ok(full) => own.push((place, full)),
                    Err(error) => *result = Err(error),
                },
                Ok(nodes) => far.push((place, nodes)),
                Err(error) => *result = Err(error),
            }
        }
        let (replicas, mut rest) = self.replicas(now_ms, out);
        let number = replicas.token();
        let (mut places, mut here, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut left = 0;
        for (place, full) in own {
            let mut withdrawal = Withdrawal::new(DeleteOrigin::Client(number, place), full);
            if replicas.withdraw_elsewhere(&mut withdrawal, &mut rest) {
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
                replicas.withdrawals.push(withdrawal);
            }
        }
        let deleted = self.delete(&here);
        self.replicas.reopen(&ids);
        for (place, deleted) in places.into_iter().zip(deleted?) {
            if let Some(result) = results.get_mut(place) {
                *result = deleted;
            }
        }
        let full =
            targets.iter().map(|one| full_target(&self.home, slot, one).unwrap_or(one.clone()));
        let full = full.collect::<Vec<_>>();
        if left == 0 && far.is_empty() {
            let results = self.replicas.with_what_is_lost(&full, results, &self.cluster);
            return Ok(Some(ReplyBody::Deleted(results)));
        }
        let waiter = ReplyTo { session, seq };
        let forwarded = Forwarded { number, waiter, targets: full, results, left };
        let (replicas, mut rest) = self.replicas(now_ms, out);
        replicas.forward(forwarded, slot, targets, far, &mut rest);
        Ok(None)
    }

    /// Deletes an object if no other node finds it any more; otherwise the delete waits.
    pub(in crate::protocol) fn go_on_to_delete(
        &mut self,
        mut withdrawal: Withdrawal,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let (replicas, mut rest) = self.replicas(now_ms, out);
        if !replicas.withdraw_elsewhere(&mut withdrawal, &mut rest) {
            replicas.withdrawals.push(withdrawal);
            return;
        }
        let Withdrawal { asker, target, ids, .. } = withdrawal;
        if let DeleteOrigin::Replacement(number) = asker {
            return self.withdrawn_to_replace(number, &ids, now_ms, out);
        }
        if matches!(asker, DeleteOrigin::Name) {
            self.name_withdrawn(&target, now_ms, out);
            return self.replicas.reopen(&ids);
        }
        let result = self.delete(std::slice::from_ref(&target));
        self.replicas.reopen(&ids);
        let missing = || WireError::NotFound { what: store_target(&target).to_string() };
        let result = result.and_then(|mut all| all.pop().unwrap_or_else(|| Err(missing())));
        match asker {
            DeleteOrigin::Client(number, place) => {
                self.replicas.on_delete_response((number, place), result, &self.cluster, out);
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

    /// Deletes an object for a client of another node, once its name would be free for all nodes.
    /// Returns `None` if the answer follows later.
    pub(in crate::protocol) fn delete_for_peer(
        &mut self,
        token: u64,
        from: &str,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        if self.cluster.is_in_debt(&self.home, target) || self.drain.is_between_homes(target) {
            // Its name would not be free for all nodes yet.
            let (from, target) = (from.to_owned(), target.clone());
            // An authority that is silent for this long is excluded.
            let until_ms = now_ms.saturating_add(self.cluster.net_patience_ms());
            self.replicas.indebted.push(PendingDelete { token, from, target, until_ms });
            return None;
        }
        self.delete_for_peer_now(token, from, target, now_ms, out)
    }

    /// As [`Self::delete_for_peer`], without regard to the state of its name.
    fn delete_for_peer_now(
        &mut self,
        token: u64,
        from: &str,
        target: &WireTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Option<Answer> {
        if let Err(error) = check_peer_may_delete(&self.home, &self.rules, from, target) {
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
                || self.drain.is_between_homes(&one.target);
            if now_ms < one.until_ms && is_early {
                self.replicas.indebted.push(one);
                continue;
            }
            let PendingDelete { token, from, target, .. } = one;
            if let Some(answer) = self.delete_for_peer_now(token, &from, &target, now_ms, out) {
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
}

/// Whether another node may delete an object of this one.
fn check_peer_may_delete(
    home: &Home,
    rules: &RightsTable,
    from: &str,
    target: &WireTarget,
) -> Result<(), WireError> {
    let of_store = store_target(target);
    let missing = || WireError::NotFound { what: store_target(target).to_string() };
    if home.find(of_store).is_ok_and(|entry| entry.is_replica) {
        return Err(missing());
    }
    let full = match target {
        WireTarget::Name(full) => full.clone(),
        WireTarget::Id(id) => {
            let id = ObjectId::from(*id);
            let number = home.namespace_of_object(id).map_err(store_error)?;
            let mut all = home.namespaces();
            let name = all.find(|one| one.id == number).map(|one| one.options.name.clone());
            format!("{}\0", name.unwrap_or_default())
        }
    };
    rules.check(from, &full, Rights::DELETE)
}
