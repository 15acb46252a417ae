//! The other nodes of the cluster, as one client sees them.
//!
//! * `nodes`: the membership list, and one session at each node whose memory is mapped.
//! * `lookup`: searches of their memory.
//! * `fetch`: objects of nodes whose memory is not mapped.
//! * `placement`: the rule that chooses a node for new objects.
//! * `request_link`: connections to such nodes, and names reserved there.

pub(crate) mod fetch;
pub(crate) mod lookup;
pub(crate) mod nodes;
pub(crate) mod placement;
pub(crate) mod request_link;
