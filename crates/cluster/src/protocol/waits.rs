//! Requests that wait for objects to be sealed.

use std::collections::{BTreeMap, BTreeSet};

use super::SessionId;

/// Most waits that one client may have under way.
pub(super) const WAITS_PER_SESSION_MAX: usize = 1024;

/// One waiting request.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    /// Which targets are sealed by now.
    pub(super) ready: Vec<bool>,
    /// How many are enough.
    pub(super) count: usize,
    deadline_ms: u64,
    names: Vec<(String, usize)>,
}

/// All waiting requests, by name and by deadline.
#[derive(Debug, Default)]
pub(super) struct Waits {
    next: u64,
    all: BTreeMap<u64, Wait>,
    by_name: BTreeMap<String, BTreeSet<u64>>,
    by_deadline: BTreeSet<(u64, u64)>,
}

impl Waits {
    /// Number of waits of a session.
    pub(super) fn count_of(&self, session: SessionId) -> usize {
        self.all.values().filter(|wait| wait.session == session).count()
    }

    /// Whether a request waits for this name.
    pub(super) fn is_awaited(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Adds a wait; `names` are the targets that may still come, with their places in `ready`.
    pub(super) fn add(
        &mut self,
        session: SessionId,
        seq: u64,
        ready: Vec<bool>,
        count: usize,
        names: Vec<(String, usize)>,
        deadline_ms: u64,
    ) {
        let id = self.next;
        self.next += 1;
        for (name, _) in &names {
            self.by_name.entry(name.clone()).or_default().insert(id);
        }
        self.by_deadline.insert((deadline_ms, id));
        self.all.insert(id, Wait { session, seq, ready, count, deadline_ms, names });
    }

    /// Marks a name as sealed and returns the waits that have enough now.
    pub(super) fn sealed(&mut self, name: &str) -> Vec<Wait> {
        let Some(ids) = self.by_name.remove(name) else {
            return Vec::new();
        };
        let mut done = Vec::new();
        for id in ids {
            let Some(wait) = self.all.get_mut(&id) else {
                continue;
            };
            for (_, place) in wait.names.iter().filter(|(waited, _)| waited == name) {
                if let Some(ready) = wait.ready.get_mut(*place) {
                    *ready = true;
                }
            }
            wait.names.retain(|(waited, _)| waited != name);
            if wait.ready.iter().filter(|ready| **ready).count() >= wait.count {
                done.push(id);
            }
        }
        done.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Takes out the waits whose time is over.
    pub(super) fn expired(&mut self, now_ms: u64) -> Vec<Wait> {
        let mut over = Vec::new();
        while let Some(&(deadline_ms, id)) = self.by_deadline.first() {
            if deadline_ms > now_ms {
                break;
            }
            self.by_deadline.pop_first();
            over.extend(self.remove(id));
        }
        over
    }

    /// Forgets the waits of a session that went.
    pub(super) fn forget(&mut self, session: SessionId) {
        let gone: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, wait)| wait.session == session)
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.remove(id);
        }
    }

    /// Forgets one wait. False: there is none.
    pub(super) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let mut all = self.all.iter();
        let found = all.find(|(_, wait)| wait.session == session && wait.seq == seq);
        let found = found.map(|(id, _)| *id);
        found.and_then(|id| self.remove(id)).is_some()
    }

    /// Takes out all, for the end.
    pub(super) fn drain(&mut self) -> Vec<Wait> {
        self.by_name.clear();
        self.by_deadline.clear();
        std::mem::take(&mut self.all).into_values().collect()
    }

    /// When the next wait is over.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.by_deadline.first().map(|(deadline_ms, _)| *deadline_ms)
    }

    fn remove(&mut self, id: u64) -> Option<Wait> {
        let wait = self.all.remove(&id)?;
        self.by_deadline.remove(&(wait.deadline_ms, id));
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
