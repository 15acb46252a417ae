//! The objects that clients of other nodes put here last.

use std::collections::{BTreeMap, VecDeque};

use farrow_store::ObjectId;

use crate::protocol::PeerIdentity;

/// Number of objects. A client asks again within its timeout, if at all.
const IMPORTED_MAX: usize = 1024;

/// Number of objects of one process.
const IMPORTED_PER_PROCESS_MAX: usize = 128;

/// By the id of the original that their client sealed in the memory of its own node. The client asks
/// again if the answer was lost with its connection, or came after it stopped waiting.
#[derive(Debug, Default)]
pub(in crate::protocol) struct ImportedObjects {
    ids: BTreeMap<ObjectId, ObjectId>,
    /// Each with the process that put it, oldest first.
    order: VecDeque<(ObjectId, PeerIdentity)>,
}

impl ImportedObjects {
    pub(super) fn insert(&mut self, origin: ObjectId, by: PeerIdentity, id: ObjectId) {
        self.remove(origin);
        let is_its = |one: &&(ObjectId, PeerIdentity)| one.1 == by;
        let oldest = if self.order.iter().filter(is_its).count() >= IMPORTED_PER_PROCESS_MAX {
            self.order.iter().find(is_its)
        } else {
            self.order.front().filter(|_| self.order.len() >= IMPORTED_MAX)
        };
        if let Some((oldest, _)) = oldest.copied() {
            self.remove(oldest);
        }
        self.ids.insert(origin, id);
        self.order.push_back((origin, by));
    }

    /// The object here, if this process put it.
    pub(super) fn get(&self, origin: ObjectId, by: PeerIdentity) -> Option<ObjectId> {
        let id = self.ids.get(&origin).copied()?;
        self.order.contains(&(origin, by)).then_some(id)
    }

    pub(in crate::protocol) fn remove(&mut self, origin: ObjectId) {
        if self.ids.remove(&origin).is_some() {
            self.order.retain(|(one, _)| *one != origin);
        }
    }

    /// Forgets objects with these ids here.
    pub(in crate::protocol) fn forget(&mut self, is_it: impl Fn(&ObjectId) -> bool) {
        self.ids.retain(|_, id| !is_it(id));
        self.order.retain(|(one, _)| self.ids.contains_key(one));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty() && self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> PeerIdentity {
        PeerIdentity { pid, start_time: 1, uid: 1000, remote_client: None }
    }

    fn object(number: usize) -> ObjectId {
        ObjectId { hi: 1, lo: number as u64 }
    }

    #[test]
    fn the_oldest_are_forgotten_first_those_of_a_process_with_many() {
        let mut imported = ImportedObjects::default();
        let few = process(1);
        imported.insert(object(0), few, object(1));
        for number in 1..=IMPORTED_MAX {
            imported.insert(object(number), process(2), object(number + 1));
        }
        assert_eq!(imported.get(object(0), few), Some(object(1)));
        assert_eq!(imported.order.len(), 1 + IMPORTED_PER_PROCESS_MAX);
        for number in 2_000..2_000 + IMPORTED_MAX {
            imported.insert(object(number), process(number as u32), object(number + 1));
        }
        assert_eq!((imported.order.len(), imported.ids.len()), (IMPORTED_MAX, IMPORTED_MAX));
        assert_eq!(imported.get(object(0), few), None);
    }

    #[test]
    fn only_the_process_that_put_an_object_finds_it() {
        let mut imported = ImportedObjects::default();
        imported.insert(object(0), process(1), object(1));
        assert_eq!(imported.get(object(0), process(2)), None);
        assert_eq!(imported.get(object(0), process(1)), Some(object(1)));
        imported.forget(|id| *id == object(1));
        assert!(imported.is_empty());
    }
}
