//! All barriers and flags that one node owns.
//!
//! It knows neither sockets nor sessions: parties on this node and on others are treated alike.

use std::collections::BTreeMap;

use super::barrier::{Arrival, Barrier, PARTIES_MAX, Party};
use super::budget::EntryBudget;
use super::flags::Flags;
use super::name_state::NameState;
use super::waits::{Outcomes, WaitOutcome, Waiter};

/// Limit of the barriers of one node, and of its flag words.
pub const NAMES_MAX: usize = 16_384;

/// Barriers and flags by name.
#[derive(Debug, Default)]
pub struct SyncTable {
    barriers: BTreeMap<String, Barrier>,
    flags: BTreeMap<String, Flags>,
    budget: EntryBudget,
}

impl SyncTable {
    /// A party arrives at a barrier.
    pub fn arrive(&mut self, name: &str, parties: u32, arrival: Arrival, out: &mut Outcomes) {
        if parties == 0 || parties > PARTIES_MAX {
            let reason = format!("a barrier of {parties} parties: 1 to {PARTIES_MAX} are possible");
            return out.push((arrival.waiter, WaitOutcome::Refused(reason)));
        }
        match self.add_entries(1).and_then(|()| self.barrier_of(name)) {
            Ok(barrier) => barrier.arrive(parties, arrival, out),
            Err(reason) => out.push((arrival.waiter, WaitOutcome::Refused(reason))),
        }
    }

    /// Clients ended, or their node is lost: breaks the barriers that they take part in.
    pub fn leave(&mut self, has_left: impl Fn(&Party) -> bool, why: &str, out: &mut Outcomes) {
        self.barriers.values_mut().for_each(|barrier| barrier.leave(&has_left, why, out));
        self.forget_unused();
    }

    /// It is not known which of these clients still take part: breaks their barriers, for them too.
    pub fn break_with(
        &mut self,
        may_have_left: impl Fn(&Party) -> bool,
        why: &str,
        out: &mut Outcomes,
    ) {
        let all = self.barriers.values_mut();
        all.for_each(|barrier| barrier.break_with(&may_have_left, why, out));
        self.forget_unused();
    }

    /// Ends the wait of one request, and breaks its barrier for the others.
    pub fn give_up(&mut self, waiter: &Waiter, out: &mut Outcomes) {
        self.barriers.values_mut().for_each(|barrier| barrier.give_up(waiter, out));
        self.flags.values_mut().for_each(|flags| flags.forget(|one| one == waiter));
        self.forget_unused();
    }

    /// Undoes a waiting request: the others continue to wait.
    pub fn withdraw(&mut self, waiter: &Waiter) {
        self.barriers.values_mut().for_each(|barrier| barrier.withdraw(waiter));
        self.flags.values_mut().for_each(|flags| flags.forget(|one| one == waiter));
        self.forget_unused();
    }

    /// Undoes waiting requests. Their parties are expected at the barriers again.
    pub fn undo(&mut self, is_undone: impl Fn(&Waiter) -> bool) {
        self.barriers.values_mut().for_each(|barrier| barrier.undo(&is_undone));
        self.flags.values_mut().for_each(|flags| flags.forget(&is_undone));
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
        flags.change(set, clear, out);
        let value = flags.value();
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
        match self.add_entries(1).and_then(|()| self.flags_of(name)) {
            Ok(flags) => flags.wait(mask, waiter, deadline_ms, out),
            Err(reason) => out.push((waiter, WaitOutcome::Refused(reason))),
        }
    }

    fn add_entries(&mut self, more: usize) -> Result<(), String> {
        let Self { barriers, flags, budget } = self;
        budget.add(more, || {
            let entries = barriers.values().map(Barrier::entries);
            entries.chain(flags.values().map(Flags::entries)).sum()
        })
    }

    fn barrier_of(&mut self, name: &str) -> Result<&mut Barrier, String> {
        if self.barriers.len() >= NAMES_MAX && !self.barriers.contains_key(name) {
            return Err(format!("too many barriers: the limit is {NAMES_MAX}"));
        }
        Ok(self.barriers.entry(name.to_owned()).or_default())
    }

    fn flags_of(&mut self, name: &str) -> Result<&mut Flags, String> {
        if self.flags.len() >= NAMES_MAX && !self.flags.contains_key(name) {
            return Err(format!("too many flag words: the limit is {NAMES_MAX}"));
        }
        Ok(self.flags.entry(name.to_owned()).or_default())
    }

    /// The parties that passed a barrier last.
    pub fn members(&self, name: &str) -> impl Iterator<Item = &Party> {
        self.barriers.get(name).into_iter().flat_map(Barrier::members)
    }

