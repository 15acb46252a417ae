//! What this node knows of the others.

use std::collections::BTreeMap;

use farrow_membership::{Member, NodeNumber, naming};
use farrow_net::source::MemberLife;
use farrow_store::{ObjectId, RemoteClient, Target, Whereabouts};
use farrow_wire::{Reach, WireError, WireTarget};

use super::offer::MemoryRoute;
use super::peer::{MappablePeer, PeerNode, because, unknown_names};
use crate::protocol::cluster::OptionalCluster;
use crate::protocol::cluster::clients::watched::{Dirty, Watched};
use crate::protocol::core::drain::state::DrainRecord;
use crate::protocol::identity::{PeerIdentity, node_key};
use crate::protocol::net::NetFault;

impl OptionalCluster {
    /// The name of this node; empty without a cluster.
    pub(in crate::protocol) fn own_name(&self) -> String {
        self.0.as_ref().map_or_else(String::new, |one| one.options.name.to_string())
    }

    /// Whether this node was in a view since this daemon started.
    pub(in crate::protocol) fn was_member(&self) -> bool {
        self.0.as_ref().is_some_and(|cluster| cluster.was_member)
    }

    /// The incarnation of this node in its cluster; 0 without a cluster.
    pub(in crate::protocol) fn own_incarnation(&self) -> u64 {
        self.0.as_ref().map_or(0, |one| one.membership.incarnation().0)
    }

    /// The name authority: it decides on a name and owns its state. The same for all nodes with
    /// this view.
    pub(in crate::protocol) fn authority_name(&self, full: &str) -> String {
        let view = self.0.as_ref().and_then(|cluster| cluster.membership.view());
        let member = view.and_then(|view| view.member(naming::authority_of(view, full)?));
        member.map_or_else(|| self.own_name(), |member| member.name.to_string())
    }

    /// The name authority once these nodes have left; `None` if there are no others.
    pub(in crate::protocol) fn authority_without(
        &self,
        nodes: &[&str],
        full: &str,
    ) -> Option<String> {
        let mut view = self.0.as_ref()?.membership.view()?.clone();
        view.members.retain(|member| !nodes.contains(&member.name.as_str()));
        let member = view.member(naming::authority_of(&view, full)?);
        member.map(|member| member.name.to_string())
    }

    /// Whether no other node can own the flags of this node's names.
    pub(in crate::protocol) fn may_keep_flags(&self) -> bool {
        self.0.as_ref().is_none_or(|cluster| cluster.has_lease)
    }

    pub(in crate::protocol) fn name_of(&self, number: NodeNumber) -> Option<String> {
        let view = self.0.as_ref()?.membership.view()?;
        view.member(number).map(|member| member.name.to_string())
    }

    /// Whether a node is a member.
    pub(in crate::protocol) fn is_peer(&self, node: &str) -> bool {
        let cluster = self.0.as_ref();
        cluster.and_then(|one| one.peers.get(node)).is_some_and(|one| !one.is_lost())
    }

    /// The member of a mapped peer, if this incarnation of it is in the view.
    pub(in crate::protocol) fn peer_in_life(&self, node: &str, incarnation: u64) -> Option<Member> {
        let peer = self.0.as_ref()?.peers.get(node)?;
        let is_it = peer.member.incarnation.0 == incarnation && !peer.is_lost();
        is_it.then(|| peer.member.clone())
    }

    /// Whether this incarnation of a member is current.
    pub(in crate::protocol) fn is_in_life(&self, member: &MemberLife) -> bool {
        self.peer_in_life(&member.name, member.incarnation).is_some()
    }

    /// Whether objects of a member move to other nodes.
    pub(in crate::protocol) fn is_any_draining(&self, record: &DrainRecord) -> bool {
        self.live().any(|(_, one)| record.has_draining(&one.member))
    }

    /// Number of members with objects that move to other nodes.
    pub(in crate::protocol) fn movers(&self, record: &DrainRecord) -> usize {
        self.live().filter(|(_, one)| record.has_draining(&one.member)).count()
    }

    /// Clients are to be informed of a change of the members.
    pub(in crate::protocol) fn has_news(&mut self) {
        if let Some(cluster) = &mut self.0 {
            cluster.has_news = true;
        }
    }

