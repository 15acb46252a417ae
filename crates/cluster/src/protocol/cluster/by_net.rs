//! Nodes whose memory cannot be mapped and whose objects are fetched by network: their state, and
//! the questions to them.

use farrow_membership::View;
use farrow_net::source::MemberLife;
use farrow_store::ObjectId;
use farrow_wire::{Rights, WireError, WireTarget};

use super::peer::{PeerNode, because};
use super::pending::PendingQuestion;
use super::questions::{Answer, Question};
use super::state::ASK_LEASES_MAX;
use crate::net::{NetAction, NetFault};
use crate::protocol::Action;
use crate::protocol::state::NodeState;

/// Limit of the time for a ticket: a connection waits for it.
const TICKET_MS_MAX: u64 = 2_500;

/// Pause before a node is asked again for the address of its data server.
const ASK_AGAIN_MS: u64 = 250;

impl NodeState {
    /// Marks a node whose memory is not mapped for access by network, if possible.
    pub(super) fn reach_by_net(&mut self, node: &str) {
        let kind = self.replicas.kind();
        let Some(cluster) = &mut self.cluster else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        let is_to_ask = kind.is_some() && peer.mapped().is_none();
        // Requests wait until it has answered with the address of its data server: most nodes have
        // one.
        peer.by_net = kind.filter(|_| is_to_ask);
        peer.ask_net_at_ms = is_to_ask.then_some(0);
    }

