//! Options of a node in a cluster.

use farrow_membership::NodeName;

use super::peers::offer::Offer;

/// How the nodes of a cluster agree on their members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AgreementKind {
    /// Consensus by a majority of the nodes.
    #[default]
    Embedded,
    /// Through the contents of an etcd.
    Etcd,
}

/// Options of a node in a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its name.
    pub name: NodeName,
    /// Address at which the other nodes reach it.
    pub address: String,
    /// How the nodes agree on their members.
    pub agreement: AgreementKind,
    /// Addresses of other nodes, unless the nodes agree by etcd.
    pub seeds: Vec<String>,
    /// A node without any message for this time is considered lost.
    pub lease_ms: u64,
    /// The ways to its memory.
    pub offer: Offer,
    /// Address of its data server; `None`: it has none.
    pub net: Option<String>,
    /// Increases from one start of a node without memory to the next.
    pub incarnation: u64,
    /// A random number.
    pub seed: u64,
}

/// Error on joining a cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The region cannot be read.
    #[error(transparent)]
    Store(#[from] farrow_store::StoreError),
    /// The options are invalid.
    #[error(transparent)]
    Options(#[from] farrow_membership::OptionsError),
}
