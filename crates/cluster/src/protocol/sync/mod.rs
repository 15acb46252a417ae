//! Barriers and flags of clients, on any node.
//!
//! Each name has one owner, which is the same for all nodes with the same view. Requests for names
//! of another owner are sent there, and outcomes are sent back. A node takes requests only for
//! names that it owns by its own view, and requests for flags only with a lease. When a view moves
//! a name to another node, flags and members of barriers move before the new owner answers for the
//! name (see `moves`). The waiters then ask the new owner.

mod message;
mod moves;
mod moving;
mod state;
mod table;
#[cfg(test)]
mod tests;

use farrow_store::{NAME_BYTES_MAX, own_name};
use farrow_wire::{ReplyBody, SyncAsk, WireError};

pub use message::SyncQuestion;
pub(in crate::protocol) use message::right_for;
pub(in crate::protocol) use state::Sync;
use state::{SyncOrigin, SyncWait};
use table::{Arrival, Outcomes};
pub use table::{NameState, PARTIES_MAX, Party, WaitOutcome, Waiter};

use super::action::answer_to;
use super::context::RequestContext;
use super::convert::limit;
use super::rights::namespace_in;
use super::state::NodeState;
use super::{Action, SessionId};
use crate::protocol::cluster::{Answer, PendingQuestion, Question};

/// Limit of waits of one client.
const WAITS_PER_SESSION_MAX: usize = 1024;

/// Time after the deadline at which a missing outcome from another node is given up.
const GRACE_MS: u64 = 5_000;

/// Pause before an owner that did not answer is asked again: some round trips, far below a lease.
const AGAIN_MS: u64 = 100;

/// Limit of remembered ended clients of other nodes: more than end while a barrier moves.
const ENDED_MAX: usize = 4096;

impl NodeState {
    /// Handles a client's request for a barrier or flags.
    pub(super) fn sync(
        &mut self,
        context: RequestContext,
        name: &str,
        ask: SyncAsk,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let RequestContext { session, slot, seq, now_ms } = context;
        let name = self.full_name(slot, name)?;
        let waiting = self.sync.waits.values().filter(|wait| wait.session == session).count();
        limit("barriers and flags waited for", waiting + 1, WAITS_PER_SESSION_MAX)?;
        let Some(state) = self.sessions.get(&session) else {
            return Ok(());
        };
        let pid = state.peer.pid;
        let deadline_ms = now_ms.saturating_add(ask.timeout_ms()).saturating_add(GRACE_MS);
        let owner = self.cluster.authority_name(&name);
        let (again_at_ms, refusal) = (None, None);
        let wait =
            SyncWait { session, seq, name, ask, pid, owner, deadline_ms, again_at_ms, refusal };
        let number = self.sync.add(wait);
        self.ask_owner(number, now_ms, out);
        Ok(())
    }

    /// Asks the owner by the current view again. While the earlier owner may have performed the
    /// request, that one is asked.
    fn ask_again_for(&mut self, number: u64, now_ms: u64, out: &mut Vec<Action>) {
        let Some(wait) = self.sync.waits.remove(&number) else {
            return;
        };
        let owner = self.cluster.authority_name(&wait.name);
        let number = if owner == wait.owner || wait.refusal.is_none() {
            self.sync.waits.insert(number, wait);
            number
        } else {
            // Late messages of the earlier owner have the old number.
            self.sync.add(SyncWait { owner, ..wait })
        };
        self.ask_owner(number, now_ms, out);
    }

    fn ask_owner(&mut self, number: u64, now_ms: u64, out: &mut Vec<Action>) {
        let Some(wait) = self.sync.waits.get_mut(&number) else {
            return;
        };
        (wait.again_at_ms, wait.refusal) = (None, None);
        let (client, pid) = (wait.session.0, wait.pid);
        let left_ms = wait.deadline_ms.saturating_sub(GRACE_MS).saturating_sub(now_ms);
        let (name, ask, session) = (wait.name.clone(), wait.ask.within(left_ms), wait.session);
        let owner = wait.owner.clone();
        if matches!(ask, SyncAsk::Arrive { .. }) {
            self.sync.parties.insert(session);
        }
        let own = self.cluster.own_name();
        if owner == own {
            if let Err(reason) = self.check_answers(&ask) {
                return self.sync_refused(number, reason, now_ms);
            }
            let origin = SyncOrigin { node: &own, number, client, pid };
            return self.do_sync(origin, &name, &ask, now_ms, out);
        }
        let question = Question::Sync(SyncQuestion::Ask { name, ask, number, client, pid });
        if !self.cluster.ask_node(&owner, &question, PendingQuestion::Sync(number), out) {
            let reason = "it keeps that name, and is not known any more".to_owned();
            self.sync_failed(number, reason, out);
        }
    }

