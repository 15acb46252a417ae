//! Who is at the other end: connections, processes and nodes.

use farrow_membership::fnv::{BASIS, fnv};
use farrow_store::{ClientRecord, RemoteClient};

/// Identifies a connection; never used twice by one daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Process at the other end, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Process id; 0 if its namespace is not visible here.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot; 0 when unknown.
    pub start_time: u64,
    /// User id.
    pub uid: u32,
    /// The node of the process, if it is another one: that node then reports all fields.
    pub remote_client: Option<RemoteClient>,
}

impl PeerIdentity {
    /// Whether this is a client of the other node with this key.
    pub(in crate::protocol) fn is_of_node(&self, key: u64) -> bool {
        self.remote_client.is_some_and(|remote_client| remote_client.node == key)
    }
}

impl From<&ClientRecord> for PeerIdentity {
    fn from(record: &ClientRecord) -> Self {
        let ClientRecord { pid, start_time, uid, remote_client, .. } = *record;
        Self { pid, start_time, uid, remote_client }
    }
}

/// The sender of a message of another node, by its certificate and its own word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLife<'a> {
    /// Name of the node.
    pub name: &'a str,
    /// Its incarnation.
    pub incarnation: u64,
}

impl<'a> From<(&'a str, u64)> for PeerLife<'a> {
    fn from((name, incarnation): (&'a str, u64)) -> Self {
        Self { name, incarnation }
    }
}

/// Key of a node in the table of clients: 64 bits of FNV-1a of its name.
pub(crate) fn node_key(name: &str) -> u64 {
    fnv(BASIS, name.as_bytes())
}
