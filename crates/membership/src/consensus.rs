//! The consensus on the next view: this node as a voter and as a proposer.

use std::collections::BTreeSet;

use super::ballots::{Proposal, ROUND_MAX, VoteRequest};
use super::message::{Ballot, Body, Sender};
use super::state::Membership;
use super::types::{Epoch, NodeNumber, NodeSet};
use super::view::View;

impl Membership {
    /// The voters on the next view.
    fn electorate(&self) -> NodeSet {
        match &self.retained.view {
            Some(view) => view.numbers(),
            None => self.joining.places(),
        }
    }

    fn voter(&self, from: &Sender) -> Option<NodeNumber> {
        match &self.retained.view {
            Some(view) => view.number_of_sender(from),
            None => self.joining.place_of(&from.address),
        }
    }

    pub(super) fn own_voter(&self) -> Option<NodeNumber> {
        match &self.retained.view {
            Some(_) => self.number(),
            None => self.joining.place_of(&self.options.address),
        }
    }

    /// Addresses of the other voters, except those silent for a lease.
    pub(super) fn voter_addresses(&self) -> Vec<String> {
        let lease_ms = self.options.lease_ms;
        match &self.retained.view {
            Some(_) => {
                let live = self.peers.values().filter(|peer| self.silent_ms(peer) < lease_ms);
                live.map(|peer| peer.address.clone()).collect()
            }
            None => self.joining.other_addresses(&self.options.address),
        }
    }

    pub(super) fn is_quorum(&self, electorate: NodeSet, votes: NodeSet) -> bool {
        #[cfg(test)]
        if self.is_mutant(super::state::MembershipMutant::HalfIsQuorum) {
            return electorate.and(votes).len() * 2 >= electorate.len();
        }
        match &self.retained.view {
            Some(_) => electorate.is_quorum(votes),
            // Before the first view, the nodes have not agreed which address is the lowest.
            None => electorate.is_majority(votes),
        }
    }

    /// Whether this node may take part in excluding a member.
    fn may_exclude(&self, number: NodeNumber, is_adopted: bool) -> bool {
        #[cfg(test)]
        if self.is_mutant(super::state::MembershipMutant::ExcludesTheLiving) {
            return true;
        }
        let lease_ms = self.options.lease_ms;
        let vouched_ms = |at_ms: u64| self.now_ms - at_ms.max(self.installed_ms);
        match self.peers.get(&number) {
            Some(peer) if peer.has_left => true,
            // Others accepted the value, so it may be decided: it must only outlast the lease.
            Some(peer) if is_adopted => vouched_ms(peer.granted_ms) >= lease_ms,
            Some(peer) => self.silent_ms(peer) >= lease_ms,
            None if self.retained.is_leaving => true,
            None => is_adopted && vouched_ms(self.self_acked_ms.unwrap_or(0)) >= lease_ms,
        }
    }

    /// The members of a set that this node would not exclude.
    fn spares(&self, without: NodeSet, is_adopted: bool) -> NodeSet {
        let numbers = NodeNumber::all().filter(|number| without.has(*number));
        numbers.filter(|number| !self.may_exclude(*number, is_adopted)).collect()
    }

    /// Whether a consensus message concerns the view that this node votes on next.
    fn is_due(&mut self, request: &VoteRequest) -> bool {
        let VoteRequest { from, epoch, electorate, .. } = request;
        let own = self.retained.view.as_ref().map_or(Epoch(0), |view| view.epoch);
        if *electorate == self.retained.electorate && *epoch == own {
            return self.voter(from).is_some();
        }
        if *epoch < own {
            self.send_view(from);
        }
        false
    }

    pub(super) fn prepare(&mut self, request: VoteRequest, without: NodeSet) {
        if !request.is_own() || !self.is_due(&request) {
            return;
        }
        let VoteRequest { from, ballot, .. } = request;
        self.round_seen = self.round_seen.max(ballot.round);
        let without = without.and(self.electorate());
        let hears = match self.retained.view {
            Some(_) => self.spares(without, false),
            None => NodeSet::default(),
        };
        let promised = self.retained.promised.clone().filter(|promised| *promised > ballot);
        if promised.is_some() || !hears.is_empty() {
            self.send(&from.address, Body::Nack { ballot, promised, hears });
            return;
        }
        self.retained.promised = Some(ballot.clone());
        self.must_be_stored = true;
        let accepted = self.retained.accepted.clone();
        self.send(&from.address, Body::Promise { ballot, accepted });
    }

