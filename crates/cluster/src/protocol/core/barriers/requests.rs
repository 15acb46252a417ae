//! Requests of clients for barriers and flags, at their nodes and at the owners of names.

use farrow_store::{NAME_BYTES_MAX, namespace_of, own_name};
use farrow_wire::{BarrierBroken, NotPermitted, ReplyBody, SyncAsk, WireError};

use super::barrier::{Arrival, Party};
use super::message::{SyncQuestion, right_for};
use super::state::{BarrierContext, Barriers, SyncOrigin, SyncWait};
use super::waits::{Outcomes, WaitOutcome, Waiter};
use crate::protocol::action::{Action, answer_to};
use crate::protocol::cluster::{Answer, OptionalCluster, PendingQuestion, Question};
use crate::protocol::context::RequestContext;
use crate::protocol::identity::SessionId;
use crate::protocol::limits::check_limit;

/// Limit of waits of one client.
const WAITS_PER_SESSION_MAX: usize = 1024;

/// Time after the deadline at which a missing outcome from another node is given up.
pub(super) const GRACE_MS: u64 = 5_000;

/// Pause before an owner that did not answer is asked again: some round trips, far below a lease.
const AGAIN_MS: u64 = 100;

/// Limit of remembered ended clients of other nodes: more than end while a barrier moves.
const ENDED_MAX: usize = 4096;

impl Barriers {
    /// Handles a client's request for a barrier or flags, by its full name.
    pub(in crate::protocol) fn request(
        &mut self,
        request: RequestContext,
        name: String,
        ask: SyncAsk,
        context: &mut BarrierContext<'_>,
    ) -> Result<(), WireError> {
        let RequestContext { session, seq, now_ms, .. } = request;
        let waiting = self.waits.values().filter(|wait| wait.session == session).count();
        check_limit("barriers and flags waited for", waiting + 1, WAITS_PER_SESSION_MAX)?;
        let Some(state) = context.clients.session(session) else {
            return Ok(());
        };
        let pid = state.peer.pid;
        let deadline_ms = now_ms.saturating_add(ask.timeout_ms()).saturating_add(GRACE_MS);
        let owner = context.cluster.authority_name(&name);
        let (again_at_ms, refusal) = (None, None);
        let wait =
            SyncWait { session, seq, name, ask, pid, owner, deadline_ms, again_at_ms, refusal };
        let number = self.add(wait);
        self.ask_owner(number, context);
        Ok(())
    }

    /// Asks the owner by the current view again. While the earlier owner may have performed the
    /// request, that one is asked.
    fn ask_again_for(&mut self, number: u64, context: &mut BarrierContext<'_>) {
        let Some(wait) = self.waits.remove(&number) else {
            return;
        };
        let owner = context.cluster.authority_name(&wait.name);
        let number = if owner == wait.owner || wait.refusal.is_none() {
            self.waits.insert(number, wait);
            number
        } else {
            // Late messages of the earlier owner have the old number.
            self.add(SyncWait { owner, ..wait })
        };
        self.ask_owner(number, context);
    }

    pub(super) fn ask_owner(&mut self, number: u64, context: &mut BarrierContext<'_>) {
        let Some(wait) = self.waits.get_mut(&number) else {
            return;
        };
        (wait.again_at_ms, wait.refusal) = (None, None);
        let pid = wait.pid;
        let left_ms = wait.deadline_ms.saturating_sub(GRACE_MS).saturating_sub(context.now_ms);
        let (name, ask, session) = (wait.name.clone(), wait.ask.within(left_ms), wait.session);
        let owner = wait.owner.clone();
        let client = match ask {
            SyncAsk::Arrive { .. } => self.party_of(session, context.clients),
            SyncAsk::SetFlags { .. } | SyncAsk::WaitFlags { .. } => session.0,
        };
        let own = context.cluster.own_name();
        if owner == own {
            if let Err(reason) = self.check_answers(&ask, context.cluster) {
                return self.refused(number, reason, context.now_ms);
            }
            let origin = SyncOrigin { node: &own, number, client, pid };
            return self.do_sync(origin, &name, &ask, context);
        }
        // An arrival that overtakes the end of an earlier one of its client would count twice.
        let is_early =
            matches!(ask, SyncAsk::Arrive { .. }) && context.cluster.has_withdrawals(&owner);
        if is_early || self.is_to_announce(&owner) {
            return self.unanswered(number, context.now_ms);
        }
        let question = Question::Sync(SyncQuestion::Ask { name, ask, number, client, pid });
        if !context.cluster.ask_node(&owner, &question, PendingQuestion::Sync(number), context.out)
        {
            let reason = "it owned the name and is not a member any more".to_owned();
            self.failed(number, reason, context.out);
        }
    }

