//! Deletes of objects of other nodes: their homes are asked.

use farrow_store::ClientSlot;
use farrow_wire::{ReplyBody, WireError, WireTarget};

use super::context::ReplicaContext;
use super::state::Replicas;
use super::withdrawals::Forwarded;
use crate::protocol::action::{Action, answer_to};
use crate::protocol::cluster::{OptionalCluster, Question};
use crate::protocol::convert::store_target;
use crate::protocol::core::namespaces::full_target;

impl Replicas {
    /// The other nodes that may be the home of an object.
    pub(in crate::protocol) fn homes_of(
        &self,
        slot: ClientSlot,
        target: &WireTarget,
        context: &ReplicaContext<'_>,
    ) -> Result<Vec<String>, WireError> {
        if self.port.is_none() {
            return Ok(Vec::new());
        }
        let full = full_target(context.home, slot, target)?;
        let found = match &full {
            WireTarget::Id(id) if id.hi != context.home.uid().0 => {
                return Ok(context.cluster.net_node_of(id.hi).into_iter().collect());
            }
            full => context.home.find(store_target(full)),
        };
        match (found, &full) {
            (Ok(entry), _) if entry.is_replica => {
                let known = self.made.get_local(entry.id);
                let home = known.map(|(_, one)| one.node.clone());
                Ok(home.into_iter().collect())
            }
            (Ok(_), _) | (Err(_), WireTarget::Id(_)) => Ok(Vec::new()),
            (Err(_), full) if context.home.has(store_target(full)).unwrap_or(true) => {
                Ok(Vec::new())
            }
            (Err(_), WireTarget::Name(_)) => Ok(context.cluster.net_nodes()),
        }
    }

    /// Asks other nodes to delete their objects.
    pub(in crate::protocol) fn forward(
        &mut self,
        mut forwarded: Forwarded,
        slot: ClientSlot,
        targets: &[WireTarget],
        far: Vec<(usize, Vec<String>)>,
        context: &mut ReplicaContext<'_>,
    ) {
        let number = forwarded.number;
        for (place, nodes) in far {
            let Some(target) = targets.get(place) else { continue };
            let what = store_target(target).to_string();
            if let Some(result) = forwarded.results.get_mut(place) {
                *result = Err(WireError::NotFound { what });
            }
            let Ok(full) = full_target(context.home, slot, target) else { continue };
            let full = match (&full, context.home.find(store_target(&full))) {
                (WireTarget::Id(id), Ok(entry)) if id.hi == context.home.uid().0 => {
                    let known = self.made.get_local(entry.id);
                    known.map_or(full, |((origin, _), _)| WireTarget::Id((*origin).into()))
                }
                _ => full,
            };
            for node in nodes {
                let question = Question::Delete { target: full.clone() };
                let is_queried =
                    context.cluster.ask_delete(&node, question, (number, place), context.out);
                forwarded.left += usize::from(is_queried);
            }
        }
        self.forwarded.insert(number, forwarded);
        self.settle_forwarded(number, context.cluster, context.out);
    }

    /// Records the result of one part of a delete: another node's answer, or its failure.
    pub(in crate::protocol) fn on_delete_response(
        &mut self,
        (number, place): (u64, usize),
        answer: Result<(), WireError>,
        cluster: &OptionalCluster,
        out: &mut Vec<Action>,
    ) {
        let Some(forwarded) = self.forwarded.get_mut(&number) else { return };
        forwarded.left = forwarded.left.saturating_sub(1);
        if let Some(result) = forwarded.results.get_mut(place) {
            match (&answer, &result) {
                // One node that deleted it outweighs those that do not have it.
                (Ok(()), _) => *result = Ok(()),
                (Err(WireError::NotFound { .. }), _) | (_, Ok(())) => {}
                (Err(error), _) => *result = Err(error.clone()),
            }
        }
        self.settle_forwarded(number, cluster, out);
    }

    fn settle_forwarded(&mut self, number: u64, cluster: &OptionalCluster, out: &mut Vec<Action>) {
        if self.forwarded.get(&number).is_some_and(|one| one.left == 0)
            && let Some(forwarded) = self.forwarded.remove(&number)
        {
            let Forwarded { waiter, targets, results, .. } = forwarded;
            let body = Ok(ReplyBody::Deleted(self.with_what_is_lost(&targets, results, cluster)));
            out.push(answer_to(waiter.session, waiter.seq, body));
        }
    }

    /// Replaces "not found" by an error about lost nodes for objects that may be on one.
    pub(in crate::protocol) fn with_what_is_lost(
        &self,
        targets: &[WireTarget],
        mut results: Vec<Result<(), WireError>>,
        cluster: &OptionalCluster,
    ) -> Vec<Result<(), WireError>> {
        if self.port.is_some() {
            for (target, result) in targets.iter().zip(&mut results) {
                if matches!(result, Err(WireError::NotFound { .. }))
                    && let Some(error) = cluster.perhaps_at_lost(target)
                {
                    *result = Err(error);
                }
            }
        }
        results
    }
}
