//! The memory that the node lends grows and shrinks while it serves.
//!
//! A change is made in pieces, one in a turn of the event loop, so that no other request waits for
//! all of it. To shrink, free pages are withdrawn from the heap, wherever they lie, and given back
//! to the kernel; objects leave by the policy if too few pages are free. To grow, pages are
//! allocated before they are lent. What is reached stays, whatever happens to the rest.

use std::cmp::Ordering;
use std::sync::Arc;

use farrow_memory::{Length, Span, sync};
use farrow_store::{Home, StoreError};
use farrow_wire::WireError;

use super::residency::{RemoteReplicas, Residency};
use crate::protocol::context::ReplyTo;
use crate::protocol::convert::store_error;
use crate::protocol::identity::SessionId;
use crate::protocol::limits::MEMORY_BYTES_MIN;

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

/// The thread that touches pages before their first use.
#[derive(Debug, Clone)]
pub(crate) struct Preparation {
    pub(crate) should_go_on: Arc<sync::AtomicBool>,
    pub(crate) is_running: Arc<sync::AtomicBool>,
}

impl Preparation {
    /// Ends the thread soon: it would touch pages that were given back. Returns whether it still
    /// runs.
    pub(in crate::protocol) fn stop(&self) -> bool {
        self.should_go_on.store(false, sync::Ordering::Relaxed);
        self.is_running.load(sync::Ordering::Acquire)
    }
}

/// A change under way.
#[derive(Debug)]
struct ResizeJob {
    target: u64,
    waiters: Vec<ReplyTo>,
    /// When it looks next.
    at_ms: u64,
    /// When it ends without progress; `None` before its first piece.
    until_ms: Option<u64>,
}

/// The end of a change: the requests that wait for it, and its result.
#[derive(Debug)]
pub(in crate::protocol) struct ResizeEnd {
    pub(in crate::protocol) waiters: Vec<ReplyTo>,
    pub(in crate::protocol) result: Result<(), WireError>,
}

/// The parts of the node that a change works on.
pub(in crate::protocol) struct ResizeContext<'a> {
    pub(in crate::protocol) home: &'a mut Home,
    pub(in crate::protocol) residency: &'a mut Residency,
    pub(in crate::protocol) replicas: &'a mut dyn RemoteReplicas,
}

/// Changes of the memory that the node lends.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Resize {
    job: Option<ResizeJob>,
    sweep_at_ms: Option<u64>,
    preparation: Option<Preparation>,
}

/// Bytes in whole pages.
pub(in crate::protocol) fn whole_pages(home: &Home, bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(home.layout().page.0).unwrap_or(u64::MAX)
}

impl Resize {
    /// Sets the thread that touches pages ahead.
    pub(in crate::protocol) fn set_preparation(&mut self, preparation: Preparation) {
        self.preparation = Some(preparation);
    }

    /// Whether the node can lend this many bytes, by its limits and by what is free and held now.
    pub(in crate::protocol) fn check(
        &self,
        home: &mut Home,
        residency: &Residency,
        bytes: u64,
    ) -> Result<(), WireError> {
        let target = whole_pages(home, bytes);
        let (max, capacity) = (home.capacity_max().0, home.capacity().0);
        let invalid = |reason: String| Err(WireError::Invalid(format!("memory: {reason}")));
        if target == capacity && self.job.is_none() {
            return Ok(());
        }
        if !home.region().can_give_back() {
            return invalid(format!("a device has a fixed size, here {capacity} B"));
        }
        if bytes < MEMORY_BYTES_MIN || target > max {
            return invalid(format!(
                "{bytes} B, this node can lend {MEMORY_BYTES_MIN} B to {max} B (--memory-max)"
            ));
        }
        if let Some(job) = self.job.as_ref().filter(|job| job.target != target) {
            return invalid(format!("a change to {} B is under way, now {capacity} B", job.target));
        }
        match target.cmp(&capacity) {
            Ordering::Greater => {
                let checked = home.region().check_memory(Length(target - capacity));
                checked.or_else(|error| invalid(error.to_string()))
            }
            _ => check_shrink(home, residency, target),
        }
    }

    /// Begins to change the memory to what [`Self::check`] has allowed. Returns true if there is
    /// nothing to do; else `waiter` is answered at the end.
    pub(in crate::protocol) fn begin(
        &mut self,
        home: &Home,
        bytes: u64,
        waiter: Option<ReplyTo>,
    ) -> bool {
        let target = whole_pages(home, bytes);
        if let Some(job) = &mut self.job {
            job.waiters.extend(waiter);
            return false;
        }
        if target == home.capacity().0 {
            return true;
        }
        let waiters = waiter.into_iter().collect();
        self.job = Some(ResizeJob { target, waiters, at_ms: 0, until_ms: None });
        false
    }

