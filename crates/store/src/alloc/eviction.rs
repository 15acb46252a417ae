//! The choice of objects to evict when memory is short.

use std::fmt;

use farrow_memory::Length;

use crate::format::ids::{NamespaceId, ObjectId};

/// An object that may be evicted: sealed, not held, not pinned, not retained for its creator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictionCandidate {
    /// The object.
    pub id: ObjectId,
    /// Its id before the home took it over from its creator.
    pub former: Option<ObjectId>,
    /// When it was last used: the later of its seal and its last get, nanoseconds since 1970.
    pub last_use_ns: u64,
    /// Bytes of its blocks. A block shared with other objects becomes free with the last of them.
    pub bytes: Length,
    /// The namespace it is in.
    pub namespace: NamespaceId,
    /// Whether it is a copy of an object of another region.
    pub is_replica: bool,
}

/// How a home chooses objects to evict.
pub trait EvictionPolicy: fmt::Debug + Send + Sync {
    /// Its name in options and statistics.
    fn name(&self) -> &'static str;

    /// Whether the home evicts by itself when a client asks for memory that is not free.
    fn is_automatic(&self) -> bool;

    /// The rank of a candidate: the least is evicted first, and of equals the lower id. A candidate
    /// without a rank stays.
    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64>;

    /// A name of this order, under which the home may keep a part of it, so that not every
    /// eviction scans all objects. Only for a policy whose ranks are times of last use; one name
    /// stands for the same candidates. `None`: the home scans them for each eviction.
    fn order(&self) -> Option<&'static str> {
        None
    }

    /// Whether only replicas have a rank: then the home looks at no other object.
    fn is_of_replicas(&self) -> bool {
        false
    }

    /// Whether a victim may leave memory. Asked when no reader can hold it any more: a reader may
    /// have held and released it since its rank was asked for. `former` is its id before the home
    /// took it over from its creator.
    fn may_leave(&self, id: ObjectId, former: Option<ObjectId>) -> bool {
        let _ = (id, former);
        true
    }
}

/// Evicts the least recently used object first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lru;

impl EvictionPolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        Some(candidate.last_use_ns)
    }

    fn order(&self) -> Option<&'static str> {
        Some(Self::ORDER)
    }
}

impl Lru {
    /// Its order: all candidates, the least recently used one first.
    pub const ORDER: &'static str = "last use";
}

/// No automatic eviction: a request for more memory than is free is an error. Eviction by hand uses
/// the order of [`Lru`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByHand;

impl EvictionPolicy for ByHand {
    fn name(&self) -> &'static str {
        "none"
    }

    fn is_automatic(&self) -> bool {
        false
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        Lru.rank(candidate)
    }

    fn order(&self) -> Option<&'static str> {
        Lru.order()
    }
}

/// Another policy's order, limited to one namespace.
#[derive(Clone, Copy, Debug)]
pub struct Within<'a> {
    /// The policy.
    pub policy: &'a dyn EvictionPolicy,
    /// The namespace.
    pub namespace: NamespaceId,
}

impl EvictionPolicy for Within<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn is_automatic(&self) -> bool {
        self.policy.is_automatic()
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        if candidate.namespace == self.namespace { self.policy.rank(candidate) } else { None }
    }

    fn may_leave(&self, id: ObjectId, former: Option<ObjectId>) -> bool {
        self.policy.may_leave(id, former)
    }
}

/// The memory that must become free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// This many bytes, at any addresses.
    Bytes(Length),
    /// One contiguous range of whole pages of this length; memory that is already free counts.
    Run(Length),
}

/// Result of [`crate::Home::evict_for`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Objects that were evicted.
    pub objects: u32,
    /// Bytes that became free with them.
    pub bytes: Length,
}