    /// Handles the owner's answer to a request. The outcome follows by a message of its own.
    pub(in crate::protocol) fn on_response(
        &mut self,
        number: u64,
        answer: Result<Answer, String>,
        now_ms: u64,
    ) {
        match answer {
            Err(_) => self.unanswered(number, now_ms),
            Ok(Answer::No(why)) => self.refused(number, why, now_ms),
            Ok(_) => {}
        }
    }

    /// The owner did not answer: it is asked again until it is lost or the wait ends. It may have
    /// received the request, and performs each number once.
    fn unanswered(&mut self, number: u64, now_ms: u64) {
        if let Some(wait) = self.waits.get_mut(&number) {
            wait.again_at_ms = Some(now_ms.saturating_add(AGAIN_MS));
        }
    }

    /// The supposed owner refused the request: the owner at that time is asked later.
    fn refused(&mut self, number: u64, reason: String, now_ms: u64) {
        if let Some(wait) = self.waits.get_mut(&number) {
            wait.refusal = Some(reason);
        }
        self.unanswered(number, now_ms);
    }

    /// Performs a request of a client of any node at the owner.
    fn do_sync(
        &mut self,
        origin: SyncOrigin<'_>,
        name: &str,
        ask: &SyncAsk,
        context: &mut BarrierContext<'_>,
    ) {
        let SyncOrigin { node, number, client, pid } = origin;
        let mut outcomes = Outcomes::new();
        let waiter = Waiter { node: node.to_owned(), number };
        let party = Party { node: node.to_owned(), client, pid };
        let deadline_ms = context.now_ms.saturating_add(ask.timeout_ms());
        let table = &mut self.table;
        match *ask {
            SyncAsk::Arrive { parties, .. } => {
                let arrival = Arrival { waiter, party, deadline_ms };
                table.arrive(name, parties, arrival, &mut outcomes);
            }
            SyncAsk::SetFlags { set, clear } => {
                let outcome = match table.set_flags(name, set, clear, &mut outcomes) {
                    Ok(value) => WaitOutcome::Flags { value, is_met: true },
                    Err(reason) => WaitOutcome::Refused(reason),
                };
                outcomes.push((waiter, outcome));
            }
            SyncAsk::WaitFlags { mask, .. } => {
                table.wait_flags(name, mask, waiter, deadline_ms, &mut outcomes);
            }
        }
        self.send_outcomes(outcomes, context);
    }

    pub(super) fn send_outcomes(&mut self, outcomes: Outcomes, context: &mut BarrierContext<'_>) {
        let own = context.cluster.own_name();
        for (Waiter { node, number }, outcome) in outcomes {
            if node == own {
                self.on_outcome(number, outcome, context);
            } else {
                let question = Question::Sync(SyncQuestion::Outcome { number, outcome });
                context.notify(&node, question);
            }
        }
    }

    /// Handles the outcome of a client's request.
    fn on_outcome(&mut self, number: u64, outcome: WaitOutcome, context: &mut BarrierContext<'_>) {
        let Some(wait) = self.waits.remove(&number) else {
            return;
        };
        let name = own_name(&wait.name).to_owned();
        let body = match outcome {
            WaitOutcome::Moved => {
                // A new number: if the name returns to that node, the old one is known there.
                let reason = format!("{:?} does not own the name any more", wait.owner);
                let number = self.add(wait);
                return self.refused(number, reason, context.now_ms);
            }
            WaitOutcome::Released => Ok(ReplyBody::Done),
            WaitOutcome::Flags { value, is_met } => Ok(ReplyBody::Flags { value, is_met }),
            WaitOutcome::Broken { who, reason } => {
                Err(WireError::BarrierBroken(BarrierBroken { name, who, reason }))
            }
            WaitOutcome::Refused(reason) => Err(WireError::Invalid(reason)),
            WaitOutcome::NotPermitted => Err(WireError::NotPermitted(NotPermitted {
                node: context.cluster.own_name(),
                namespace: namespace_of(&wait.name).to_owned(),
                right: right_for(&wait.ask).to_string(),
            })),
        };
        context.out.push(answer_to(wait.session, wait.seq, body));
    }

    /// The owner of a name will not perform a request.
    pub(super) fn failed(&mut self, number: u64, reason: String, out: &mut Vec<Action>) {
        self.end_wait(number, |wait| WireError::NodeLost { node: wait.owner.clone(), reason }, out);
    }

