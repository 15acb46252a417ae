//! Costs and room of the other nodes, for the placement of new objects: a small question to each
//! member once a second, and the transfers that happened.

use farrow_wire::NodeCost;

use super::asks::PeerQuestion;
use super::pending::PendingQuestion;
use super::questions::{Answer, Question};
use crate::protocol::action::Action;
use crate::protocol::state::NodeState;

/// Pause between two questions to one node. Room that is older misleads programs that put often;
/// the questions of a cluster of 64 nodes stay below a percent of a core.
const ASK_EVERY_MS: u64 = 1_000;

/// Limit of the time for an answer. A node that needs longer is not near.
const ANSWER_MS_MAX: u64 = 500;

/// Bytes of a transfer from which its bandwidth counts: a shorter one measures the round trip.
const TRANSFER_BYTES_MIN: u64 = 1 << 20;

/// What is known of the cost of another node, and when it is asked next.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PeerCost {
    pub(super) measured: NodeCost,
    /// When the next question is due, unless one is under way.
    ask_at_ms: u64,
    is_asked: bool,
}

impl PeerCost {
    /// The cost of the same node in a new view. Its room may have changed with its life.
    pub(super) fn in_view(self, is_same_life: bool) -> Self {
        match is_same_life {
            true => self,
            false => {
                let measured = NodeCost { free: None, ..self.measured };
                Self { measured, ..Self::default() }
            }
        }
    }

    /// When the next question is due.
    pub(super) fn ask_at_ms(&self) -> Option<u64> {
        (!self.is_asked).then_some(self.ask_at_ms)
    }
}

/// The exponentially weighted mean of measurements: the newest has a weight of a quarter.
fn mean(before: Option<u64>, newest: u64) -> u64 {
    let Some(before) = before else { return newest };
    let sum = 3 * u128::from(before) + u128::from(newest);
    u64::try_from(sum / 4).unwrap_or(u64::MAX)
}

impl NodeState {
    /// Asks members for their room. The answers also show the round trips.
    pub(super) fn ask_for_room(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        let live = cluster.peers.iter_mut().filter(|(_, peer)| !peer.is_lost());
        let due = live.filter(|(_, peer)| peer.cost.ask_at_ms().is_some_and(|at| at <= now_ms));
        let due: Vec<(String, u64)> = due
            .map(|(name, peer)| {
                peer.cost.is_asked = true;
                (name.clone(), peer.member.incarnation.0)
            })
            .collect();
        for (node, incarnation) in due {
            let about = PendingQuestion::Room { node: node.clone(), incarnation };
            let question = Question::Room;
            let asked =
                PeerQuestion { node: &node, question: &question, about, timeout_ms: ANSWER_MS_MAX };
            if !self.cluster.ask(asked, out) {
                let none = Err("it is no member".to_owned());
                self.room_answered((&node, incarnation), none, now_ms);
            }
        }
    }

    /// Handles a node's answer with its room. An earlier version answers that it does not
    /// understand the question: its room stays unknown.
    pub(super) fn room_answered(
        &mut self,
        (node, incarnation): (&str, u64),
        answer: Result<Answer, String>,
        now_ms: u64,
    ) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        if peer.member.incarnation.0 != incarnation {
            return;
        }
        peer.cost.is_asked = false;
        peer.cost.ask_at_ms = now_ms.saturating_add(ASK_EVERY_MS);
        peer.cost.measured.free = match answer {
            Ok(Answer::Room { free }) => Some(free),
            _ => None,
        };
    }

    /// Notes how long another node took to answer a question of this one.
    pub fn round_trip(&mut self, token: u64, elapsed_us: u64) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        // Others may wait for an event.
        let Some(PendingQuestion::Room { node, incarnation }) = cluster.asked.get(&token) else {
            return;
        };
        if let Some(peer) = cluster.peers.get_mut(node)
            && peer.member.incarnation.0 == *incarnation
        {
            let measured = &mut peer.cost.measured;
            measured.latency_us = Some(mean(measured.latency_us, elapsed_us));
        }
    }

    /// Notes a transfer of bytes from another node.
    pub(in crate::protocol) fn transferred(&mut self, node: &str, bytes: u64, elapsed_us: u64) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        if bytes < TRANSFER_BYTES_MIN {
            return;
        }
        if let Some(peer) = cluster.peers.get_mut(node) {
            let rate = u128::from(bytes) * 1_000_000 / u128::from(elapsed_us.max(1));
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            let measured = &mut peer.cost.measured;
            measured.bytes_per_second = Some(mean(measured.bytes_per_second, rate));
        }
    }

    /// The cost of a node as this one measured it; of this node only its room.
    pub(super) fn cost_of(&self, node: &str) -> NodeCost {
        if self.cluster.own_name() == node {
            let (free, _) = self.home.free_bytes();
            return NodeCost { free: Some(free.0), ..NodeCost::default() };
        }
        let peers = self.cluster.0.as_ref().map(|cluster| &cluster.peers);
        let peer = peers.and_then(|peers| peers.get(node)).filter(|peer| !peer.is_lost());
        peer.map(|peer| peer.cost.measured).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_and_does_not_overflow() {
        assert_eq!(mean(None, 7), 7);
        assert_eq!(mean(Some(100), 200), 125);
        assert_eq!(mean(Some(u64::MAX), u64::MAX), u64::MAX);
        let mut value = None;
        (0..64).for_each(|_| value = Some(mean(value, 1000)));
        assert_eq!(value, Some(1000));
    }

    #[test]
    fn a_new_life_has_its_room_asked_again() {
        let measured = NodeCost { free: Some(1), latency_us: Some(2), bytes_per_second: Some(3) };
        let cost = PeerCost { measured, ask_at_ms: 9, is_asked: true };
        assert_eq!(cost.ask_at_ms(), None);
        assert_eq!(cost.in_view(true).measured, measured);
        let later = cost.in_view(false);
        assert_eq!(later.measured, NodeCost { free: None, ..measured });
        assert_eq!(later.ask_at_ms(), Some(0));
    }
}
