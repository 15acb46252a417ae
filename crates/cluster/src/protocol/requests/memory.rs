//! Memory and object slots of clients: what is reserved, evicted and given back. Grants are in
//! `core/admission.rs`.

use farrow_store::ClientSlot;
use farrow_wire::{ReplyBody, WireError, WireObjectId, wire_span};

use crate::protocol::Action;
use crate::protocol::context::RequestContext;
use crate::protocol::convert::store_error;
use crate::protocol::core::quota::ReservationRequest;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Reserves room in the quotas of objects. `None`: the answer follows later.
    pub(in crate::protocol) fn reserve_objects(
        &mut self,
        context: RequestContext,
        objects: u32,
        wait_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let request = ReservationRequest { asker: context.asker(), objects, wait_ms };
        self.quota.reserve(&mut self.home, request, context.now_ms, out)
    }

    pub(in crate::protocol) fn unreserve_objects(
        &mut self,
        slot: ClientSlot,
        objects: u32,
    ) -> ReplyBody {
        self.quota.reservations.take_back(slot, objects);
        ReplyBody::Done
    }

    pub(in crate::protocol) fn renew_objects(
        &mut self,
        slot: ClientSlot,
        objects: u32,
    ) -> ReplyBody {
        self.quota.renew(&mut self.home, slot, objects);
        ReplyBody::Done
    }

    /// Evicts objects of the client's namespace. `None`: the answer follows later.
    pub(in crate::protocol) fn evict(
        &mut self,
        context: RequestContext,
        bytes: u64,
    ) -> Result<Option<ReplyBody>, WireError> {
        let Self { home, residency, replicas, reclaim, .. } = self;
        residency.check_evictions(context.session)?;
        reclaim.free_some(home);
        residency.evict(home, replicas, context.asker(), bytes).map_err(store_error)
    }

    /// Brings a spilled object back into memory. `None`: the answer follows later.
    pub(in crate::protocol) fn restore(
        &mut self,
        context: RequestContext,
        id: WireObjectId,
    ) -> Result<Option<ReplyBody>, WireError> {
        self.residency.restore(&self.home, context.asker(), id.into(), context.now_ms)
    }

    pub(in crate::protocol) fn hold_block(
        &mut self,
        slot: ClientSlot,
    ) -> Result<ReplyBody, WireError> {
        // No client takes the blocks without which others could not join.
        if self.home.spare_hold_blocks() == 0 {
            let max = self.home.layout().hold_blocks_max.into();
            return Err(WireError::TooMany { what: "hold blocks".to_owned(), max });
        }
        let block = self.home.hold_block(slot).map_err(store_error)?;
        Ok(ReplyBody::HoldBlock(wire_span(block)))
    }

    pub(in crate::protocol) fn entry_pages(
        &mut self,
        slot: ClientSlot,
        count: u32,
    ) -> Result<ReplyBody, WireError> {
        self.quota.check_unseen(&self.home, slot)?;
        let pages = self.home.entry_pages(slot, count).map_err(store_error)?;
        Ok(ReplyBody::EntryPages(wire_span(pages)))
    }

    /// Frees deleted objects that are held no more: of many some, and the rest in the next turns.
    pub(in crate::protocol) fn reclaim_now(&mut self) -> ReplyBody {
        self.reclaim.free_some(&mut self.home);
        ReplyBody::Done
    }
}