    pub(super) fn end_wait(
        &mut self,
        number: u64,
        why: impl FnOnce(&SyncWait) -> WireError,
        out: &mut Vec<Action>,
    ) {
        if let Some(wait) = self.waits.remove(&number) {
            out.push(answer_to(wait.session, wait.seq, Err(why(&wait))));
        }
    }

    /// Cancels a client's wait; returns whether there was one.
    pub(in crate::protocol) fn cancel(
        &mut self,
        session: SessionId,
        seq: u64,
        context: &mut BarrierContext<'_>,
    ) -> bool {
        let mut waits = self.waits.iter();
        let found = waits.find(|(_, wait)| wait.session == session && wait.seq == seq);
        let Some(number) = found.map(|(number, _)| *number) else {
            return false;
        };
        let Some(wait) = self.waits.remove(&number) else {
            return false;
        };
        if wait.owner == context.cluster.own_name() {
            self.table.withdraw(&Waiter { node: wait.owner, number });
        } else {
            let question = Question::Sync(SyncQuestion::Withdrawn { number });
            context.notify(&wait.owner, question);
        }
        true
    }

    /// Handles a message of another node.
    ///
    /// # Errors
    ///
    /// This node does not take the request, by its view or at this time.
    pub(in crate::protocol) fn on_request(
        &mut self,
        from: &str,
        question: SyncQuestion,
        context: &mut BarrierContext<'_>,
    ) -> Result<Answer, String> {
        match question {
            SyncQuestion::Ask { name, ask, number, client, pid } => {
                let is_of_predecessor = self.first_numbers.get(from).is_some_and(|of| number < *of);
                if is_of_predecessor || self.received.has(from, number) {
                    // The outcome is sent until it is received, even by a former owner. A refusal
                    // would have the request performed twice.
                    return Ok(Answer::Done);
                }
                self.check_retained(&name, context.cluster)?;
                self.check_answers(&ask, context.cluster)?;
                self.received.add(from, number);
                if !context.rules.may(from, right_for(&ask), &name) {
                    let waiter = Waiter { node: from.to_owned(), number };
                    self.send_outcomes(vec![(waiter, WaitOutcome::NotPermitted)], context);
                } else if name.len() <= NAME_BYTES_MAX as usize {
                    let origin = SyncOrigin { node: from, number, client, pid };
                    self.do_sync(origin, &name, &ask, context);
                }
            }
            SyncQuestion::Outcome { number, outcome } => {
                // Only the node that was asked may report the outcome.
                if self.waits.get(&number).is_some_and(|wait| wait.owner == from) {
                    self.on_outcome(number, outcome, context);
                }
            }
            SyncQuestion::Left { client } => {
                let ended = &mut self.ended_elsewhere;
                ended.truncate(ENDED_MAX - 1);
                ended.push_front((from.to_owned(), client));
                let has_left = |party: &Party| party.node == from && party.client == client;
                self.break_for(has_left, "it ended", context);
            }
            SyncQuestion::GivenUp { number } => {
                // If the request itself is still under way, it is ignored on arrival.
                self.received.add(from, number);
                let mut outcomes = Outcomes::new();
                let waiter = Waiter { node: from.to_owned(), number };
                self.table.give_up(&waiter, &mut outcomes);
                self.send_outcomes(outcomes, context);
            }
            SyncQuestion::Withdrawn { number } => {
                // If the request itself is still under way, it is ignored on arrival.
                self.received.add(from, number);
                self.table.withdraw(&Waiter { node: from.to_owned(), number });
            }
            SyncQuestion::Retained { number, name, retained, epoch } => {
                self.check_stays(context.cluster)?;
                self.moves.check_epoch(epoch)?;
                let waiter = Waiter { node: from.to_owned(), number };
                self.inherit(waiter, name, retained, context)?;
            }
            SyncQuestion::Restarted { first_number, has_flags } => {
                self.peer_restarted(from, first_number, has_flags, context);
            }
            SyncQuestion::HandOver { epoch, after } => {
                return self.hand_over(from, epoch, after.as_ref());
            }
        }
        Ok(Answer::Done)
    }

    pub(super) fn check_stays(&self, cluster: &OptionalCluster) -> Result<(), String> {
        match self.is_leaving {
            true => Err(format!("{:?} is leaving", cluster.own_name())),
            false => Ok(()),
        }
    }

