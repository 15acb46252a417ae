//! Deletes of objects of this node.

use farrow_store::{ClientSlot, StoreError, Target};
use farrow_wire::{WireError, WireTarget};

use super::convert::{store_error, store_target};
use super::state::NodeState;

impl NodeState {
    /// Deletes what a client that has ended sealed only to have it brought to other nodes.
    pub(super) fn drop_staged(&mut self, slot: ClientSlot) {
        for id in self.staged.remove(&slot).unwrap_or_default() {
            self.home.confirm(slot, id);
            match self.home.delete(Target::Id(id)) {
                Ok(deleted) => self.spills.deleted(deleted.id, deleted.was_spilled),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => tracing::error!(%id, %error, "a staged object cannot be deleted"),
            }
        }
    }

    /// Deletes objects, by their full names; all of them at once, for one look at the holds is long beside
    /// the rest.
    pub(super) fn delete(
        &mut self,
        targets: &[WireTarget],
    ) -> Result<Vec<Result<(), WireError>>, WireError> {
        let deleted =
            self.home.delete_many(targets.iter().map(store_target)).map_err(store_error)?;
        let mut results = Vec::with_capacity(targets.len());
        for result in deleted {
            results.push(match result {
                Ok(deleted) => {
                    self.spills.deleted(deleted.id, deleted.was_spilled);
                    self.staged.retain(|_, staged| {
                        staged.remove(&deleted.id);
                        !staged.is_empty()
                    });
                    self.leases.forget(deleted.id);
                    self.counts.deleted += 1;
                    Ok(())
                }
                Err(error) => Err(store_error(error)),
            });
        }
        Ok(results)
    }
}
