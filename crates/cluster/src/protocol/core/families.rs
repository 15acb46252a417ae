//! Clients that have ended and whose forked processes may still read.

use std::collections::BTreeMap;

use farrow_store::{ClientSlot, RemoteClient};

use crate::protocol::identity::PeerIdentity;

/// Longest pause between checks: a child may stay for days, and its end is noticed this late at
/// most.
pub(in crate::protocol) const LOOK_MS_MAX: u64 = 100;

/// Slots to give up once no process reads through them.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Families {
    pub(in crate::protocol) places: BTreeMap<ClientSlot, Family>,
}

#[derive(Debug)]
pub(in crate::protocol) struct Family {
    pub(in crate::protocol) peer: PeerIdentity,
    /// Time of the next check; `None`: its node is being asked.
    pub(in crate::protocol) look_at_ms: Option<u64>,
    pub(in crate::protocol) wait_ms: u64,
}

/// First check for orphans that map nothing: a client that was admitted by the former daemon has
/// mapped the region by then.
const ENDED_MS_MIN: u64 = 1_000;
/// Longest pause between these checks.
const ENDED_MS_MAX: u64 = 60_000;

/// When to look for orphans that have ended: their goodbye was answered by the former daemon, which
/// still waited for the end of their mapping when it was replaced or killed.
#[derive(Debug)]
pub(in crate::protocol) struct EndedOrphans {
    pub(in crate::protocol) at_ms: u64,
    wait_ms: u64,
}

impl EndedOrphans {
    pub(in crate::protocol) fn new(now_ms: u64) -> Self {
        Self { at_ms: now_ms.saturating_add(ENDED_MS_MIN), wait_ms: ENDED_MS_MIN }
    }

    /// Whether a check is due; the next one is later.
    pub(in crate::protocol) fn is_due(&mut self, now_ms: u64) -> bool {
        if self.at_ms > now_ms {
            return false;
        }
        self.wait_ms = (self.wait_ms * 2).min(ENDED_MS_MAX);
        self.at_ms = now_ms.saturating_add(self.wait_ms);
        true
    }
}

impl Families {
    pub(in crate::protocol) fn count(&self) -> usize {
        self.places.len()
    }

    pub(in crate::protocol) fn has(&self, slot: ClientSlot) -> bool {
        self.places.contains_key(&slot)
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.places.values().filter_map(|family| family.look_at_ms).min()
    }

    /// Slots of the clients of a node.
    pub(in crate::protocol) fn of_node(&self, key: u64) -> Vec<ClientSlot> {
        let is_of_it = |remote_client: Option<RemoteClient>| {
            remote_client.is_some_and(|remote_client| remote_client.node == key)
        };
        let places = self.places.iter().filter(|(_, family)| is_of_it(family.peer.remote_client));
        places.map(|(slot, _)| *slot).collect()
    }
}
