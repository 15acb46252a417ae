//! Daemons that follow other ones in the same life of their nodes, after a kill or an upgrade.
//!
//! The clients of such a daemon reconnect and repeat their requests. Owners have those of the earlier
//! daemon, and undo them before they receive a repetition: an arrival must not count twice. So a daemon
//! sends a member no request before that member has its first number.

use std::collections::BTreeMap;

use farrow_membership::View;
use farrow_wire::SyncAsk;

use super::message::SyncQuestion;
use super::state::{BarrierContext, Barriers};
use crate::protocol::cluster::{Answer, PendingQuestion, Question};
use crate::protocol::core::clients::Clients;
use crate::protocol::identity::{PeerLife, SessionId};

/// Pause before a member that did not answer is notified again: some round trips, far below a lease.
const AGAIN_MS: u64 = 100;

/// A member that is to learn that this daemon follows another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announcement {
    /// Its incarnation.
    incarnation: u64,
    /// Time of the next attempt; `None`: one is under way, or it is done.
    pub(super) at_ms: Option<u64>,
    is_done: bool,
}

impl Barriers {
    /// Those of a daemon whose requests have this number or a higher one.
    pub(in crate::protocol) fn numbered_from(first_number: u64) -> Self {
        Self { next_number: first_number, first_number, ..Self::default() }
    }

    /// Requests of this daemon have this number or a higher one.
    pub(in crate::protocol) fn number_from(&mut self, first_number: u64) {
        (self.next_number, self.first_number) = (first_number, first_number);
    }

    /// The lowest number of requests of this daemon.
    pub(in crate::protocol) fn first_number(&self) -> u64 {
        self.first_number
    }

    /// This daemon follows another one, which had these clients.
    pub(in crate::protocol) fn follow(&mut self, clients: impl IntoIterator<Item = u64>) {
        self.is_successor = true;
        self.absent.extend(clients);
    }

    /// Another daemon is about to follow this one. It reports the ends of the clients that it expects.
    pub(in crate::protocol) fn begin_handover(&mut self) {
        self.is_handing_over = true;
    }

    /// No daemon follows: clients whose connections were closed for it have left all barriers.
    pub(in crate::protocol) fn cancel_handover(&mut self) {
        self.is_handing_over = false;
        self.ended.extend(std::mem::take(&mut self.passed_on));
    }

    /// A client of the earlier daemon has connected to this one: its end is reported.
    pub(in crate::protocol) fn client_resumed(&mut self, session: SessionId, nonce: u64) {
        if self.absent.remove(&nonce) {
            self.parties.insert(session, nonce);
        }
    }

    /// A client has ended that had no connection.
    pub(in crate::protocol) fn orphan_ended(&mut self, nonce: u64) {
        if self.absent.remove(&nonce) || self.passed_on.remove(&nonce) {
            self.ended.push(nonce);
        }
    }

    /// The number of a client as a party. The next daemon of this node knows it too, unless the client
    /// has reconnected to this one: then its number of before has left all barriers.
    pub(super) fn party_of(&mut self, session: SessionId, clients: &Clients) -> u64 {
        let newcomer = clients.session(session).filter(|one| one.is_newcomer);
        let number =
            newcomer.map_or(self.first_number.wrapping_add(session.0), |client| client.nonce);
        *self.parties.entry(session).or_insert(number)
    }

    /// Whether a party of this node has ended.
    pub(super) fn has_ended(&self, party: u64) -> bool {
        let is_expected = self.absent.contains(&party) || self.passed_on.contains(&party);
        !is_expected && !self.parties.values().any(|one| *one == party)
    }

    /// Notes the members of a view that have not learned of this daemon.
    pub(super) fn announce_to(&mut self, view: &View, own: &str, now_ms: u64) {
        if !self.is_successor {
            return;
        }
        let known = std::mem::take(&mut self.announcements);
        let members = view.members.iter().filter(|one| one.name.as_str() != own);
        let announcement = |name: &str, incarnation| {
            let known = known.get(name).filter(|one| one.incarnation == incarnation);
            let new = Announcement { incarnation, at_ms: Some(now_ms), is_done: false };
            known.copied().unwrap_or(new)
        };
        let all = members.map(|one| {
            let name = one.name.to_string();
            let announcement = announcement(&name, one.incarnation.0);
            (name, announcement)
        });
        self.announcements = all.collect::<BTreeMap<_, _>>();
    }

    /// Whether a member has yet to learn of this daemon.
    pub(super) fn is_to_announce(&self, node: &str) -> bool {
        self.announcements.get(node).is_some_and(|one| !one.is_done)
    }

