//! State of barriers and flags at their owner: waiters, members and outcomes.
//!
//! It knows neither sockets nor sessions: parties on this node and on others are treated alike.

use std::collections::{BTreeMap, BTreeSet};

use farrow_membership::NodeName;
use serde::{Deserialize, Serialize};

/// Limit of the barriers of one node, and of its flag words.
pub const NAMES_MAX: usize = 16_384;

/// Limit of remembered requests of one node, to recognise repetitions: far more than it can have
/// under way.
const REMEMBERED_MAX: usize = 4096;

/// Limit of the parties of a barrier.
pub const PARTIES_MAX: u32 = 4096;

/// Limit of waiting requests and of members of all barriers together, each some 150 B: another node
/// can claim any number of clients.
const ENTRIES_MAX: usize = 1 << 18;

/// A waiting request, of any node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Waiter {
    /// The node of the client.
    pub node: String,
    /// Number of the request there.
    pub number: u64,
}

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
    fn label(&self) -> String {
        if self.node.is_empty() {
            return format!("process {}", self.pid);
        }
        format!("process {} of node {}", self.pid, self.node)
    }
}

/// Outcome of a wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitOutcome {
    /// All parties arrived.
    Released,
    /// Not all parties will arrive.
    Broken {
        /// The party at fault.
        who: String,
        /// The reason.
        reason: String,
    },
    /// The flags at the end of the wait.
    Flags {
        /// All flags of the word.
        value: u64,
        /// `false`: the wait timed out.
        is_met: bool,
    },
    /// The request is invalid.
    Refused(String),
    /// The owner's rules deny the request to that node.
    NotGranted,
    /// Another node owns the name now: the request is to be made there.
    Moved,
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
struct Barrier {
    parties: u32,
    arrived: Vec<Arrival>,
    /// Parties of the last completed round: if one of them ends, the barrier breaks.
    members: BTreeSet<Party>,
}

#[derive(Debug)]
struct FlagWait {
    waiter: Waiter,
    mask: u64,
    deadline_ms: u64,
}

#[derive(Debug, Default)]
struct Flags {
    value: u64,
    waits: Vec<FlagWait>,
}

/// A limit of entries that are counted when they are added, and again when the limit seems reached.
#[derive(Debug, Default)]
pub(super) struct EntryBudget {
    /// At least the number of entries.
    used: usize,
}

impl EntryBudget {
    /// Adds entries.
    ///
    /// # Errors
    ///
    /// There would be too many. `count` counts those that there are.
    pub(super) fn add(&mut self, more: usize, count: impl FnOnce() -> usize) -> Result<(), String> {
        if self.used.saturating_add(more) > ENTRIES_MAX {
            self.used = count();
        }
        let used = self.used.saturating_add(more);
        if used > ENTRIES_MAX {
            return Err(format!("{used} parties and waits: the limit is {ENTRIES_MAX}"));
        }
        self.used = used;
        Ok(())
    }
}

/// All barriers and flags that one node owns.
#[derive(Debug, Default)]
pub struct SyncTable {
    barriers: BTreeMap<String, Barrier>,
    flags: BTreeMap<String, Flags>,
    budget: EntryBudget,
    /// Numbers of received requests, by node. At the limit, lower numbers count as received too.
    came: BTreeMap<String, BTreeSet<u64>>,
}

/// State that moves to the new owner of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameState {
    /// The flags.
    pub flags: u64,
    /// The parties that passed the barrier last.
    pub members: Vec<Party>,
}

impl NameState {
    /// Whether there is no state to move.
    pub fn is_empty(&self) -> bool {
        self.flags == 0 && self.members.is_empty()
    }

    /// Checks state from another node.
    ///
    /// # Errors
    ///
    /// No barrier has so many members, or no node such a name.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.members.len() > PARTIES_MAX as usize {
            let members = self.members.len();
            return Err(format!("a barrier of {members} parties: {PARTIES_MAX} are possible"));
        }
        let is_name = |party: &Party| party.node.parse::<NodeName>().is_ok();
        match self.members.iter().find(|party| !is_name(party)) {
            Some(party) => Err(format!("a party of a node with a name of {} B", party.node.len())),
            None => Ok(()),
        }
    }

    /// Merges state that arrived twice.
    pub(super) fn add(&mut self, other: Self) {
        self.flags |= other.flags;
        let more = other.members.into_iter().filter(|party| !self.members.contains(party));
        let more: Vec<Party> = more.collect();
        self.members.extend(more);
    }
}

