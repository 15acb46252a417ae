//! Overview of clients and heap, for monitoring.

use farrow_store::{ClientShare, ClientSlot, HeapCell, Home, StoreError};
use farrow_wire::{CellOverview, ClientOverview, Overview};

/// All clients, and the heap in `cells` parts. `is_away` tells which clients have no connection.
pub(super) fn overview(
    home: &Home,
    is_away: impl Fn(ClientSlot) -> bool,
    cells: u32,
) -> Result<Overview, StoreError> {
    let client = |share: ClientShare| ClientOverview {
        slot: share.record.client.0,
        pid: share.record.pid,
        uid: share.record.uid,
        granted: share.granted.0,
        holds: share.holds,
        is_connected: !is_away(share.record.client),
    };
    let cell = |HeapCell { free, granted, held, used, .. }: HeapCell| CellOverview {
        free,
        granted,
        held,
        used,
    };
    Ok(Overview {
        clients: home.client_shares()?.into_iter().map(client).collect(),
        cells: home.heap_cells(cells)?.into_iter().map(cell).collect(),
    })
}
