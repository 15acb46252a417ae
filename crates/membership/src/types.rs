//! Names and numbers of nodes, checked on creation.

use serde::{Deserialize, Serialize};

pub use crate::node_name::NodeName;

/// Most members of a view: a set of them is one word.
pub const MEMBERS_MAX: usize = 64;

/// Longest address: a DNS name has at most 253 bytes. Only unusually long names leave too little
/// room for a port.
pub const ADDRESS_BYTES_MAX: usize = 255;

/// Most bytes of a member's information about its region: 64 of them stay below 100 KiB.
pub const INFO_BYTES_MAX: usize = 1024;

/// Number of a node in a view: 0 to 63. A former member keeps its number while fresh
/// ones remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct NodeNumber(u8);

impl NodeNumber {
    /// A checked number; `None` above 63.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (usize::from(number) < MEMBERS_MAX).then_some(Self(number))
    }

    /// All numbers, from the lowest.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..64).map(Self)
    }

    /// The number itself.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for NodeNumber {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Self::new(number).ok_or_else(|| format!("a node's number is 0 to 63, not {number}"))
    }
}

impl From<NodeNumber> for u8 {
    fn from(number: NodeNumber) -> Self {
        number.0
    }
}

/// A set of node numbers, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, Serialize, Deserialize)]
pub struct NodeSet(pub u64);

impl NodeSet {
    /// Whether the number is in it.
    #[must_use]
    pub fn has(self, number: NodeNumber) -> bool {
        self.0 >> number.0 & 1 == 1
    }

    /// Adds a number.
    pub fn insert(&mut self, number: NodeNumber) {
        self.0 |= 1 << number.0;
    }

    /// The number of members of the set.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The numbers of this set that are not in the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether `votes` are a quorum of this electorate: more than half of it, or exactly half
    /// with its lowest number among them.
    ///
    /// Two quorums of one electorate of n always meet. Each has n/2 or more. With more than n
    /// in all they share one. With exactly n both are halves, so both have the lowest.
    #[must_use]
    pub fn is_quorum(self, votes: Self) -> bool {
        let (votes, half) = (self.and(votes), self.len());
        let lowest = self.0 & self.0.wrapping_neg();
        match (votes.len() * 2).cmp(&half) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => half > 0 && votes.0 & lowest != 0,
            std::cmp::Ordering::Less => false,
        }
    }

    /// Whether `votes` are more than half of this electorate.
    #[must_use]
    pub fn is_majority(self, votes: Self) -> bool {
        self.and(votes).len() * 2 > self.len()
    }
}

impl FromIterator<NodeNumber> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeNumber>>(numbers: I) -> Self {
        let mut set = Self::default();
        numbers.into_iter().for_each(|number| set.insert(number));
        set
    }
}

/// Number of a life of a node. It increases with each start without retained state, and with each
/// return after the node was declared dead. No two lives of a name share a number.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// Position of a view in the chain of its cluster; the first is 1, 0 precedes all.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The next epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Random number of a cluster, drawn by its founder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_checked() {
        assert_eq!(NodeNumber::new(64), None);
        assert_eq!(NodeNumber::all().count(), MEMBERS_MAX);
    }

    /// All pairs of quorums of all electorates of 1 to 7 meet, and of two parts exactly one is a
    /// quorum.
    #[test]
    fn two_quorums_always_meet() {
        for electorate in (1..128).map(NodeSet) {
            let parts = (0..128_u64).filter(|votes| votes & !electorate.0 == 0);
            let quorums: Vec<u64> =
                parts.clone().filter(|votes| electorate.is_quorum(NodeSet(*votes))).collect();
            for (place, one) in quorums.iter().enumerate() {
                assert!(quorums.iter().skip(place).all(|other| one & other != 0));
            }
            for part in parts {
                let rest = electorate.without(NodeSet(part));
                assert!(electorate.is_quorum(NodeSet(part)) != electorate.is_quorum(rest));
            }
        }
    }
}