/// Waiters with their outcomes.
pub type Outcomes = Vec<(Waiter, WaitOutcome)>;

impl SyncTable {
    /// Whether the request of another node was received before.
    pub fn has_come(&self, node: &str, number: u64) -> bool {
        let Some(came) = self.came.get(node) else {
            return false;
        };
        let is_older = came.first().is_some_and(|oldest| number < *oldest);
        came.contains(&number) || came.len() >= REMEMBERED_MAX && is_older
    }

    /// Notes the request of another node; `false` if it was received before.
    pub fn is_new(&mut self, node: &str, number: u64) -> bool {
        if self.has_come(node, number) {
            return false;
        }
        let came = self.came.entry(node.to_owned()).or_default();
        came.insert(number);
        if came.len() > REMEMBERED_MAX {
            came.pop_first();
        }
        true
    }

    /// A party arrives at a barrier.
    pub fn arrive(&mut self, name: &str, parties: u32, arrival: Arrival, out: &mut Outcomes) {
        if parties == 0 || parties > PARTIES_MAX {
            let reason = format!("a barrier of {parties} parties: 1 to {PARTIES_MAX} are possible");
            return out.push((arrival.waiter, WaitOutcome::Refused(reason)));
        }
        if self.barriers.len() >= NAMES_MAX && !self.barriers.contains_key(name) {
            let reason = format!("too many barriers: the limit is {NAMES_MAX}");
            return out.push((arrival.waiter, WaitOutcome::Refused(reason)));
        }
        if let Err(reason) = self.add_entries(1) {
            return out.push((arrival.waiter, WaitOutcome::Refused(reason)));
        }
        let barrier = self.barriers.entry(name.to_owned()).or_default();
        if barrier.arrived.is_empty() {
            barrier.parties = parties;
        }
        if barrier.parties != parties {
            let others = barrier.parties;
            let reason = format!("{parties} parties at a barrier where others wait for {others}");
            return out.push((arrival.waiter, WaitOutcome::Refused(reason)));
        }
        barrier.arrived.push(arrival);
        if barrier.arrived.len() < parties as usize {
            return;
        }
        let arrived = std::mem::take(&mut barrier.arrived);
        barrier.members = arrived.iter().map(|one| one.party.clone()).collect();
        out.extend(arrived.into_iter().map(|one| (one.waiter, WaitOutcome::Released)));
    }

    /// Clients ended, or their node is lost: breaks the barriers that they take part in.
    pub fn leave(&mut self, is_gone: impl Fn(&Party) -> bool, why: &str, out: &mut Outcomes) {
        for barrier in self.barriers.values_mut() {
            let waiting = barrier.arrived.iter().map(|one| &one.party);
            let gone = waiting.chain(&barrier.members).find(|party| is_gone(party));
            let Some(gone) = gone.map(Party::label) else {
                continue;
            };
            barrier.members.retain(|party| !is_gone(party));
            barrier.arrived.retain(|one| !is_gone(&one.party));
            barrier.break_up(&gone, why, out);
        }
        self.forget_unused();
    }

    /// Ends the wait of one request, and breaks its barrier for the others.
    pub fn give_up(&mut self, waiter: &Waiter, out: &mut Outcomes) {
        for barrier in self.barriers.values_mut() {
            let place = barrier.arrived.iter().position(|one| one.waiter == *waiter);
            if let Some(place) = place {
                let gone = barrier.arrived.remove(place).party.label();
                barrier.break_up(&gone, "it gave up", out);
            }
        }
        for flags in self.flags.values_mut() {
            flags.waits.retain(|wait| wait.waiter != *waiter);
        }
        self.forget_unused();
    }

    /// Undoes a waiting request: the others continue to wait.
    pub fn withdraw(&mut self, waiter: &Waiter) {
        for barrier in self.barriers.values_mut() {
            barrier.arrived.retain(|one| one.waiter != *waiter);
        }
        for flags in self.flags.values_mut() {
            flags.waits.retain(|wait| wait.waiter != *waiter);
        }
        self.forget_unused();
    }

