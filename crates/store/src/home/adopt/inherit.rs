//! Private state of a home, handed over to the next one on an orderly shutdown.
//!
//! After a kill it is lost: reserved names are free again, and more objects than necessary are
//! treated as held by their creators (see [`crate::home::objects`]).

use std::collections::BTreeSet;

use crate::error::StoreError;
use crate::format::entry::EntryState;
use crate::format::ids::{ObjectId, Target};
use crate::home::Home;
use crate::tables::clients::ClientSlot;
use crate::tables::cluster;

/// State of a home that is not in its region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unfinished {
    /// Names of objects in creation, with the clients that reserved them.
    pub reserved: Vec<(ClientSlot, String)>,
    /// Sealed objects whose creators have not held them yet.
    pub retained: Vec<(ClientSlot, ObjectId)>,
    /// Whether `retained` may lack objects, because there are more than its limit.
    pub is_cut: bool,
}

impl Home {
    /// Store bytes beyond the end of this home. The next home finds those of the last finished
    /// call, whenever this one was killed.
    ///
    /// # Errors
    /// [`StoreError::Inconsistent`] for more than [`CLUSTER_BYTES_MAX`](crate::CLUSTER_BYTES_MAX).
    pub fn keep_for_cluster(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        cluster::keep(&self.control, self.layout(), bytes)
    }

    /// The bytes that [`Home::keep_for_cluster`] stored last, if any.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn retained_for_cluster(&self) -> Result<Option<Vec<u8>>, StoreError> {
        cluster::retained(&self.control, self.layout())
    }

    /// Publish bytes to clients, which read them with [`Reader::published_members`](crate::Reader::published_members).
    ///
    /// # Errors
    /// As [`Home::keep_for_cluster`].
    pub fn publish_members(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        cluster::publish(&self.control, self.layout(), bytes)
    }

    /// The state to hand over to the next home, at most `max` names and as many objects.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn unfinished(&self, max: usize) -> Result<Unfinished, StoreError> {
        let reserved = self.reserved.iter().take(max);
        let mut retained = Vec::new();
        let mut all = self.retained.iter();
        for (slot, client) in all.by_ref().take(max) {
            let generation = self.directory.sequence(slot)?.generation();
            retained.push((client, ObjectId::new(self.header.uid, generation, slot)));
        }
        Ok(Unfinished {
            reserved: reserved.map(|(name, client)| (client, name.to_owned())).collect(),
            retained,
            is_cut: all.next().is_some(),
        })
    }

    /// Take over the state of the former home. Items that no longer fit the region are skipped,
    /// because their client left or their name is taken.
    pub(super) fn inherit(&mut self, unfinished: &Unfinished) {
        let mut left_out = 0_usize;
        for (client, name) in &unfinished.reserved {
            left_out += usize::from(self.reserve(*client, name).is_err());
        }
        for (client, id) in &unfinished.retained {
            let is_there = self.clients.get(*client).is_ok() && self.is_live(*id);
            if is_there {
                // Its client comes back to this home, and then confirms all that it has sealed.
                self.keep_in_doubt(vec![(id.slot(), *client)]);
            }
            left_out += usize::from(!is_there);
        }
        if left_out > 0 {
            tracing::warn!(left_out, "the state of the former home does not fit");
        }
    }

    /// Reserve names for a client that has them, or had them under the former home. Returns which
    /// of them it has now. If `are_all` is set, its other names are released.
    pub fn renew(&mut self, client: ClientSlot, names: &[String], are_all: bool) -> Vec<bool> {
        if are_all {
            let needed: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            self.reserved.retain_of(client, |name| needed.contains(name));
        }
        let has = |home: &mut Self, name: &String| {
            home.reserved.get(name) == Some(client) || home.reserve(client, name).is_ok()
        };
        names.iter().map(|name| has(self, name)).collect()
    }

    /// Whether the object is sealed or retiring.
    fn is_live(&self, id: ObjectId) -> bool {
        self.find(Target::Id(id)).is_ok()
            || self.retiring.contains(id.slot().0)
                && self.directory.sequence(id.slot()).is_ok_and(|sequence| {
                    sequence.generation() == id.generation()
                        && sequence.state() == EntryState::Retiring
                })
    }
}
