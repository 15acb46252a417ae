//! Overview of clients and heap, for monitoring.

use farrow_store::{ClientShare, ClientSlot, HeapCell, StoreError};
use farrow_wire::{CellOverview, ClientOverview, Overview};

use super::state::NodeState;

impl NodeState {
    /// All clients, and the heap in `cells` parts.
    pub(super) fn overview(&self, cells: u32) -> Result<Overview, StoreError> {
        let is_away =
            |slot: ClientSlot| self.clients.orphan(slot).is_some() || self.families.has(slot);
        let client = |share: ClientShare| ClientOverview {
            slot: share.record.client.0,
            pid: share.record.pid,
            uid: share.record.uid,
            granted: share.granted.0,
            holds: share.holds,
            is_connected: !is_away(share.record.client),
        };
        let cell = |HeapCell { free, granted, held, used }: HeapCell| CellOverview {
            free,
            granted,
            held,
            used,
        };
        Ok(Overview {
            clients: self.home.client_shares()?.into_iter().map(client).collect(),
            cells: self.home.heap_cells(cells)?.into_iter().map(cell).collect(),
        })
    }
}
