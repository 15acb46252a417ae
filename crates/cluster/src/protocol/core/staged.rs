//! Objects that go with their client: it sealed them only to have them brought to other nodes.

use std::collections::{BTreeMap, BTreeSet};

use farrow_store::{ClientSlot, ObjectId};

#[derive(Debug, Default)]
pub(in crate::protocol) struct StagedObjects {
    of_client: BTreeMap<ClientSlot, BTreeSet<ObjectId>>,
    client_of: BTreeMap<ObjectId, ClientSlot>,
}

impl StagedObjects {
    pub(in crate::protocol) fn insert(&mut self, client: ClientSlot, id: ObjectId) {
        self.forget(id);
        self.of_client.entry(client).or_default().insert(id);
        self.client_of.insert(id, client);
    }

    /// Removes the objects of a client that has ended.
    pub(in crate::protocol) fn take(&mut self, client: ClientSlot) -> BTreeSet<ObjectId> {
        let staged = self.of_client.remove(&client).unwrap_or_default();
        for id in &staged {
            self.client_of.remove(id);
        }
        staged
    }

    /// Forgets an object that was deleted.
    pub(in crate::protocol) fn forget(&mut self, id: ObjectId) {
        let Some(client) = self.client_of.remove(&id) else {
            return;
        };
        if let Some(staged) = self.of_client.get_mut(&client) {
            staged.remove(&id);
            if staged.is_empty() {
                self.of_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_goes_with_the_client_that_staged_it_unless_it_was_deleted() {
        let (one, other) = (ClientSlot(1), ClientSlot(2));
        let [a, b, c] = [1, 2, 3].map(|lo| ObjectId { hi: 7, lo });
        let mut staged = StagedObjects::default();
        staged.insert(one, a);
        staged.insert(one, b);
        staged.insert(other, c);
        staged.forget(a);
        staged.forget(a);
        assert_eq!(staged.take(one), BTreeSet::from([b]));
        assert!(staged.take(one).is_empty());
        // Its client may stage it again under the number of an object that is gone.
        staged.insert(one, c);
        assert_eq!((staged.take(other).len(), staged.take(one).len()), (0, 1));
        assert!(staged.of_client.is_empty() && staged.client_of.is_empty());
    }
}