    /// The numbers and incarnations of the members but this one, by name.
    pub(in crate::protocol) fn live_members(&self) -> BTreeMap<String, (u8, u64)> {
        let number = |peer: &PeerNode| (peer.member.number.get(), peer.member.incarnation.0);
        self.live().map(|(name, peer)| (name.clone(), number(peer))).collect()
    }

    fn live(&self) -> impl Iterator<Item = (&String, &PeerNode)> {
        let peers = self.0.iter().flat_map(|cluster| &cluster.peers);
        peers.filter(|(_, peer)| !peer.is_lost())
    }

    /// The members but this one, by name, with their incarnations.
    pub(in crate::protocol) fn live_lives(&self) -> Vec<(String, u64)> {
        self.live().map(|(name, peer)| (name.clone(), peer.member.incarnation.0)).collect()
    }

    /// Names of all members but this one.
    pub(in crate::protocol) fn live_peers(&self) -> Vec<String> {
        self.live().map(|(name, _)| name.clone()).collect()
    }

    /// Names of the members whose memory is not mapped here.
    pub(in crate::protocol) fn unread_members(&self) -> Vec<String> {
        let peers = self.0.iter().flat_map(|cluster| &cluster.peers);
        let unread = peers.filter(|(_, one)| !one.is_lost() && one.mapped().is_none());
        unread.map(|(name, _)| name.clone()).collect()
    }

    /// Whether the memory of a node is mapped.
    pub(in crate::protocol) fn is_mapped(&self, node: &str) -> bool {
        let peer = self.0.as_ref().and_then(|cluster| cluster.peers.get(node));
        peer.is_some_and(|peer| peer.mapped().is_some())
    }

    /// The memory of another node, for a client that maps it too.
    pub(in crate::protocol) fn memory_of(&self, node: &str) -> Option<&MappablePeer> {
        self.0.as_ref()?.peers.get(node)?.mapped()
    }

    pub(in crate::protocol) fn region_of(&self, node: &str) -> Option<u64> {
        self.memory_of(node).map(|memory| memory.reader.uid().0)
    }

    /// The region of a peer, however it is reached.
    pub(in crate::protocol) fn region_offered_by(&self, node: &str) -> Option<u64> {
        let peer = self.0.as_ref()?.peers.get(node)?;
        peer.offer.as_ref().map(|offer| offer.region_uid)
    }

    /// Mapped nameless memory of nodes that are not heard of. It ends with the last process of its
    /// node, which only the kernel knows.
    pub(in crate::protocol) fn unheard_memory(
        &self,
    ) -> impl Iterator<Item = (&str, &MappablePeer)> {
        let peers = self.0.iter().flat_map(|cluster| &cluster.peers);
        peers.filter_map(|(name, peer)| {
            let ways = &peer.offer.as_ref()?.ways;
            let is_nameless = ways.iter().any(|way| matches!(way, MemoryRoute::Held { .. }));
            let memory = peer.mapped().filter(|_| is_nameless)?;
            (peer.reach != Reach::Live).then_some((name.as_str(), memory))
        })
    }

    /// Whether an object is sealed in the memory of another node.
    pub(in crate::protocol) fn is_elsewhere(&self, target: &WireTarget) -> bool {
        let Some(cluster) = &self.0 else {
            return false;
        };
        match target {
            WireTarget::Name(name) => {
                let mut there = cluster.peers.values().filter(|one| !one.is_lost());
                there.any(|one| one.has_name(name))
            }
            WireTarget::Id(id) => {
                let id = ObjectId::from(*id);
                cluster.peers.values().filter(|one| !one.is_lost()).any(|one| {
                    let place =
                        one.mapped().map(|memory| memory.reader.whereabouts(Target::Id(id)));
                    !matches!(place, None | Some(Ok(Whereabouts::Nowhere) | Err(_)))
                })
            }
        }
    }

    /// The other node with an object of this full name in its memory. Live nodes are included: a
    /// client may have failed to reach one of them.
    pub(in crate::protocol) fn lost_with(&self, full: &str) -> Option<String> {
        let mut peers = self.0.as_ref()?.peers.iter();
        peers.find(|(_, one)| one.has_name(full)).map(|(name, _)| name.clone())
    }

