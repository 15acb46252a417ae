//! Overview of clients and heap, for monitoring.

use std::collections::BTreeMap;

use farrow_store::{ClientShare, ClientSlot, HeapCell, HeldObjects};
use farrow_wire::{CellOverview, ClientOverview, Overview};

/// All clients with the objects that they hold, and the parts of the heap. `is_away`: which clients
/// have no connection.
pub(in crate::protocol) fn overview(
    (shares, cells): (Vec<ClientShare>, Vec<HeapCell>),
    mut held: BTreeMap<ClientSlot, HeldObjects>,
    is_away: impl Fn(ClientSlot) -> bool,
) -> Overview {
    let client = |share: ClientShare| {
        let client = share.record.client;
        let HeldObjects { ids, are_all } =
            held.remove(&client).unwrap_or_else(|| HeldObjects { ids: Vec::new(), are_all: true });
        ClientOverview {
            slot: client.0,
            pid: share.record.pid,
            uid: share.record.uid,
            granted: share.granted.0,
            holds: share.holds,
            held: ids.into_iter().map(Into::into).collect(),
            are_all_held: are_all,
            is_connected: !is_away(client),
        }
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
