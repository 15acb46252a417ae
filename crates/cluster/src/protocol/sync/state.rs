//! The barriers and flags that a node owns, and the waits of its clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_wire::SyncAsk;

use super::moving::Moves;
use super::table::SyncTable;
use crate::protocol::identity::SessionId;

#[derive(Debug)]
pub(in crate::protocol) struct SyncWait {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) name: String,
    pub(in crate::protocol) ask: SyncAsk,
    pub(in crate::protocol) pid: u32,
    /// The owner of the name.
    pub(in crate::protocol) owner: String,
    pub(in crate::protocol) deadline_ms: u64,
    /// The owner did not answer, and is asked again at this time.
    pub(in crate::protocol) again_at_ms: Option<u64>,
    /// The owner's refusal of this request: nothing is lost if the owner is, and another node may
    /// be asked.
    pub(in crate::protocol) refusal: Option<String>,
}

/// The client of a request, with the numbers that its node uses.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct SyncOrigin<'a> {
    /// The node of the client.
    pub(in crate::protocol) node: &'a str,
    /// Number of the request there.
    pub(in crate::protocol) number: u64,
    /// Number of the client there.
    pub(in crate::protocol) client: u64,
    /// Its process id there.
    pub(in crate::protocol) pid: u32,
}

/// The barriers and flags that a node owns, and the waits of its own clients.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Sync {
    pub(in crate::protocol) table: SyncTable,
    pub(in crate::protocol) waits: BTreeMap<u64, SyncWait>,
    pub(in crate::protocol) next_number: u64,
    /// Clients that arrived at a barrier, on any node.
    pub(in crate::protocol) parties: BTreeSet<SessionId>,
    /// Those of them that ended since the last tick.
    pub(in crate::protocol) ended: Vec<SessionId>,
    /// Clients of other nodes that ended recently: a barrier that moves may still have them as
    /// members.
    pub(in crate::protocol) ended_elsewhere: VecDeque<(String, u64)>,
    pub(in crate::protocol) moves: Moves,
    /// Whether this node leaves and has handed over everything.
    pub(in crate::protocol) is_leaving: bool,
}

impl Sync {
    pub(in crate::protocol) fn fresh_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    pub(in crate::protocol) fn add(&mut self, wait: SyncWait) -> u64 {
        let number = self.fresh_number();
        self.waits.insert(number, wait);
        number
    }
}