    /// The error for a name that a lost node with unknown names may have.
    pub(in crate::protocol) fn lost_unread(&self) -> Option<WireError> {
        let mut peers = self.0.as_ref()?.peers.values();
        let Member { name, address, .. } = &peers.find(|one| one.is_lost_unread())?.member;
        Some(unknown_names(name, address))
    }

    /// The same for a lost node that another member may know.
    pub(in crate::protocol) fn lost_member(&self, number: NodeNumber) -> Option<WireError> {
        let former = &self.0.as_ref()?.membership.view()?.former;
        let lost = former.iter().find(|one| one.number == number)?;
        Some(unknown_names(&lost.name, &lost.address))
    }

    /// The error for an object in the memory of a node that is not mapped here.
    pub(in crate::protocol) fn unreachable(&self, node: &str) -> WireError {
        let known = self.0.as_ref().and_then(|cluster| cluster.peers.get(node));
        known.map_or_else(
            || WireError::NodeLost { node: node.to_owned(), reason: "it is no member".to_owned() },
            PeerNode::unreachable,
        )
    }

    pub(in crate::protocol) fn is_by_net(&self, node: &str) -> bool {
        self.net_region_of(node).is_some()
    }

    /// Names of the members whose objects are fetched by network.
    pub(in crate::protocol) fn net_nodes(&self) -> Vec<String> {
        let all = self.0.iter().flat_map(|cluster| &cluster.peers);
        let is_by_net = |one: &PeerNode| one.by_net.is_some() && !one.is_lost();
        let by_net = all.filter(|(_, one)| is_by_net(one));
        by_net.map(|(name, _)| name.clone()).collect()
    }

    /// The member with this region, if its objects are fetched by network.
    pub(in crate::protocol) fn net_node_of(&self, region: u64) -> Option<String> {
        self.net_nodes().into_iter().find(|node| self.net_region_of(node) == Some(region))
    }

    /// The region of a member whose objects are fetched by network.
    pub(in crate::protocol) fn net_region_of(&self, node: &str) -> Option<u64> {
        let peer = self.0.as_ref()?.peers.get(node)?;
        let is_by_net = peer.by_net.is_some() && !peer.is_lost();
        peer.offer.as_ref().filter(|_| is_by_net).map(|offer| offer.region_uid)
    }

    /// The member with this region, however it is reached.
    pub(in crate::protocol) fn member_with_region(&self, region: u64) -> Option<String> {
        let mut live = self.live_peers().into_iter();
        live.find(|node| self.region_offered_by(node) == Some(region))
    }

    /// Time after which a lost node is known to be lost.
    pub(in crate::protocol) fn net_patience_ms(&self) -> u64 {
        let lease_ms = self.0.as_ref().map_or(0, |cluster| cluster.options.lease_ms);
        lease_ms.saturating_mul(2)
    }

    /// The error for a node whose objects cannot be listed by network.
    pub(in crate::protocol) fn not_by_net(&self, node: &str) -> WireError {
        let known = self.0.as_ref().and_then(|cluster| cluster.peers.get(node));
        match known.and_then(|known| known.check_usable().err()) {
            Some(error) => error,
            // It is this node, or its memory was mapped meanwhile.
            None => WireError::Invalid(format!("node {node} is not reached by network")),
        }
    }

