//! The nodes of the cluster, as clients and metrics see them.

use farrow_store::Home;
use farrow_wire::{MemberInfo, Members, NodeCost, ReplyBody};

use crate::protocol::cluster::OptionalCluster;
use crate::protocol::cluster::peers::peer::PeerNode;
use crate::protocol::core::drain::state::DrainRecord;

impl OptionalCluster {
    /// The nodes, for clients and as the answer to `Nodes`. `drain` is the state of this node's.
    pub(in crate::protocol) fn members(&self, home: &Home, drain: &DrainRecord) -> Members {
        let Some(cluster) = &self.0 else {
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
            region_uid: home.uid().0,
            fabric: home.region().fabric().kind().as_str().to_owned(),
            coherence: home.region().fabric().coherence_class().as_str().to_owned(),
            why_not: String::new(),
            capacity: home.capacity().0,
            cost: NodeCost::default(),
            is_draining: drain.is_draining,
        };
        let report = |peer: &PeerNode| peer.report(drain);
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
    pub(in crate::protocol) fn nodes(&self, home: &Home, drain: &DrainRecord) -> ReplyBody {
        let mut members = self.members(home, drain);
        for node in &mut members.nodes {
            node.cost = self.cost_of(home, &node.name);
        }
        members.nodes.extend(self.not_joined());
        ReplyBody::Nodes(members)
    }

    /// Informs clients of the nodes after a change.
    pub(in crate::protocol) fn notify_members(&mut self, home: &mut Home, drain: &DrainRecord) {
        let Some(cluster) = &mut self.0 else {
            return;
        };
        // Clients learn of a new member when its memory can be used, or why it cannot.
        if cluster.peers.values().any(|peer| peer.is_being_mapped() && !peer.is_lost()) {
            return;
        }
        if !std::mem::take(&mut cluster.has_news) {
            return;
        }
        let members = self.members(home, drain);
        if let Err(error) = home.publish_members(&members.encode()) {
            tracing::error!(%error, "clients cannot be informed of the nodes");
        }
    }
}
