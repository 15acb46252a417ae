//! Which objects go when memory is short.

use std::fmt;

use farrow_memory::Length;

use crate::format::ids::{NamespaceId, ObjectId};

/// An object that may go: sealed, not held, not pinned, not retained for its creator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictionCandidate {
    /// The object.
    pub id: ObjectId,
    /// When it was last used: the later of its seal and its last get, nanoseconds since 1970.
    pub last_use_ns: u64,
    /// Bytes of its blocks. What it shares with another object comes back with the last of them.
    pub bytes: Length,
    /// The namespace it is in.
    pub namespace: NamespaceId,
    /// Whether it is a copy of an object of another region.
    pub is_replica: bool,
}

/// How a home chooses what to evict.
pub trait EvictionPolicy: fmt::Debug + Send + Sync {
    /// What it is called in options and statistics.
    fn name(&self) -> &'static str;

    /// Whether the home evicts by itself when a client asks for memory that is not free.
    fn is_automatic(&self) -> bool;

    /// A number by which candidates go: the least first, and of equals the lower id. A candidate
    /// without a number stays.
    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64>;
}

/// What was not used for the longest time goes first.
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
}

/// Nothing goes by itself: memory that is full is an error for whoever asks for more. Who evicts
/// by hand gets the order of [`Lru`].
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
}

/// Another policy's order, of the objects in one namespace.
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
}

/// What is to become free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// So many bytes, wherever they lie.
    Bytes(Length),
    /// One range of whole pages that is so long, what is free already included.
    Run(Length),
}

/// What [`crate::Home::evict_for`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evicted {
    /// Objects that went.
    pub objects: u32,
    /// Bytes that became free with them.
    pub bytes: Length,
}
