//! Clients that have ended, and the processes that they forked. A child may still read what its
//! parent held, so the slot remains until the last child has unmapped the region or ended.
//!
//! The kernel tracks the mappings and this node checks them ([`farrow_memory::family`]). For a
//! client on another machine the node there checks.

use farrow_memory::family::{is_mapped_by_client, is_unmapped_by_client};
use farrow_store::{ClientSlot, RemoteClient};

use super::cluster::Question;
use super::core::families::{Family, LOOK_MS_MAX};
use super::state::NodeState;
use super::{Action, PeerIdentity};

/// Interval between checks for clients that did not return after a kill.
const DOUBTS_MS: u64 = 200;

/// First pause between checks: after a goodbye the region is unmapped except for operations in
/// progress.
const LOOK_MS_MIN: u64 = 1;
/// Pause before a node that did not answer is asked again.
const ASK_MS: u64 = 500;

impl NodeState {
    /// Handles the end or goodbye of a client. Gives up its slot, at once if no process reads
    /// through it.
    pub(super) fn end_of_client(&mut self, slot: ClientSlot, peer: PeerIdentity, now_ms: u64) {
        if self.is_bare(slot) || (self.cluster.is_seen_here(peer) && !self.is_mapped_by(slot)) {
            return self.leave(slot, now_ms);
        }
        self.drop_staged(slot);
        self.leases.end_all(slot, now_ms);
        // No process can continue the client's unfinished objects.
        self.quota.reservations.take_back(slot, u32::MAX);
        self.home.unreserve_all(slot);
        self.cluster.note_reservations();
        let family = Family { peer, look_at_ms: Some(now_ms), wait_ms: LOOK_MS_MIN };
        self.families.places.insert(slot, family);
    }

    /// Whether the kernel says that no process of this machine maps the region through this slot.
    pub(super) fn is_unmapped_by(&self, slot: ClientSlot) -> bool {
        is_unmapped_by_client(self.home.region().fabric().as_ref(), slot.0)
    }

    /// Whether a process of this machine maps the region through this slot.
    pub(super) fn is_mapped_by(&self, slot: ClientSlot) -> bool {
        is_mapped_by_client(self.home.region().fabric().as_ref(), slot.0)
    }

    /// Checks the families that are due.
    pub(super) fn look_for_families(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let due = self.families.places.iter();
        let due = due.filter(|(_, family)| family.look_at_ms.is_some_and(|at| at <= now_ms));
        let due: Vec<(ClientSlot, PeerIdentity)> =
            due.map(|(slot, family)| (*slot, family.peer)).collect();
        for (slot, peer) in due {
            match peer
                .remote_client
                .filter(|remote_client| !self.cluster.is_host_own(*remote_client))
            {
                None if self.is_mapped_by(slot) => self.look_later(slot, now_ms),
                None => self.end_family(slot, now_ms),
                Some(remote_client) => self.ask_for_family(slot, remote_client, now_ms, out),
            }
        }
    }

    fn look_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(family) = self.families.places.get_mut(&slot) {
            family.look_at_ms = Some(now_ms.saturating_add(family.wait_ms));
            family.wait_ms = (family.wait_ms * 2).min(LOOK_MS_MAX);
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
        let is_asked = self.cluster.ask_node_of(remote_client, &question, slot, out);
        if let Some(family) = self.families.places.get_mut(&slot) {
            family.look_at_ms = (!is_asked).then_some(now_ms.saturating_add(ASK_MS));
        }
    }

    /// Handles the answer of a family's node; `None`: it did not answer.
    pub(super) fn family_answered(
        &mut self,
        slot: ClientSlot,
        is_there: Option<bool>,
        now_ms: u64,
    ) {
        let Some(family) = self.families.places.get_mut(&slot) else {
            return;
        };
        match is_there {
            Some(false) if family.look_at_ms.is_none() => self.end_family(slot, now_ms),
            Some(_) => self.look_later(slot, now_ms),
            None => family.look_at_ms = Some(now_ms.saturating_add(ASK_MS)),
        }
    }

    pub(super) fn end_family(&mut self, slot: ClientSlot, now_ms: u64) {
        if self.families.places.remove(&slot).is_some() {
            self.leave(slot, now_ms);
        }
    }

    /// Handles the death of a client without a connection, perhaps from an earlier daemon.
    pub fn orphan_died(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(peer) = self.orphans.remove(&slot) {
            self.end_of_client(slot, peer, now_ms);
        }
    }

    pub(super) fn leave(&mut self, slot: ClientSlot, now_ms: u64) {
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
    pub(super) fn release_in_doubt(&mut self, now_ms: u64) {
        if self.doubts_at_ms.is_none_or(|at| at > now_ms) {
            return;
        }
        let clients: Vec<ClientSlot> = self.home.clients_in_doubt().collect();
        self.doubts_at_ms = (!clients.is_empty()).then(|| now_ms.saturating_add(DOUBTS_MS));
        self.end_bare_orphans(now_ms);
        for slot in clients {
            let orphan = self.orphans.get(&slot).copied();
            if orphan.is_some_and(|peer| self.cluster.is_seen_here(peer))
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
    pub(super) fn end_unmapped_orphans(&mut self, now_ms: u64) {
        if self.orphans.is_empty() || !self.ended_orphans.is_due(now_ms) {
            return;
        }
        let all = self.orphans.iter();
        let ended = all.filter(|(slot, peer)| {
            self.cluster.is_seen_here(**peer)
                && !self.is_bare(**slot)
                && self.is_unmapped_by(**slot)
        });
        for slot in ended.map(|(slot, _)| *slot).collect::<Vec<_>>() {
            self.orphan_died(slot, now_ms);
        }
    }

    /// Ends the sessions that mapped no memory and that a former daemon left.
    pub(super) fn end_bare_orphans(&mut self, now_ms: u64) {
        let bare = self.orphans.keys().copied().filter(|slot| self.is_bare(*slot));
        for slot in bare.collect::<Vec<_>>() {
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