    /// Notifies members of this daemon.
    pub(super) fn announce(&mut self, context: &mut BarrierContext<'_>) {
        let (first_number, has_flags) = (self.first_number, self.has_flags);
        for (node, one) in &mut self.announcements {
            if one.at_ms.is_none_or(|at_ms| at_ms > context.now_ms) {
                continue;
            }
            let question = Question::Sync(SyncQuestion::Restarted { first_number, has_flags });
            let incarnation = one.incarnation;
            let about = PendingQuestion::Restarted { node: node.clone(), incarnation };
            let is_sent = context.ask_within_lease(node, &question, about);
            one.at_ms = (!is_sent).then(|| context.now_ms.saturating_add(AGAIN_MS));
        }
    }

    /// Handles the answer of a member that was notified of this daemon.
    pub(in crate::protocol) fn on_restarted_response(
        &mut self,
        member: PeerLife<'_>,
        answer: &Result<Answer, String>,
        context: &mut BarrierContext<'_>,
    ) {
        let Some(one) = self.announcements.get_mut(member.name) else { return };
        if one.incarnation != member.incarnation {
            return;
        }
        let is_earlier_version = answer.as_ref().is_ok_and(Answer::is_rejection);
        one.is_done = is_earlier_version || matches!(answer, Ok(Answer::Done));
        one.at_ms = (!one.is_done).then(|| context.now_ms.saturating_add(AGAIN_MS));
        if one.is_done {
            for wait in self.waits.values_mut().filter(|wait| wait.owner == member.name) {
                wait.again_at_ms = wait.again_at_ms.map(|_| context.now_ms);
            }
        }
    }

    /// A daemon of another node follows one whose requests were below a number.
    pub(super) fn peer_restarted(
        &mut self,
        from: &str,
        first_number: u64,
        has_flags: bool,
        context: &mut BarrierContext<'_>,
    ) {
        if self.first_numbers.get(from).is_some_and(|known| *known >= first_number) {
            return;
        }
        self.first_numbers.insert(from.to_owned(), first_number);
        // Some of its clients have the numbers again that the earlier daemon reported.
        self.ended_elsewhere.retain(|(node, _)| node != from);
        self.table.undo(|waiter| waiter.node == from && waiter.number < first_number);
        let lost_flags = |ask: &SyncAsk| matches!(ask, SyncAsk::WaitFlags { .. }) && !has_flags;
        let mut failed = Vec::new();
        for (number, wait) in self.waits.iter_mut().filter(|(_, wait)| wait.owner == from) {
            if lost_flags(&wait.ask) && wait.refusal.is_none() {
                failed.push(*number);
            } else {
                // With the same number: the new daemon may have received a repetition already.
                wait.again_at_ms = Some(context.now_ms);
            }
        }
        for number in failed {
            let reason = "its daemon was killed, and the flags that it stored are lost".to_owned();
            self.failed(number, reason, context.out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::cluster::OptionalCluster;
    use crate::protocol::rights::RightsTable;

    /// A member of an earlier version does not understand the message, and gets requests as before.
    #[test]
    fn requests_wait_until_a_member_has_the_first_number_or_cannot_have_it() {
        let no = |why: &str| Ok(Answer::No(why.to_owned()));
        let cases = [
            (Ok(Answer::Done), true),
            (no("14 B: Found a value too large"), true),
            (no("b is no member in life 5"), false),
            (Err("no connection".to_owned()), false),
        ];
        for (answer, is_done) in cases {
            let (mut barriers, mut cluster) = (Barriers::default(), OptionalCluster::default());
            let under_way = Announcement { incarnation: 5, at_ms: None, is_done: false };
            barriers.announcements.insert("a".to_owned(), under_way);
            let (rules, clients) = (RightsTable::default(), Clients::new(0, [], 0));
            let (rules, clients, mut out) = (&rules, &clients, Vec::new());
            let (cluster, now_ms, out) = (&mut cluster, 1_000, &mut out);
            let mut context = BarrierContext { cluster, rules, clients, now_ms, out };
            barriers.on_restarted_response(("a", 4).into(), &answer, &mut context);
            assert!(barriers.is_to_announce("a"), "the answer is of an earlier life");
            barriers.on_restarted_response(("a", 5).into(), &answer, &mut context);
            assert_eq!(barriers.is_to_announce("a"), !is_done, "{answer:?}");
            let again = (!is_done).then_some(1_000 + AGAIN_MS);
            assert_eq!(barriers.announcements["a"].at_ms, again);
        }
    }
}
