//! Claims that wait for members with directories that this authority cannot read.
//!
//! Such a member itself reports the claimed names of its objects. Its directory is the only record
//! of them: there are no copies that a delete, a restart or a change of the view could make stale.
//! Until all members have answered, the names are in flight for the claiming home, so no other home
//! is granted them. A member without the names cannot get one meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use super::{NAMES_MAX, RETRY_MS, Verdict};
use crate::{NodeNumber, NodeSet};

/// Most waiting claims of one home: the home repeats the others.
const CLAIMS_MAX: usize = 1024;

/// Number of times that the pause between two queries about a claim doubles, up to 400 ms: a slow
/// member does not receive megabytes of names twenty times a second.
const DOUBLINGS_MAX: u32 = 3;

/// A claim without a decision.
#[derive(Debug)]
pub(super) struct Undecided {
    pub(super) home: NodeNumber,
    /// Number of the claim at its home.
    pub(super) claim: u64,
    /// Session of the message with the claim, for the answer.
    pub(super) session: u64,
    pub(super) serial: u64,
    pub(super) names: Vec<String>,
    pub(super) verdicts: Vec<Verdict>,
    /// Members without an answer yet.
    pub(super) waiting: NodeSet,
    pub(super) next_ms: u64,
    /// Number of queries sent.
    pub(super) times: u32,
    /// The members to query.
    pub(super) members: NodeSet,
    /// How often all members are queried again before the decision.
    pub(super) rounds: usize,
}

impl Undecided {
    /// Whether a name of the claim may still be granted.
    fn is_open(&self) -> bool {
        self.verdicts.contains(&Verdict::Granted)
    }

    /// Whether the claim has nothing left to wait for.
    fn is_decided(&self) -> bool {
        (self.waiting.is_empty() && self.rounds == 0) || !self.is_open()
    }

    /// Begins the next round of queries, if one is left.
    fn next_round(&mut self) {
        if self.waiting.is_empty() && self.rounds > 0 && self.is_open() {
            self.rounds -= 1;
            (self.waiting, self.next_ms, self.times) = (self.members, 0, 0);
        }
    }
}

/// All waiting claims, by the number of their query.
#[derive(Debug, Default)]
pub(super) struct UndecidedClaims {
    all: BTreeMap<u64, Undecided>,
}

impl UndecidedClaims {
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Whether this claim already waits.
    pub(super) fn has(&self, home: NodeNumber, claim: u64) -> bool {
        self.all.values().any(|one| (one.home, one.claim) == (home, claim))
    }

    /// Whether one more claim with this number of names is accepted.
    pub(super) fn has_room(&self, home: NodeNumber, names: usize) -> bool {
        let (mut claims, mut waiting) = (0, names);
        for one in self.all.values().filter(|one| one.home == home) {
            claims += 1;
            waiting += one.names.len();
        }
        claims < CLAIMS_MAX && waiting <= 2 * NAMES_MAX
    }

    /// Adds a claim under the number of its query. It voids the same names in earlier claims of the
    /// home.
    pub(super) fn add(&mut self, question: u64, claim: Undecided) {
        self.void(claim.home, &claim.names);
        self.all.insert(question, claim);
    }

    /// Voids names that the home gave up or claims again: no late answer may decide on them.
    pub(super) fn void(&mut self, home: NodeNumber, names: &[String]) {
        if self.all.values().all(|one| one.home != home) {
            return;
        }
        let names: BTreeSet<&String> = names.iter().collect();
        for one in self.all.values_mut().filter(|one| one.home == home) {
            for (name, verdict) in one.names.iter().zip(&mut one.verdicts) {
                if names.contains(name) {
                    *verdict = Verdict::Taken;
                }
            }
        }
    }

    /// Removes the claims of the previous process of the home's life.
    pub(super) fn forget(&mut self, home: NodeNumber) {
        self.all.retain(|_, one| one.home != home);
    }

    /// Handles the answer of a member: the names of the query that it has, and a lost node that may
    /// have the others. Returns the home, and the names that are no longer granted.
    pub(super) fn on_response(
        &mut self,
        question: u64,
        from: NodeNumber,
        (taken, missing): (&[bool], Option<NodeNumber>),
    ) -> Option<(NodeNumber, Vec<String>)> {
        let one = self.all.get_mut(&question)?;
        if !one.waiting.has(from) || taken.len() != one.names.len() {
            return None;
        }
        one.waiting = one.waiting.without([from].into_iter().collect());
        let mut lost = Vec::new();
        for ((name, verdict), is_taken) in one.names.iter().zip(&mut one.verdicts).zip(taken) {
            let refused = match (*is_taken, missing) {
                (true, _) => Verdict::Taken,
                (false, Some(node)) => Verdict::Unread(node),
                (false, None) => continue,
            };
            if *verdict == Verdict::Granted {
                *verdict = refused;
                lost.push(name.clone());
            }
        }
        Some((one.home, lost))
    }

