//! Clients and nodes that have ended: their waits, and the barriers in which they take part.

use std::collections::BTreeSet;

use farrow_wire::{SyncAsk, WireError};

use super::barrier::Party;
use super::message::SyncQuestion;
use super::state::{BarrierContext, Barriers, SyncWait};
use super::waits::Outcomes;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::Question;
use crate::protocol::identity::SessionId;

impl Barriers {
    pub(super) fn break_for(
        &mut self,
        has_left: impl Fn(&Party) -> bool,
        why: &str,
        context: &mut BarrierContext<'_>,
    ) {
        let mut outcomes = Outcomes::new();
        self.table.leave(has_left, why, &mut outcomes);
        self.send_outcomes(outcomes, context);
    }

    /// The connection of a client has closed, or the client released everything. `expected`: the nonce of
    /// a client that may connect again.
    pub(in crate::protocol) fn session_ended(&mut self, session: SessionId, expected: Option<u64>) {
        let its = self.waits.iter().filter(|(_, wait)| wait.session == session);
        let its: Vec<u64> = its.map(|(number, _)| *number).collect();
        for number in its {
            // Of its barriers the owners hear with its end, which breaks them.
            if let Some(SyncWait { owner, ask: SyncAsk::WaitFlags { .. }, .. }) =
                self.waits.remove(&number)
            {
                self.withdrawn.push((owner, number));
            }
        }
        let party = self.parties.remove(&session);
        // The next daemon knows clients by their nonces, and not by the numbers that they have here after
        // a reconnection.
        if self.is_handing_over && party == expected {
            self.passed_on.extend(party);
        } else {
            self.ended.extend(party);
        }
    }

    /// Handles lost nodes: the names that they owned lose their state, and their clients leave all
    /// barriers.
    pub(in crate::protocol) fn nodes_lost(
        &mut self,
        lost: &[String],
        context: &mut BarrierContext<'_>,
    ) {
        if lost.is_empty() {
            return;
        }
        let stranded = self.waits.iter();
        let stranded =
            stranded.filter(|(_, wait)| lost.contains(&wait.owner) && wait.refusal.is_none());
        let stranded: Vec<u64> = stranded.map(|(number, _)| *number).collect();
        for number in stranded {
            self.failed(number, "it owned the name of the wait".to_owned(), context.out);
        }
        self.table.forget(|waiter| lost.contains(&waiter.node));
        self.received.forget(|node| lost.iter().any(|one| one == node));
        self.ended_elsewhere.retain(|(node, _)| !lost.contains(node));
        self.first_numbers.retain(|node, _| !lost.contains(node));
        self.break_for(|party| lost.contains(&party.node), "its node is lost", context);
    }

    /// The others excluded this node: they keep nothing for its clients any more. Their clients
    /// learned that the names of this node are lost.
    pub(in crate::protocol) fn outcast(&mut self, context: &mut BarrierContext<'_>) {
        let own = context.cluster.own_name();
        let away = self.waits.iter().filter(|(_, wait)| wait.owner != own);
        let away: Vec<u64> = away.map(|(number, _)| *number).collect();
        for number in away {
            let reason = "the other members excluded it while a client waited".to_owned();
            let error = WireError::CutOff { node: own.clone(), reason };
            self.end_wait(number, |_| error, context.out);
        }
        self.table.forget(|waiter| waiter.node != own);
        self.received.forget(|node| node != own);
        self.table.forget_flags();
        self.moves.clear();
        self.ended_elsewhere.clear();
        self.first_numbers.clear();
        // In its next life it follows no daemon.
        self.is_successor = false;
        self.announcements.clear();
        let why = format!("the other members excluded node {own}");
        self.break_for(|party| party.node != own, &why, context);
    }

    /// Notifications of a member did not reach this node: outcomes of waits, ends of clients and
    /// cancelled requests. Barriers of its clients break. Waits for flags there are repeated. Other
    /// waits there end, since their outcome is not known.
    pub(in crate::protocol) fn missed(&mut self, from: &str, context: &mut BarrierContext<'_>) {
        let why = "too many messages of its node did not arrive";
        let mut outcomes = Outcomes::new();
        self.table.break_with(|party| party.node == from, why, &mut outcomes);
        self.send_outcomes(outcomes, context);
        let its =
            self.waits.iter().filter(|(_, wait)| wait.owner == from && wait.refusal.is_none());
        let its: Vec<u64> = its.map(|(number, _)| *number).collect();
        for number in its {
            match self.waits.remove(&number) {
                Some(wait @ SyncWait { ask: SyncAsk::WaitFlags { .. }, .. }) => {
                    let question = Question::Sync(SyncQuestion::Withdrawn { number });
                    context.notify(from, question);
                    let number = self.add(wait);
                    self.ask_owner(number, context);
                }
                Some(wait) => {
                    // Other parties of its barrier do not wait for it.
                    let question = Question::Sync(SyncQuestion::GivenUp { number });
                    context.notify(from, question);
                    let reason = "too many messages of it did not arrive here, perhaps the outcome";
                    let (node, reason) = (from.to_owned(), reason.to_owned());
                    let error = WireError::NodeLost { node, reason };
                    context.out.push(answer_to(wait.session, wait.seq, Err(error)));
                }
                None => {}
            }
        }
    }

    /// Owners forget waits for flags of clients that have ended.
    pub(super) fn withdraw_ended(&mut self, context: &mut BarrierContext<'_>) {
        if self.withdrawn.is_empty() {
            return;
        }
        let own = context.cluster.own_name();
        let mut here = BTreeSet::new();
        for (owner, number) in std::mem::take(&mut self.withdrawn) {
            if owner == own {
                here.insert(number);
            } else {
                let question = Question::Sync(SyncQuestion::Withdrawn { number });
                context.notify(&owner, question);
            }
        }
        self.table.forget(|waiter| waiter.node == own && here.contains(&waiter.number));
    }

    /// Clients of this node that ended leave all barriers.
    pub(super) fn report_ended(&mut self, context: &mut BarrierContext<'_>) {
        for client in std::mem::take(&mut self.ended) {
            // Only computed here, so that an idle tick allocates no string.
            let own = context.cluster.own_name();
            let has_left = |party: &Party| party.node == own && party.client == client;
            self.break_for(has_left, "it ended", context);
            // All nodes, since barriers move.
            for node in context.cluster.live_peers() {
                let question = Question::Sync(SyncQuestion::Left { client });
                context.notify(&node, question);
            }
        }
    }
}
