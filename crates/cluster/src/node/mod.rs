//! A node: its start (creating or adopting the region), its service, its end.

mod error;
mod life;
mod options;
mod scraped;
mod start;
mod stop;

pub use crate::peers::{EtcdConfig, EtcdPlace, EtcdTls, EtcdUser, PeerTls};
pub use crate::place::{MemoryChoice, memory_choice};
pub use crate::protocol::MEMORY_BYTES_MIN;
pub use crate::spill::SpillTarget;
pub use error::NodeError;
pub(crate) use error::failed;
pub use life::{Node, Summary};
pub use options::{
    ClusterConfig, EvictionKind, MemorySource, NetCompress, NetConfig, NetUse, NodeOptions,
};
pub use stop::{StopSwitch, Stopper};