    /// The error of a lost node that may have an object.
    pub(in crate::protocol) fn perhaps_at_lost(&self, full: &WireTarget) -> Option<WireError> {
        let WireTarget::Id(id) = full else { return self.lost_unread() };
        let mut peers = self.0.as_ref()?.peers.values();
        let is_home = |one: &&PeerNode| {
            one.is_lost() && one.offer.as_ref().is_some_and(|it| it.region_uid == id.hi)
        };
        peers.find(is_home)?.check_usable().err()
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

    /// A data server did not answer, or its node restarted: asks for its address again.
    pub(in crate::protocol) fn find_by_net_again(&mut self, node: &str, now_ms: u64) {
        let peers = self.0.as_mut().map(|cluster| &mut cluster.peers);
        if let Some(peer) = peers.and_then(|all| all.get_mut(node))
            && peer.by_net.is_some()
        {
            peer.ask_net_at_ms.get_or_insert(now_ms);
        }
    }

    /// Asks a node for the address of its data server, also one whose memory is mapped.
    pub(in crate::protocol) fn find_for_import(&mut self, node: &str, has_net: bool, now_ms: u64) {
        let peers = self.0.as_mut().map(|cluster| &mut cluster.peers);
        if let Some(peer) = peers.and_then(|all| all.get_mut(node)).filter(|_| has_net) {
            peer.ask_net_at_ms.get_or_insert(now_ms);
        }
    }

    /// The node of a remote client, unless it is lost.
    pub(in crate::protocol) fn node_of(&self, remote_client: RemoteClient) -> Option<String> {
        let cluster = self.0.as_ref()?;
        let mut nodes = cluster.peers.iter().filter(|(_, one)| !one.is_lost());
        nodes.find(|(name, _)| node_key(name) == remote_client.node).map(|(name, _)| name.clone())
    }

    /// Whether this node sees the processes of a remote client's node.
    pub(in crate::protocol) fn is_host_own(&self, remote_client: RemoteClient) -> bool {
        let Some(cluster) = &self.0 else {
            return false;
        };
        let host = &cluster.options.offer.host;
        let mut nodes = cluster.peers.values();
        nodes.any(|one| {
            node_key(one.member.name.as_str()) == remote_client.node
                && one.offer.as_ref().is_some_and(|offer| offer.host == *host)
        })
    }

    /// Whether the process of a client is one of this machine.
    pub(in crate::protocol) fn is_seen_here(&self, peer: PeerIdentity) -> bool {
        peer.remote_client.is_none_or(|remote_client| self.is_host_own(remote_client))
    }

    /// The other node that listens at an address.
    pub(in crate::protocol) fn node_at(&self, address: &str) -> Option<&str> {
        let mut peers = self.0.as_ref()?.peers.iter();
        let found = peers.find(|(_, one)| one.member.address == address);
        found.map(|(name, _)| name.as_str())
    }

    /// Whether this node serves clients; otherwise the reason. It adopts its memory before it
    /// listens.
    pub(in crate::protocol) fn readiness(&self, now_ms: u64) -> Result<(), String> {
        let Some(cluster) = &self.0 else { return Ok(()) };
        if cluster.membership.view().is_none() {
            return Err("the node has not joined its cluster yet".to_owned());
        }
        if cluster.membership.lease_left_ms(now_ms) == 0 {
            let text =
                "the node does not hold the lease of its cluster: most members do not answer it";
            return Err(text.to_owned());
        }
        Ok(())
    }

    /// Whether no other node needs to learn that this one leaves.
    pub(in crate::protocol) fn has_left(&self) -> bool {
        self.0.as_ref().is_none_or(|cluster| cluster.has_left)
    }

    pub(in crate::protocol) fn next_cluster_deadline_ms(&self) -> Option<u64> {
        let cluster = self.0.as_ref()?;
        let membership = Some(cluster.membership.next_deadline_ms());
        let naming = Some(cluster.naming.next_deadline_ms()).filter(|at| *at < u64::MAX);
        let parked = cluster.parked.next_deadline_ms();
        let watched = cluster.watched.values().filter_map(Watched::next_deadline_ms).min();
        let dirty = cluster.dirty.values().filter_map(Dirty::next_deadline_ms).min();
        let notifications = cluster.notifications.next_deadline_ms();
        let by_net = cluster.peers.values().filter_map(PeerNode::ask_by_net_at_ms).min();
        let live = cluster.peers.values().filter(|one| !one.is_lost());
        let room = live.filter_map(|one| one.cost.ask_at_ms()).min();
        let awaited = cluster.awaited.next_deadline_ms();
        let all =
            [membership, naming, parked, watched, dirty, notifications, by_net, room, awaited];
        all.into_iter().flatten().min()
    }

    /// The rest of this node's lease; `None` without a cluster.
    pub(in crate::protocol) fn lease_left_ms(&self, now_ms: u64) -> Option<u64> {
        Some(self.0.as_ref()?.membership.lease_left_ms(now_ms))
    }
}
