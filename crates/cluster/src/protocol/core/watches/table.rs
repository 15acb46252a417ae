//! Requests that wait for events, by prefix and by deadline.

use std::collections::{BTreeMap, BTreeSet};

use farrow_store::{Event, NamespaceId};

use crate::protocol::identity::SessionId;

/// Limit of such requests of one connection at a time.
pub(in crate::protocol) const WATCHES_PER_SESSION_MAX: usize = 16;

/// Memory of one request: two copies of the longest prefix, and entries of the tables.
pub(in crate::protocol) const WATCHER_BYTES_MAX: usize = 1 << 10;

/// One waiting request.
#[derive(Debug)]
pub(in crate::protocol) struct Watcher {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    /// The request ignores events of other namespaces.
    pub(in crate::protocol) namespace: NamespaceId,
    pub(in crate::protocol) prefix: String,
    pub(in crate::protocol) kinds: u8,
    pub(in crate::protocol) deadline_ms: u64,
}

/// All waiting requests.
#[derive(Debug, Default)]
pub(super) struct WatchTable {
    next: u64,
    all: BTreeMap<u64, Watcher>,
    by_prefix: BTreeMap<String, BTreeSet<u64>>,
    /// Number of distinct prefixes of each length in bytes.
    lengths: BTreeMap<usize, u32>,
    by_deadline: BTreeSet<(u64, u64)>,
    by_session: BTreeMap<SessionId, BTreeSet<u64>>,
}

impl WatchTable {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of waiting requests of a session.
    pub(super) fn count_of(&self, session: SessionId) -> usize {
        self.by_session.get(&session).map_or(0, BTreeSet::len)
    }

    pub(super) fn add(&mut self, watcher: Watcher) {
        let id = self.next;
        self.next += 1;
        let ids = self.by_prefix.entry(watcher.prefix.clone()).or_default();
        if ids.is_empty() {
            *self.lengths.entry(watcher.prefix.len()).or_default() += 1;
        }
        ids.insert(id);
        self.by_deadline.insert((watcher.deadline_ms, id));
        self.by_session.entry(watcher.session).or_default().insert(id);
        self.all.insert(id, watcher);
    }

    /// Takes out the requests that match an event. One lookup for each distinct prefix length, for
    /// any number of requests.
    pub(super) fn matching(&mut self, event: &Event) -> Vec<Watcher> {
        let prefixes = self.lengths.keys().filter_map(|length| event.name.get(..*length));
        let ids: Vec<u64> = prefixes
            .filter_map(|prefix| self.by_prefix.get(prefix))
            .flatten()
            .filter(|id| {
                let one = self.all.get(id);
                one.is_some_and(|one| {
                    event.kind.is_in(one.kinds) && event.namespace == one.namespace
                })
            })
            .copied()
            .collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes out at most `watchers_max` expired requests.
    pub(super) fn expired(&mut self, now_ms: u64, watchers_max: usize) -> Vec<Watcher> {
        let over = self.by_deadline.range(..=(now_ms, u64::MAX)).map(|(_, id)| *id);
        let over: Vec<u64> = over.take(watchers_max).collect();
        over.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Forgets the requests of an ended session.
    pub(super) fn forget(&mut self, session: SessionId) {
        let ids_of_session = self.by_session.get(&session).cloned();
        for id in ids_of_session.into_iter().flatten() {
            self.remove(id);
        }
    }

    /// Takes out all requests.
    pub(super) fn drain(&mut self) -> Vec<Watcher> {
        self.by_prefix.clear();
        self.lengths.clear();
        self.by_deadline.clear();
        self.by_session.clear();
        std::mem::take(&mut self.all).into_values().collect()
    }

    /// Deadline of the request that expires first.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.by_deadline.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    fn remove(&mut self, id: u64) -> Option<Watcher> {
        let watcher = self.all.remove(&id)?;
        self.by_deadline.remove(&(watcher.deadline_ms, id));
        if let Some(ids) = self.by_session.get_mut(&watcher.session) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_session.remove(&watcher.session);
            }
        }
        if let Some(ids) = self.by_prefix.get_mut(&watcher.prefix) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_prefix.remove(&watcher.prefix);
                let length = watcher.prefix.len();
                if let Some(count) = self.lengths.get_mut(&length) {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&length);
                    }
                }
            }
        }
        Some(watcher)
    }
}
