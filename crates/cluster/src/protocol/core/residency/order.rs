//! Orders of eviction that leave out some objects.

use std::collections::BTreeSet;
use std::fmt::Debug;

use farrow_memory::Length;
use farrow_store::{EvictionCandidate, EvictionPolicy, Lru, ObjectId};

/// What the residency of objects needs to know of their replicas in the memory of other nodes.
pub(in crate::protocol) trait RemoteReplicas: Debug + Send + Sync {
    /// Whether another node may have a replica of an object of this one.
    fn is_elsewhere(&self, id: ObjectId) -> bool;

    /// Whether other nodes can have replicas of objects of this one.
    fn are_possible(&self) -> bool;

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

impl WithoutReplicated<'_> {
    /// Whether another node may have a replica, by either id of the object.
    fn is_elsewhere(&self, id: ObjectId, former: Option<ObjectId>) -> bool {
        [Some(id), former].into_iter().flatten().any(|id| self.elsewhere.is_elsewhere(id))
    }
}

impl EvictionPolicy for WithoutReplicated<'_> {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn is_automatic(&self) -> bool {
        self.policy.is_automatic()
    }

    fn rank(&self, candidate: &EvictionCandidate) -> Option<u64> {
        let is_elsewhere = self.is_elsewhere(candidate.id, candidate.former);
        if is_elsewhere { None } else { self.policy.rank(candidate) }
    }

    fn order(&self) -> Option<&'static str> {
        (self.policy.order() == Some(Lru::ORDER)).then_some("last use, without replicas elsewhere")
    }

    fn may_leave(&self, id: ObjectId, former: Option<ObjectId>) -> bool {
        !self.is_elsewhere(id, former) && self.policy.may_leave(id, former)
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
        let is_elsewhere = self.0.is_elsewhere(candidate.id, candidate.former);
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

#[cfg(test)]
mod tests {
    use farrow_store::NamespaceId;

    use super::*;

    #[derive(Debug)]
    struct ReplicaOf(ObjectId);

    impl RemoteReplicas for ReplicaOf {
        fn is_elsewhere(&self, id: ObjectId) -> bool {
            id == self.0
        }

        fn are_possible(&self) -> bool {
            true
        }

        fn is_recalling(&self) -> bool {
            false
        }

        fn want_room(&mut self, _: Length) {}
    }

    /// Regression test: another node had a replica by the id that the object's creator had given it.
    /// The home, which had taken it over, looked for replicas by the new id, and evicted it.
    #[test]
    fn an_object_is_retained_for_a_replica_by_its_former_id() {
        let [id, former, other] = [1, 2, 3].map(|lo| ObjectId { hi: 7, lo });
        let candidate = |id, former| EvictionCandidate {
            id,
            former,
            last_use_ns: 1,
            bytes: Length(128),
            namespace: NamespaceId::DEFAULT,
            is_replica: false,
        };
        let replica = ReplicaOf(former);
        let without = WithoutReplicated { policy: &Lru, elsewhere: &replica };
        let ranks = |candidate: &EvictionCandidate| {
            let may_leave = without.may_leave(candidate.id, candidate.former);
            let [retained, recalled] = [&without as &dyn EvictionPolicy, &Replicated(without)]
                .map(|policy| policy.rank(candidate).is_some());
            (retained, recalled, may_leave)
        };
        assert_eq!(ranks(&candidate(id, Some(former))), (false, true, false));
        assert_eq!(ranks(&candidate(former, None)), (false, true, false));
        assert_eq!(ranks(&candidate(id, Some(other))), (true, false, true));
    }
}
