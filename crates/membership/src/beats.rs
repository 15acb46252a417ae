//! Beats: liveness of members, acknowledgements, and views for nodes that missed them.

use super::message::{Beat, Body, ClashError, Output, Reachability, Sender};
use super::state::{Membership, PeerState};
use super::types::{ClusterId, Epoch, NodeNumber, NodeSet};
use super::view::View;

/// Number of own beats remembered: those of two leases, and some out of turn.
const SENT_MAX: usize = 16;

/// Time in leases that a node without the lease waits for its members before it believes a stranger
/// that they continued without it. A guess.
const STRANGER_LEASES: u64 = 8;

/// Rounds of probes between two that include nodes that left by themselves. A guess.
const LEFT_LEASES: u64 = 8;

impl Membership {
    /// Time of the last message of a life, or of the last pause of this node.
    pub(super) fn heard_ms(&self, peer: &PeerState) -> u64 {
        peer.heard_ms.max(self.woke_ms)
    }

    /// Time since the last message of a peer, the last pause of this node, or the current view.
    pub(super) fn silent_ms(&self, peer: &PeerState) -> u64 {
        self.now_ms - self.heard_ms(peer).max(self.installed_ms)
    }

    pub(super) fn heard(&mut self, number: NodeNumber) {
        let now_ms = self.now_ms;
        let Some(peer) = self.peers.get_mut(&number) else { return };
        peer.heard_ms = now_ms;
        if peer.reach != Reachability::Live {
            peer.reach = Reachability::Live;
            self.out.push(Output::Reach { number, state: Reachability::Live });
        }
    }