    /// The owner did not answer: it is asked again until it is lost or the wait ends. It may have
    /// received the request, and performs each number once.
    pub(super) fn sync_unanswered(&mut self, number: u64, now_ms: u64) {
        if let Some(wait) = self.sync.waits.get_mut(&number) {
            wait.again_at_ms = Some(now_ms.saturating_add(AGAIN_MS));
        }
    }

    /// The supposed owner refused the request: the owner at that time is asked later.
    pub(super) fn sync_refused(&mut self, number: u64, reason: String, now_ms: u64) {
        if let Some(wait) = self.sync.waits.get_mut(&number) {
            wait.refusal = Some(reason);
        }
        self.sync_unanswered(number, now_ms);
    }

    /// Request numbers start above those of earlier incarnations of this node, so that an owner can
    /// distinguish repetitions from new requests.
    pub(super) fn number_syncs_from(&mut self, first: u64) {
        self.sync.next_number = first;
    }

    /// Performs a request of a client of any node at the owner.
    fn do_sync(
        &mut self,
        origin: SyncOrigin<'_>,
        name: &str,
        ask: &SyncAsk,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let SyncOrigin { node, number, client, pid } = origin;
        let mut outcomes = Outcomes::new();
        let waiter = Waiter { node: node.to_owned(), number };
        let party = Party { node: node.to_owned(), client, pid };
        let deadline_ms = now_ms.saturating_add(ask.timeout_ms());
        let table = &mut self.sync.table;
        match *ask {
            SyncAsk::Arrive { parties, .. } => {
                let arrival = Arrival { waiter, party, deadline_ms };
                table.arrive(name, parties, arrival, &mut outcomes);
            }
            SyncAsk::SetFlags { set, clear } => {
                let told = match table.set_flags(name, set, clear, &mut outcomes) {
                    Ok(value) => WaitOutcome::Flags { value, is_met: true },
                    Err(reason) => WaitOutcome::Refused(reason),
                };
                outcomes.push((waiter, told));
            }
            SyncAsk::WaitFlags { mask, .. } => {
                table.wait_flags(name, mask, waiter, deadline_ms, &mut outcomes);
            }
        }
        self.tell_outcomes(outcomes, now_ms, out);
    }

    fn tell_outcomes(&mut self, outcomes: Outcomes, now_ms: u64, out: &mut Vec<Action>) {
        let own = self.cluster.own_name();
        for (Waiter { node, number }, told) in outcomes {
            if node == own {
                self.sync_told(number, told, now_ms, out);
            } else {
                let question = Question::Sync(SyncQuestion::Told { number, told });
                self.cluster.tell_node(&node, question, now_ms, out);
            }
        }
    }

    /// Handles the outcome of a client's request.
    fn sync_told(&mut self, number: u64, told: WaitOutcome, now_ms: u64, out: &mut Vec<Action>) {
        let Some(wait) = self.sync.waits.remove(&number) else {
            return;
        };
        let name = own_name(&wait.name).to_owned();
        let body = match told {
            WaitOutcome::Moved => {
                // A new number: if the name returns to that node, the old one is known there.
                let reason = format!("{:?} keeps the name no more", wait.owner);
                let number = self.sync.add(wait);
                return self.sync_refused(number, reason, now_ms);
            }
            WaitOutcome::Released => Ok(ReplyBody::Done),
            WaitOutcome::Flags { value, is_met } => Ok(ReplyBody::Flags { value, is_met }),
            WaitOutcome::Broken { who, reason } => {
                Err(WireError::BarrierBroken { name, who, reason })
            }
            WaitOutcome::Refused(reason) => Err(WireError::Invalid(reason)),
            WaitOutcome::NotGranted => Err(WireError::NotGranted {
                node: self.cluster.own_name(),
                namespace: namespace_in(&wait.name).to_owned(),
                right: right_for(&wait.ask).to_string(),
            }),
        };
        out.push(answer_to(wait.session, wait.seq, body));
    }

    /// The owner of a name will not perform a request.
    pub(super) fn sync_failed(&mut self, number: u64, reason: String, out: &mut Vec<Action>) {
        self.end_wait(number, |wait| WireError::NodeLost { node: wait.owner.clone(), reason }, out);
    }

