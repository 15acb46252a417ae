//! The objects whose pages are brought as clients read them ([`super::lazy`]).

use std::collections::{BTreeMap, BTreeSet};

use farrow_memory::Span;
use farrow_net::frame::Opened;
use farrow_store::{ObjectId, ObjectKind, SpillHead};
use farrow_wire::{LAZY_BLOCKS_MAX, LAZY_DESCRIPTOR_BYTES_MAX, LazyObject};

use crate::protocol::identity::SessionId;
use crate::protocol::net::query::{Brought, NetQuery};

/// Time for which an object without clients stays: another process may read it next.
const LINGER_MS: u64 = 2_000;

/// An object of which this is less is brought whole.
const LAZY_BYTES_MIN: u64 = 128 << 10;

/// One of these objects.
#[derive(Debug)]
pub(super) struct Lazy {
    pub(super) node: String,
    pub(super) hold: u64,
    pub(super) origin: ObjectId,
    /// How it was found.
    pub(super) wish: NetQuery,
    pub(super) blocks: Vec<Span>,
    pub(super) bytes: u64,
    pub(super) object: LazyObject,
    pub(super) users: BTreeSet<SessionId>,
    /// When it is released; `None` while it has users.
    pub(super) until_ms: Option<u64>,
    /// Whether a later get may use it. Not after a delete, or once its hold may have ended.
    pub(super) is_current: bool,
}

/// A connection that waits for pages.
#[derive(Debug)]
pub(super) struct PagesWaiter {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    pub(super) file: u64,
}

/// The objects whose pages are brought one by one. Each has the number of its file.
#[derive(Debug, Default)]
pub(in crate::protocol) struct LazyObjects {
    pub(super) all: BTreeMap<u64, Lazy>,
    /// The file of each connection.
    pub(super) files: BTreeMap<SessionId, u64>,
    pub(super) waiting: BTreeMap<u64, PagesWaiter>,
}

impl LazyObjects {
    /// Forgets a connection.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId, now_ms: u64) {
        self.waiting.retain(|_, one| one.session != session);
        let Some(file) = self.files.remove(&session) else { return };
        let Some(lazy) = self.all.get_mut(&file) else { return };
        lazy.users.remove(&session);
        if lazy.users.is_empty() {
            lazy.until_ms = Some(now_ms.saturating_add(LINGER_MS));
        }
    }

    /// Takes out all waiting requests at shutdown.
    pub(super) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let waiting = std::mem::take(&mut self.waiting).into_values();
        waiting.map(|one| (one.session, one.seq)).collect()
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.all.values().filter_map(|one| one.until_ms).min()
    }

    /// No later get uses these objects.
    pub(super) fn outdate(&mut self, is_it: impl Fn(ObjectId, &str) -> bool) {
        for lazy in self.all.values_mut().filter(|one| is_it(one.origin, &one.node)) {
            lazy.is_current = false;
        }
    }

    /// Whether an object is opened already, for a get.
    pub(super) fn known(&self, wish: &NetQuery) -> Option<u64> {
        let is_it = |one: &Lazy| match wish {
            NetQuery::Id(hi, lo) => one.origin == ObjectId { hi: *hi, lo: *lo },
            wish => one.wish == *wish,
        };
        let mut all = self.all.iter();
        all.find(|(_, one)| one.is_current && is_it(one)).map(|(file, _)| *file)
    }

    /// Takes out the unused objects, those of which the time is over or all of them.
    pub(super) fn take_idle(&mut self, now_ms: u64) -> Vec<(u64, Lazy)> {
        let is_idle =
            |one: &Lazy| one.until_ms.is_some_and(|until_ms| until_ms <= now_ms || !one.is_current);
        let idle = self.all.iter().filter(|(_, one)| is_idle(one));
        let idle: Vec<u64> = idle.map(|(file, _)| *file).collect();
        idle.into_iter().filter_map(|file| self.all.remove_entry(&file)).collect()
    }

    /// Number of objects of this home.
    pub(super) fn count_of(&self, home: &str) -> usize {
        self.all.values().filter(|one| one.node == home).count()
    }

    /// Bytes of all objects: each may be read whole.
    pub(super) fn bytes(&self) -> u64 {
        self.all.values().map(|one| one.bytes).sum()
    }
}

/// Whether the pages of an object can be brought one by one. Others are brought whole.
pub(super) fn can_be_lazy(opened: &Opened, brought: &Brought, head: &SpillHead) -> bool {
    let bytes: u64 = opened.blocks.iter().map(|block| block.length.0).sum();
    let lengths = |spans: &[Span]| spans.iter().map(|span| span.length).collect::<Vec<_>>();
    opened.inline.is_empty()
        && bytes >= LAZY_BYTES_MIN
        && head.kind != ObjectKind::Bytes
        && lengths(&opened.blocks) == lengths(&head.origins)
        && opened.blocks.len() <= LAZY_BLOCKS_MAX
        && brought.descriptor.len() <= LAZY_DESCRIPTOR_BYTES_MAX
}
