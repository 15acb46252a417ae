//! Clients that have ended, and the processes that they forked. A child may still read what its
//! parent held, so the slot remains until the last child has unmapped the region or ended.
//!
//! The kernel tracks the mappings and this node checks them ([`farrow_memory::family`]). For a
//! client on another machine the node there checks.

use farrow_memory::family::{is_mapped_by_client, is_unmapped_by_client};
use farrow_store::{ClientSlot, EntryRegistration, RemoteClient};

use crate::protocol::cluster::Question;
use crate::protocol::state::NodeState;
use crate::protocol::{Action, PeerIdentity};

impl NodeState {
    /// Handles the end or goodbye of a client. Gives up its slot, at once if no process reads
    /// through it.
    pub(in crate::protocol) fn end_of_client(
        &mut self,
        slot: ClientSlot,
        peer: PeerIdentity,
        now_ms: u64,
    ) {
        let is_unmapped =
            self.is_bare(slot) || (self.cluster.is_seen_here(peer) && !self.is_mapped_by(slot));
        let mut registration = EntryRegistration::of(slot);
        if is_unmapped && self.is_registered(&mut registration) {
            return self.leave(slot, now_ms);
        }
        self.drop_staged(slot);
        self.leases.end_all(slot, now_ms);
        // No process can continue the client's unfinished objects.
        self.quota.reservations.take_back(slot, u32::MAX);
        self.home.unreserve_all(slot);
        self.cluster.note_reservations();
        self.families.insert(slot, peer, now_ms);
        if is_unmapped {
            self.families.ends(slot, registration);
        }
    }

    /// Whether all objects that a client sealed itself are registered; otherwise some more are now.
    fn is_registered(&mut self, registration: &mut EntryRegistration) -> bool {
        // There its memory goes to quarantine, which a step for its node may follow at once.
        if self.home.region().is_node_local() {
            return true;
        }
        self.home.register_some(registration).unwrap_or_else(|error| {
            tracing::error!(%error, "objects of a client that left cannot be registered");
            true
        })
    }

    /// Whether the kernel says that no process of this machine maps the region through this slot.
    pub(super) fn is_unmapped_by(&self, slot: ClientSlot) -> bool {
        is_unmapped_by_client(self.home.region().fabric().as_ref(), slot.0)
    }

    /// Whether a process of this machine maps the region through this slot.
    pub(crate) fn is_mapped_by(&self, slot: ClientSlot) -> bool {
        is_mapped_by_client(self.home.region().fabric().as_ref(), slot.0)
    }

    /// Checks the families that are due.
    pub(in crate::protocol) fn look_for_families(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for (slot, peer) in self.families.due(now_ms) {
            match peer
                .remote_client
                .filter(|remote_client| !self.cluster.is_host_own(*remote_client))
            {
                None if self.is_mapped_by(slot) => self.families.look_later(slot, now_ms),
                None => self.end_family(slot, now_ms),
                Some(remote_client) => self.ask_for_family(slot, remote_client, now_ms, out),
            }
        }
    }

    fn ask_for_family(
        &mut self,
        slot: ClientSlot,
        remote_client: RemoteClient,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let question = Question::Family { region_uid: self.home.uid().0, place: slot.0 };
        match self.cluster.ask_node_of(remote_client, &question, slot, out) {
            true => self.families.query_sent(slot),
            false => self.families.ask_later(slot, now_ms),
        }
    }

    /// Handles the answer of a family's node; `None`: it did not answer.
    pub(in crate::protocol) fn on_family_response(
        &mut self,
        slot: ClientSlot,
        is_there: Option<bool>,
        now_ms: u64,
    ) {
        match is_there {
            Some(false) if self.families.is_queried(slot) => self.end_family(slot, now_ms),
            Some(_) => self.families.look_later(slot, now_ms),
            None => self.families.ask_later(slot, now_ms),
        }
    }

    /// Gives up the slot of a client that no process reads through any more. A client that sealed
    /// many objects itself leaves after these are registered, some in each turn.
    fn end_family(&mut self, slot: ClientSlot, now_ms: u64) {
        self.families.ends(slot, EntryRegistration::of(slot));
        self.end_families(now_ms, Some(slot));
    }

