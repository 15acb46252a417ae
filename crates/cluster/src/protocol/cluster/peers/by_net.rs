//! Nodes whose memory cannot be mapped and whose objects are fetched by network: their state, and
//! the questions to them.

use farrow_membership::View;

use crate::protocol::Action;
use crate::protocol::cluster::{Answer, PeerQuestion, PendingQuestion, Question};
use crate::protocol::identity::PeerLife;
use crate::protocol::net::NetAction;
use crate::protocol::state::NodeState;

/// Limit of the time for a ticket: a connection waits for it.
const TICKET_MS_MAX: u64 = 2_500;

/// Pause before a node is asked again for the address of its data server.
const ASK_AGAIN_MS: u64 = 250;

impl NodeState {
    /// Marks a node whose memory is not mapped for access by network, if possible.
    pub(super) fn reach_by_net(&mut self, node: &str) {
        let kind = self.replicas.kind();
        let Some(cluster) = &mut self.cluster.0 else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        let is_to_ask = kind.is_some() && peer.mapped().is_none();
        // Requests wait until it has answered with the address of its data server: most nodes have
        // one.
        peer.by_net = kind.filter(|_| is_to_ask);
        peer.ask_net_at_ms = is_to_ask.then_some(0);
    }

    /// Records how a node's objects were read last, for the list of members.
    pub(in crate::protocol) fn reached_by(&mut self, node: &str, way: &'static str) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        if peer.by_net.is_some_and(|before| before != way) {
            peer.by_net = Some(way);
            cluster.has_news = true;
            self.notify_members();
        }
    }

    /// Asks nodes for the addresses of their data servers.
    pub(in crate::protocol::cluster) fn ask_by_net(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else { return };
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
            if !self.cluster.ask_node(&node, &Question::DataAddress, about, out) {
                let none = Err("it is no member".to_owned());
                self.on_data_address_response(
                    (node.as_str(), incarnation).into(),
                    none,
                    now_ms,
                    out,
                );
            }
        }
    }

    /// Handles a node's answer with the address of its data server, or its failure.
    pub(in crate::protocol::cluster) fn on_data_address_response(
        &mut self,
        from: PeerLife<'_>,
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let PeerLife { name: node, incarnation } = from;
        let kind = self.replicas.kind();
        let Some(cluster) = &mut self.cluster.0 else { return };
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
        self.notify_members();
    }

    /// Handles ended incarnations of nodes; each with whether the node is lost.
    pub(super) fn lives_ended(
        &mut self,
        ended: Vec<(String, u64, bool)>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if self.replicas.kind().is_none() {
            return;
        }
        for (node, incarnation, is_lost) in ended {
            self.drop_replicas_of(&node, now_ms, out);
            out.push(Action::Net(NetAction::Cut { node: node.clone(), incarnation, is_lost }));
            self.member_has_ended(&node, incarnation, now_ms, out);
        }
    }

    /// Sets the time until which clients may use replicas without asking.
    pub(crate) fn set_replicas_until(&mut self, until_ns: u64, awake_ns: u64) {
        if let Err(error) = self.home.set_replicas_until(until_ns, awake_ns) {
            tracing::error!(%error, "replicas");
        }
    }

    /// Announces to the members that this daemon follows an earlier one, once it is one of them:
    /// what that one read of their objects has ended, and so may have replicas of its own. Names that
    /// they had it report are unknown here.
    pub(super) fn announce_new_life_to(&mut self, view: &View, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        let (own, incarnation) = (&cluster.options.name, cluster.membership.incarnation());
        let mut members = view.members.iter();
        if members.any(|one| one.name == *own && one.incarnation == incarnation) {
            let others = view.members.iter().filter(|one| one.name != *own);
            let others = others.map(|one| (one.name.to_string(), one.incarnation.0));
            let others: Vec<(String, u64)> = others.collect();
            let is_restarted = std::mem::take(&mut cluster.is_restarted);
            if is_restarted {
                let life = self.home.life();
                for (node, _) in &others {
                    self.cluster.notify(node, Question::Restarted { life }, out);
                }
            }
            self.announce_new_life(others, now_ms, out);
        }
    }

    /// Requests a ticket for a connection to a node.
    pub(in crate::protocol) fn want_ticket(
        &mut self,
        node: &str,
        number: u64,
        out: &mut Vec<Action>,
    ) {
        let about = PendingQuestion::Ticket { node: node.to_owned(), number };
        let question = Question::Ticket { life: self.home.life() };
        let timeout_ms = TICKET_MS_MAX;
        let peer_question = PeerQuestion { node, question: &question, about, timeout_ms };
        if !self.cluster.ask(peer_question, out) {
            let result = Err(format!("{node} is no member"));
            out.push(Action::Net(NetAction::Ticket { number, result }));
        }
    }
}
