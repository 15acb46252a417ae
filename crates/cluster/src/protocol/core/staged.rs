//! Objects that go with their client: it sealed them only to have them brought to other nodes.

use std::collections::{BTreeMap, BTreeSet};

use farrow_store::{ClientSlot, ObjectId};

#[derive(Debug, Default)]
pub(in crate::protocol) struct StagedObjects(BTreeMap<ClientSlot, BTreeSet<ObjectId>>);

impl StagedObjects {
    pub(in crate::protocol) fn insert(&mut self, client: ClientSlot, id: ObjectId) {
        self.0.entry(client).or_default().insert(id);
    }

    /// Removes the objects of a client that has ended.
    pub(in crate::protocol) fn take(&mut self, client: ClientSlot) -> BTreeSet<ObjectId> {
        self.0.remove(&client).unwrap_or_default()
    }

    /// Forgets an object that was deleted.
    pub(in crate::protocol) fn forget(&mut self, id: ObjectId) {
        self.0.retain(|_, staged| {
            staged.remove(&id);
            !staged.is_empty()
        });
    }
}
