//! Nodes whose memory cannot be mapped and whose objects are fetched by network: their state, and
//! the questions to them.

use crate::protocol::Action;
use crate::protocol::cluster::{Answer, OptionalCluster, PeerQuestion, PendingQuestion, Question};
use crate::protocol::identity::PeerLife;
use crate::protocol::net::NetAction;

/// Limit of the time for a ticket: a connection waits for it.
const TICKET_MS_MAX: u64 = 2_500;

/// Pause before a node is asked again for the address of its data server.
const ASK_AGAIN_MS: u64 = 250;

impl OptionalCluster {
    /// Marks a node whose memory is not mapped for access by network, if there is such a fabric.
    pub(super) fn reach_by_net(&mut self, node: &str, kind: Option<&'static str>) {
        let Some(cluster) = &mut self.0 else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        let is_to_ask = kind.is_some() && peer.mapped().is_none();
        // Requests wait until it has answered with the address of its data server: most nodes have
        // one.
        peer.by_net = kind.filter(|_| is_to_ask);
        peer.ask_net_at_ms = is_to_ask.then_some(0);
    }

    /// Records how a node's objects were read last, for the list of members. Returns whether that
    /// has changed.
    pub(in crate::protocol) fn reached_by(&mut self, node: &str, way: &'static str) -> bool {
        let Some(cluster) = &mut self.0 else { return false };
        let Some(peer) = cluster.peers.get_mut(node) else { return false };
        let is_new = peer.by_net.is_some_and(|before| before != way);
        if is_new {
            peer.by_net = Some(way);
            cluster.has_news = true;
        }
        is_new
    }

    /// Asks nodes for the addresses of their data servers.
    pub(in crate::protocol::cluster) fn ask_by_net(
        &mut self,
        kind: Option<&'static str>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.0 else { return };
        let due = cluster.peers.iter_mut();
        let due = due.filter(|(_, one)| one.ask_by_net_at_ms().is_some_and(|at| at <= now_ms));
        let due: Vec<(String, u64)> = due
            .map(|(name, peer)| {
                peer.ask_net_at_ms = None;
                (name.clone(), peer.member.incarnation.0)
            })
            .collect();
        for (node, incarnation) in due {
            let about = PendingQuestion::DataAddress { node: node.clone(), incarnation };
            if !self.ask_node(&node, &Question::DataAddress, about, out) {
                let none = Err("it is no member".to_owned());
                let from = PeerLife { name: &node, incarnation };
                self.on_data_address_response(from, none, kind, now_ms, out);
            }
        }
    }

    /// Handles a node's answer with the address of its data server, or its failure. Clients are
    /// informed of the members after it.
    pub(in crate::protocol::cluster) fn on_data_address_response(
        &mut self,
        from: PeerLife<'_>,
        answer: Result<Answer, String>,
        kind: Option<&'static str>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let PeerLife { name: node, incarnation } = from;
        let Some(cluster) = &mut self.0 else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        if peer.member.incarnation.0 != incarnation {
            return;
        }
        cluster.has_news = true;
        let is_mapped = peer.mapped().is_some();
        match (answer, kind, &peer.offer) {
            (Ok(Answer::DataAddress(Some(address))), Some(kind), Some(offer)) => {
                // Of a mapped node, only objects to import come by network.
                peer.by_net = Some(kind).filter(|_| !is_mapped);
                let (node, section) = (node.to_owned(), offer.data_bytes);
                let addresses = vec![address];
                out.push(Action::Net(NetAction::Connect { node, addresses, section }));
            }
            // A node that has not yet seen this one's membership rejects the question.
            (Err(_) | Ok(Answer::No(_)), Some(_), Some(_)) if !is_mapped => {
                peer.ask_net_at_ms = Some(now_ms + ASK_AGAIN_MS);
            }
            _ => peer.by_net = None,
        }
    }

    /// Requests a ticket for a connection to a node.
    pub(in crate::protocol) fn want_ticket(
        &mut self,
        node: &str,
        number: u64,
        life: u64,
        out: &mut Vec<Action>,
    ) {
        let about = PendingQuestion::Ticket { node: node.to_owned(), number };
        let question = Question::Ticket { life };
        let timeout_ms = TICKET_MS_MAX;
        let peer_question = PeerQuestion { node, question: &question, about, timeout_ms };
        if !self.ask(peer_question, out) {
            let result = Err(format!("{node} is no member"));
            out.push(Action::Net(NetAction::Ticket { number, result }));
        }
    }
}