    /// The flags that are set, by name.
    pub fn flags(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.flags.iter().map(|(name, flags)| (name.as_str(), flags.value()));
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
        let (members, arrived) = barrier.into_parts();
        let (flags, waiting) = flags.into_parts();
        out.extend(arrived.chain(waiting).map(|waiter| (waiter, WaitOutcome::Moved)));
        NameState { flags, members }
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
        self.add_entries(retained.members.len())?;
        self.barrier_of(name)?.add_members(retained.members);
        Ok(())
    }

    /// Forgets waiters whose outcome no client awaits any more.
    pub fn forget(&mut self, has_left: impl Fn(&Waiter) -> bool) {
        self.flags.values_mut().for_each(|flags| flags.forget(&has_left));
        self.forget_unused();
    }

    /// Clears all flags; waiters for them continue to wait.
    pub fn forget_flags(&mut self) {
        self.flags.values_mut().for_each(Flags::clear);
        self.forget_unused();
    }

    /// When [`Self::tick`] is due.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let barriers = self.barriers.values().flat_map(Barrier::deadlines_ms);
        barriers.chain(self.flags.values().flat_map(Flags::deadlines_ms)).min()
    }

    /// Ends expired waits. A barrier that one party gives up is broken for all.
    pub fn tick(&mut self, now_ms: u64, out: &mut Outcomes) {
        self.barriers.values_mut().for_each(|barrier| barrier.tick(now_ms, out));
        self.flags.values_mut().for_each(|flags| flags.tick(now_ms, out));
        self.forget_unused();
    }

    fn forget_unused(&mut self) {
        self.barriers.retain(|_, barrier| barrier.entries() > 0);
        self.flags.retain(|_, flags| !flags.is_unused());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::budget::ENTRIES_MAX;
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
            let reported: Vec<_> =
                out.iter().map(|(to, reported)| (to.number % 10, reported)).collect();
            assert_eq!(reported, [(1, &WaitOutcome::Released), (2, &WaitOutcome::Released)]);
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
        let reported =
            WaitOutcome::Broken { who: "process 2 of node a".into(), reason: "it ended".into() };
        assert_eq!(out, [(waiter(11), reported)]);
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
        for (_, reported) in out {
            let WaitOutcome::Broken { who, reason } = reported else { panic!("{reported:?}") };
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
        let reported =
            WaitOutcome::Broken { who: "process 1 of node a".into(), reason: "it gave up".into() };
        assert_eq!(out, [(waiter(11), reported)]);
        out.clear();
        assert_eq!(table.set_flags("f", 1, 0, &mut out), Ok(1));
        table.arrive("y", 3, arrival(21, 3, 9), &mut out);
        let reported: Vec<_> = out.iter().map(|(to, reported)| (to.number, reported)).collect();
        assert_eq!(reported, [2, 12, 21].map(|number| (number, &WaitOutcome::Released)));
    }

    #[test]
    fn one_that_is_withdrawn_breaks_nothing_and_may_come_again() {
        let mut table = SyncTable::default();
        assert_eq!(arrive(&mut table, 2, 1, 9), []);
        table.withdraw(&waiter(1));
        assert!(table.barriers.is_empty(), "nothing is left of it");
        assert_eq!(arrive(&mut table, 2, 2, 9), []);
        table.withdraw(&waiter(7));
        let reported: Vec<_> = arrive(&mut table, 2, 11, 9).into_iter().map(|(to, _)| to).collect();
        assert_eq!(reported, [waiter(2), waiter(11)]);
    }

    #[test]
    fn what_moves_away_is_announced_to_all_that_wait() {
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
        let refused =
            |(_, reported): &(Waiter, WaitOutcome)| matches!(reported, WaitOutcome::Refused(_));
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
            let (mut requested, mut out) = (0, Vec::new());
            for (now, (what, client)) in (0..).zip(steps) {
                match what {
                    0 | 1 => {
                        table.arrive("b", 3, arrival(requested, client, now + 7), &mut out);
                        requested += 1;
                    }
                    2 => table.leave(|one| one.client == client, "it ended", &mut out),
                    _ => table.tick(now, &mut out),
                }
                if what == 2 {
                    // Requests of a client that ended need no outcome.
                    let left: Vec<u64> = (0..requested).filter(|number| {
                        !out.iter().any(|(to, _)| to.number == *number)
                            && !table.barriers.values().any(|barrier| {
                                barrier.waiters().any(|waiter| waiter.number == *number)
                            })
                    }).collect();
                    out.extend(left.into_iter().map(|n| (waiter(n), WaitOutcome::Released)));
                }
            }
            table.tick(u64::MAX, &mut out);
            let mut reported: Vec<u64> = out.iter().map(|(to, _)| to.number).collect();
            reported.sort_unstable();
            prop_assert_eq!(reported, (0..requested).collect::<Vec<_>>());
        }
    }
}
