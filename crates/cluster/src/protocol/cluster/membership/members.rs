//! The nodes of the cluster, as clients and metrics see them.

use farrow_wire::{MemberInfo, Members, NodeCost, ReplyBody};

use crate::protocol::cluster::ClusterStats;
use crate::protocol::cluster::peers::peer::PeerNode;
use crate::protocol::state::NodeState;

impl NodeState {
    /// The nodes, for clients and as the answer to `Nodes`.
    pub(in crate::protocol) fn members(&self) -> Members {
        let Some(cluster) = &self.cluster.0 else {
            return Members::default();
        };
        let view = cluster.membership.view();
        let own = MemberInfo {
            number: view
                .and_then(|view| view.members.iter().find(|one| one.name == cluster.options.name))
                .map_or(0, |one| one.number.get()),
            name: cluster.options.name.to_string(),
            address: cluster.options.address.clone(),
            incarnation: cluster.incarnation,
            reach: farrow_wire::Reach::Live,
            is_own: true,
            region_uid: self.home.uid().0,
            fabric: self.home.region().fabric().kind().as_str().to_owned(),
            coherence: self.home.region().fabric().coherence_class().as_str().to_owned(),
            why_not: String::new(),
            capacity: self.home.capacity().0,
            cost: NodeCost::default(),
            is_draining: self.drain.record.is_draining,
        };
        let report = |peer: &PeerNode| peer.report(&self.drain.record);
        let mut nodes: Vec<MemberInfo> = cluster.peers.values().map(report).collect();
        nodes.push(own);
        nodes.sort_by(|one, other| (one.number, &one.name).cmp(&(other.number, &other.name)));
        Members {
            cluster: view.map_or(0, |view| view.cluster.0),
            epoch: view.map_or(0, |view| view.epoch.0),
            has_lease: cluster.has_lease,
            draining: nodes.iter().filter(|one| one.is_draining).map(|one| one.number).collect(),
            nodes,
        }
    }

    /// As [`Self::members`], with the costs of the nodes, and with the nodes to join that are no
    /// members.
    pub(in crate::protocol) fn nodes(&self) -> ReplyBody {
        let mut members = self.members();
        for node in &mut members.nodes {
            node.cost = self.cost_of(&node.name);
        }
        members.nodes.extend(self.cluster.not_joined());
        ReplyBody::Nodes(members)
    }

    /// Informs clients of the nodes after a change.
    pub(in crate::protocol) fn notify_members(&mut self) {
        let Some(cluster) = &mut self.cluster.0 else {
            return;
        };
        // Clients learn of a new member when its memory can be used, or why it cannot.
        if cluster.peers.values().any(|peer| peer.is_being_mapped() && !peer.is_lost()) {
            return;
        }
        if !std::mem::take(&mut cluster.has_news) {
            return;
        }
        let members = self.members();
        if let Err(error) = self.home.publish_members(&members.encode()) {
            tracing::error!(%error, "clients cannot be informed of the nodes");
        }
    }

    /// Statistics of the cluster; `None` for a node without one.
    pub fn cluster_stats(&self, now_ms: u64) -> Option<ClusterStats> {
        let cluster = self.cluster.0.as_ref()?;
        let own = (self.cluster.own_name(), self.home.region());
        let others = cluster.peers.iter();
        let others = others.filter_map(|(name, one)| Some((name.clone(), one.mapped()?)));
        let others = others.map(|(name, memory)| (name, memory.reader.region()));
        let lines = std::iter::once(own).chain(others).map(|(name, region)| {
            let counters = region.counters();
            (name, [counters.published_lines, counters.refreshed_lines])
        });
        Some(ClusterStats {
            members: self.members(),
            lease_left_ms: cluster.membership.lease_left_ms(now_ms),
            lines: lines.collect(),
            names_lost: self.joined.lost,
            fetched: self.replicas.fetched(),
            served: self.replicas.served(),
            packed: self.replicas.packed(),
        })
    }
}
