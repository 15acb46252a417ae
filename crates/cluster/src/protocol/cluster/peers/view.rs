//! The other nodes: their membership and their mapped memory.

use farrow_membership::{Reachability as Heard, View};

use super::peer::{MappablePeer, PeerMemory, PeerNode};
use crate::protocol::Action;
use crate::protocol::cluster::state::Cluster;
use crate::protocol::cluster::{PeerAction, Question};
use crate::protocol::net::NetAction;
use crate::protocol::state::NodeState;

/// Limit of lost nodes that are remembered.
const LOST_MAX: usize = 64;

/// What a new view ends.
#[derive(Default)]
struct ViewEnds {
    /// Nodes that are members no more, or in another incarnation.
    lost: Vec<String>,
    /// Their incarnations that have ended, and whether the node is lost.
    lives: Vec<(String, u64, bool)>,
}

impl Cluster {
    /// Cuts off the nodes that are members no more.
    fn part_from_former(&mut self, view: &View, ends: &mut ViewEnds, out: &mut Vec<Action>) {
        for (name, peer) in &mut self.peers {
            if !peer.has_ended && view.named(&peer.member.name).is_none() {
                peer.set_reach(Heard::Lost);
                peer.has_ended = true;
                ends.lost.push(name.clone());
                let (node, address) = (name.clone(), peer.member.address.clone());
                out.push(Action::Peer(PeerAction::CutOff { node, address }));
                let incarnation = peer.member.incarnation.0;
                ends.lives.push((name.clone(), incarnation, true));
            }
            // A view forgets former members whose numbers it needs, and a new cluster all of them.
            let mut former = view.former.iter();
            let former = former.find(|one| one.name == peer.member.name);
            let is_member = view.named(&peer.member.name).is_some();
            peer.has_left = !is_member && former.map_or(peer.has_left, |one| one.has_left);
            if peer.has_left {
                // Its names are free. A map would keep memory that it has removed.
                peer.memory = PeerMemory::Missing("it left the cluster".to_owned());
            }
        }
    }

    /// Notes the members, and has the memory mapped of those that are new.
    fn note_members(&mut self, view: &View, ends: &mut ViewEnds, out: &mut Vec<Action>) {
        for member in &view.members {
            if member.name == self.options.name {
                continue;
            }
            let name = member.name.to_string();
            let known = self.peers.get_mut(&name);
            if known.as_ref().is_some_and(|known| {
                !known.has_ended && known.member.incarnation != member.incarnation
            }) {
                // Its earlier incarnation ended, in a view that was missed.
                ends.lost.push(name.clone());
                let earlier = known.as_ref().map_or(0, |known| known.member.incarnation.0);
                ends.lives.push((name.clone(), earlier, false));
            }
            if let Some(known) = known
                && known.member.info == member.info
                && known.mapped().is_some()
            {
                let is_same_life = known.member.incarnation == member.incarnation;
                known.cost = known.cost.in_view(is_same_life);
                known.member = member.clone();
                known.has_ended = false;
                known.set_reach(Heard::Live);
                continue;
            }
            let mut peer = PeerNode::new(member.clone());
            // Its objects are most likely still fetched in the same way.
            let known = self.peers.get(&name);
            peer.by_net = known.and_then(|known| known.by_net);
            peer.cost = known.map_or(peer.cost, |known| {
                known.cost.in_view(known.member.incarnation == member.incarnation)
            });
            if let Some(offer) = peer.offer.clone() {
                out.push(Action::Peer(PeerAction::Map { node: name.clone(), offer }));
            }
            self.peers.insert(name, peer);
        }
    }

    /// Forgets lost nodes beyond the limit.
    fn forget_lost(&mut self) {
        while self.peers.values().filter(|one| one.is_lost()).count() > LOST_MAX {
            let lost = self.peers.iter().find(|(_, one)| one.is_lost());
            let Some(name) = lost.map(|(name, _)| name.clone()) else { break };
            self.peers.remove(&name);
        }
    }
}

impl NodeState {
    /// Handles a new view.
    pub(in crate::protocol::cluster) fn view_installed(
        &mut self,
        view: View,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        tracing::info!(
            epoch = view.epoch.0,
            members = view.members.len(),
            "the view of the cluster changed"
        );
        cluster.has_news = true;
        cluster.was_member = true;
        let mut ends = ViewEnds::default();
        cluster.part_from_former(&view, &mut ends, out);
        cluster.note_members(&view, &mut ends, out);
        cluster.forget_lost();
        let ViewEnds { lost, lives } = ends;
        cluster.awaited.forget_nodes(&lost);
        cluster.notifications.forget_ended(&cluster.peers);
        self.lives_ended(lives, now_ms, out);
        self.announce_new_life_to(&view, now_ms, out);
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        let mut outputs = Vec::new();
        cluster.naming.view_installed(&view, now_ms, &mut outputs);
        self.perform_naming(outputs, now_ms, out);
        self.compare_names(now_ms, out);
        let (barriers, mut context) = self.barriers(now_ms, out);
        barriers.nodes_lost(&lost, &mut context);
        barriers.view_installed(&view, &lost, &mut context);
        self.cluster.await_everywhere(&self.waits, out);
        self.drain.members_changed(&self.cluster, now_ms);
        self.notify_members();
    }

    /// Notes the mapped memory of a node, or the reason of a failure.
    pub fn mapped(&mut self, node: &str, memory: Result<MappablePeer, String>) {
        let Some(cluster) = &mut self.cluster.0 else {
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
        self.cluster.reach_by_net(node, self.replicas.kind());
        self.notify_members();
    }

    /// Handles ended incarnations of nodes; each with whether the node is lost.
    fn lives_ended(&mut self, ended: Vec<(String, u64, bool)>, now_ms: u64, out: &mut Vec<Action>) {
        if self.replicas.kind().is_none() {
            return;
        }
        for (node, incarnation, is_lost) in ended {
            let (replicas, mut context) = self.replicas(now_ms, out);
            replicas.drop_of(&node, &mut context);
            out.push(Action::Net(NetAction::Cut { node: node.clone(), incarnation, is_lost }));
            self.replicas.member_has_ended(&node, incarnation);
            self.settle_leaving(now_ms, out);
        }
    }

    /// Announces to the members that this daemon follows an earlier one, once it is one of them:
    /// what that one read of their objects has ended, and so may have replicas of its own. Names that
    /// they had it report are unknown here.
    fn announce_new_life_to(&mut self, view: &View, now_ms: u64, out: &mut Vec<Action>) {
        let Some(cluster) = &mut self.cluster.0 else { return };
        let (own, incarnation) = (&cluster.options.name, cluster.membership.incarnation());
        let mut members = view.members.iter();
        if members.any(|one| one.name == *own && one.incarnation == incarnation) {
            let peers = view.members.iter().filter(|one| one.name != *own);
            let peers = peers.map(|one| (one.name.to_string(), one.incarnation.0));
            let peers: Vec<(String, u64)> = peers.collect();
            let is_restarted = std::mem::take(&mut cluster.is_restarted);
            if is_restarted {
                let life = self.home.life();
                for (node, _) in &peers {
                    self.cluster.notify(node, Question::Restarted { life }, out);
                }
            }
            let (replicas, mut context) = self.replicas(now_ms, out);
            if replicas.announce_new_life(peers, &mut context) {
                self.settle_leaving(now_ms, out);
            }
        }
    }
}