    pub(super) fn accept(&mut self, request: VoteRequest, value: View, is_adopted: bool) {
        let is_own = request.is_own();
        if !is_own || !self.is_due(&request) || !self.is_possible(&request.from, &value) {
            return;
        }
        let VoteRequest { from, ballot, .. } = request;
        self.round_seen = self.round_seen.max(ballot.round);
        let promised = self.retained.promised.clone().filter(|promised| *promised > ballot);
        let hears = self.hears(&value, is_adopted);
        if promised.is_some() || !hears.is_empty() {
            // An accepted value must be decided eventually, so this node lets leases end until it
            // can be.
            self.is_moving |= is_adopted;
            self.send(&from.address, Body::Nack { ballot, promised, hears });
            return;
        }
        self.retained.promised = Some(ballot.clone());
        self.retained.accepted = Some((ballot.clone(), value));
        self.must_be_stored = true;
        self.send(&from.address, Body::Accepted { ballot });
    }

    /// Whether this node could vote for the value.
    fn is_possible(&self, from: &Sender, value: &View) -> bool {
        match &self.retained.view {
            Some(view) => view.may_precede(value),
            None => {
                value.is_sound()
                    && value.epoch == Epoch(1)
                    && value.number_of_sender(from).is_some()
                    && value.number_of(&self.options.name, self.retained.incarnation).is_some()
            }
        }
    }

    fn hears(&self, value: &View, is_adopted: bool) -> NodeSet {
        let Some(view) = &self.retained.view else { return NodeSet::default() };
        self.spares(view.dropped_by(value), is_adopted)
    }

    /// Whether a vote was cast in this node's epoch. Ballots restart in each epoch, so a vote of an
    /// earlier epoch may look like a vote for the current proposal.
    fn is_of_now(&self, epoch: Epoch) -> bool {
        #[cfg(test)]
        if self.is_mutant(super::state::MembershipMutant::CountsOldVotes) {
            return true;
        }
        epoch == self.retained.view.as_ref().map_or(Epoch(0), |view| view.epoch)
    }

    /// The number of the voter, if this is a vote for the current proposal.
    fn is_vote(&self, from: &Sender, ballot: &Ballot, is_accepting: bool) -> Option<NodeNumber> {
        let number = self.voter(from)?;
        let proposal = self.proposal.as_ref()?;
        // Before the first view, one name could vote for two addresses.
        let is_twice = |(n, name, _): &(NodeNumber, _, _)| *name == from.name && *n != number;
        let is_it = proposal.ballot == *ballot
            && proposal.is_accepting == is_accepting
            && !proposal.voters.iter().any(is_twice);
        is_it.then_some(number)
    }

    pub(super) fn promised(
        &mut self,
        from: &Sender,
        epoch: Epoch,
        ballot: &Ballot,
        accepted: Option<(Ballot, View)>,
    ) {
        if !self.is_of_now(epoch) {
            return;
        }
        let Some(number) = self.is_vote(from, ballot, false) else { return };
        let accepted = accepted.filter(|(_, value)| match &self.retained.view {
            Some(view) => view.may_precede(value),
            // A value without the voter's life was accepted by a life that is over.
            None => self.is_possible(from, value),
        });
        let Some(proposal) = &mut self.proposal else { return };
        proposal.votes.insert(number);
        proposal.voters.push((number, from.name.clone(), from.incarnation));
        let is_higher = |(ballot, _): &(Ballot, View)| {
            proposal.best.as_ref().is_none_or(|(best, _)| best < ballot)
        };
        if accepted.as_ref().is_some_and(is_higher) {
            proposal.best = accepted;
        }
        self.count_votes();
    }

    pub(super) fn accepted(&mut self, from: &Sender, epoch: Epoch, ballot: &Ballot) {
        if !self.is_of_now(epoch) {
            return;
        }
        let Some(number) = self.is_vote(from, ballot, true) else { return };
        let Some(proposal) = &mut self.proposal else { return };
        proposal.votes.insert(number);
        proposal.voters.push((number, from.name.clone(), from.incarnation));
        self.count_votes();
    }

