//! What the node does for leases: pins objects, and deletes them at the ends of their leases.

use farrow_store::{ClientSlot, ObjectId, Target};
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, WireError, WireTarget};

use super::Action;
use super::convert::limit;
use super::state::NodeState;

impl NodeState {
    /// Pins an object that was just sealed with a lease.
    pub(super) fn begin_lease(&mut self, slot: ClientSlot, id: ObjectId, lease_ms: u64) {
        if let Err(error) = self.home.pin(Target::Id(id), true) {
            tracing::error!(%id, %error, "an object with a lease cannot be pinned");
        }
        self.leases.insert(id, slot, lease_ms);
    }

    pub(super) fn end_leases(
        &mut self,
        slot: ClientSlot,
        ids: &[(u64, u64)],
        now_ms: u64,
    ) -> Result<ReplyBody, WireError> {
        limit("objects in one message", ids.len(), BATCH_ITEMS_MAX)?;
        for (hi, lo) in ids {
            self.leases.end(ObjectId { hi: *hi, lo: *lo }, slot, now_ms);
        }
        Ok(ReplyBody::Done)
    }

    /// Deletes the objects whose leases are over.
    pub(super) fn tick_leases(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        while let Some(id) = self.leases.take_due(now_ms) {
            self.delete_leased(WireTarget::Id(id.hi, id.lo), now_ms, out);
        }
    }
}
