//! The memory that the node lends grows and shrinks while it serves.
//!
//! A change is made in pieces, one in a turn of the event loop, so that no other request waits for
//! all of it. To shrink, free pages are withdrawn from the heap, wherever they lie, and given back
//! to the kernel; objects leave by the policy if too few pages are free. To grow, pages are
//! allocated before they are lent. What is reached stays, whatever happens to the rest.

use std::cmp::Ordering;

use farrow_memory::{Length, Span};
use farrow_store::StoreError;
use farrow_wire::{ReplyBody, WireError};

use crate::protocol::action::{Action, answer_to};
use crate::protocol::context::ReplyTo;
use crate::protocol::convert::store_error;
use crate::protocol::core::resize::{Preparation, ResizeJob};
use crate::protocol::limits::MEMORY_BYTES_MIN;
use crate::protocol::state::NodeState;

/// Bytes of one piece. The kernel allocates or frees them in a few milliseconds, for which all
/// other requests wait.
const PIECE_BYTES: u64 = 4 << 20;

/// Bytes for which objects leave at a time: each choice looks at all objects.
const EVICT_BYTES: u64 = 64 << 20;

/// Longest time without progress. Readers let go and files are written meanwhile.
const STALL_MS_MAX: u64 = 8_000;

/// Pause before a change without progress looks again.
const LOOK_MS: u64 = 20;

/// A client may map an object ahead of its use when the object leaves, and so allocate pages after
/// they were given back. They are given back once more after this time.
const SWEEP_MS: u64 = 2_000;

impl NodeState {
    /// Sets the thread that touches pages ahead.
    pub(crate) fn set_preparation(&mut self, preparation: Preparation) {
        self.resize.preparation = Some(preparation);
    }