    /// Asks nodes for the addresses of their data servers.
    pub(super) fn ask_by_net(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else { return };
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
                self.data_address_answered((&node, incarnation), none, now_ms, out);
            }
        }
    }

    /// Handles a node's answer with the address of its data server, or its failure.
    pub(super) fn data_address_answered(
        &mut self,
        (node, incarnation): (&str, u64),
        answer: Result<Answer, String>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let kind = self.replicas.kind();
        let Some(cluster) = &mut self.cluster else { return };
        let Some(peer) = cluster.peers.get_mut(node) else { return };
        if peer.member.incarnation.0 != incarnation || peer.mapped().is_some() {
            return;
        }
        cluster.has_news = true;
        match (answer, kind, &peer.offer) {
            (Ok(Answer::DataAddress(Some(address))), Some(kind), Some(offer)) => {
                peer.by_net = Some(kind);
                let (node, section) = (node.to_owned(), offer.data_bytes);
                out.push(Action::Net(NetAction::Connect { node, address, section }));
            }
            // A node that has not yet seen this one's membership rejects the question.
            (Err(_) | Ok(Answer::No(_)), Some(_), Some(_)) => {
                peer.ask_net_at_ms = Some(now_ms + ASK_AGAIN_MS);
            }
            _ => peer.by_net = None,
        }
        self.tell_members();
    }

    /// Whether the memory of a node is mapped.
    pub(in crate::protocol) fn is_mapped(&self, node: &str) -> bool {
        let peer = self.cluster.as_ref().and_then(|cluster| cluster.peers.get(node));
        peer.is_some_and(|peer| peer.mapped().is_some())
    }

    /// A data server did not answer, or its node restarted: asks for its address again.
    pub(in crate::protocol) fn find_by_net_again(&mut self, node: &str, now_ms: u64) {
        let peers = self.cluster.as_mut().map(|cluster| &mut cluster.peers);
        if let Some(peer) = peers.and_then(|all| all.get_mut(node))
            && peer.by_net.is_some()
        {
            peer.ask_net_at_ms.get_or_insert(now_ms);
        }
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

    /// Time for which replicas are known to be current; `None`: no limit applies.
    pub(crate) fn replicas_last_ms(&self, now_ms: u64) -> Option<u64> {
        self.replicas.kind()?;
        let cluster = self.cluster.as_ref()?;
        Some(cluster.membership.lease_left_ms(now_ms))
    }

    /// Sets the time until which clients may use replicas without asking.
    pub(crate) fn set_replicas_until(&mut self, until_ns: u64) {
        if let Err(error) = self.home.set_replicas_until(until_ns) {
            tracing::error!(%error, "replicas");
        }
    }

    /// Announces this incarnation to the members, once it is one of them.
    pub(super) fn tell_new_life_to(&mut self, view: &View, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &self.cluster else { return };
        let (own, incarnation) = (&cluster.options.name, cluster.membership.incarnation());
        let mut members = view.members.iter();
        if members.any(|one| one.name == *own && one.incarnation == incarnation) {
            let others = view.members.iter().filter(|one| one.name != *own);
            let others = others.map(|one| (one.name.to_string(), one.incarnation.0));
            self.tell_new_life(others.collect::<Vec<_>>(), now_ms, out);
        }
    }

    /// Time after which a lost node is known to be lost.
    pub(in crate::protocol) fn net_patience_ms(&self) -> u64 {
        let lease_ms = self.cluster.as_ref().map_or(0, |cluster| cluster.options.lease_ms);
        lease_ms.saturating_mul(2)
    }

    /// Names of the members whose objects are fetched by network.
    pub(in crate::protocol) fn net_nodes(&self) -> Vec<String> {
        let all = self.cluster.iter().flat_map(|cluster| &cluster.peers);
        let is_by_net = |one: &PeerNode| one.by_net.is_some() && !one.is_lost();
        let by_net = all.filter(|(_, one)| is_by_net(one));
        by_net.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn is_by_net(&self, node: &str) -> bool {
        self.net_region_of(node).is_some()
    }

    /// The region of a member whose objects are fetched by network.
    pub(in crate::protocol) fn net_region_of(&self, node: &str) -> Option<u64> {
        let peer = self.cluster.as_ref()?.peers.get(node)?;
        let is_by_net = peer.by_net.is_some() && !peer.is_lost();
        peer.offer.as_ref().filter(|_| is_by_net).map(|offer| offer.region_uid)
    }

    /// The region of a peer, however it is reached.
    pub(in crate::protocol) fn region_offered_by(&self, node: &str) -> Option<u64> {
        let peer = self.cluster.as_ref()?.peers.get(node)?;
        peer.offer.as_ref().map(|offer| offer.region_uid)
    }

    /// The error for a node whose objects cannot be listed by network.
    pub(in crate::protocol) fn not_by_net(&self, node: &str) -> WireError {
        let known = self.cluster.as_ref().and_then(|cluster| cluster.peers.get(node));
        match known.and_then(|known| known.check_usable().err()) {
            Some(error) => error,
            // It is this node, or its memory was mapped meanwhile.
            None => WireError::Invalid(format!("node {node} is not reached by network")),
        }
    }

    /// The member with this region, if its objects are fetched by network.
    pub(in crate::protocol) fn net_node_of(&self, region: u64) -> Option<String> {
        self.net_nodes().into_iter().find(|node| self.net_region_of(node) == Some(region))
    }

    /// The error of a lost node that may have an object.
    pub(in crate::protocol) fn perhaps_at_lost(&self, full: &WireTarget) -> Option<WireError> {
        let WireTarget::Id(hi, _) = full else { return self.lost_unread() };
        let mut others = self.cluster.as_ref()?.peers.values();
        let is_home = |one: &&PeerNode| {
            one.is_lost() && one.offer.as_ref().is_some_and(|it| it.region_uid == *hi)
        };
        others.find(is_home)?.check_usable().err()
    }

    /// The client's error for a request that a node did not perform.
    pub(in crate::protocol) fn unreachable_by_net(
        &self,
        node: &str,
    ) -> impl Fn(NetFault, &str) -> WireError + use<> {
        let unreachable = self.unreachable(node);
        let node = node.to_owned();
        move |fault, what| match fault {
            NetFault::NotFound => WireError::NotFound { what: what.to_owned() },
            NetFault::Invalid(text) => WireError::Invalid(text),
            NetFault::Denied(text) => WireError::Denied(text),
            NetFault::Lost(reason) => WireError::NodeLost { node: node.clone(), reason },
            NetFault::Busy(why) | NetFault::Other(why) => because(&unreachable, &why),
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
        if !self.ask_node_within(node, &question, about, TICKET_MS_MAX, out) {
            let result = Err(format!("{node} is no member"));
            out.push(Action::Net(NetAction::Ticket { number, result }));
        }
    }

    /// Whether this incarnation of a member is current.
    pub(in crate::protocol) fn is_in_life(&self, member: &MemberLife) -> bool {
        self.peer_in_life(&member.name, member.incarnation).is_some()
    }

    /// Notifies a member that an object is deleted; `false` if that is not possible now.
    pub(in crate::protocol) fn ask_gone(
        &mut self,
        member: &MemberLife,
        id: ObjectId,
        out: &mut Vec<Action>,
    ) -> bool {
        if self.peer_in_life(&member.name, member.incarnation).is_none() {
            return false;
        }
        let question = Question::Gone { objects: vec![id.lo] };
        let about = PendingQuestion::Gone { member: member.clone(), id };
        self.ask_node(&member.name, &question, about, out)
    }

    /// Asks a node to delete one of its objects; `false` if that is not possible now.
    pub(in crate::protocol) fn ask_delete(
        &mut self,
        node: &str,
        question: Question,
        which: (u64, usize),
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(cluster) = &self.cluster else { return false };
        let timeout_ms = cluster.options.lease_ms.saturating_mul(ASK_LEASES_MAX);
        let about = PendingQuestion::Delete { node: node.to_owned(), which };
        self.ask_node_within(node, &question, about, timeout_ms, out)
    }

    /// Whether another node has a right on a full name.
    pub(in crate::protocol) fn check_node_may(
        &self,
        node: &str,
        full: &str,
        right: Rights,
    ) -> Result<(), WireError> {
        if self.may(node, right, full) {
            return Ok(());
        }
        let namespace = crate::protocol::rights::namespace_in(full).to_owned();
        let (node, right) = (node.to_owned(), right.to_string());
        Err(WireError::NotGranted { node, namespace, right })
    }
}