    fn end_wait(
        &mut self,
        number: u64,
        why: impl FnOnce(&SyncWait) -> WireError,
        out: &mut Vec<Action>,
    ) {
        if let Some(wait) = self.sync.waits.remove(&number) {
            out.push(answer_to(wait.session, wait.seq, Err(why(&wait))));
        }
    }

    /// Cancels a client's wait; returns whether there was one.
    pub(super) fn cancel_sync(
        &mut self,
        session: SessionId,
        seq: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> bool {
        let mut waits = self.sync.waits.iter();
        let found = waits.find(|(_, wait)| wait.session == session && wait.seq == seq);
        let Some(number) = found.map(|(number, _)| *number) else {
            return false;
        };
        let Some(wait) = self.sync.waits.remove(&number) else {
            return false;
        };
        if wait.owner == self.cluster.own_name() {
            self.sync.table.withdraw(&Waiter { node: wait.owner, number });
        } else {
            let question = Question::Sync(SyncQuestion::Withdrawn { number });
            self.cluster.tell_node(&wait.owner, question, now_ms, out);
        }
        true
    }

    /// Handles a message of another node.
    ///
    /// # Errors
    ///
    /// This node does not take the request, by its view or at this time.
    pub(super) fn sync_asked(
        &mut self,
        from: &str,
        question: SyncQuestion,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Answer, String> {
        match question {
            SyncQuestion::Ask { name, ask, number, client, pid } => {
                if self.sync.table.has_come(from, number) {
                    // The outcome is sent until it is received, even by a former owner. A refusal
                    // would have the request performed twice.
                    return Ok(Answer::Done);
                }
                self.check_retained(&name)?;
                self.check_answers(&ask)?;
                self.sync.table.is_new(from, number);
                if !self.rules.may(from, right_for(&ask), &name) {
                    let waiter = Waiter { node: from.to_owned(), number };
                    self.tell_outcomes(vec![(waiter, WaitOutcome::NotGranted)], now_ms, out);
                } else if name.len() <= NAME_BYTES_MAX as usize {
                    let origin = SyncOrigin { node: from, number, client, pid };
                    self.do_sync(origin, &name, &ask, now_ms, out);
                }
            }
            SyncQuestion::Told { number, told } => {
                // Only the node that was asked may report the outcome.
                if self.sync.waits.get(&number).is_some_and(|wait| wait.owner == from) {
                    self.sync_told(number, told, now_ms, out);
                }
            }
            SyncQuestion::Left { client } => {
                let ended = &mut self.sync.ended_elsewhere;
                ended.truncate(ENDED_MAX - 1);
                ended.push_front((from.to_owned(), client));
                let is_gone = |party: &Party| party.node == from && party.client == client;
                self.break_for(is_gone, "it ended", now_ms, out);
            }
            SyncQuestion::GivenUp { number } => {
                // If the request itself is still under way, it is ignored on arrival.
                self.sync.table.is_new(from, number);
                let mut outcomes = Outcomes::new();
                let waiter = Waiter { node: from.to_owned(), number };
                self.sync.table.give_up(&waiter, &mut outcomes);
                self.tell_outcomes(outcomes, now_ms, out);
            }
            SyncQuestion::Withdrawn { number } => {
                // If the request itself is still under way, it is ignored on arrival.
                self.sync.table.is_new(from, number);
                self.sync.table.withdraw(&Waiter { node: from.to_owned(), number });
            }
            SyncQuestion::Retained { number, name, retained, epoch } => {
                self.inherit((from, number, epoch), name, retained)?;
            }
            SyncQuestion::HandOver { epoch, after } => {
                return self.hand_over(from, epoch, after.as_ref());
            }
        }
        Ok(Answer::Done)
    }

    fn check_stays(&self) -> Result<(), String> {
        match self.sync.is_leaving {
            true => Err(format!("{:?} is leaving", self.cluster.own_name())),
            false => Ok(()),
        }
    }

    fn check_retained(&self, name: &str) -> Result<(), String> {
        let (owner, own) = (self.cluster.authority_name(name), self.cluster.own_name());
        if owner == own {
            return Ok(());
        }
        Err(format!("{name:?} is kept by {owner:?}, not by {own:?}"))
    }

    fn break_for(
        &mut self,
        is_gone: impl Fn(&Party) -> bool,
        why: &str,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let mut outcomes = Outcomes::new();
        self.sync.table.leave(is_gone, why, &mut outcomes);
        self.tell_outcomes(outcomes, now_ms, out);
    }

    /// A client ended, or released everything.
    pub(super) fn sync_ended(&mut self, session: SessionId) {
        self.sync.waits.retain(|_, wait| wait.session != session);
        if self.sync.parties.remove(&session) {
            self.sync.ended.push(session);
        }
    }

    /// Handles lost nodes: the names that they owned lose their state, and their clients leave all
    /// barriers.
    pub(super) fn sync_without(&mut self, lost: &[String], now_ms: u64, out: &mut Vec<Action>) {
        if lost.is_empty() {
            return;
        }
        let stranded = self.sync.waits.iter();
        let stranded =
            stranded.filter(|(_, wait)| lost.contains(&wait.owner) && wait.refusal.is_none());
        let stranded: Vec<u64> = stranded.map(|(number, _)| *number).collect();
        for number in stranded {
            self.sync_failed(number, "it kept the name that was waited for".to_owned(), out);
        }
        self.sync.table.forget(|waiter| lost.contains(&waiter.node));
        self.sync.ended_elsewhere.retain(|(node, _)| !lost.contains(node));
        self.break_for(|party| lost.contains(&party.node), "its node is lost", now_ms, out);
    }

    /// The others excluded this node: they keep nothing for its clients any more. Their clients
    /// learned that the names of this node are lost.
    pub(super) fn sync_outcast(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let own = self.cluster.own_name();
        let away = self.sync.waits.iter().filter(|(_, wait)| wait.owner != own);
        let away: Vec<u64> = away.map(|(number, _)| *number).collect();
        for number in away {
            let reason = "the others went on without it while a client waited".to_owned();
            let error = WireError::CutOff { node: own.clone(), reason };
            self.end_wait(number, |_| error, out);
        }
        self.sync.table.forget(|waiter| waiter.node != own);
        self.sync.table.forget_flags();
        self.sync.moves.clear();
        self.sync.ended_elsewhere.clear();
        let why = format!("the others went on without node {own}");
        self.break_for(|party| party.node != own, &why, now_ms, out);
    }

    pub(super) fn next_sync_deadline_ms(&self) -> Option<u64> {
        let waits = self.sync.waits.values();
        let waits = waits.map(|wait| wait.again_at_ms.unwrap_or(u64::MAX).min(wait.deadline_ms));
        let others = [self.sync.table.next_deadline_ms(), self.sync.moves.next_deadline_ms()];
        waits.chain(others.into_iter().flatten()).min()
    }

    pub(super) fn tick_sync(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for session in std::mem::take(&mut self.sync.ended) {
            // Only computed here, so that an idle tick allocates no string.
            let own = self.cluster.own_name();
            let is_gone = |party: &Party| party.node == own && party.client == session.0;
            self.break_for(is_gone, "it ended", now_ms, out);
            // All nodes, since barriers move.
            for node in self.cluster.live_peers() {
                let question = Question::Sync(SyncQuestion::Left { client: session.0 });
                self.cluster.tell_node(&node, question, now_ms, out);
            }
        }
        self.tick_moves(now_ms, out);
        let mut outcomes = Outcomes::new();
        self.sync.table.tick(now_ms, &mut outcomes);
        self.tell_outcomes(outcomes, now_ms, out);
        let again = self.sync.waits.iter();
        let again = again.filter(|(_, wait)| wait.again_at_ms.is_some_and(|at| at <= now_ms));
        let again: Vec<u64> = again.map(|(number, _)| *number).collect();
        again.into_iter().for_each(|number| self.ask_again_for(number, now_ms, out));
        let late = self.sync.waits.iter().filter(|(_, wait)| wait.deadline_ms <= now_ms);
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        late.into_iter().for_each(|number| self.sync_late(number, now_ms, out));
    }

    /// Handles a wait whose deadline and grace time have passed.
    fn sync_late(&mut self, number: u64, now_ms: u64, out: &mut Vec<Action>) {
        let Some(wait) = self.sync.waits.get_mut(&number) else {
            return;
        };
        let (owner, refusal) = (wait.owner.clone(), wait.refusal.take());
        if owner == self.cluster.own_name() {
            let reason = refusal.unwrap_or_else(|| "the wait was not ended in time".to_owned());
            let error = WireError::CutOff { node: owner, reason };
            return self.end_wait(number, |_| error, out);
        }
        let question = Question::Sync(SyncQuestion::GivenUp { number });
        self.cluster.tell_node(&owner, question, now_ms, out);
        let reason = match refusal {
            Some(why) => format!("it did not take the request: {why}"),
            None => "it did not say what became of a wait".to_owned(),
        };
        self.sync_failed(number, reason, out);
    }
}