    pub(super) fn check_retained(
        &self,
        name: &str,
        cluster: &OptionalCluster,
    ) -> Result<(), String> {
        let (owner, own) = (cluster.authority_name(name), cluster.own_name());
        if owner == own {
            return Ok(());
        }
        Err(format!("{name:?} is owned by {owner:?}, not by {own:?}"))
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let waits = self.waits.values();
        let waits = waits.map(|wait| wait.again_at_ms.unwrap_or(u64::MAX).min(wait.deadline_ms));
        let announcements = self.announcements.values().filter_map(|one| one.at_ms).min();
        let deadlines =
            [self.table.next_deadline_ms(), self.moves.next_deadline_ms(), announcements];
        waits.chain(deadlines.into_iter().flatten()).min()
    }

    pub(in crate::protocol) fn tick(&mut self, context: &mut BarrierContext<'_>) {
        self.withdraw_ended(context);
        self.report_ended(context);
        self.announce(context);
        self.tick_moves(context);
        let mut outcomes = Outcomes::new();
        self.table.tick(context.now_ms, &mut outcomes);
        self.send_outcomes(outcomes, context);
        let again = self.waits.iter();
        let again =
            again.filter(|(_, wait)| wait.again_at_ms.is_some_and(|at| at <= context.now_ms));
        let again: Vec<u64> = again.map(|(number, _)| *number).collect();
        again.into_iter().for_each(|number| self.ask_again_for(number, context));
        let late = self.waits.iter().filter(|(_, wait)| wait.deadline_ms <= context.now_ms);
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.late(number, context));
    }

    /// Handles a wait whose deadline and grace time have passed.
    fn late(&mut self, number: u64, context: &mut BarrierContext<'_>) {
        let Some(wait) = self.waits.get_mut(&number) else {
            return;
        };
        let (owner, refusal) = (wait.owner.clone(), wait.refusal.take());
        if owner == context.cluster.own_name() {
            let reason = refusal.unwrap_or_else(|| "the wait was not ended in time".to_owned());
            let error = WireError::CutOff { node: owner, reason };
            return self.end_wait(number, |_| error, context.out);
        }
        let question = Question::Sync(SyncQuestion::GivenUp { number });
        context.notify(&owner, question);
        let reason = match refusal {
            Some(why) => format!("it did not take the request: {why}"),
            None => "it did not report the outcome of a wait".to_owned(),
        };
        self.failed(number, reason, context.out);
    }
}

#[cfg(test)]
mod tests {
    use farrow_store::ClientSlot;
    use farrow_wire::Reply;

    use super::*;
    use crate::protocol::core::clients::Clients;
    use crate::protocol::identity::PeerIdentity;
    use crate::protocol::rights::RightsTable;

    const WAIT_MS: u64 = 1_000;

    /// A node without a cluster, which owns all names.
    struct Alone {
        barriers: Barriers,
        cluster: OptionalCluster,
        rules: RightsTable,
        clients: Clients,
        now_ms: u64,
    }

    impl Alone {
        /// Clients 1 to `count` are connected.
        fn new(count: u64) -> Self {
            let (barriers, cluster) = (Barriers::default(), OptionalCluster::default());
            let mut clients = Clients::new(0, [], 0);
            for number in 1..=count {
                let pid = u32::try_from(number).unwrap();
                let peer = PeerIdentity { pid, start_time: 1, uid: 0, remote_client: None };
                clients.opened(SessionId(number), peer, 0);
            }
            Self { barriers, cluster, rules: RightsTable::default(), clients, now_ms: 0 }
        }

        /// The answers to requests, by client.
        fn during(
            &mut self,
            event: impl FnOnce(&mut Barriers, &mut BarrierContext<'_>),
        ) -> Vec<(u64, Result<ReplyBody, WireError>)> {
            let Self { barriers, cluster, rules, clients, now_ms } = self;
            let (now_ms, mut out) = (*now_ms, Vec::new());
            let mut context = BarrierContext { cluster, rules, clients, now_ms, out: &mut out };
            event(barriers, &mut context);
            let answers = out.into_iter().map(|action| match action {
                Action::Send { session, reply: Reply { body, .. }, .. } => (session.0, body),
                other => panic!("{other:?}"),
            });
            answers.collect()
        }

        fn ask(&mut self, client: u64, ask: SyncAsk) -> Vec<(u64, Result<ReplyBody, WireError>)> {
            let (slot, now_ms) = (ClientSlot(0), self.now_ms);
            let request = RequestContext { session: SessionId(client), slot, seq: 1, now_ms };
            self.during(|barriers, context| {
                barriers.request(request, "name".to_owned(), ask, context).unwrap();
            })
        }

        fn tick(&mut self) -> Vec<(u64, Result<ReplyBody, WireError>)> {
            self.during(|barriers, context| barriers.tick(context))
        }
    }

