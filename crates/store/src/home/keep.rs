//! The moment between a seal and the creator's own hold.
//!
//! A client that builds a table in a pool goes on using its buffers after they were sealed, and
//! holds the object for as long. It learns the object's id only from the answer to the seal, and
//! another client may delete the object before it has published its hold. Until it says that it
//! has, or goes, the home treats the object as held.
//!
//! This is in private memory. A home that follows a killed one keeps for each client what it has
//! sealed last, until that client says that it holds all that it still uses.

use std::collections::{BTreeMap, BTreeSet};

use super::Home;
use super::settle::{Fate, KeepCandidate};
use crate::books::clients::ClientSlot;
use crate::format::ids::{ObjectId, Slot};

/// A client that runs holds what it has sealed within microseconds; one that is paused between
/// seal and hold seals nothing meanwhile. So this is counted back from the last seal of each.
const RECENT_NS: u64 = 10_000_000_000;

/// Which objects are treated as held, and for whom.
#[derive(Debug, Default)]
pub(super) struct Retained {
    /// By slot.
    owners: BTreeMap<u32, ClientSlot>,
    /// Slots that are in there only because the home before was killed.
    in_doubt: BTreeMap<ClientSlot, BTreeSet<u32>>,
}

impl Retained {
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.owners.contains_key(&slot)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, ClientSlot)> + '_ {
        self.owners.iter().map(|(slot, client)| (Slot(*slot), *client))
    }

    fn insert(&mut self, slot: Slot, client: ClientSlot) {
        self.owners.insert(slot.0, client);
    }

    /// The client alone can say so.
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
    /// Treat an object that was sealed just now as held by its creator.
    pub fn keep_for(&mut self, client: ClientSlot, id: ObjectId) {
        self.retained.insert(id.slot(), client);
    }

    /// The creator has published its hold. What it did not keep is not touched.
    pub fn confirm(&mut self, client: ClientSlot, id: ObjectId) {
        self.retained.remove(id.slot().0, client);
        if let Some(in_doubt) = self.retained.in_doubt.get_mut(&client) {
            in_doubt.remove(&id.slot().0);
        }
    }

    /// The client has published holds of all that it sealed under an earlier home and still uses.
    pub fn confirm_earlier(&mut self, client: ClientSlot) {
        for slot in self.retained.in_doubt.remove(&client).unwrap_or_default() {
            self.retained.remove(slot, client);
        }
    }

    /// A client that went keeps nothing.
    pub(super) fn forget_retained(&mut self, client: ClientSlot) {
        self.retained.forget(client);
    }

    /// Treat as held what was sealed last, after a home that was killed or did not name all objects
    /// that it retained.
    pub(super) fn keep_in_doubt(&mut self, recent: Vec<(Slot, ClientSlot)>) {
        for (slot, client) in recent {
            if self.retained.contains(slot.0) {
                continue;
            }
            self.retained.insert(slot, client);
            self.retained.in_doubt.entry(client).or_default().insert(slot.0);
        }
    }
}

/// What each client that is there has sealed last.
pub(super) fn sealed_last(candidates: &[KeepCandidate]) -> Vec<(Slot, ClientSlot)> {
    let in_use = |one: &&KeepCandidate| {
        one.account.client != 0 && matches!(one.fate, Fate::Sealed | Fate::Retiring)
    };
    let mut last = BTreeMap::new();
    for one in candidates.iter().filter(in_use) {
        let last = last.entry(one.creator).or_insert(one.sealed_at_ns);
        *last = one.sealed_at_ns.max(*last);
    }
    let is_recent = |one: &&KeepCandidate| {
        let last = last.get(&one.creator).copied().unwrap_or_default();
        last - one.sealed_at_ns.min(last) <= RECENT_NS
    };
    let recent = candidates.iter().filter(in_use).filter(is_recent);
    recent.map(|one| (one.slot, ClientSlot(one.creator))).collect()
}
