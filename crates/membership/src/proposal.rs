//! The change that this node would make, and when it proposes it.

use super::ballots::{Proposal, ProposedChange};
use super::message::{Ballot, Body, Reachability};
use super::state::Membership;
use super::types::NodeSet;
use super::view::{JoinCandidate, View};

impl Membership {
    /// Proposes the necessary change if this node is due.
    pub(super) fn propose_when_due(&mut self) {
        let lease_ms = self.options.lease_ms;
        if let Some(proposal) = &self.proposal {
            if self.now_ms < proposal.deadline_ms {
                return;
            }
            self.proposal = None;
            self.next_try_ms = self.now_ms + self.jitter_ms(lease_ms / 8);
        }
        let wish = match &self.retained.view {
            Some(view) => self.next_view(view),
            None => self.first_view(),
        };
        let Some(wish) = wish else {
            self.wish_since_ms = None;
            return;
        };
        let since_ms = *self.wish_since_ms.get_or_insert(self.now_ms);
        // The first live node proposes; another one follows if the first does not see the same
        // change. A member that accepted a value cannot vouch for others, so an unfinished value is
        // soon completed.
        let delay_ms = match wish.is_unfinished {
            true => lease_ms / 8 + self.rank() * lease_ms / 16,
            false => self.rank() * lease_ms / 2,
        };
        self.next_try_ms = self.next_try_ms.max(since_ms + delay_ms);
        if self.now_ms >= self.next_try_ms {
            self.start(wish);
        }
    }

    /// The number of nodes that would propose before this one.
    fn rank(&self) -> u64 {
        let lower = match self.number() {
            Some(own) => self
                .peers
                .range(..own)
                .filter(|(_, peer)| peer.reach == Reachability::Live && !peer.has_left)
                .count(),
            None => self.joining.place_of(&self.options.address).map_or(0, |own| {
                self.present().into_iter().filter(|(place, _)| *place < own).count()
            }),
        };
        lower as u64
    }

    /// The live nodes that this node hears, including itself.
    fn live(&self) -> NodeSet {
        let live = self.peers.iter().filter(|(_, peer)| peer.reach == Reachability::Live);
        live.map(|(number, _)| *number).chain(self.number()).collect()
    }

    fn next_view(&self, view: &View) -> Option<ProposedChange> {
        if !self.is_quorum(view.numbers(), self.live()) {
            return None;
        }
        let unfinished = || {
            let (_, value) = self.retained.accepted.clone()?;
            Some(ProposedChange { value, without: NodeSet::default(), is_unfinished: true })
        };
        // A leaving node changes nothing, unless no other live node remains.
        let mut peers = self.peers.values();
        let is_leaving = self.retained.is_leaving;
        if is_leaving && peers.any(|peer| peer.reach == Reachability::Live && !peer.has_left) {
            return unfinished();
        }
        let (left, silent, is_half_silent) = self.absent();
        let without = NodeSet(left.0 | silent.0);
        // A change of the view gives silent members another lease, so newcomers wait for them.
        let joins = match is_leaving || is_half_silent && without.is_empty() {
            true => Vec::new(),
            false => self.joins(view, without),
        };
        let value = view.next(without, left, &joins);
        if value.members.is_empty() || value.members == view.members {
            return unfinished();
        }
        Some(ProposedChange { value, without, is_unfinished: false })
    }

    /// The members that left, those silent for a lease, and whether another one is silent for half
    /// a lease.
    fn absent(&self) -> (NodeSet, NodeSet, bool) {
        let lease_ms = self.options.lease_ms;
        let (mut left, mut silent) = (NodeSet::default(), NodeSet::default());
        let (mut is_half_silent, mut longest_ms) = (false, 0);
        for (number, peer) in &self.peers {
            let silent_ms = self.silent_ms(peer);
            if peer.has_left {
                left.insert(*number);
            } else if self.now_ms < peer.spared_until_ms {
                continue;
            } else if silent_ms >= lease_ms {
                silent.insert(*number);
                longest_ms = longest_ms.max(silent_ms);
            } else if silent_ms > lease_ms / 2 {
                is_half_silent = true;
            }
        }
        // Members that died together are excluded together.
        if is_half_silent && longest_ms < lease_ms + lease_ms / 4 {
            silent = NodeSet::default();
        }
        (left, silent, is_half_silent)
    }

    /// The candidates to admit when `without` is excluded.
    fn joins(&self, view: &View, without: NodeSet) -> Vec<JoinCandidate> {
        let patience_ms = 2 * self.options.lease_ms;
        let is_fresh = |heard_ms: u64| self.now_ms - heard_ms < patience_ms;
        let has_place = |candidate: &JoinCandidate| {
            let last = view.last_life(&candidate.name);
            last.is_none_or(|last| last < candidate.incarnation)
                && view.named(&candidate.name).is_none_or(|old| without.has(old.number))
        };
        let candidates = self.candidates.values();
        candidates
            .filter(|(candidate, heard_ms)| is_fresh(*heard_ms) && has_place(candidate))
            .map(|(candidate, _)| candidate.clone())
            .collect()
    }

    fn start(&mut self, wish: ProposedChange) {
        let Some(own) = self.own_voter() else { return };
        let promised = self.retained.promised.as_ref().map_or(0, |ballot| ballot.round);
        let round = self.round_seen.max(promised).saturating_add(1);
        let ballot = Ballot { round, name: self.options.name.clone() };
        self.round_seen = round;
        self.retained.promised = Some(ballot.clone());
        self.must_be_stored = true;
        self.proposal = Some(Proposal {
            ballot: ballot.clone(),
            value: wish.value,
            is_adopted: false,
            is_accepting: false,
            votes: [own].into_iter().collect(),
            voters: vec![(own, self.options.name.clone(), self.retained.incarnation)],
            refused: NodeSet::default(),
            best: self.retained.accepted.clone(),
            deadline_ms: self.now_ms + self.options.lease_ms / 4,
        });
        let electorate = self.retained.electorate;
        for address in self.voter_addresses() {
            let (ballot, without) = (ballot.clone(), wish.without);
            self.send(&address, Body::Prepare { ballot, electorate, without });
        }
        self.count_votes();
    }
}