    /// Does one piece of a change, if it is time. Returns the end of the change.
    pub(in crate::protocol) fn tick(
        &mut self,
        mut context: ResizeContext<'_>,
        now_ms: u64,
    ) -> Option<ResizeEnd> {
        if self.sweep_at_ms.is_some_and(|at| at <= now_ms) {
            self.sweep_at_ms = None;
            let withdrawn: Vec<_> = context.home.withdrawn().collect();
            withdrawn.into_iter().for_each(|span| give_back(context.home, span));
        }
        let job = self.job.as_ref().filter(|job| job.at_ms <= now_ms)?;
        let (target, capacity) = (job.target, context.home.capacity().0);
        let until_ms = job.until_ms;
        let moved = match target.cmp(&capacity) {
            Ordering::Equal => return self.end(context.home, Ok(()), now_ms),
            Ordering::Greater => {
                grow_some(context.home, Length((target - capacity).min(PIECE_BYTES)))
            }
            Ordering::Less => self.shrink_some(&mut context, Length(capacity - target)),
        };
        let stalls_at_ms = now_ms.saturating_add(STALL_MS_MAX);
        let (at_ms, until_ms) = match moved {
            Err(error) => return self.end(context.home, Err(error), now_ms),
            Ok(true) => (now_ms, stalls_at_ms),
            Ok(false) if until_ms.is_some_and(|until| until <= now_ms) => {
                let error = cannot_shrink(context.home, context.residency, target);
                return self.end(context.home, Err(error), now_ms);
            }
            Ok(false) => (now_ms.saturating_add(LOOK_MS), until_ms.unwrap_or(stalls_at_ms)),
        };
        if let Some(job) = &mut self.job {
            (job.at_ms, job.until_ms) = (at_ms, Some(until_ms));
        }
        None
    }

    /// Lends one piece less of what is `left`, if pages are free; else makes some free, now or soon.
    fn shrink_some(
        &mut self,
        context: &mut ResizeContext<'_>,
        left: Length,
    ) -> Result<bool, WireError> {
        if self.preparation.as_ref().is_some_and(Preparation::stop) {
            return Ok(false);
        }
        let ResizeContext { home, residency, replicas } = context;
        if home.free_page_bytes().0 == 0 {
            let bytes = left.min(Length(EVICT_BYTES));
            residency.free_pages(home, &mut **replicas, bytes).map_err(store_error)?;
        }
        let spans = match home.withdraw_pages(left.min(Length(PIECE_BYTES))) {
            Err(StoreError::TooManyGrants { max }) => {
                return Err(WireError::Invalid(format!(
                    "memory: the free memory lies in so many parts that less than half of {max} \
                     records of ranges would be left for clients"
                )));
            }
            spans => spans.map_err(store_error)?,
        };
        spans.iter().for_each(|span| give_back(home, *span));
        Ok(!spans.is_empty())
    }

    fn end(
        &mut self,
        home: &Home,
        result: Result<(), WireError>,
        now_ms: u64,
    ) -> Option<ResizeEnd> {
        let ResizeJob { target: target_bytes, waiters, .. } = self.job.take()?;
        let capacity_bytes = home.capacity().0;
        match &result {
            Ok(()) => tracing::info!(capacity_bytes, "the node lends another amount of memory"),
            Err(error) => {
                tracing::warn!(target_bytes, capacity_bytes, %error, "the memory is not changed")
            }
        }
        self.sweep_at_ms = Some(now_ms.saturating_add(SWEEP_MS));
        Some(ResizeEnd { waiters, result })
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        let job = self.job.as_ref().map(|job| job.at_ms);
        job.into_iter().chain(self.sweep_at_ms).min()
    }

    /// Forgets one request. The change goes on.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let Some(job) = &mut self.job else { return false };
        let before = job.waiters.len();
        job.waiters.retain(|waiter| *waiter != ReplyTo { session, seq });
        job.waiters.len() < before
    }

    /// Forgets the requests of an ended session. The change goes on.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        if let Some(job) = &mut self.job {
            job.waiters.retain(|waiter| waiter.session != session);
        }
    }

    /// Takes out all waiting requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let waiters = self.job.as_mut().map(|job| std::mem::take(&mut job.waiters));
        waiters.into_iter().flatten().map(|to| (to.session, to.seq)).collect()
    }
}

/// Whether enough pages can become free, before any object leaves for it.
fn check_shrink(home: &mut Home, residency: &Residency, target: u64) -> Result<(), WireError> {
    let less = Length(home.capacity().0.saturating_sub(target));
    match residency.could_free_pages(home, less).map_err(store_error)? {
        true => Ok(()),
        false => Err(cannot_shrink(home, residency, target)),
    }
}

/// The error of a node that cannot lend less, with what stays.
fn cannot_shrink(home: &Home, residency: &Residency, target: u64) -> WireError {
    let capacity = home.capacity().0;
    if let Some(error) = residency.shortage(home, capacity - target, 0) {
        return error;
    }
    let stats = match home.stats() {
        Ok(stats) => stats,
        Err(error) => return store_error(error),
    };
    WireError::Invalid(format!(
        "memory: {target} B asked of {capacity} B, which needs {} B of free pages: {} B are \
         free, {} B of {} B in objects can be evicted (eviction is {}); {} B are held, {} B \
         pinned, {} B granted to clients, {} B retiring",
        capacity - target,
        home.free_page_bytes().0,
        residency.evictable(&stats).0,
        stats.used.0,
        residency.policy_name(),
        stats.held.0,
        stats.pinned.0,
        stats.granted.0,
        stats.retiring.0,
    ))
}

/// Lends one piece more.
fn grow_some(home: &mut Home, bytes: Length) -> Result<bool, WireError> {
    let Some(span) = home.next_to_lend(bytes) else { return Ok(false) };
    let region = home.region();
    let allocated = region.check_memory(span.length).and_then(|()| region.commit(span));
    if let Err(error) = allocated {
        give_back(home, span);
        return Err(WireError::Invalid(format!("memory: {error}")));
    }
    home.lend(span).map_err(store_error)?;
    Ok(true)
}

fn give_back(home: &Home, span: Span) {
    if let Err(error) = home.region().give_back(span) {
        tracing::error!(%error, "memory that is not lent stays allocated");
    }
}