    /// As [`Self::end_family`], at once.
    pub(in crate::protocol) fn end_family_now(&mut self, slot: ClientSlot, now_ms: u64) {
        if self.families.remove(slot) {
            self.leave(slot, now_ms);
        }
    }

    /// Registers some objects of a client whose slot is given up, or gives it up.
    pub(in crate::protocol) fn end_families(&mut self, now_ms: u64, only: Option<ClientSlot>) {
        let Some((slot, mut registration)) = self.families.ending(only) else {
            return;
        };
        if !self.is_registered(&mut registration) {
            return self.families.ends(slot, registration);
        }
        self.end_family_now(slot, now_ms);
    }

    /// Handles the death of a client without a connection, perhaps from an earlier daemon.
    pub fn orphan_died(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(peer) = self.clients.take_orphan(slot) {
            if let Ok(record) = self.home.client(slot) {
                self.barriers.orphan_ended(record.nonce);
            }
            self.end_of_client(slot, peer, now_ms);
        }
    }

    pub(in crate::protocol) fn leave(&mut self, slot: ClientSlot, now_ms: u64) {
        self.quota.reservations.take_back(slot, u32::MAX);
        self.drop_staged(slot);
        self.leases.end_all(slot, now_ms);
        let left = match self.home.region().is_node_local() && !self.is_bare(slot) {
            true => self.leave_dirty(slot),
            false => self.home.client_leave(slot).map(Some),
        };
        match left {
            Ok(Some(reclaimed)) => tracing::info!(slot = slot.0, ?reclaimed, "a client left"),
            Ok(None) => tracing::info!(slot = slot.0, "a client left and is in quarantine"),
            Err(error) => tracing::error!(slot = slot.0, %error, "a client could not be cleared"),
        }
        self.cluster.note_reservations();
        self.reclaim.soon(&self.home, now_ms);
    }

    /// Of a client that did not return after a kill, and whose mapping has ended, no thread uses an
    /// object without a hold.
    pub(in crate::protocol) fn release_in_doubt(&mut self, now_ms: u64) {
        if !self.clients.are_doubts_due(now_ms) {
            return;
        }
        let clients: Vec<ClientSlot> = self.home.clients_in_doubt().collect();
        self.clients.checked_doubts(!clients.is_empty(), now_ms);
        // Sessions that mapped no memory and that a former daemon left.
        self.end_orphans(now_ms, |node, slot, _| node.is_bare(slot));
        for slot in clients {
            if self.clients.orphan(slot).is_some_and(|peer| self.cluster.is_seen_here(peer))
                && self.is_unmapped_by(slot)
            {
                self.home.confirm_earlier(slot);
                self.admission.look_again();
                self.reclaim.soon(&self.home, now_ms);
            }
        }
    }

    /// Ends clients that are expected back and map nothing any more: a client maps the region for as
    /// long as it may return.
    pub(in crate::protocol) fn end_unmapped_orphans(&mut self, now_ms: u64) {
        if self.clients.is_end_check_due(now_ms) {
            self.end_orphans(now_ms, |node, slot, peer| {
                node.cluster.is_seen_here(peer) && !node.is_bare(slot) && node.is_unmapped_by(slot)
            });
        }
    }

    /// Ends those of the clients that are expected back that cannot return.
    fn end_orphans(
        &mut self,
        now_ms: u64,
        has_ended: impl Fn(&Self, ClientSlot, PeerIdentity) -> bool,
    ) {
        let ended = self.clients.orphans().filter(|(slot, peer)| has_ended(self, *slot, *peer));
        for slot in ended.map(|(slot, _)| slot).collect::<Vec<_>>() {
            self.orphan_died(slot, now_ms);
        }
    }

    /// Whether a client of another node maps nothing here and can write nothing: its connection is for
    /// requests alone.
    pub(super) fn is_bare(&self, slot: ClientSlot) -> bool {
        self.home.client(slot).is_ok_and(|record| record.remote_client.is_some())
            && self.home.hold_blocks_of(slot).is_empty()
            && self.home.entry_pages_of(slot).is_empty()
    }
}
