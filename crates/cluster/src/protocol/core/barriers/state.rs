//! The barriers and flags that a node owns, and the waits of its clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farrow_store::NAME_BYTES_MAX;
use farrow_wire::{Rights, SyncAsk};

use super::moving::Moves;
use super::received::ReceivedRequests;
use super::successor::Announcement;
use super::table::SyncTable;
use crate::protocol::action::Action;
use crate::protocol::cluster::{OptionalCluster, PeerQuestion, PendingQuestion, Question};
use crate::protocol::core::clients::Clients;
use crate::protocol::identity::SessionId;
use crate::protocol::rights::RightsTable;

#[derive(Debug)]
pub(super) struct SyncWait {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    pub(super) name: String,
    pub(super) ask: SyncAsk,
    pub(super) pid: u32,
    /// The owner of the name.
    pub(super) owner: String,
    pub(super) deadline_ms: u64,
    /// The owner did not answer, and is asked again at this time.
    pub(super) again_at_ms: Option<u64>,
    /// The owner's refusal of this request: nothing is lost if the owner is, and another node may
    /// be asked.
    pub(super) refusal: Option<String>,
}

/// The client of a request, with the numbers that its node uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct SyncOrigin<'a> {
    /// The node of the client.
    pub(super) node: &'a str,
    /// Number of the request there.
    pub(super) number: u64,
    /// Number of the client there.
    pub(super) client: u64,
    /// Its process id there.
    pub(super) pid: u32,
}

/// The barriers and flags that a node owns, and the waits of its own clients.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Barriers {
    pub(super) table: SyncTable,
    pub(super) received: ReceivedRequests,
    pub(super) waits: BTreeMap<u64, SyncWait>,
    pub(super) next_number: u64,
    /// The first number of this daemon.
    pub(super) first_number: u64,
    /// Clients that arrived at a barrier, on any node, with their numbers as parties.
    pub(super) parties: BTreeMap<SessionId, u64>,
    /// Clients of the earlier daemon that have not connected to this one: their numbers as parties.
    pub(super) absent: BTreeSet<u64>,
    /// Parties that ended since the last tick.
    pub(super) ended: Vec<u64>,
    /// Whether another daemon takes over, and the parties that it expects: their connections to this one
    /// were closed.
    pub(super) is_handing_over: bool,
    pub(super) passed_on: BTreeSet<u64>,
    /// Waits for flags of clients that ended since the last tick, with the owners of the names.
    pub(super) withdrawn: Vec<(String, u64)>,
    /// Clients of other nodes that ended recently: a barrier that moves may still have them as
    /// members.
    pub(super) ended_elsewhere: VecDeque<(String, u64)>,
    /// The first numbers of daemons that followed others in the lives of their nodes.
    pub(super) first_numbers: BTreeMap<String, u64>,
    /// Members that are to learn that this daemon follows another one in the life of its node.
    pub(super) announcements: BTreeMap<String, Announcement>,
    /// Whether this daemon follows another one in the life of its node.
    pub(super) is_successor: bool,
    /// Whether it has the flags of that one.
    pub(super) has_flags: bool,
    pub(super) moves: Moves,
    /// Whether this node leaves and has handed over everything.
    pub(super) is_leaving: bool,
}

impl Barriers {
    pub(super) fn fresh_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    pub(super) fn add(&mut self, wait: SyncWait) -> u64 {
        let number = self.fresh_number();
        self.waits.insert(number, wait);
        number
    }
}

/// What barriers and flags need of the rest of the node, while one event is handled.
#[derive(Debug)]
pub(in crate::protocol) struct BarrierContext<'a> {
    pub(in crate::protocol) cluster: &'a mut OptionalCluster,
    pub(in crate::protocol) rules: &'a RightsTable,
    pub(in crate::protocol) clients: &'a Clients,
    pub(in crate::protocol) now_ms: u64,
    pub(in crate::protocol) out: &'a mut Vec<Action>,
}

impl BarrierContext<'_> {
    /// Sends a notification that another node must receive.
    pub(super) fn notify(&mut self, node: &str, question: Question) {
        self.cluster.notify(node, question, self.out);
    }

    /// Asks another node, which has one lease for the answer; `false` if it is not known.
    pub(super) fn ask_within_lease(
        &mut self,
        node: &str,
        question: &Question,
        about: PendingQuestion,
    ) -> bool {
        let timeout_ms = self.cluster.lease_ms();
        self.cluster.ask(PeerQuestion { node, question, about, timeout_ms }, self.out)
    }

    /// Whether another node may hand over the state of a name.
    pub(super) fn may_hand_over(&self, node: &str, name: &str) -> bool {
        name.len() <= NAME_BYTES_MAX as usize && self.rules.may(node, Rights::WRITE, name)
    }
}