    /// Removes and returns the claims with nothing left to wait for.
    pub(super) fn take_decided(&mut self) -> Vec<Undecided> {
        self.all.values_mut().for_each(Undecided::next_round);
        let decided: Vec<u64> =
            self.all.iter().filter(|(_, one)| one.is_decided()).map(|(id, _)| *id).collect();
        decided.into_iter().filter_map(|id| self.all.remove(&id)).collect()
    }

    /// The queries that are due. Each is due again after a growing pause.
    pub(super) fn due(&mut self, now_ms: u64) -> Vec<(u64, NodeSet, Vec<String>)> {
        let due = self.all.iter_mut().filter(|(_, one)| one.next_ms <= now_ms);
        due.map(|(question, one)| {
            one.next_ms = now_ms.saturating_add(RETRY_MS << one.times.min(DOUBLINGS_MAX));
            one.times = one.times.saturating_add(1);
            (*question, one.waiting, one.names.clone())
        })
        .collect()
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.all.values().map(|one| one.next_ms).min()
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    fn number(number: u8) -> NodeNumber {
        NodeNumber::new(number).unwrap()
    }

    fn claim(claim: u64, names: &[&str]) -> Undecided {
        Undecided {
            home: number(0),
            claim,
            session: 1,
            serial: claim,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            verdicts: vec![Verdict::Granted; names.len()],
            waiting: [number(1), number(2)].into_iter().collect(),
            next_ms: 0,
            times: 0,
            members: [number(1), number(2)].into_iter().collect(),
            rounds: 0,
        }
    }

    #[test]
    fn a_claim_waits_for_every_member_that_is_asked() {
        let mut claims = UndecidedClaims::default();
        claims.add(7, claim(1, &["x", "y"]));
        assert_eq!(claims.on_response(7, number(3), (&[false, false], None)), None);
        assert_eq!(claims.on_response(7, number(1), (&[false], None)), None);
        assert_eq!(claims.on_response(8, number(1), (&[false, false], None)), None);
        let y = (number(0), vec!["y".to_owned()]);
        assert_eq!(claims.on_response(7, number(1), (&[false, true], None)), Some(y));
        assert!(claims.take_decided().is_empty());
        claims.on_response(7, number(2), (&[false, true], None)).unwrap();
        let decided = claims.take_decided();
        assert_eq!(decided[0].verdicts, [Verdict::Granted, Verdict::Taken]);
    }

    /// A name moved from member 2, which was not asked yet, to member 1, which had answered.
    #[test]
    fn while_objects_move_all_members_are_asked_again() {
        let mut claims = UndecidedClaims::default();
        claims.add(7, Undecided { rounds: 1, ..claim(1, &["x"]) });
        claims.on_response(7, number(1), (&[false], None)).unwrap();
        claims.on_response(7, number(2), (&[false], None)).unwrap();
        assert!(claims.take_decided().is_empty(), "the second round begins");
        let requested: Vec<u64> =
            claims.due(5).into_iter().map(|(question, ..)| question).collect();
        assert_eq!(requested, [7]);
        claims.on_response(7, number(1), (&[true], None)).unwrap();
        let decided = claims.take_decided();
        assert_eq!(decided[0].verdicts, [Verdict::Taken]);
    }

    #[test]
    fn a_lost_node_that_a_member_could_not_read_may_have_a_name() {
        let mut claims = UndecidedClaims::default();
        claims.add(7, claim(1, &["x", "y"]));
        claims.on_response(7, number(1), (&[false, true], Some(number(9)))).unwrap();
        let decided = claims.take_decided();
        assert_eq!(decided[0].verdicts, [Verdict::Unread(number(9)), Verdict::Taken]);
    }

    /// A late answer about an abandoned claim must not take the name from a later one.
    #[test]
    fn a_late_answer_says_nothing_of_a_later_claim() {
        let mut claims = UndecidedClaims::default();
        claims.add(7, claim(1, &["x"]));
        claims.add(8, claim(2, &["x"]));
        assert_eq!(
            claims.on_response(7, number(1), (&[true], None)),
            Some((number(0), Vec::new()))
        );
        let decided = claims.take_decided();
        assert_eq!((decided.len(), decided[0].claim), (1, 1));
    }

    #[test]
    fn one_home_has_its_limit() {
        let mut claims = UndecidedClaims::default();
        for id in 0..CLAIMS_MAX as u64 {
            assert!(claims.has_room(number(0), 1));
            claims.add(id, claim(id, &[&format!("n{id}")]));
        }
        assert!(!claims.has_room(number(0), 1) && claims.has_room(number(1), 1));
    }
}