    /// Changes flags; returns the new value.
    ///
    /// # Errors
    ///
    /// Too many names.
    pub fn set_flags(
        &mut self,
        name: &str,
        set: u64,
        clear: u64,
        out: &mut Outcomes,
    ) -> Result<u64, String> {
        let flags = self.flags_of(name)?;
        flags.value = flags.value & !clear | set;
        let value = flags.value;
        flags.waits.retain(|wait| {
            let is_met = value & wait.mask == wait.mask;
            if is_met {
                out.push((wait.waiter.clone(), WaitOutcome::Flags { value, is_met }));
            }
            !is_met
        });
        self.forget_unused();
        Ok(value)
    }

    /// Waits until all flags of `mask` are set.
    pub fn wait_flags(
        &mut self,
        name: &str,
        mask: u64,
        waiter: Waiter,
        deadline_ms: u64,
        out: &mut Outcomes,
    ) {
        let flags = match self.add_entries(1).and_then(|()| self.flags_of(name)) {
            Ok(flags) => flags,
            Err(reason) => return out.push((waiter, WaitOutcome::Refused(reason))),
        };
        let value = flags.value;
        if value & mask == mask {
            return out.push((waiter, WaitOutcome::Flags { value, is_met: true }));
        }
        flags.waits.push(FlagWait { waiter, mask, deadline_ms });
    }

    fn add_entries(&mut self, more: usize) -> Result<(), String> {
        let Self { barriers, flags, budget, .. } = self;
        budget.add(more, || {
            let parties = barriers.values().map(|one| one.arrived.len() + one.members.len());
            parties.chain(flags.values().map(|one| one.waits.len())).sum()
        })
    }

    fn flags_of(&mut self, name: &str) -> Result<&mut Flags, String> {
        if self.flags.len() >= NAMES_MAX && !self.flags.contains_key(name) {
            return Err(format!("too many flag words: the limit is {NAMES_MAX}"));
        }
        Ok(self.flags.entry(name.to_owned()).or_default())
    }

    /// The parties that passed a barrier last.
    pub fn members(&self, name: &str) -> impl Iterator<Item = &Party> {
        self.barriers.get(name).into_iter().flat_map(|barrier| &barrier.members)
    }

    /// The flags that are set, by name.
    pub fn flags(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.flags.iter().map(|(name, flags)| (name.as_str(), flags.value));
        all.filter(|(_, value)| *value != 0)
    }

