//! Requests that wait for objects to be sealed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::protocol::identity::SessionId;

/// Limit of waits of one client at a time.
pub(in crate::protocol) const WAITS_PER_SESSION_MAX: usize = 1024;

/// Cost of a wait beside its names: entries of the tables.
const WAIT_COST_BYTES: usize = 256;
/// Cost of each name of a wait beside its bytes: entries of the tables.
const NAME_COST_BYTES: usize = 128;

/// One waiting request.
#[derive(Debug)]
pub(in crate::protocol) struct Wait {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    /// Whether each target is sealed.
    pub(in crate::protocol) ready: Vec<bool>,
    /// Number of sealed targets that ends the wait.
    pub(in crate::protocol) count: usize,
    pub(in crate::protocol) deadline_ms: u64,
    /// The targets that may still appear, with their indexes in `ready`.
    pub(in crate::protocol) names: Vec<(String, usize)>,
}

/// All waiting requests, by name and by deadline.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Waits {
    next: u64,
    all: BTreeMap<u64, Wait>,
    by_name: BTreeMap<String, BTreeSet<u64>>,
    by_deadline: BTreeSet<(u64, u64)>,
    by_session: BTreeMap<SessionId, OfSession>,
    /// Sealed names, with the waits for them that are not checked yet.
    sealed: VecDeque<(String, BTreeSet<u64>)>,
}

/// The waits of a session.
#[derive(Debug, Default)]
struct OfSession {
    ids: BTreeSet<u64>,
    bytes: usize,
}

impl Wait {
    /// Memory of the wait, including its entries in the tables.
    fn bytes(&self) -> usize {
        wait_bytes(&self.ready, &self.names)
    }
}

/// Memory of a wait for these targets and names.
pub(in crate::protocol) fn wait_bytes(ready: &[bool], names: &[(String, usize)]) -> usize {
    let names = names.iter().map(|(name, _)| 2 * name.len() + NAME_COST_BYTES);
    WAIT_COST_BYTES + ready.len() + names.sum::<usize>()
}

impl Waits {
    /// Number of waits of a session.
    pub(in crate::protocol) fn count_of(&self, session: SessionId) -> usize {
        self.by_session.get(&session).map_or(0, |one| one.ids.len())
    }

    /// Memory of the waits of a session.
    pub(in crate::protocol) fn bytes_of(&self, session: SessionId) -> usize {
        self.by_session.get(&session).map_or(0, |one| one.bytes)
    }

    /// Whether a request waits for this name.
    pub(in crate::protocol) fn is_awaited(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The names that requests wait for.
    pub(in crate::protocol) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_name.keys()
    }

    /// Adds a wait.
    pub(in crate::protocol) fn add(&mut self, wait: Wait) {
        let id = self.next;
        self.next += 1;
        for (name, _) in &wait.names {
            self.by_name.entry(name.clone()).or_default().insert(id);
        }
        self.by_deadline.insert((wait.deadline_ms, id));
        let of_session = self.by_session.entry(wait.session).or_default();
        of_session.ids.insert(id);
        of_session.bytes += wait.bytes();
        self.all.insert(id, wait);
    }

    /// Notes that a name is sealed; [`Self::ready`] then returns the waits that are complete.
    pub(in crate::protocol) fn sealed(&mut self, name: &str) {
        if let Some((name, ids)) = self.by_name.remove_entry(name) {
            self.sealed.push_back((name, ids));
        }
    }

    /// Whether any wait for a sealed name is not checked yet.
    pub(in crate::protocol) fn has_ready(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// Checks at most `looks_max` waits for sealed names; returns the complete ones.
    pub(in crate::protocol) fn ready(&mut self, looks_max: usize) -> Vec<Wait> {
        let mut done = Vec::new();
        for _ in 0..looks_max {
            let Some((name, ids)) = self.sealed.front_mut() else {
                break;
            };
            let (name, id) = match ids.pop_first() {
                Some(id) if ids.is_empty() => (std::mem::take(name), Some(id)),
                Some(id) => (name.clone(), Some(id)),
                None => (String::new(), None),
            };
            if ids.is_empty() {
                self.sealed.pop_front();
            }
            done.extend(id.and_then(|id| self.mark(id, &name)));
        }
        done
    }

    /// Marks a name of a wait as sealed; returns the wait if it is complete.
    fn mark(&mut self, id: u64, name: &str) -> Option<Wait> {
        let wait = self.all.get_mut(&id)?;
        let before = wait.bytes();
        for (_, place) in wait.names.iter().filter(|(waited, _)| waited == name) {
            if let Some(ready) = wait.ready.get_mut(*place) {
                *ready = true;
            }
        }
        wait.names.retain(|(waited, _)| waited != name);
        let freed = before.saturating_sub(wait.bytes());
        let is_done = wait.ready.iter().filter(|ready| **ready).count() >= wait.count;
        if let Some(of_session) = self.by_session.get_mut(&wait.session) {
            of_session.bytes = of_session.bytes.saturating_sub(freed);
        }
        if is_done { self.remove(id) } else { None }
    }

    /// Takes out the waits for a name that cannot appear here.
    pub(in crate::protocol) fn failed(&mut self, name: &str) -> Vec<Wait> {
        let ids = self.by_name.remove(name).unwrap_or_default();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes out at most `waits_max` expired waits.
    pub(in crate::protocol) fn expired(&mut self, now_ms: u64, waits_max: usize) -> Vec<Wait> {
        let mut over = Vec::new();
        while over.len() < waits_max
            && let Some(&(deadline_ms, id)) = self.by_deadline.first()
        {
            if deadline_ms > now_ms {
                break;
            }
            self.by_deadline.pop_first();
            over.extend(self.remove(id));
        }
        over
    }

    /// Forgets the waits of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        let ids_of_session = self.by_session.get(&session).map(|one| one.ids.clone());
        for id in ids_of_session.into_iter().flatten() {
            self.remove(id);
        }
    }

    /// Forgets one wait and returns whether there was one.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let mut all = self.all.iter();
        let found = all.find(|(_, wait)| wait.session == session && wait.seq == seq);
        let found = found.map(|(id, _)| *id);
        found.and_then(|id| self.remove(id)).is_some()
    }

    /// Takes out all waits at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<Wait> {
        self.by_name.clear();
        self.by_deadline.clear();
        self.by_session.clear();
        self.sealed.clear();
        std::mem::take(&mut self.all).into_values().collect()
    }

    /// Deadline of the wait that expires first.
    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.by_deadline.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    fn remove(&mut self, id: u64) -> Option<Wait> {
        let wait = self.all.remove(&id)?;
        self.by_deadline.remove(&(wait.deadline_ms, id));
        if let Some(of_session) = self.by_session.get_mut(&wait.session) {
            of_session.ids.remove(&id);
            of_session.bytes = of_session.bytes.saturating_sub(wait.bytes());
            if of_session.ids.is_empty() {
                self.by_session.remove(&wait.session);
            }
        }
        for (name, _) in &wait.names {
            if let Some(ids) = self.by_name.get_mut(name) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_name.remove(name);
                }
            }
        }
        Some(wait)
    }
}