    const ARRIVE: SyncAsk = SyncAsk::Arrive { parties: 2, timeout_ms: WAIT_MS };

    #[test]
    fn the_last_party_releases_all_and_a_cancelled_one_does_not_count() {
        let mut node = Alone::new(3);
        assert_eq!(node.ask(1, ARRIVE), []);
        assert!(
            node.during(|barriers, context| {
                assert!(barriers.cancel(SessionId(1), 1, context));
                assert!(!barriers.cancel(SessionId(1), 1, context));
            })
            .is_empty()
        );
        assert_eq!(node.ask(2, ARRIVE), []);
        assert_eq!(node.ask(3, ARRIVE), [(2, Ok(ReplyBody::Done)), (3, Ok(ReplyBody::Done))]);
        assert_eq!(node.barriers.next_deadline_ms(), None);
    }

    #[test]
    fn the_end_of_a_party_and_of_the_time_break_a_barrier() {
        let mut node = Alone::new(3);
        node.ask(1, ARRIVE);
        node.ask(2, ARRIVE);
        assert_eq!(node.ask(3, ARRIVE), []);
        node.barriers.session_ended(SessionId(1), None);
        let answers = node.tick();
        let [(3, Err(WireError::BarrierBroken(BarrierBroken { name, who, .. })))] = &answers[..]
        else {
            panic!("{answers:?}");
        };
        assert_eq!((name.as_str(), who.as_str()), ("name", "process 1"));
        node.ask(2, ARRIVE);
        assert_eq!(node.barriers.next_deadline_ms(), Some(WAIT_MS));
        node.now_ms = WAIT_MS;
        let answers = node.tick();
        assert!(matches!(answers[..], [(2, Err(WireError::BarrierBroken(_)))]), "{answers:?}");
    }

    #[test]
    fn a_wait_for_flags_ends_when_they_are_set_or_in_time() {
        let mut node = Alone::new(3);
        let wait = |mask| SyncAsk::WaitFlags { mask, timeout_ms: WAIT_MS };
        let reported = |value, is_met| Ok(ReplyBody::Flags { value, is_met });
        assert_eq!(node.ask(1, wait(3)), []);
        assert_eq!(node.ask(2, wait(4)), []);
        let set = SyncAsk::SetFlags { set: 3, clear: 0 };
        assert_eq!(node.ask(3, set), [(1, reported(3, true)), (3, reported(3, true))]);
        node.now_ms = WAIT_MS;
        assert_eq!(node.tick(), [(2, reported(3, false))]);
        assert_eq!(node.barriers.flags_to_pass_on(), [("name".to_owned(), 3)]);
        assert_eq!(node.ask(1, wait(1)), [(1, reported(3, true))]);
    }

    /// Regression test: the owner of flags kept the waits of clients that had ended until their
    /// timeouts. A client that was restarted in a loop filled its table for all others.
    #[test]
    fn waits_for_flags_end_with_their_client() {
        let mut node = Alone::new(2);
        let wait = |timeout_ms| SyncAsk::WaitFlags { mask: 1, timeout_ms };
        assert_eq!(node.ask(1, wait(3_600_000)), []);
        assert_eq!(node.ask(2, wait(WAIT_MS)), []);
        node.barriers.session_ended(SessionId(1), None);
        assert_eq!(node.tick(), []);
        let mut waiting = Vec::new();
        node.barriers.table.move_away("name", &mut waiting);
        assert_eq!(waiting.len(), 1, "that of the other client");
    }

    #[test]
    fn a_client_waits_for_a_limited_number_of_names() {
        let mut node = Alone::new(1);
        for _ in 0..WAITS_PER_SESSION_MAX {
            node.ask(1, SyncAsk::WaitFlags { mask: 1, timeout_ms: WAIT_MS });
        }
        let request =
            RequestContext { session: SessionId(1), slot: ClientSlot(0), seq: 2, now_ms: 0 };
        node.during(|barriers, context| {
            let refused = barriers.request(request, "name".to_owned(), ARRIVE, context);
            assert!(matches!(refused, Err(WireError::TooMany { .. })), "{refused:?}");
        });
        node.barriers.session_ended(SessionId(1), None);
        assert_eq!(node.ask(1, SyncAsk::SetFlags { set: 1, clear: 0 }).len(), 1);
    }
}
