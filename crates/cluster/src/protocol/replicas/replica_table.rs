//! The replicas that were made, with the sum of their bytes.

use std::collections::BTreeMap;

use farrow_store::ObjectId;
use farrow_wire::PartSpec;

/// An object of another node, or a part of it.
pub(in crate::protocol) type Original = (ObjectId, Option<PartSpec>);

#[derive(Debug)]
pub(in crate::protocol) struct Replica {
    pub(in crate::protocol) local: ObjectId,
    pub(in crate::protocol) node: String,
    pub(in crate::protocol) bytes: u64,
}

/// Replicas of objects and of parts of objects, by their originals and by their ids here.
#[derive(Debug, Default)]
pub(in crate::protocol) struct ReplicaTable {
    by_original: BTreeMap<Original, Replica>,
    by_local: BTreeMap<ObjectId, Original>,
    bytes: u64,
}

impl ReplicaTable {
    pub(in crate::protocol) fn len(&self) -> usize {
        self.by_original.len()
    }

    /// Bytes of all replicas.
    pub(in crate::protocol) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(in crate::protocol) fn get(&self, original: &Original) -> Option<&Replica> {
        self.by_original.get(original)
    }

    /// The replica with this id here, and its original.
    pub(in crate::protocol) fn get_local(&self, local: ObjectId) -> Option<(&Original, &Replica)> {
        self.by_original.get_key_value(self.by_local.get(&local)?)
    }

    pub(in crate::protocol) fn iter(&self) -> impl Iterator<Item = (&Original, &Replica)> {
        self.by_original.iter()
    }

    pub(in crate::protocol) fn insert(&mut self, original: Original, replica: Replica) {
        self.remove(&original);
        self.bytes += replica.bytes;
        self.by_local.insert(replica.local, original.clone());
        self.by_original.insert(original, replica);
    }

    pub(in crate::protocol) fn remove(&mut self, original: &Original) -> Option<Replica> {
        let replica = self.by_original.remove(original)?;
        self.by_local.remove(&replica.local);
        self.bytes = self.bytes.saturating_sub(replica.bytes);
        Some(replica)
    }

    /// Removes the replica with this id here, and returns its original.
    pub(in crate::protocol) fn remove_local(&mut self, local: ObjectId) -> Option<Original> {
        let original = self.by_local.get(&local)?.clone();
        self.remove(&original);
        Some(original)
    }

    /// Removes the replicas of an object, and of parts of it.
    pub(in crate::protocol) fn remove_all_of(&mut self, origin: ObjectId) -> Vec<Replica> {
        let of_it = self.by_original.range((origin, None)..);
        let of_it = of_it.take_while(|((of, _), _)| *of == origin);
        let originals: Vec<Original> = of_it.map(|(original, _)| original.clone()).collect();
        originals.iter().filter_map(|original| self.remove(original)).collect()
    }
}
