//! Statistics of a node's cluster.

use farrow_wire::Members;

/// See [`NodeState::cluster_stats`](crate::protocol::NodeState::cluster_stats).
#[derive(Debug, Clone)]
pub struct ClusterStats {
    /// The members.
    pub members: Members,
    /// Remaining time of this node's lease; 0: it has none.
    pub lease_left_ms: u64,
    /// For each mapped memory, including this node's own: cache lines that this daemon published
    /// and refreshed.
    pub lines: Vec<(String, [u64; 2])>,
    /// Number of names that objects of this node lost, since other nodes had objects of these names.
    pub names_lost: u64,
    /// Number of objects fetched from other nodes, and their bytes in memory.
    pub fetched: [u64; 2],
    /// Bytes that other nodes fetched of objects of this node, and of its replicas.
    pub served: [u64; 2],
    /// Bytes of the pieces that were sent compressed and of their compressed form, then of those that
    /// were received.
    pub packed: [[u64; 2]; 2],
}
