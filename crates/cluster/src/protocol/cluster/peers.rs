//! The other nodes: their membership and their mapped memory.

use farrow_membership::{Member, NodeNumber, Reachability as Heard, View};
use farrow_store::{ObjectId, Target, Whereabouts};
use farrow_wire::{Reach, WireError, WireTarget};

use super::action::PeerAction;
use super::offer::MemoryRoute;
use super::peer::{MappablePeer, PeerMemory, PeerNode, unknown_names};
use crate::protocol::Action;
use crate::protocol::state::NodeState;

/// Limit of lost nodes that are remembered.
const LOST_MAX: usize = 64;

impl NodeState {
    /// Handles a new view.
    pub(super) fn view_installed(&mut self, view: View, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        tracing::info!(epoch = view.epoch.0, members = view.members.len(), "view");
        cluster.has_news = true;
        cluster.was_member = true;
        let (mut lost, mut ended) = (Vec::new(), Vec::new());
        for (name, peer) in &mut cluster.peers {
            if !peer.is_lost() && view.named(&peer.member.name).is_none() {
                peer.set_reach(Heard::Lost);
                lost.push(name.clone());
                let (node, address) = (name.clone(), peer.member.address.clone());
                out.push(Action::Peer(PeerAction::CutOff { node, address }));
                let incarnation = peer.member.incarnation.0;
                ended.push((name.clone(), incarnation, true));
            }
            let mut former = view.former.iter();
            peer.has_left = former.any(|one| one.name == peer.member.name && one.has_left);
        }
        for member in &view.members {
            if member.name == cluster.options.name {
                continue;
            }
            let name = member.name.to_string();
            let known = cluster.peers.get_mut(&name);
            if known.as_ref().is_some_and(|known| {
                !known.is_lost() && known.member.incarnation != member.incarnation
            }) {
                // Its earlier incarnation ended, in a view that was missed.
                lost.push(name.clone());
                let earlier = known.as_ref().map_or(0, |known| known.member.incarnation.0);
                ended.push((name.clone(), earlier, false));
            }
            if let Some(known) = known
                && known.member.info == member.info
                && known.mapped().is_some()
            {
                known.member = member.clone();
                known.set_reach(Heard::Live);
                continue;
            }
            let mut peer = PeerNode::new(member.clone());
            // Its objects are most likely still fetched in the same way.
            peer.by_net = cluster.peers.get(&name).and_then(|known| known.by_net);
            if let Some(offer) = peer.offer.clone() {
                out.push(Action::Peer(PeerAction::Map { node: name.clone(), offer }));
            }
            cluster.peers.insert(name, peer);
        }
        while cluster.peers.values().filter(|one| one.is_lost()).count() > LOST_MAX {
            let lost = cluster.peers.iter().find(|(_, one)| one.is_lost());
            let Some(name) = lost.map(|(name, _)| name.clone()) else { break };
            cluster.peers.remove(&name);
        }
        self.lives_ended(ended, now_ms, out);
        self.tell_new_life_to(&view, now_ms, out);
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let mut outputs = Vec::new();
        cluster.naming.view_installed(&view, now_ms, &mut outputs);
        self.perform_naming(outputs, now_ms, out);
        self.sync_without(&lost, now_ms, out);
        self.sync_view(&view, &lost, now_ms, out);
        self.await_everywhere(out);
        self.tell_members();
    }

    /// Notes the mapped memory of a node, or the reason of a failure.
    pub fn mapped(&mut self, node: &str, memory: Result<MappablePeer, String>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let Some(peer) = cluster.peers.get_mut(node) else {
            return;
        };
        cluster.has_news = true;
        peer.memory = match memory {
            Ok(memory) => PeerMemory::Mapped(Box::new(memory)),
            Err(why) => {
                tracing::warn!(node, %why, "the memory of a node is not mapped");
                PeerMemory::Missing(why)
            }
        };
        self.reach_by_net(node);
        self.tell_members();
    }

