//! One barrier: who arrived, and who passed it last.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::waits::{Outcomes, WaitOutcome, Waiter};

/// Limit of the parties of a barrier.
pub const PARTIES_MAX: u32 = 4096;

/// A client that takes part in a barrier.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Party {
    /// Its node.
    pub node: String,
    /// Number of the client there.
    pub client: u64,
    /// Its process id there, for messages.
    pub pid: u32,
}

impl Party {
    pub(super) fn label(&self) -> String {
        if self.node.is_empty() {
            return format!("process {}", self.pid);
        }
        format!("process {} of node {}", self.pid, self.node)
    }
}

/// A client that arrives at a barrier.
#[derive(Debug)]
pub struct Arrival {
    /// The request to answer.
    pub waiter: Waiter,
    /// The client.
    pub party: Party,
    /// The barrier breaks at this time unless all parties have arrived.
    pub deadline_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Barrier {
    parties: u32,
    arrived: Vec<Arrival>,
    /// Parties of the last completed round, and those whose daemons were replaced while they waited: if
    /// one of them ends, the barrier breaks.
    members: BTreeSet<Party>,
}

impl Barrier {
    /// A party arrives. The last one releases all.
    pub(super) fn arrive(&mut self, parties: u32, arrival: Arrival, out: &mut Outcomes) {
        if self.arrived.is_empty() {
            self.parties = parties;
        }
        if self.parties != parties {
            let expected = self.parties;
            let reason = format!("{parties} parties at a barrier where others wait for {expected}");
            return out.push((arrival.waiter, WaitOutcome::Refused(reason)));
        }
        self.arrived.push(arrival);
        if self.arrived.len() < parties as usize {
            return;
        }
        let arrived = std::mem::take(&mut self.arrived);
        self.members = arrived.iter().map(|one| one.party.clone()).collect();
        out.extend(arrived.into_iter().map(|one| (one.waiter, WaitOutcome::Released)));
    }

    /// Clients ended, or their node is lost: breaks the barrier if one of them takes part.
    pub(super) fn leave(
        &mut self,
        has_left: &impl Fn(&Party) -> bool,
        why: &str,
        out: &mut Outcomes,
    ) {
        let label = self.label_of(has_left);
        // They wait for no outcome.
        self.arrived.retain(|one| !has_left(&one.party));
        self.give_up_members(has_left, label, why, out);
    }

    /// It is not known which of these clients still take part: breaks the barrier for them too.
    pub(super) fn break_with(
        &mut self,
        may_have_left: &impl Fn(&Party) -> bool,
        why: &str,
        out: &mut Outcomes,
    ) {
        let label = self.label_of(may_have_left);
        self.give_up_members(may_have_left, label, why, out);
    }

    /// The label of the first of these parties that takes part.
    fn label_of(&self, is_one: &impl Fn(&Party) -> bool) -> Option<String> {
        let waiting = self.arrived.iter().map(|one| &one.party);
        waiting.chain(&self.members).find(|party| is_one(party)).map(Party::label)
    }

    fn give_up_members(
        &mut self,
        is_one: &impl Fn(&Party) -> bool,
        label: Option<String>,
        why: &str,
        out: &mut Outcomes,
    ) {
        let Some(label) = label else {
            return;
        };
        self.members.retain(|party| !is_one(party));
        self.break_up(&label, why, out);
    }

    /// Ends the wait of one request, and breaks the barrier for the others.
    pub(super) fn give_up(&mut self, waiter: &Waiter, out: &mut Outcomes) {
        let place = self.arrived.iter().position(|one| one.waiter == *waiter);
        if let Some(place) = place {
            let left = self.arrived.remove(place).party.label();
            self.break_up(&left, "it gave up", out);
        }
    }

    /// Undoes a waiting request: the others continue to wait.
    pub(super) fn withdraw(&mut self, waiter: &Waiter) {
        self.arrived.retain(|one| one.waiter != *waiter);
    }

    /// Undoes waiting requests. If one of their parties ends before it arrives again, the barrier breaks.
    pub(super) fn undo(&mut self, is_undone: &impl Fn(&Waiter) -> bool) {
        let undone: Vec<Party> = self
            .arrived
            .extract_if(.., |one| is_undone(&one.waiter))
            .map(|one| one.party)
            .collect();
        self.add_members(undone);
    }

    /// Breaks the barrier once the wait of a party has expired.
    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Outcomes) {
        let late = self.arrived.iter().find(|one| one.deadline_ms <= now_ms);
        let Some(late) = late.map(|one| one.party.label()) else {
            return;
        };
        let (came, parties) = (self.arrived.len(), self.parties);
        let why = format!("its time is over: {came} of {parties} parties came");
        self.break_up(&late, &why, out);
    }

    fn break_up(&mut self, who: &str, reason: &str, out: &mut Outcomes) {
        for one in std::mem::take(&mut self.arrived) {
            let outcome = WaitOutcome::Broken { who: who.to_owned(), reason: reason.to_owned() };
            out.push((one.waiter, outcome));
        }
    }

    /// The parties that passed it last.
    pub(super) fn members(&self) -> impl Iterator<Item = &Party> {
        self.members.iter()
    }

    /// Adds parties whose end breaks the barrier.
    pub(super) fn add_members(&mut self, members: impl IntoIterator<Item = Party>) {
        for party in members {
            if self.members.len() < PARTIES_MAX as usize {
                self.members.insert(party);
            }
        }
    }

    /// Its members, and the requests that waited.
    pub(super) fn into_parts(self) -> (Vec<Party>, impl Iterator<Item = Waiter>) {
        let waiters = self.arrived.into_iter().map(|one| one.waiter);
        (self.members.into_iter().collect(), waiters)
    }

    #[cfg(test)]
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.arrived.iter().map(|one| &one.waiter)
    }

    pub(super) fn deadlines_ms(&self) -> impl Iterator<Item = u64> {
        self.arrived.iter().map(|one| one.deadline_ms)
    }

    /// Waiting requests and members.
    pub(super) fn entries(&self) -> usize {
        self.arrived.len() + self.members.len()
    }
}
