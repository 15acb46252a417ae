//! Names and numbers of nodes, checked where they are made.

use serde::{Deserialize, Serialize};

pub use crate::node_name::NodeName;

/// Most members of a view: a set of them is one word.
pub const MEMBERS_MAX: usize = 64;

/// Longest address: a name of DNS is at most 253 bytes, which leaves too few for a port only in
/// names that nobody has.
pub const ADDRESS_BYTES_MAX: usize = 255;

/// Most bytes that a member says about its region: 64 of them stay below 100 KiB.
pub const INFO_BYTES_MAX: usize = 1024;

/// Number that a view gives to a node: 0 to 63, its own for as long as numbers last.
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

    /// Puts a number in.
    pub fn insert(&mut self, number: NodeNumber) {
        self.0 |= 1 << number.0;
    }

    /// How many are in it.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether none is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of this set that are not in the other.
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

/// Which life of a node: grows with each start that remembers nothing, and with each return
/// after having been declared dead. No two lives of a name may share one.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// Place of a view in the chain of its cluster; the first is 1, 0 is before all.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The one after it.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Random number of a cluster, drawn by who founds it.
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

    /// All pairs of quorums of all electorates of 1 to 7 meet, and of two parts one goes on.
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
