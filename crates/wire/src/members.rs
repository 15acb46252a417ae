//! The nodes of a cluster, as a daemon tells its clients of them.

use serde::{Deserialize, Serialize};

/// How a node stands with the one that tells of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// It was heard of within a lease.
    #[default]
    Live,
    /// It was not; whether it is still there is being settled.
    Suspect,
    /// The others go on without it.
    Lost,
    /// It left in order.
    Left,
    /// It was to be joined, and never was a member as far as this node knows.
    NotJoined,
}

impl Reach {
    /// `"live"`, `"suspect"`, `"lost"`, `"left"` or `"not joined"`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Suspect => "suspect",
            Self::Lost => "lost",
            Self::Left => "left",
            Self::NotJoined => "not joined",
        }
    }
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its number in the cluster.
    pub number: u8,
    /// Its name.
    pub name: String,
    /// Where other nodes reach it.
    pub address: String,
    /// Which life of it.
    pub incarnation: u64,
    /// Whether it is there.
    pub reach: Reach,
    /// The node that tells.
    pub is_own: bool,
    /// Uid of its region; 0: unknown.
    pub region_uid: u64,
    /// How its memory is reached: `shm` or `device` where it is mapped, `net` or `net+TLS` where its
    /// objects are brought by network; empty: not at all.
    pub fabric: String,
    /// `coherent` or `node-local`; empty where the memory is not reached.
    pub coherence: String,
    /// Why its memory is not mapped; empty where it is.
    pub why_not: String,
    /// Heap bytes that it lends.
    pub capacity: u64,
}

impl MemberInfo {
    /// True when it is in the cluster.
    pub fn is_member(&self) -> bool {
        matches!(self.reach, Reach::Live | Reach::Suspect)
    }

    /// True when objects in its memory can be used in place.
    pub fn is_usable(&self) -> bool {
        self.is_member() && !self.fabric.is_empty() && !self.fabric.starts_with("net")
    }

    /// True when its objects are brought by network.
    pub fn is_by_net(&self) -> bool {
        self.is_member() && self.fabric.starts_with("net")
    }
}

/// All nodes. Told to clients in the region of their own node, so that they look without asking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Random number of the cluster; 0: this node is in none.
    pub cluster: u64,
    /// How often the set of nodes changed.
    pub epoch: u64,
    /// True while the node that tells hears from most others: only then it makes names.
    pub has_lease: bool,
    /// By number; those that are lost, for as long as they are remembered, too.
    pub nodes: Vec<MemberInfo>,
}

impl Members {
    /// The names of all nodes, for errors.
    pub fn names(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.name.clone()).collect()
    }

    /// The node with this name.
    pub fn find(&self, name: &str) -> Option<&MemberInfo> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Bytes as they are told to clients.
    pub fn encode(&self) -> Vec<u8> {
        // Nothing in it can fail to be written to memory.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// The opposite of [`Self::encode`]; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_survives_and_nonsense_is_none() {
        let node = MemberInfo { name: "a".into(), number: 3, ..MemberInfo::default() };
        let members = Members { cluster: 1, epoch: 2, has_lease: true, nodes: vec![node] };
        assert_eq!(Members::decode(&members.encode()), Some(members));
        assert_eq!(Members::decode(&[0xff; 40]), None);
    }
}