    /// Names with state; some appear twice.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.barriers.keys().chain(self.flags.keys()).map(String::as_str)
    }

    /// Removes a name that has another owner now; returns the state to move.
    pub fn move_away(&mut self, name: &str, out: &mut Outcomes) -> NameState {
        let barrier = self.barriers.remove(name).unwrap_or_default();
        let flags = self.flags.remove(name).unwrap_or_default();
        let waiters = barrier.arrived.into_iter().map(|one| one.waiter);
        let waiters = waiters.chain(flags.waits.into_iter().map(|wait| wait.waiter));
        out.extend(waiters.map(|waiter| (waiter, WaitOutcome::Moved)));
        NameState { flags: flags.value, members: barrier.members.into_iter().collect() }
    }

    /// Takes over the state of a name from another node, before any request for it is answered
    /// here. A repetition has no effect.
    ///
    /// # Errors
    ///
    /// Too many names or members.
    pub fn take_over(
        &mut self,
        name: &str,
        retained: NameState,
        out: &mut Outcomes,
    ) -> Result<(), String> {
        retained.check()?;
        self.set_flags(name, retained.flags, 0, out)?;
        if retained.members.is_empty() {
            return Ok(());
        }
        if self.barriers.len() >= NAMES_MAX && !self.barriers.contains_key(name) {
            return Err(format!("too many barriers: the limit is {NAMES_MAX}"));
        }
        self.add_entries(retained.members.len())?;
        let barrier = self.barriers.entry(name.to_owned()).or_default();
        for party in retained.members {
            if barrier.members.len() < PARTIES_MAX as usize {
                barrier.members.insert(party);
            }
        }
        Ok(())
    }

    /// Forgets waiters whose outcome no client awaits any more.
    pub fn forget(&mut self, is_gone: impl Fn(&Waiter) -> bool) {
        for flags in self.flags.values_mut() {
            flags.waits.retain(|wait| !is_gone(&wait.waiter));
        }
        self.came.retain(|node, _| !is_gone(&Waiter { node: node.clone(), number: 0 }));
        self.forget_unused();
    }

    /// Clears all flags; waiters for them continue to wait.
    pub fn forget_flags(&mut self) {
        self.flags.values_mut().for_each(|flags| flags.value = 0);
        self.forget_unused();
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let barriers = self.barriers.values().flat_map(|one| &one.arrived);
        let flags = self.flags.values().flat_map(|one| &one.waits);
        let barriers = barriers.map(|one| one.deadline_ms);
        barriers.chain(flags.map(|one| one.deadline_ms)).min()
    }

    /// Ends expired waits. A barrier that one party gives up is broken for all.
    pub fn tick(&mut self, now_ms: u64, out: &mut Outcomes) {
        for barrier in self.barriers.values_mut() {
            let late = barrier.arrived.iter().find(|one| one.deadline_ms <= now_ms);
            let Some(late) = late.map(|one| one.party.label()) else {
                continue;
            };
            let (came, parties) = (barrier.arrived.len(), barrier.parties);
            let why = format!("its time is over: {came} of {parties} parties came");
            barrier.break_up(&late, &why, out);
        }
        for flags in self.flags.values_mut() {
            let value = flags.value;
            flags.waits.retain(|wait| {
                let is_over = wait.deadline_ms <= now_ms;
                if is_over {
                    out.push((wait.waiter.clone(), WaitOutcome::Flags { value, is_met: false }));
                }
                !is_over
            });
        }
        self.forget_unused();
    }

    fn forget_unused(&mut self) {
        self.barriers.retain(|_, one| !one.arrived.is_empty() || !one.members.is_empty());
        self.flags.retain(|_, one| one.value != 0 || !one.waits.is_empty());
    }
}