    /// Mapped nameless memory of nodes that are not heard of. It ends with the last process of its
    /// node, which only the kernel knows.
    pub fn unheard_memory(&self) -> impl Iterator<Item = (&str, &MappablePeer)> {
        let peers = self.cluster.iter().flat_map(|cluster| &cluster.peers);
        peers.filter_map(|(name, peer)| {
            let ways = &peer.offer.as_ref()?.ways;
            let is_nameless = ways.iter().any(|way| matches!(way, MemoryRoute::Held { .. }));
            let memory = peer.mapped().filter(|_| is_nameless)?;
            (peer.reach != Reach::Live).then_some((name.as_str(), memory))
        })
    }

    /// Whether a node is a member.
    pub fn is_peer(&self, node: &str) -> bool {
        let cluster = self.cluster.as_ref();
        cluster.and_then(|one| one.peers.get(node)).is_some_and(|one| !one.is_lost())
    }

    /// Names of all members but this one.
    pub(in crate::protocol) fn live_peers(&self) -> Vec<String> {
        let peers = self.cluster.iter().flat_map(|cluster| &cluster.peers);
        let live = peers.filter(|(_, peer)| !peer.is_lost());
        live.map(|(name, _)| name.clone()).collect()
    }

    /// The memory of another node, for a client that maps it too.
    pub fn memory_of(&self, node: &str) -> Option<&MappablePeer> {
        self.cluster.as_ref()?.peers.get(node)?.mapped()
    }

    /// Identifies the kernel and process namespace of a node.
    pub fn host_of(&self, node: &str) -> Option<&str> {
        let peer = self.cluster.as_ref()?.peers.get(node)?;
        peer.offer.as_ref().map(|offer| offer.host.as_str())
    }

    /// Whether an object is sealed in the memory of another node.
    pub(in crate::protocol) fn is_elsewhere(&self, target: &WireTarget) -> bool {
        let Some(cluster) = &self.cluster else {
            return false;
        };
        match target {
            WireTarget::Name(name) => {
                let mut there = cluster.peers.values().filter(|one| !one.is_lost());
                there.any(|one| one.has_name(name))
            }
            WireTarget::Id(hi, lo) => {
                let id = ObjectId { hi: *hi, lo: *lo };
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
        let mut others = self.cluster.as_ref()?.peers.iter();
        others.find(|(_, one)| one.has_name(full)).map(|(name, _)| name.clone())
    }

    /// Names of the members whose memory is not mapped here.
    pub(super) fn unread_members(&self) -> Vec<String> {
        let others = self.cluster.iter().flat_map(|cluster| &cluster.peers);
        let unread = others.filter(|(_, one)| !one.is_lost() && one.mapped().is_none());
        unread.map(|(name, _)| name.clone()).collect()
    }

    /// The error for an object in the memory of a node that is not mapped here.
    pub(super) fn unreachable(&self, node: &str) -> WireError {
        let known = self.cluster.as_ref().and_then(|cluster| cluster.peers.get(node));
        known.map_or_else(
            || WireError::NodeLost { node: node.to_owned(), reason: "it is no member".to_owned() },
            PeerNode::unreachable,
        )
    }

    /// The error for a name that a lost node with unknown names may have.
    pub(super) fn lost_unread(&self) -> Option<WireError> {
        let mut others = self.cluster.as_ref()?.peers.values();
        let Member { name, address, .. } = &others.find(|one| one.is_lost_unread())?.member;
        Some(unknown_names(name, address))
    }

    /// The same for a lost node that another member may know.
    pub(super) fn lost_member(&self, number: NodeNumber) -> Option<WireError> {
        let former = &self.cluster.as_ref()?.membership.view()?.former;
        let lost = former.iter().find(|one| one.number == number)?;
        Some(unknown_names(&lost.name, &lost.address))
    }

    pub(super) fn region_of(&self, node: &str) -> Option<u64> {
        self.memory_of(node).map(|memory| memory.reader.uid().0)
    }

    /// The member of a mapped peer, if this incarnation of it is in the view.
    pub(super) fn peer_in_life(&self, node: &str, incarnation: u64) -> Option<Member> {
        let peer = self.cluster.as_ref()?.peers.get(node)?;
        let is_it = peer.member.incarnation.0 == incarnation && !peer.is_lost();
        is_it.then(|| peer.member.clone())
    }
}
