//! Memory that forked children may read. It is given back once the last of them has ended.
//!
//! Unsealed memory belongs to the client's grants. Pages of a freed buffer or a dropped writer may
//! still be read by a child that was forked in between. They are retained here until the last such
//! child has ended. If this client ends earlier, the node keeps its grants.

use std::sync::{Arc, Weak};

use farrow_memory::fork;

use crate::connection::session::Session;
use crate::lock::lock;
use crate::memory::unused::{ForkSpan, Unused};

impl Session {
    /// Gives back memory that was in use since fork `since`: at once, or when no child shares it.
    pub(crate) fn give_unused(self: &Arc<Self>, memory: Unused, since: u64) {
        let until = fork::forks();
        if !fork::is_inherited(since, until) {
            return self.take_in(memory);
        }
        lock(&self.inherited.0).push(ForkSpan { since, until, memory });
        let this: Weak<Self> = Arc::downgrade(self);
        fork::defer(this);
    }

    fn take_in(&self, memory: Unused) {
        match memory {
            Unused::Pages(pages) => self.pool.extents().give(self, pages),
            Unused::Slot(offset) => self.pool.free_slot(self, offset),
            Unused::Sealing(ticket) => self.pool.extents().unused(self, ticket),
        }
    }
}

impl fork::Deferred for Session {
    fn let_go(&self) -> bool {
        if !self.is_own_process() {
            return false;
        }
        let is_left = |one: &ForkSpan| fork::is_inherited(one.since, one.until);
        let (left, returned): (Vec<ForkSpan>, Vec<ForkSpan>) =
            std::mem::take(&mut *lock(&self.inherited.0)).into_iter().partition(is_left);
        returned.into_iter().for_each(|one| self.take_in(one.memory));
        let mut all = lock(&self.inherited.0);
        all.extend(left);
        !all.is_empty()
    }
}