impl Barrier {
    fn break_up(&mut self, who: &str, reason: &str, out: &mut Outcomes) {
        for one in std::mem::take(&mut self.arrived) {
            let told = WaitOutcome::Broken { who: who.to_owned(), reason: reason.to_owned() };
            out.push((one.waiter, told));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waiter(number: u64) -> Waiter {
        Waiter { node: "a".into(), number }
    }

    fn party(client: u64) -> Party {
        Party { node: "a".into(), client, pid: client as u32 }
    }

    fn arrival(number: u64, client: u64, deadline_ms: u64) -> Arrival {
        Arrival { waiter: waiter(number), party: party(client), deadline_ms }
    }

    fn arrive(table: &mut SyncTable, parties: u32, number: u64, deadline_ms: u64) -> Outcomes {
        let mut out = Vec::new();
        table.arrive("b", parties, arrival(number, number % 10, deadline_ms), &mut out);
        out
    }

    #[test]
    fn the_last_party_releases_all_and_the_barrier_is_new() {
        let mut table = SyncTable::default();
        for round in 0..3 {
            assert_eq!(arrive(&mut table, 2, round * 10 + 1, 9), []);
            let out = arrive(&mut table, 2, round * 10 + 2, 9);
            let told: Vec<_> = out.iter().map(|(to, told)| (to.number % 10, told)).collect();
            assert_eq!(told, [(1, &WaitOutcome::Released), (2, &WaitOutcome::Released)]);
        }
    }

    #[test]
    fn the_end_of_a_party_releases_the_others_with_its_name_even_before_it_came() {
        let mut table = SyncTable::default();
        arrive(&mut table, 2, 1, 9);
        arrive(&mut table, 2, 2, 9);
        assert_eq!(arrive(&mut table, 2, 11, 9), []);
        let mut out = Vec::new();
        table.leave(|one| one.client == 2, "it ended", &mut out);
        let told =
            WaitOutcome::Broken { who: "process 2 of node a".into(), reason: "it ended".into() };
        assert_eq!(out, [(waiter(11), told)]);
        // The member is forgotten: two others may pass.
        assert_eq!(arrive(&mut table, 2, 21, 9), []);
        assert_eq!(arrive(&mut table, 2, 23, 9).len(), 2);
    }

    #[test]
    fn one_that_gives_up_breaks_the_barrier_for_all_and_numbers_must_agree() {
        let mut table = SyncTable::default();
        arrive(&mut table, 3, 1, 9);
        arrive(&mut table, 3, 2, 5);
        let refused = arrive(&mut table, 4, 3, 9);
        assert!(matches!(&refused[..], [(_, WaitOutcome::Refused(_))]), "{refused:?}");
        let mut out = Vec::new();
        table.tick(4, &mut out);
        assert_eq!(out, []);
        table.tick(5, &mut out);
        assert_eq!(out.len(), 2);
        for (_, told) in out {
            let WaitOutcome::Broken { who, reason } = told else { panic!("{told:?}") };
            assert_eq!(who, "process 2 of node a");
            assert_eq!(reason, "its time is over: 2 of 3 parties came");
        }
        assert_eq!(table.next_deadline_ms(), None);
    }

    #[test]
    fn one_request_that_is_given_up_leaves_the_others_of_its_client_alone() {
        let mut table = SyncTable::default();
        let mut out = Vec::new();
        for (name, number) in [("x", 1), ("y", 2)] {
            table.arrive(name, 3, arrival(number, 1, 9), &mut out);
            table.arrive(name, 3, arrival(number + 10, 2, 9), &mut out);
        }
        table.wait_flags("f", 1, waiter(3), 9, &mut out);
        table.give_up(&waiter(3), &mut out);
        assert_eq!(out, []);
        table.give_up(&waiter(1), &mut out);
        let told =
            WaitOutcome::Broken { who: "process 1 of node a".into(), reason: "it gave up".into() };
        assert_eq!(out, [(waiter(11), told)]);
        out.clear();
        assert_eq!(table.set_flags("f", 1, 0, &mut out), Ok(1));
        table.arrive("y", 3, arrival(21, 3, 9), &mut out);
        let told: Vec<_> = out.iter().map(|(to, told)| (to.number, told)).collect();
        assert_eq!(told, [2, 12, 21].map(|number| (number, &WaitOutcome::Released)));
    }

    #[test]
    fn one_that_is_withdrawn_breaks_nothing_and_may_come_again() {
        let mut table = SyncTable::default();
        assert_eq!(arrive(&mut table, 2, 1, 9), []);
        table.withdraw(&waiter(1));
        assert!(table.barriers.is_empty(), "nothing is left of it");
        assert_eq!(arrive(&mut table, 2, 2, 9), []);
        table.withdraw(&waiter(7));
        let told: Vec<_> = arrive(&mut table, 2, 11, 9).into_iter().map(|(to, _)| to).collect();
        assert_eq!(told, [waiter(2), waiter(11)]);
    }

    #[test]
    fn a_request_that_comes_again_is_known_for_long() {
        let mut table = SyncTable::default();
        assert!(table.is_new("b", 7) && table.is_new("c", 7) && table.is_new("b", 6));
        assert!(!table.is_new("b", 7) && !table.is_new("b", 6));
        for number in 100..100 + REMEMBERED_MAX as u64 {
            assert!(table.is_new("b", number));
            assert!(!table.is_new("b", number));
        }
        for old in [6, 7, 99] {
            assert!(!table.is_new("b", old), "{old}");
        }
        assert_eq!(table.came["b"].len(), REMEMBERED_MAX);
        table.forget(|waiter| waiter.node == "b");
        assert!(table.is_new("b", 7));
        assert!(!table.is_new("c", 7));
    }

    #[test]
    fn what_moves_away_is_told_to_all_that_wait() {
        let mut table = SyncTable::default();
        arrive(&mut table, 3, 1, 9);
        arrive(&mut table, 3, 2, 9);
        let mut out = Vec::new();
        table.wait_flags("b", 0b100, waiter(3), 9, &mut out);
        assert_eq!(table.set_flags("b", 0b11, 0, &mut out), Ok(0b11));
        assert_eq!(table.move_away("b", &mut out), NameState { flags: 0b11, members: vec![] });
        assert_eq!(out, [1, 2, 3].map(|number| (waiter(number), WaitOutcome::Moved)));
        assert_eq!(table.names().count(), 0);
        assert!(table.move_away("b", &mut Vec::new()).is_empty());
    }

    #[test]
    fn flags_wake_who_waits_for_all_of_them() {
        let mut table = SyncTable::default();
        let mut out = Vec::new();
        table.wait_flags("f", 0b11, waiter(1), 9, &mut out);
        assert_eq!(table.set_flags("f", 0b1, 0, &mut out), Ok(0b1));
        assert_eq!(out, []);
        assert_eq!(table.set_flags("f", 0b10, 0, &mut out), Ok(0b11));
        assert_eq!(out, [(waiter(1), WaitOutcome::Flags { value: 0b11, is_met: true })]);
        out.clear();
        assert_eq!(table.set_flags("f", 0, 0b1, &mut out), Ok(0b10));
        table.wait_flags("f", 0b1, waiter(2), 9, &mut out);
        table.tick(9, &mut out);
        assert_eq!(out, [(waiter(2), WaitOutcome::Flags { value: 0b10, is_met: false })]);
        assert_eq!(table.set_flags("f", 0, u64::MAX, &mut out), Ok(0));
        assert!(table.flags.is_empty(), "nothing is left of flags that are all clear");
    }

    fn state(members: u64, node: &str) -> NameState {
        let party = |client| Party { node: node.to_owned(), client, pid: 1 };
        NameState { flags: 0, members: (0..members).map(party).collect() }
    }

    /// Regression test: a member that lies handed over barriers with any number of parties, or let
    /// any number of clients wait. The node that owned them stored all.
    #[test]
    fn a_lying_member_fills_no_memory() {
        let mut table = SyncTable::default();
        let mut out = Vec::new();
        for lie in [state(u64::from(PARTIES_MAX) + 1, "b"), state(1, &"b".repeat(100))] {
            assert!(table.take_over("x", lie, &mut out).is_err());
        }
        let full = u64::from(PARTIES_MAX);
        let barriers = ENTRIES_MAX as u64 / full;
        for number in 0..barriers {
            let name = format!("barrier {number}");
            assert_eq!(table.take_over(&name, state(full, "b"), &mut out), Ok(()));
        }
        assert!(table.take_over("one more", state(1, "b"), &mut out).is_err());
        table.arrive("one more", 2, arrival(1, 1, 9), &mut out);
        table.wait_flags("f", 1, waiter(2), 9, &mut out);
        let refused = |(_, told): &(Waiter, WaitOutcome)| matches!(told, WaitOutcome::Refused(_));
        assert!(out.len() == 2 && out.iter().all(refused), "{out:?}");
        // Once they are gone, others have room.
        table.leave(|party| party.node == "b", "it ended", &mut Vec::new());
        out.clear();
        table.wait_flags("f", 1, waiter(3), 9, &mut out);
        assert_eq!(out, []);
    }

    proptest! {
        /// Each arrival gets exactly one outcome in any history: no wake-up is lost.
        #[test]
        fn every_wait_ends_once(steps in prop::collection::vec((0..4_u8, 0..5_u64), 1..200)) {
            let mut table = SyncTable::default();
            let (mut asked, mut out) = (0, Vec::new());
            for (now, (what, client)) in (0..).zip(steps) {
                match what {
                    0 | 1 => {
                        table.arrive("b", 3, arrival(asked, client, now + 7), &mut out);
                        asked += 1;
                    }
                    2 => table.leave(|one| one.client == client, "it ended", &mut out),
                    _ => table.tick(now, &mut out),
                }
                if what == 2 {
                    // Requests of a client that ended need no outcome.
                    let gone: Vec<u64> = (0..asked).filter(|number| {
                        !out.iter().any(|(to, _)| to.number == *number)
                            && !table.barriers.values().any(|b| {
                                b.arrived.iter().any(|one| one.waiter.number == *number)
                            })
                    }).collect();
                    out.extend(gone.into_iter().map(|n| (waiter(n), WaitOutcome::Released)));
                }
            }
            table.tick(u64::MAX, &mut out);
            let mut told: Vec<u64> = out.iter().map(|(to, _)| to.number).collect();
            told.sort_unstable();
            prop_assert_eq!(told, (0..asked).collect::<Vec<_>>());
        }
    }
}
