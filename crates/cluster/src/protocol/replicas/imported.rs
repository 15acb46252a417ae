//! The objects that clients of other nodes put here last.

use std::collections::{BTreeMap, VecDeque};

use farrow_store::ObjectId;

/// Number of objects. A client asks again within its timeout, if at all.
const IMPORTED_MAX: usize = 1024;

/// By the id of the original that their client sealed in the memory of its own node. The client asks
/// again if the answer was lost with its connection, or came after it stopped waiting.
#[derive(Debug, Default)]
pub(in crate::protocol) struct ImportedObjects {
    ids: BTreeMap<ObjectId, ObjectId>,
    /// Oldest first, with some that were removed.
    order: VecDeque<ObjectId>,
}

impl ImportedObjects {
    pub(super) fn insert(&mut self, origin: ObjectId, id: ObjectId) {
        self.ids.insert(origin, id);
        self.order.push_back(origin);
        if self.order.len() > IMPORTED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn get(&self, origin: ObjectId) -> Option<ObjectId> {
        self.ids.get(&origin).copied()
    }

    pub(in crate::protocol) fn remove(&mut self, origin: ObjectId) {
        self.ids.remove(&origin);
    }

    /// Forgets the objects with these ids here.
    pub(in crate::protocol) fn forget(&mut self, is_it: impl Fn(&ObjectId) -> bool) {
        self.ids.retain(|_, id| !is_it(id));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut imported = ImportedObjects::default();
        let of = |number: usize| ObjectId { hi: 1, lo: number as u64 };
        for number in 0..IMPORTED_MAX + 2 {
            imported.insert(of(number), of(number + 1));
        }
        assert_eq!(imported.get(of(1)), None);
        assert_eq!(imported.get(of(2)), Some(of(3)));
        imported.remove(of(2));
        assert_eq!(imported.get(of(2)), None);
        assert_eq!(imported.order.len(), IMPORTED_MAX);
    }
}
