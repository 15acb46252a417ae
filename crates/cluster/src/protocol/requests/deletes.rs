//! Deletes of objects of this node.

use farrow_store::{ClientSlot, Deleted, StoreError, Target};
use farrow_wire::{WireError, WireTarget};

use crate::protocol::convert::{store_error, store_target};
use crate::protocol::state::NodeState;

impl NodeState {
    /// Deletes what a client that has ended sealed only to have it brought to other nodes.
    pub(in crate::protocol) fn drop_staged(&mut self, slot: ClientSlot) {
        for id in self.staged.take(slot) {
            self.home.confirm(slot, id);
            match self.home.delete(Target::Id(id)) {
                Ok(deleted) => self.residency.deleted(deleted.id, deleted.was_spilled),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%id, %error, "a staged object cannot be deleted"),
            }
        }
    }

    /// Deletes objects, by their full names; all of them at once, for one look at the holds is long beside
    /// the rest.
    pub(in crate::protocol) fn delete(
        &mut self,
        targets: &[WireTarget],
    ) -> Result<Vec<Result<(), WireError>>, WireError> {
        let deleted =
            self.home.delete_many(targets.iter().map(store_target)).map_err(store_error)?;
        let mut results = Vec::with_capacity(targets.len());
        for result in deleted {
            results.push(match result {
                Ok(deleted) => {
                    self.note_deleted(deleted);
                    Ok(())
                }
                Err(error) => Err(store_error(error)),
            });
        }
        Ok(results)
    }

    pub(in crate::protocol) fn note_deleted(&mut self, deleted: Deleted) {
        self.residency.deleted(deleted.id, deleted.was_spilled);
        self.staged.forget(deleted.id);
        self.leases.forget(deleted.id);
        self.counts.deleted += 1;
        if !deleted.freed_now {
            self.reclaim.next_turn();
        }
    }

    /// Whether an object of this node has the name, so that another one may take its place.
    pub(in crate::protocol) fn is_replaceable(&self, full: &str) -> Result<bool, WireError> {
        let entry = match self.home.find(Target::Name(full)) {
            Ok(entry) => Some(entry),
            Err(StoreError::NotFound { .. }) => {
                self.home.find_spilled(Target::Name(full)).map_err(store_error)?
            }
            Err(error) => return Err(store_error(error)),
        };
        Ok(entry.is_some_and(|entry| !entry.is_replica))
    }
}
