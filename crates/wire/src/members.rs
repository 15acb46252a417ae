//! The membership list of a cluster, as a daemon publishes it to its clients.

use serde::{Deserialize, Serialize};

/// State of a node, as the reporting node sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reach {
    /// A message arrived from it within a lease.
    #[default]
    Live,
    /// No message arrived within a lease; the cluster has not decided yet.
    Suspect,
    /// The cluster continues without it.
    Lost,
    /// It left the cluster in order.
    Left,
    /// It is configured to join, but this node never knew it as a member.
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

/// As the name of a node for new objects: the nearest one with room. No node may have this name.
pub const NEAREST: &str = "nearest";

/// As the name of a node for new objects: the one with the most free memory. No node may have this
/// name.
pub const MOST_FREE: &str = "most-free";

/// Names that choose a node by a rule, so that no node can have them.
pub const RESERVED_NODE_NAMES: [&str; 2] = [NEAREST, MOST_FREE];

/// The cost and the room of a node, as the reporting node last measured them. `None`: not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCost {
    /// Free bytes of its heap.
    pub free: Option<u64>,
    /// Time between a small question of the reporting node to its daemon and the answer, in
    /// microseconds: an exponentially weighted mean.
    pub latency_us: Option<u64>,
    /// Bandwidth of the objects that the reporting node fetched from it over the network: an
    /// exponentially weighted mean.
    pub bytes_per_second: Option<u64>,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its number in the cluster.
    pub number: u8,
    /// Its name.
    pub name: String,
    /// Address for other nodes.
    pub address: String,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its state.
    pub reach: Reach,
    /// Whether this is the reporting node.
    pub is_own: bool,
    /// Uid of its region; 0: unknown.
    pub region_uid: u64,
    /// Access to its memory: `shm` or `device` if the memory is mapped, `net` or `net+TLS` if its
    /// objects are fetched over the network, with `+rdma` behind it if a network card read the last
    /// large one; empty: none.
    pub fabric: String,
    /// `coherent` or `node-local`; empty if the memory is not reachable.
    pub coherence: String,
    /// Why its memory is not mapped; empty if it is.
    pub why_not: String,
    /// Heap bytes that it provides.
    pub capacity: u64,
    /// Its cost and room. Empty in the list that a node publishes in its region, which changes with
    /// the membership only.
    pub cost: NodeCost,
    /// True while its objects move to other nodes. Sent in [`Members::draining`].
    #[serde(skip)]
    pub is_draining: bool,
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

    /// True when its objects are fetched over the network.
    pub fn is_by_net(&self) -> bool {
        self.is_member() && self.fabric.starts_with("net")
    }
}

/// All nodes. A node publishes the list in its region, so its clients read it without a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// Random number of the cluster; 0: this node is in none.
    pub cluster: u64,
    /// Number of changes of the membership.
    pub epoch: u64,
    /// True while the reporting node hears from most other nodes: only then does it create names.
    pub has_lease: bool,
    /// Sorted by number. Lost nodes remain in the list for as long as the cluster remembers them.
    pub nodes: Vec<MemberInfo>,
    /// Numbers of the draining members. Last, since clients of earlier versions ignore what follows
    /// the nodes.
    pub draining: Vec<u8>,
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

    /// Whether objects may move between nodes, so that a search may miss one that is nowhere absent.
    pub fn is_any_draining(&self) -> bool {
        !self.draining.is_empty()
    }

    /// Marks the draining members by [`Self::draining`].
    #[must_use]
    pub fn marked(mut self) -> Self {
        for node in &mut self.nodes {
            node.is_draining = node.is_member() && self.draining.contains(&node.number);
        }
        self
    }

    /// Encodes the list as published to clients.
    pub fn encode(&self) -> Vec<u8> {
        // Serialization to memory cannot fail here.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Decodes the bytes of [`Self::encode`]; `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let members: Option<Self> = postcard::from_bytes(bytes).ok();
        members.or_else(|| Self::decode_earlier(bytes)).map(Self::marked)
    }

    /// Decodes the list of a daemon of an earlier version, whose nodes do not drain.
    fn decode_earlier(bytes: &[u8]) -> Option<Self> {
        let (cluster, epoch, has_lease, nodes) = postcard::from_bytes(bytes).ok()?;
        Some(Self { cluster, epoch, has_lease, nodes, draining: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_survives_and_nonsense_is_none() {
        let node = MemberInfo { name: "a".into(), number: 3, ..MemberInfo::default() };
        let nodes = vec![node];
        let members =
            Members { cluster: 1, epoch: 2, has_lease: true, nodes, ..Members::default() };
        assert_eq!(Members::decode(&members.encode()), Some(members));
        assert_eq!(Members::decode(&[0xff; 40]), None);
    }

    #[test]
    fn draining_members_are_marked_and_lists_of_earlier_versions_are_read() {
        let node =
            |name: &str, number| MemberInfo { name: name.into(), number, ..MemberInfo::default() };
        let lost = MemberInfo { reach: Reach::Lost, ..node("c", 3) };
        let nodes = vec![node("a", 1), node("b", 2), lost];
        let earlier =
            postcard::to_allocvec(&(7_u64, 8_u64, true, &nodes)).expect("it is encoded in memory");
        let members =
            Members { cluster: 7, epoch: 8, has_lease: true, nodes, draining: vec![2, 3] };
        let bytes = members.encode();
        let (_, _, _, by_them): (u64, u64, bool, Vec<MemberInfo>) =
            postcard::from_bytes(&bytes).expect("they ignore what follows");
        assert_eq!(by_them, members.nodes);
        let read = Members::decode(&bytes).expect("it is a list");
        let draining = read.nodes.iter().map(|one| one.is_draining).collect::<Vec<_>>();
        assert_eq!(draining, [false, true, false]);
        assert!(read.is_any_draining());
        let of_them = Members::decode(&earlier).expect("it is a list of an earlier version");
        assert_eq!((of_them.nodes, of_them.draining), (members.nodes, Vec::new()));
    }
}