    /// Marks the members that have been silent for a lease.
    pub(super) fn look_around(&mut self) {
        let lease_ms = self.options.lease_ms;
        let silent: Vec<NodeNumber> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.reach == Reachability::Live)
            .filter(|(_, peer)| self.now_ms - self.heard_ms(peer) >= lease_ms)
            .map(|(number, _)| *number)
            .collect();
        for number in silent {
            if let Some(peer) = self.peers.get_mut(&number) {
                peer.reach = Reachability::Suspect;
                self.out.push(Output::Reach { number, state: Reachability::Suspect });
            }
        }
    }

    /// Whether this node acknowledges beats: not after it accepted a next view.
    pub(super) fn may_vouch(&self) -> bool {
        self.retained.accepted.is_none() && !self.is_moving
    }

    pub(super) fn beat_when_due(&mut self) {
        if self.retained.view.is_none() || self.now_ms < self.next_beat_ms {
            return;
        }
        self.next_beat_ms = self.now_ms + self.options.lease_ms / 4;
        self.beat = self.beat.wrapping_add(1);
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((self.beat, self.now_ms));
        if self.may_vouch() {
            self.self_acked_ms = Some(self.now_ms);
            self.renew_lease();
        }
        let numbers: Vec<NodeNumber> = self.peers.keys().copied().collect();
        for number in numbers {
            self.send_beat(number, !self.has_lease(self.now_ms));
        }
    }

    fn send_beat(&mut self, number: NodeNumber, is_urgent: bool) {
        let Some(peer) = self.peers.get(&number) else { return };
        let (ack, address) = (peer.vouched, peer.address.clone());
        let is_leaving = self.retained.is_leaving;
        let beat = Beat { beat: self.beat, ack, is_urgent, is_leaving };
        self.send(&address, Body::Beat(beat));
    }

    /// Probes excluded nodes.
    pub(super) fn probe_when_due(&mut self) {
        let Some(view) = &self.retained.view else { return };
        if self.now_ms < self.next_probe_ms {
            return;
        }
        self.next_probe_ms = self.now_ms + self.options.lease_ms;
        // A node that left may be back without knowing the cluster: a founder asks no other node.
        self.probes = self.probes.wrapping_add(1);
        let is_for_all = self.probes.is_multiple_of(LEFT_LEASES);
        let lost = view.former.iter().filter(|former| is_for_all || !former.has_left);
        let addresses: Vec<String> = lost.map(|former| former.address.clone()).collect();
        for address in addresses {
            self.send(&address, Body::Probe { is_answer: false });
        }
    }

    pub(super) fn beaten(
        &mut self,
        from: &Sender,
        cluster: Option<ClusterId>,
        epoch: Epoch,
        beat: Beat,
    ) {
        self.met(from, cluster, epoch, true);
        let Some(view) = &self.retained.view else { return };
        if cluster != Some(view.cluster) {
            return;
        }
        let is_same_epoch = epoch == view.epoch;
        let Some(number) = self.peer_of(from) else { return };
        let (now_ms, may_vouch) = (self.now_ms, self.may_vouch());
        let sent = self.sent.iter().find(|(sent, _)| Some(*sent) == beat.ack);
        let sent_ms = sent.map(|(_, sent_ms)| *sent_ms);
        #[cfg(test)]
        let sent_ms = match self.is_mutant(super::state::MembershipMutant::LeaseFromReceipt) {
            true => sent_ms.map(|_| now_ms),
            false => sent_ms,
        };
        let Some(peer) = self.peers.get_mut(&number) else { return };
        let is_news = beat.is_leaving && !peer.has_left;
        peer.has_left |= beat.is_leaving;
        if !is_same_epoch {
            return;
        }
        if may_vouch && !peer.has_left {
            peer.granted_ms = now_ms;
            peer.vouched = Some(beat.beat);
        }
        peer.acked_ms = peer.acked_ms.max(sent_ms);
        let is_answer_due = beat.is_urgent && now_ms - peer.urgent_ms >= self.options.lease_ms / 16;
        if is_answer_due {
            peer.urgent_ms = now_ms;
        }
        self.renew_lease();
        if is_answer_due {
            self.send_beat(number, false);
        }
        if beat.is_leaving && self.retained.is_leaving && self.peers.values().all(|p| p.has_left) {
            self.end(None);
        } else if is_news {
            self.propose_when_due();
        }
    }

    /// Extends the lease: it lasts from the sending of the latest beat that a quorum acknowledged.
    fn renew_lease(&mut self) {
        let Some(view) = &self.retained.view else { return };
        let (electorate, mut votes) = (view.numbers(), NodeSet::default());
        let peers = self.peers.iter().map(|(number, peer)| (peer.acked_ms, *number));
        let own = self.number().map(|number| (self.self_acked_ms, number));
        let mut acks: Vec<(u64, NodeNumber)> =
            peers.chain(own).filter_map(|(at_ms, number)| Some((at_ms?, number))).collect();
        acks.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
        for (at_ms, number) in acks {
            votes.insert(number);
            if self.is_quorum(electorate, votes) {
                // Clocks of two machines differ in rate by less than one part in a thousand, and
                // each of the two times is truncated to milliseconds.
                let lasts_ms = self.options.lease_ms - self.options.lease_ms / 32 - 1;
                self.lease_until_ms = self.lease_until_ms.max(at_ms + lasts_ms);
                return;
            }
        }
    }

    /// Handles the cluster and epoch of a sender.
    pub(super) fn met(
        &mut self,
        from: &Sender,
        cluster: Option<ClusterId>,
        epoch: Epoch,
        is_question: bool,
    ) {
        let Some(theirs) = cluster else { return };
        let Some(view) = &self.retained.view else {
            self.joining.hint(&from.address, &self.options.address);
            return;
        };
        if theirs == view.cluster {
            if epoch < view.epoch {
                self.send_view(from);
            } else if epoch > view.epoch && is_question && view.named(&from.name).is_some() {
                self.send(&from.address, Body::Probe { is_answer: false });
            }
            return;
        }
        if self.mark_life_ended(from, cluster) {
            return;
        }
        self.send_view(from);
        if is_question {
            self.send(&from.address, Body::Probe { is_answer: true });
        }
    }

    /// Notes whether the life of this name in the view is over. If the view can then decide
    /// nothing, it ends the own life and returns true.
    pub(super) fn mark_life_ended(&mut self, from: &Sender, cluster: Option<ClusterId>) -> bool {
        let Some(view) = &self.retained.view else { return false };
        let Some(member) = view.named(&from.name) else { return false };
        let mut peers = self.peers.values();
        // A life that is heard is not over: another node took its name, or will be refused.
        if peers.any(|peer| {
            peer.name == from.name
                && peer.reach == Reachability::Live
                && peer.address != from.address
        }) {
            return false;
        }
        let is_elsewhere = cluster.is_some() && cluster != Some(view.cluster);
        let has_ended = member.incarnation < from.incarnation
            || member.incarnation == from.incarnation && is_elsewhere;
        let electorate = view.numbers();
        if let Some(peer) = self.peers.get_mut(&member.number) {
            peer.has_ended |= has_ended;
        }
        let ended = self.peers.iter().filter(|(_, peer)| peer.has_ended).map(|(n, _)| *n).collect();
        if has_ended && !electorate.is_quorum(electorate.without(ended)) {
            self.end(None);
            return true;
        }
        false
    }

    /// Handles a view that the sender reports as decided.
    pub(super) fn decided(&mut self, from: &Sender, view: View, is_live: bool) {
        if view.number_of_sender(from).is_none() && !self.is_known(from) {
            return;
        }
        let is_in_it = view.number_of(&self.options.name, self.retained.incarnation).is_some();
        let Some(own) = &self.retained.view else {
            if is_in_it {
                self.install(view);
            } else {
                for member in &view.members {
                    self.joining.hint(&member.address, &self.options.address);
                }
                self.joining.wait_at_ms = Some(self.now_ms);
            }
            return;
        };
        if own.cluster != view.cluster {
            self.on_other_view(from, &view, is_live);
        } else if view.epoch > own.epoch {
            if self.is_known(from) {
                self.install(view);
            } else {
                // A stranger may not move this node to a new view. If all known members have been
                // silent for long, it may report that this life is over.
                let patience_ms = STRANGER_LEASES * self.options.lease_ms;
                let last_ms = self.lease_until_ms.max(self.installed_ms).max(self.woke_ms);
                if self.now_ms.saturating_sub(last_ms) >= patience_ms {
                    self.end(Some(&view));
                }
            }
        }
    }

    /// Whether the view has the name, with the same or an earlier incarnation.
    fn is_known(&self, from: &Sender) -> bool {
        let member = self.retained.view.as_ref().and_then(|view| view.named(&from.name));
        member.is_some_and(|member| member.incarnation <= from.incarnation)
    }

    /// Resolves two clusters of one configuration: the smaller one yields, node by node. The same
    /// applies to a founder that lost its state. The configuration is the same if the node would
    /// ask a member of the other cluster for admission, or if it has no seeds and was a member
    /// there.
    fn on_other_view(&mut self, from: &Sender, theirs: &View, is_live: bool) {
        if self.mark_life_ended(from, Some(theirs.cluster)) {
            return;
        }
        let Some(own) = &self.retained.view else { return };
        let weight = |view: &View| (view.members.len(), std::cmp::Reverse(view.cluster.0));
        let other_addresses = self.joining.other_addresses(&self.options.address);
        let is_one_of_them = match other_addresses.is_empty() {
            true => theirs.last_life(&self.options.name).is_some(),
            false => theirs.members.iter().any(|member| other_addresses.contains(&member.address)),
        };
        if is_one_of_them && is_live && weight(theirs) > weight(own) {
            self.end(Some(theirs));
            return;
        }
        let (name, address) = (from.name.clone(), from.address.clone());
        let (own, theirs) = (own.cluster, theirs.cluster);
        self.clash(ClashError::OtherCluster { name, address, own, theirs });
    }
}
