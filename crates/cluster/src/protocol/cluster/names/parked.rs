//! Requests that wait for other nodes.

use std::collections::{BTreeMap, BTreeSet};

use farrow_store::ClientSlot;
use farrow_wire::{ReplyBody, RequestBody, WireError};

use crate::protocol::identity::SessionId;

/// Cost of a requested name beside its copies: the future object, and entries of tables.
pub(in crate::protocol) const NAME_COST_BYTES: usize = 512;

/// A request that waits for its names.
#[derive(Debug)]
pub(in crate::protocol) struct WaitingForNames {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) slot: ClientSlot,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) body: RequestBody,
    /// Memory of the body.
    pub(in crate::protocol) bytes: usize,
    /// Full names.
    pub(in crate::protocol) names: Vec<String>,
    pub(in crate::protocol) deadline_ms: u64,
    /// While it waits for the lease: when it is refused.
    pub(in crate::protocol) lease_awaited_until_ms: u64,
    /// The request was answered. Names that are still granted for it are given back.
    pub(in crate::protocol) is_cancelled: bool,
}

/// A request that waits until authorities know that names are no longer in flight. Otherwise they
/// would report the names as taken after they are free again.
#[derive(Debug)]
pub(in crate::protocol) struct PendingNameRelease {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) slot: ClientSlot,
    pub(in crate::protocol) seq: u64,
    /// Memory of the request or the answer.
    pub(in crate::protocol) bytes: usize,
    /// Full names.
    pub(in crate::protocol) names: Vec<String>,
    pub(in crate::protocol) deadline_ms: u64,
    pub(in crate::protocol) then: Then,
}

#[derive(Debug)]
pub(in crate::protocol) enum Then {
    /// Serves a delete of objects that have the names, or a seal of others in their place.
    Serve(RequestBody),
    /// Answers a request that was granted the names and did not use them.
    Answer(Result<ReplyBody, WireError>),
}

/// Requests that wait for names, and granted names that are not settled.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Parked {
    pub(in crate::protocol) next_ticket: u64,
    pub(in crate::protocol) waiting: BTreeMap<u64, WaitingForNames>,
    /// Not requested yet: this node has no lease.
    pub(in crate::protocol) asleep: Vec<WaitingForNames>,
    pub(in crate::protocol) indebted: Vec<PendingNameRelease>,
    /// Reserved by clients of this node's memory.
    pub(in crate::protocol) reserved: Vec<String>,
    /// Whether some of them may not be reserved any more.
    pub(in crate::protocol) has_changed: bool,
}

/// Memory that requested names need while a request waits for them.
pub(in crate::protocol) fn names_bytes(names: &[String]) -> usize {
    names.iter().map(|name| 4 * name.len() + NAME_COST_BYTES).sum()
}

impl Parked {
    /// `reserved` are the names from the previous daemon.
    pub(in crate::protocol) fn new(reserved: Vec<String>) -> Self {
        Self { reserved, ..Self::default() }
    }

    pub(in crate::protocol) fn count(&self) -> usize {
        self.waiting.len() + self.asleep.len() + self.indebted.len()
    }

    /// Has a request wait for the lease.
    pub(in crate::protocol) fn await_lease(&mut self, mut waiting: WaitingForNames, until_ms: u64) {
        waiting.lease_awaited_until_ms = until_ms.min(waiting.deadline_ms);
        self.asleep.push(waiting);
    }

    /// Memory of a session's requests, with the requested names.
    pub(in crate::protocol) fn bytes_of(&self, session: SessionId) -> usize {
        let waiting = self.waiting.values().chain(&self.asleep);
        let waiting = waiting.filter(|one| one.session == session);
        let indebted = self.indebted.iter().filter(|one| one.session == session);
        let waiting = waiting.map(|one| one.bytes + names_bytes(&one.names));
        waiting.chain(indebted.map(|one| one.bytes + names_bytes(&one.names))).sum()
    }

    /// The full names on which the cluster decides.
    pub(in crate::protocol) fn names(&self) -> impl Iterator<Item = &String> {
        self.waiting.values().chain(&self.asleep).flat_map(|one| &one.names)
    }

    /// Ends the wait of one request. False: it does not wait, or was served and its answer waits.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let is_it = |one: &WaitingForNames| (one.session, one.seq) == (session, seq);
        let before = self.count();
        self.asleep.retain(|one| !is_it(one));
        self.indebted.retain(|one| {
            (one.session, one.seq) != (session, seq) || matches!(one.then, Then::Answer(_))
        });
        let mut waiting = self.waiting.values_mut().filter(|one| is_it(one) && !one.is_cancelled);
        let is_found = waiting.next().map(|one| one.is_cancelled = true).is_some();
        is_found || self.count() < before
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let asleep = self.asleep.iter().map(|one| one.lease_awaited_until_ms);
        asleep.chain(self.indebted.iter().map(|one| one.deadline_ms)).min()
    }
}

/// A client's wait for a lookup of a name.
#[derive(Debug)]
pub(in crate::protocol) struct NameLookup {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    /// The full name.
    pub(in crate::protocol) full: String,
    /// Nodes that are asked if the first ones do not have the name.
    pub(in crate::protocol) rest: BTreeSet<String>,
    /// Nodes that have not answered.
    pub(in crate::protocol) waiting: BTreeSet<String>,
    /// The error of a node that did not answer about the name.
    pub(in crate::protocol) silent: Option<WireError>,
}

/// Lookups in progress.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Lookups {
    pub(in crate::protocol) next: u64,
    pub(in crate::protocol) all: BTreeMap<u64, NameLookup>,
}

impl Lookups {
    /// Forgets one. False: there is none.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let before = self.all.len();
        self.all.retain(|_, one| (one.session, one.seq) != (session, seq));
        self.all.len() < before
    }
}
