//! Costs and room of the other nodes, for the placement of new objects: a small question to each
//! member once a second, and the transfers that happened.

use farrow_store::Home;
use farrow_wire::NodeCost;

use crate::protocol::action::Action;
use crate::protocol::cluster::{Answer, OptionalCluster, PeerQuestion, PendingQuestion, Question};
use crate::protocol::identity::PeerLife;

/// Pause between two questions to one node: older room misleads programs that put often.
const ASK_EVERY_MS: u64 = 1_000;

/// Limit of the time for an answer. A node that needs longer is not near.
const ANSWER_MS_MAX: u64 = 500;

impl OptionalCluster {
    /// Asks members for their room. The answers also show the round trips.
    pub(in crate::protocol::cluster) fn ask_for_room(
        &mut self,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let live = cluster.peers.iter_mut().filter(|(_, peer)| !peer.is_lost());
        let due = live.filter(|(_, peer)| peer.cost.ask_at_ms().is_some_and(|at| at <= now_ms));
        let due: Vec<(String, u64)> = due
            .map(|(name, peer)| {
                peer.cost.query_sent();
                (name.clone(), peer.member.incarnation.0)
            })
            .collect();
        for (node, incarnation) in due {
            let about = PendingQuestion::Room { node: node.clone(), incarnation };
            let question = Question::Room;
            let peer_question =
                PeerQuestion { node: &node, question: &question, about, timeout_ms: ANSWER_MS_MAX };
            if !self.ask(peer_question, out) {
                let none = Err("it is no member".to_owned());
                self.on_room_response((node.as_str(), incarnation).into(), none, now_ms);
            }
        }
    }

    /// Handles a node's answer with its room. An earlier version answers that it does not
    /// understand the question: its room stays unknown.
    pub(in crate::protocol::cluster) fn on_room_response(
        &mut self,
        from: PeerLife<'_>,
        answer: Result<Answer, String>,
        now_ms: u64,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let Some(peer) = cluster.peers.get_mut(from.name) else { return };
        if peer.member.incarnation.0 != from.incarnation {
            return;
        }
        match answer {
            Ok(Answer::Room { free, capacity }) => {
                peer.cost.on_response(Some(free), now_ms);
                cluster.has_news |= peer.cost.lends(capacity);
            }
            Ok(_) => peer.cost.on_response(None, now_ms),
            Err(_) => peer.cost.on_no_response(now_ms),
        }
        peer.cost.ask_at(now_ms.saturating_add(ASK_EVERY_MS));
    }

    /// Notes how long another node took to answer a question of this one.
    pub(in crate::protocol) fn round_trip(&mut self, token: u64, elapsed_us: u64) {
        let Some(cluster) = &mut self.0 else { return };
        // Others may wait for an event.
        let Some(PendingQuestion::Room { node, incarnation }) = cluster.questions.get(&token)
        else {
            return;
        };
        if let Some(peer) = cluster.peers.get_mut(node)
            && peer.member.incarnation.0 == *incarnation
        {
            peer.cost.round_trip(elapsed_us);
        }
    }

    /// Notes a transfer of bytes from another node.
    pub(in crate::protocol) fn transferred(&mut self, node: &str, bytes: u64, elapsed_us: u64) {
        let Some(cluster) = &mut self.0 else { return };
        if let Some(peer) = cluster.peers.get_mut(node) {
            peer.cost.transferred(bytes, elapsed_us);
        }
    }

    /// The cost of a node as this one measured it; of this node only its room.
    pub(in crate::protocol::cluster) fn cost_of(&self, home: &Home, node: &str) -> NodeCost {
        if self.own_name() == node {
            let (free, _) = home.free_bytes();
            return NodeCost { free: Some(free.0), ..NodeCost::default() };
        }
        let peers = self.0.as_ref().map(|cluster| &cluster.peers);
        let peer = peers.and_then(|peers| peers.get(node)).filter(|peer| !peer.is_lost());
        peer.map(|peer| peer.cost.measured).unwrap_or_default()
    }
}
