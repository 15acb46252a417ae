//! Notes on the watches of remote clients.

use farrow_store::ClientSlot;

use super::watched::{AGAIN_MS, Watched};
use crate::protocol::cluster::OptionalCluster;

impl OptionalCluster {
    pub(in crate::protocol) fn clean_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.0
            && let Some(dirty) = cluster.dirty.get_mut(&slot)
        {
            dirty.ask_at_ms = Some(now_ms + AGAIN_MS);
        }
    }

    pub(in crate::protocol) fn set_watched(&mut self, slot: ClientSlot, watched: Watched) {
        if let Some(cluster) = &mut self.0 {
            cluster.watched.insert(slot, watched);
        }
    }

    /// The state of a remote client is unknown: it is checked again later.
    pub(in crate::protocol) fn watch_later(&mut self, slot: ClientSlot, now_ms: u64) {
        if let Some(cluster) = &mut self.0
            && let Some(watched) = cluster.watched.get_mut(&slot)
        {
            *watched = Watched::AskAt(now_ms + AGAIN_MS);
        }
    }
}
