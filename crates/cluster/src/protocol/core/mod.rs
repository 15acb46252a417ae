//! Parts of the state. Each knows itself, the store and the actions; none knows the whole state.

pub(in crate::protocol) mod admission;
pub mod barriers;
pub(in crate::protocol) mod buffers;
pub(in crate::protocol) mod clients;
pub(in crate::protocol) mod cluster_record;
pub(in crate::protocol) mod counting;
pub(in crate::protocol) mod drain;
pub(in crate::protocol) mod families;
pub(in crate::protocol) mod fanout;
pub(in crate::protocol) mod joined;
pub(in crate::protocol) mod leases;
pub(in crate::protocol) mod namespace_drops;
pub(in crate::protocol) mod namespaces;
pub(in crate::protocol) mod quota;
pub(in crate::protocol) mod reclaim;
pub(in crate::protocol) mod reservations;
pub(in crate::protocol) mod residency;
pub(in crate::protocol) mod resize;
pub(in crate::protocol) mod rooms;
pub(in crate::protocol) mod settings;
pub(in crate::protocol) mod staged;
pub(in crate::protocol) mod waits;
pub(in crate::protocol) mod watches;