    /// Bytes in whole pages.
    pub(super) fn whole_pages(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.home.layout().page.0).unwrap_or(u64::MAX)
    }

    /// Whether the node can lend this many bytes, by its limits and by what is free and held now.
    pub(super) fn check_memory(&mut self, bytes: u64) -> Result<(), WireError> {
        let target = self.whole_pages(bytes);
        let (max, capacity) = (self.home.capacity_max().0, self.home.capacity().0);
        let invalid = |reason: String| Err(WireError::Invalid(format!("memory: {reason}")));
        if target == capacity && self.resize.job.is_none() {
            return Ok(());
        }
        if !self.home.region().can_give_back() {
            return invalid(format!("a device has a fixed size, here {capacity} B"));
        }
        if bytes < MEMORY_BYTES_MIN || target > max {
            return invalid(format!(
                "{bytes} B, this node can lend {MEMORY_BYTES_MIN} B to {max} B (--memory-max)"
            ));
        }
        if let Some(job) = self.resize.job.as_ref().filter(|job| job.target != target) {
            return invalid(format!("a change to {} B is under way, now {capacity} B", job.target));
        }
        match target.cmp(&capacity) {
            Ordering::Greater => {
                let more = Length(target - capacity);
                let checked = self.home.region().check_memory(more);
                checked.or_else(|error| invalid(error.to_string()))
            }
            _ => self.check_shrink(target),
        }
    }

    /// Whether enough pages can become free, before any object leaves for it.
    fn check_shrink(&mut self, target: u64) -> Result<(), WireError> {
        let less = Length(self.home.capacity().0.saturating_sub(target));
        match self.residency.could_free_pages(&mut self.home, less).map_err(store_error)? {
            true => Ok(()),
            false => Err(self.cannot_shrink(target)),
        }
    }

    /// The error of a node that cannot lend less, with what stays.
    fn cannot_shrink(&self, target: u64) -> WireError {
        let capacity = self.home.capacity().0;
        if let Some(error) = self.residency.shortage(&self.home, capacity - target, 0) {
            return error;
        }
        let stats = match self.home.stats() {
            Ok(stats) => stats,
            Err(error) => return store_error(error),
        };
        WireError::Invalid(format!(
            "memory: {target} B asked of {capacity} B, which needs {} B of free pages: {} B are \
             free, {} B of {} B in objects can be evicted (eviction is {}); {} B are held, {} B \
             pinned, {} B granted to clients, {} B retiring",
            capacity - target,
            self.home.free_page_bytes().0,
            self.residency.evictable(&stats).0,
            stats.used.0,
            self.residency.policy_name(),
            stats.held.0,
            stats.pinned.0,
            stats.granted.0,
            stats.retiring.0,
        ))
    }

    /// Begins to change the memory to what [`Self::check_memory`] has allowed. Returns true if
    /// there is nothing to do; else `waiter` is answered at the end.
    pub(super) fn begin_resize(&mut self, bytes: u64, waiter: Option<ReplyTo>) -> bool {
        let target = self.whole_pages(bytes);
        if let Some(job) = &mut self.resize.job {
            job.waiters.extend(waiter);
            return false;
        }
        if target == self.home.capacity().0 {
            return true;
        }
        let waiters = waiter.into_iter().collect();
        self.resize.job = Some(ResizeJob { target, waiters, at_ms: 0, until_ms: None });
        false
    }

    /// Does one piece of a change, if it is time.
    pub(in crate::protocol) fn tick_resize(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        if self.resize.sweep_at_ms.is_some_and(|at| at <= now_ms) {
            self.resize.sweep_at_ms = None;
            let withdrawn: Vec<_> = self.home.withdrawn().collect();
            withdrawn.into_iter().for_each(|span| self.give_back(span));
        }
        let Some(job) = self.resize.job.as_ref().filter(|job| job.at_ms <= now_ms) else { return };
        let (target, capacity) = (job.target, self.home.capacity().0);
        let moved = match target.cmp(&capacity) {
            Ordering::Equal => return self.end_resize(Ok(()), now_ms, out),
            Ordering::Greater => self.grow_some(Length((target - capacity).min(PIECE_BYTES))),
            Ordering::Less => self.shrink_some(Length(capacity - target)),
        };
        let until_ms = self.resize.job.as_ref().and_then(|job| job.until_ms);
        let stalls_at_ms = now_ms.saturating_add(STALL_MS_MAX);
        let (at_ms, until_ms) = match moved {
            Err(error) => return self.end_resize(Err(error), now_ms, out),
            Ok(true) => (now_ms, stalls_at_ms),
            Ok(false) if until_ms.is_some_and(|until| until <= now_ms) => {
                return self.end_resize(Err(self.cannot_shrink(target)), now_ms, out);
            }
            Ok(false) => (now_ms.saturating_add(LOOK_MS), until_ms.unwrap_or(stalls_at_ms)),
        };
        if let Some(job) = &mut self.resize.job {
            (job.at_ms, job.until_ms) = (at_ms, Some(until_ms));
        }
    }

    /// Lends one piece more.
    fn grow_some(&mut self, bytes: Length) -> Result<bool, WireError> {
        let Some(span) = self.home.next_to_lend(bytes) else { return Ok(false) };
        let region = self.home.region();
        let allocated = region.check_memory(span.length).and_then(|()| region.commit(span));
        if let Err(error) = allocated {
            self.give_back(span);
            return Err(WireError::Invalid(format!("memory: {error}")));
        }
        self.home.lend(span).map_err(store_error)?;
        Ok(true)
    }

    /// Lends one piece less of what is `left`, if pages are free; else makes some free, now or soon.
    fn shrink_some(&mut self, left: Length) -> Result<bool, WireError> {
        if self.resize.preparation.as_ref().is_some_and(Preparation::stop) {
            return Ok(false);
        }
        if self.home.free_page_bytes().0 == 0 {
            let Self { home, residency, replicas, .. } = self;
            let bytes = left.min(Length(EVICT_BYTES));
            residency.free_pages(home, replicas, bytes).map_err(store_error)?;
        }
        let spans = match self.home.withdraw_pages(left.min(Length(PIECE_BYTES))) {
            Err(StoreError::TooManyGrants { max }) => {
                return Err(WireError::Invalid(format!(
                    "memory: the free memory lies in so many parts that less than half of {max} \
                     records of ranges would be left for clients"
                )));
            }
            spans => spans.map_err(store_error)?,
        };
        spans.iter().for_each(|span| self.give_back(*span));
        Ok(!spans.is_empty())
    }

    fn give_back(&self, span: Span) {
        if let Err(error) = self.home.region().give_back(span) {
            tracing::error!(%error, "memory that is not lent stays allocated");
        }
    }

    fn end_resize(&mut self, result: Result<(), WireError>, now_ms: u64, out: &mut Vec<Action>) {
        let Some(job) = self.resize.job.take() else { return };
        let (target, capacity) = (job.target, self.home.capacity().0);
        match &result {
            Ok(()) => tracing::info!(capacity, "the node lends another amount of memory"),
            Err(error) => tracing::warn!(target, capacity, %error, "the memory is not changed"),
        }
        self.resize.sweep_at_ms = Some(now_ms.saturating_add(SWEEP_MS));
        self.settings.note_memory(capacity);
        let stored = self.keep_settings();
        let reply = result.and(stored).map(|()| ReplyBody::Done);
        if let Some(cluster) = &mut self.cluster.0 {
            cluster.has_news = true;
        }
        self.notify_members();
        self.admission.look_again();
        let answers = job.waiters.into_iter();
        out.extend(answers.map(|to| answer_to(to.session, to.seq, reply.clone())));
    }
}
