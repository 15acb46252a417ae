//! Orders of eviction that leave out some objects.

use std::collections::BTreeSet;
use std::fmt::Debug;

use farrow_memory::Length;
use farrow_store::{EvictionCandidate, EvictionPolicy, ObjectId};

/// What the residency of objects needs to know of their replicas in the memory of other nodes.
pub(in crate::protocol) trait RemoteReplicas: Debug + Send + Sync {
    /// Whether another node may have a replica of an object of this one.
    fn is_elsewhere(&self, id: ObjectId) -> bool;

    /// Whether memory becomes free when other nodes have dropped replicas.
    fn is_recalling(&self) -> bool;

    /// Notes that there is no room for `bytes`: replicas may be recalled.
    fn want_room(&mut self, bytes: Length);
}

/// Another policy's order, without objects of which other nodes have replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct WithoutReplicated<'a> {
    pub(super) policy: &'a dyn EvictionPolicy,
    pub(super) elsewhere: &'a dyn RemoteReplicas,
}

impl EvictionPolicy for WithoutReplicated<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn is_automatic(&self) -> bool {
        self.policy.is_automatic()
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        let is_elsewhere = self.elsewhere.is_elsewhere(candidate.id);
        if is_elsewhere { None } else { self.policy.rank(candidate) }
    }
}

/// Another policy's order, of objects of which other nodes have replicas.
#[derive(Debug)]
pub(super) struct Replicated<'a>(pub(super) WithoutReplicated<'a>);

impl EvictionPolicy for Replicated<'_> {
    fn name(&self) -> &'static str {
        self.0.policy.name()
    }

    fn is_automatic(&self) -> bool {
        true
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        let is_elsewhere = self.0.elsewhere.is_elsewhere(candidate.id);
        if is_elsewhere { self.0.policy.rank(candidate) } else { None }
    }
}

/// Another policy's order, of the objects that already have a file.
#[derive(Debug)]
pub(super) struct CopiedOrder<'a> {
    pub(super) policy: &'a dyn EvictionPolicy,
    pub(super) ids: &'a BTreeSet<ObjectId>,
}

impl EvictionPolicy for CopiedOrder<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn is_automatic(&self) -> bool {
        self.policy.is_automatic()
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        if self.ids.contains(&candidate.id) { self.policy.rank(candidate) } else { None }
    }
}
