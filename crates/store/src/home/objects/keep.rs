//! Retention of objects between a seal and the creator's own hold.
//!
//! A client that builds a table in a pool continues to use the buffers after the seal, and holds
//! the object meanwhile. It learns the object's id from the response to the seal, and another
//! client may delete the object before the hold is published. Until the creator confirms its hold
//! or disconnects, the home treats the object as held.
//!
//! This state is in private memory. Each client publishes in its hold block how many such seals it has
//! open. After a kill, the next home retains the objects of a client with open seals, until the
//! client confirms that it holds all objects it still uses.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::StoreError;
use crate::format::ids::{ObjectId, Slot};
use crate::home::Home;
use crate::home::adopt::settle::{Fate, KeepCandidate};
use crate::tables::clients::ClientSlot;

/// The objects treated as held, and the client of each.
#[derive(Debug, Default)]
pub(in crate::home) struct Retained {
    /// By slot.
    owners: BTreeMap<u32, ClientSlot>,
    /// Slots that are retained only because the former home was killed.
    in_doubt: BTreeMap<ClientSlot, BTreeSet<u32>>,
}

impl Retained {
    pub(in crate::home) fn contains(&self, slot: u32) -> bool {
        self.owners.contains_key(&slot)
    }

    pub(in crate::home) fn iter(&self) -> impl Iterator<Item = (Slot, ClientSlot)> + '_ {
        self.owners.iter().map(|(slot, client)| (Slot(*slot), *client))
    }

    fn insert(&mut self, slot: Slot, client: ClientSlot) {
        self.owners.insert(slot.0, client);
    }

    /// Only the client that the object is retained for can release it.
    fn remove(&mut self, slot: u32, client: ClientSlot) {
        if self.owners.get(&slot) == Some(&client) {
            self.owners.remove(&slot);
        }
    }

    fn forget(&mut self, client: ClientSlot) {
        self.owners.retain(|_, owner| *owner != client);
        self.in_doubt.remove(&client);
    }
}

impl Home {
    /// Treat a newly sealed object as held by its creator.
    pub fn keep_for(&mut self, client: ClientSlot, id: ObjectId) {
        self.retained.insert(id.slot(), client);
    }

    /// Release an object whose creator has published its hold. Does nothing if it is not retained.
    pub fn confirm(&mut self, client: ClientSlot, id: ObjectId) {
        self.retained.remove(id.slot().0, client);
        if let Some(in_doubt) = self.retained.in_doubt.get_mut(&client) {
            in_doubt.remove(&id.slot().0);
        }
    }

    /// Release the objects retained after a kill: the client now holds all of them that it still
    /// uses.
    pub fn confirm_earlier(&mut self, client: ClientSlot) {
        for slot in self.retained.in_doubt.remove(&client).unwrap_or_default() {
            self.retained.remove(slot, client);
        }
    }

    /// The clients for which objects are retained only because the former home was killed.
    pub fn clients_in_doubt(&self) -> impl Iterator<Item = ClientSlot> + '_ {
        self.retained.in_doubt.keys().copied()
    }

    /// A disconnected client retains nothing.
    pub(in crate::home) fn forget_retained(&mut self, client: ClientSlot) {
        self.retained.forget(client);
    }

    /// Retain objects until their creators have come back to this home and confirmed.
    pub(in crate::home) fn keep_in_doubt(&mut self, doubtful: Vec<(Slot, ClientSlot)>) {
        for (slot, client) in doubtful {
            if self.retained.contains(slot.0) {
                continue;
            }
            self.retained.insert(slot, client);
            self.retained.in_doubt.entry(client).or_default().insert(slot.0);
        }
    }

    /// Of objects with their creators, those whose creators have open seals: a creator may use
    /// their memory without a hold.
    pub(in crate::home) fn without_sure_holds(
        &self,
        sealed: Vec<(Slot, ClientSlot)>,
    ) -> Result<Vec<(Slot, ClientSlot)>, StoreError> {
        let creators: BTreeSet<ClientSlot> = sealed.iter().map(|(_, client)| *client).collect();
        let mut sure = BTreeSet::new();
        for client in creators {
            if self.holds.has_no_open_seal(client.0)? {
                sure.insert(client);
            }
        }
        Ok(sealed.into_iter().filter(|(_, client)| !sure.contains(client)).collect())
    }
}

/// The objects whose memory their connected creators may use in place.
pub(in crate::home) fn sealed_in_place(candidates: &[KeepCandidate]) -> Vec<(Slot, ClientSlot)> {
    let is_in_use = |one: &&KeepCandidate| {
        one.account.client != 0
            && one.is_in_place
            && matches!(one.fate, Fate::Sealed | Fate::Retiring)
    };
    let in_use = candidates.iter().filter(is_in_use);
    in_use.map(|one| (one.slot, ClientSlot(one.creator))).collect()
}