    pub(super) fn refused_vote(
        &mut self,
        from: &Sender,
        epoch: Epoch,
        ballot: &Ballot,
        promised: Option<Ballot>,
        hears: NodeSet,
    ) {
        if !self.is_of_now(epoch) {
            return;
        }
        let Some(number) = self.voter(from) else { return };
        let (now_ms, lease_ms) = (self.now_ms, self.options.lease_ms);
        let electorate = self.electorate();
        let Some(proposal) = self.proposal.as_mut().filter(|p| p.ballot == *ballot) else {
            return;
        };
        proposal.refused.insert(number);
        let refused = proposal.refused;
        for (_, peer) in self.peers.iter_mut().filter(|(number, _)| hears.has(**number)) {
            // A first refusal is a matter of milliseconds; a repeated one, a link cut in one direction.
            let is_again =
                peer.spared_until_ms > 0 && now_ms - peer.spared_until_ms.min(now_ms) < lease_ms;
            let spared_ms = if is_again { lease_ms / 2 } else { lease_ms / 8 };
            peer.spared_until_ms = peer.spared_until_ms.max(now_ms + spared_ms);
        }
        if let Some(promised) = promised.filter(|promised| promised.round <= ROUND_MAX) {
            self.round_seen = self.round_seen.max(promised.round);
        }
        if !self.is_quorum(electorate, electorate.without(refused)) {
            self.proposal = None;
            self.next_try_ms = now_ms + lease_ms / 16 + self.jitter_ms(lease_ms / 8);
        }
    }

    /// Continues once a quorum has voted.
    pub(super) fn count_votes(&mut self) {
        let Some(proposal) = &self.proposal else { return };
        if !self.is_quorum(self.electorate(), proposal.votes) {
            return;
        }
        if proposal.is_accepting {
            self.decide();
        } else {
            self.begin_accepting();
        }
    }

    fn begin_accepting(&mut self) {
        let Some(own) = self.own_voter() else { return };
        let is_founding = self.retained.view.is_none();
        let (name, incarnation) = (self.options.name.clone(), self.retained.incarnation);
        let Some(proposal) = &mut self.proposal else { return };
        let best = proposal.best.take();
        // A voter that lost its state may let others found a second cluster. The two clusters have
        // different ids, and the one without its members is abandoned.
        let is_usable = |view: &View| {
            let mut voters = proposal.voters.iter();
            !is_founding || voters.all(|(_, name, life)| view.number_of(name, *life).is_some())
        };
        if let Some((_, value)) = best.filter(|(_, value)| is_usable(value)) {
            proposal.value = value;
            proposal.is_adopted = true;
        }
        proposal.is_accepting = true;
        proposal.votes = [own].into_iter().collect();
        proposal.voters = vec![(own, name, incarnation)];
        let (ballot, value) = (proposal.ballot.clone(), proposal.value.clone());
        let is_adopted = proposal.is_adopted;
        if !self.hears(&value, is_adopted).is_empty()
            || self.retained.promised != Some(ballot.clone())
        {
            self.is_moving |= is_adopted;
            self.proposal = None;
            self.next_try_ms = self.now_ms + self.options.lease_ms / 8;
            return;
        }
        self.retained.accepted = Some((ballot.clone(), value.clone()));
        self.must_be_stored = true;
        let electorate = self.retained.electorate;
        for address in self.voter_addresses() {
            let (ballot, value) = (ballot.clone(), value.clone());
            self.send(&address, Body::Accept { ballot, electorate, value, is_adopted });
        }
        self.count_votes();
    }

    /// A quorum accepted: installs the view, and informs its members and the previous ones.
    fn decide(&mut self) {
        let Some(Proposal { value, .. }) = self.proposal.take() else { return };
        let mut addresses: BTreeSet<String> =
            self.peers.values().map(|peer| peer.address.clone()).collect();
        addresses.extend(value.members.iter().map(|member| member.address.clone()));
        if self.retained.view.is_none() {
            addresses.extend(self.joining.other_addresses(&self.options.address));
        }
        addresses.remove(&self.options.address);
        self.install(value.clone());
        let is_live = self.has_lease(self.now_ms);
        for address in addresses {
            self.send(&address, Body::Decided { view: value.clone(), is_live });
        }
    }
}
