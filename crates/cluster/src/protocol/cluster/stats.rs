//! Statistics of a node's cluster.

use farrow_wire::Members;

use crate::protocol::node::NodeState;

/// See [`NodeState::cluster_numbers`].
#[derive(Debug, Clone)]
pub struct ClusterNumbers {
    /// The members.
    pub members: Members,
    /// Remaining time of this node's lease; 0: it has none.
    pub lease_left_ms: u64,
    /// For each mapped memory, including this node's own: cache lines that this daemon published
    /// and refreshed.
    pub lines: Vec<(String, [u64; 2])>,
    /// Number of objects fetched from other nodes, and their bytes in memory.
    pub fetched: [u64; 2],
}

impl NodeState {
    /// Statistics of the cluster; `None` for a node without one.
    pub fn cluster_numbers(&self, now_ms: u64) -> Option<ClusterNumbers> {
        let cluster = self.cluster.as_ref()?;
        let own = (self.own_name(), self.home.region());
        let others = cluster.peers.iter();
        let others = others.filter_map(|(name, one)| Some((name.clone(), one.mapped()?)));
        let others = others.map(|(name, memory)| (name, memory.reader.region()));
        let lines = std::iter::once(own).chain(others).map(|(name, region)| {
            let counters = region.counters();
            (name, [counters.published_lines, counters.refreshed_lines])
        });
        Some(ClusterNumbers {
            members: self.members(),
            lease_left_ms: cluster.membership.lease_left_ms(now_ms),
            lines: lines.collect(),
            fetched: self.replicas.fetched(),
        })
    }

    /// Whether this node serves clients; otherwise the reason. It adopts its memory before it
    /// listens.
    pub fn readiness(&self, now_ms: u64) -> Result<(), String> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
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

    /// The other node that listens at an address.
    pub fn node_at(&self, address: &str) -> Option<&str> {
        let mut others = self.cluster.as_ref()?.peers.iter();
        let found = others.find(|(_, one)| one.member.address == address);
        found.map(|(name, _)| name.as_str())
    }
}
