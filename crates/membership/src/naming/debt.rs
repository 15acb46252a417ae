//! The messages that a home still owes an authority.

use std::collections::BTreeMap;

use super::{MESSAGE_BYTES_MAX, MESSAGE_NAMES_MAX};

/// The messages owed to one authority, in this order: the list, then the settlements.
#[derive(Debug, Default)]
pub(super) struct Debt {
    /// Parts of the list without an acknowledgement.
    pub(super) parts: BTreeMap<u32, Vec<String>>,
    pub(super) parts_all: u32,
    /// The session of the authority that the list is for.
    pub(super) to: u64,
    /// Settled names, each with the serial at the time of its settlement.
    pub(super) settled: BTreeMap<String, u64>,
    /// The settlement in progress: a serial that is at most that of its first message, and its
    /// names. It stays the same until it is acknowledged, so each acknowledgement since then covers
    /// all of it.
    pub(super) batch: Option<(u64, Vec<String>)>,
    pub(super) next_ms: u64,
}

impl Debt {
    pub(super) fn is_paid(&self) -> bool {
        self.parts.is_empty() && self.settled.is_empty()
    }

    /// The names of the settlement in progress that are still settled; a new settlement if none is
    /// left.
    pub(super) fn next_batch(&mut self, serial: u64) -> Vec<String> {
        if let Some((_, names)) = &mut self.batch {
            names.retain(|name| self.settled.contains_key(name));
            if !names.is_empty() {
                return names.clone();
            }
        }
        let names = batches(self.settled.keys().cloned()).into_iter().next().unwrap_or_default();
        self.batch = Some((serial, names.clone()));
        names
    }
}

/// Divides names into messages.
pub(super) fn batches(names: impl IntoIterator<Item = String>) -> Vec<Vec<String>> {
    let (mut batches, mut bytes) = (vec![Vec::new()], 0);
    for name in names {
        let is_full = |batch: &Vec<String>| batch.len() >= MESSAGE_NAMES_MAX;
        if bytes + name.len() > MESSAGE_BYTES_MAX || batches.last().is_none_or(is_full) {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += name.len();
        if let Some(batch) = batches.last_mut() {
            batch.push(name);
        }
    }
    batches
}
