//! Overview of clients and heap, for monitoring.

use farrow_store::{ClientShare, ClientSlot, HeapCell};
use farrow_wire::{CellOverview, ClientOverview, Overview};

/// All clients, and the parts of the heap. `is_away`: which clients have no connection.
pub(in crate::protocol) fn overview(
    (shares, cells): (Vec<ClientShare>, Vec<HeapCell>),
    is_away: impl Fn(ClientSlot) -> bool,
) -> Overview {
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
    Overview {
        clients: shares.into_iter().map(client).collect(),
        cells: cells.into_iter().map(cell).collect(),
    }
}
