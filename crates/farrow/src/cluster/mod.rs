//! The other nodes of the cluster, as one client sees them.
//!
//! * `nodes`: the membership list, and one session at each node whose memory is mapped.
//! * `request_link`: connections to nodes whose memory is not mapped, and names reserved there.

pub(crate) mod nodes;
pub(crate) mod request_link;
