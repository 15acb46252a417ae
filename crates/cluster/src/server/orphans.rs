//! Clients without a connection, whose processes are watched.

use std::io;
use std::os::fd::AsFd;

use farrow_store::ClientSlot;

use super::Server;
use super::process::{is_identified, watch_by};
use super::tokens::ORPHANS;
use crate::protocol::PeerIdentity;

/// A process that could not be watched is tried again after this time.
pub(super) const WATCH_AGAIN_MS: u64 = 1_000;

impl Server {
    pub(super) fn watch_orphans(&mut self) {
        let orphans: Vec<(ClientSlot, PeerIdentity)> = self.state.orphans().collect();
        // The state watches those of other nodes.
        for (slot, peer) in orphans.into_iter().filter(|(_, peer)| peer.remote_client.is_none()) {
            self.watch_orphan(slot, &peer);
        }
        self.observe_clients();
    }

    pub(super) fn watch_orphan(&mut self, slot: ClientSlot, peer: &PeerIdentity) {
        match watch_by(self.poll.as_fd(), peer, ORPHANS | u64::from(slot.0)) {
            Ok(Some(fd)) => drop(self.orphans.insert(slot, (*peer, fd))),
            Err(error) => self.watch_later(slot, &error),
            // The kernel says whether it maps the region, and so may return. The state asks again.
            Ok(None) if self.is_unseen_and_maps(slot, peer) => {}
            // It ended, perhaps while no daemon was running.
            Ok(None) => self.state.orphan_died(slot, self.now_ms()),
        }
    }

    /// Whether nothing but its mapping says that a client lives.
    fn is_unseen_and_maps(&self, slot: ClientSlot, peer: &PeerIdentity) -> bool {
        !is_identified(peer) && self.state.is_mapped_by(slot)
    }

    /// The client may still read the objects that it holds, so its slot is retained.
    pub(super) fn watch_later(&mut self, slot: ClientSlot, error: &io::Error) {
        tracing::error!(slot = slot.0, %error, "the process of a client cannot be watched");
        // A watch of an earlier client in this slot does not apply to this one.
        self.orphans.remove(&slot);
        self.unwatched.insert(slot);
        self.watch_again_at_ms = Some(self.now_ms().saturating_add(WATCH_AGAIN_MS));
    }

    pub(super) fn watch_again(&mut self) {
        if self.watch_again_at_ms.is_none_or(|at_ms| at_ms > self.now_ms()) {
            return;
        }
        self.watch_again_at_ms = None;
        let unwatched = std::mem::take(&mut self.unwatched);
        let orphans = self.state.orphans().filter(|(slot, _)| unwatched.contains(slot));
        let orphans = orphans.filter(|(_, peer)| peer.remote_client.is_none());
        for (slot, peer) in orphans.collect::<Vec<_>>() {
            self.watch_orphan(slot, &peer);
        }
    }
}
