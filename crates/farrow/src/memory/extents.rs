//! Memory that the node has granted to this client and that contains no object yet.
//!
//! The node grants ranges ahead of need, so that most allocations cost no message. Surplus ranges
//! are returned. Ranges are whole pages; only the rest of a page is returned as lines.

use std::sync::Mutex;

use farrow_memory::{MapError, Offset, Span, page_bytes};
use farrow_store::Run;

use crate::error::Error;
use crate::lock::lock;
use crate::memory::node::NodeAccess;
use crate::memory::room::{self, Demand, GROUPS_MAX};

mod ranges;
mod records;
mod seals;

use ranges::{all_whole_pages, cut, group_sizes, whole_pages};
pub(crate) use ranges::{difference, run_span, span_run};
pub(crate) use records::Granted;
use records::{AHEAD_BYTES_MAX, ExtentsState};
pub(crate) use seals::{SealOutcome, SealTicket, UseGuard};

/// Retained bytes are at most this part of the heap, since no other client can use them.
const AHEAD_PART_OF_HEAP: u64 = 64;

/// The largest grant to be cut up for small objects: one message for several thousand of them.
const CUT_BYTES_MAX: u64 = 8 << 20;

/// Ranges of one client, allocated by the page.
#[derive(Debug)]
pub(crate) struct Extents {
    /// Whether ranges are mapped writable over the window while they are here.
    is_writable: bool,
    /// See [`AHEAD_BYTES_MAX`].
    ahead_bytes: u64,
    state: Mutex<ExtentsState>,
}

impl Extents {
    /// The extents of a client in this heap, still empty.
    pub(crate) fn new(heap: Span, is_writable: bool) -> Result<Self, Error> {
        let part_of_heap = heap.length.0 / AHEAD_PART_OF_HEAP;
        let ahead_bytes = part_of_heap.clamp(page_bytes(), AHEAD_BYTES_MAX);
        Ok(Self { is_writable, ahead_bytes, state: Mutex::new(ExtentsState::new(heap)?) })
    }

    /// Whole pages for `bytes`, from memory that is free here or at the node. Evicts nothing.
    pub(crate) fn take(&self, node: &dyn NodeAccess, bytes: u64) -> Result<Span, Error> {
        let whole = whole_pages(bytes)?;
        self.take_or_ask(node, whole, |state| state.want(whole, self.ahead_bytes))
    }

    /// As [`Self::take`], for a range from which many small objects are cut: more is granted ahead,
    /// whatever the size.
    pub(crate) fn take_to_cut(&self, node: &dyn NodeAccess, bytes: u64) -> Result<Span, Error> {
        let whole = whole_pages(bytes)?;
        let ahead_bytes = self.ahead_bytes.min(CUT_BYTES_MAX);
        self.take_or_ask(node, whole, |state| state.want_ahead(whole, ahead_bytes))
    }

    /// As [`Self::take_to_cut`], after that found no memory: the node makes room, if it can satisfy
    /// the whole demand.
    pub(crate) fn make_to_cut(
        &self,
        node: &dyn NodeAccess,
        bytes: u64,
        demand: &Demand,
    ) -> Result<Span, Error> {
        let whole = whole_pages(bytes)?;
        let ahead_bytes = self.ahead_bytes.min(CUT_BYTES_MAX);
        let want = lock(&self.state).want_ahead(whole, ahead_bytes);
        self.ask_for_one(node, whole, want, Some(demand))
    }

    /// Takes `whole` bytes of free memory here, or requests a grant.
    fn take_or_ask(
        &self,
        node: &dyn NodeAccess,
        whole: u64,
        want: impl FnOnce(&mut ExtentsState) -> u64,
    ) -> Result<Span, Error> {
        let (want, tails) = {
            let mut state = lock(&self.state);
            match state.take(whole) {
                Some(span) => return Ok(span),
                None => {
                    let want = want(&mut state);
                    // All that is free here is too short for this, and few sizes would ever use it.
                    // Left here it would split what the node gets back around it.
                    let is_ahead = want > whole;
                    (want, if is_ahead { state.take_all_free() } else { Vec::new() })
                }
            }
        };
        self.release(node, &tails);
        match self.ask_for_one(node, whole, want, None) {
            Err(error @ (Error::OutOfMemory(_) | Error::QuotaExceeded(_))) => {
                // The ranges that this client retains may suffice.
                if !node.trim_all() {
                    return Err(error);
                }
                self.ask_for_one(node, whole, whole, None)
            }
            taken => taken,
        }
    }

    /// Requests a grant of one range, and takes `whole` bytes of it.
    fn ask_for_one(
        &self,
        node: &dyn NodeAccess,
        whole: u64,
        want: u64,
        demand: Option<&Demand>,
    ) -> Result<Span, Error> {
        let granted = self.ask(node, &[whole], want, demand)?;
        let granted = granted.first().copied().unwrap_or_default();
        Ok(lock(&self.state).hand_out(granted, whole))
    }

    /// Requests a range for each size. On return they are recorded, and writable where needed.
    fn ask(
        &self,
        node: &dyn NodeAccess,
        sizes: &[u64],
        want: u64,
        demand: Option<&Demand>,
    ) -> Result<Vec<Span>, Error> {
        loop {
            let granted = room::ask(node, sizes.to_vec(), want, demand)?;
            if self.change(node, |state| state.accept(&granted)) {
                self.make_ready(node, &granted.ranges)?;
                return Ok(granted.ranges);
            }
            // Another thread has found the next daemon since, and returned the ranges.
            tracing::debug!(?granted, "granted by a daemon that has ended");
        }
    }

    /// As [`Self::make`], but without a wait it first tries to take free memory in one piece, with
    /// no further message.
    pub(crate) fn take_or_make(
        &self,
        node: &dyn NodeAccess,
        sizes: &[u64],
        demand: &Demand,
    ) -> Result<Vec<Span>, Error> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        if demand.wait.is_zero() {
            let whole = all_whole_pages(sizes)?;
            let all = whole.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
            match self.take(node, all) {
                Ok(span) => return Ok(cut(span, &whole)),
                Err(error) if !room::is_short(&error) => return Err(error),
                Err(_) => {}
            }
        }
        self.make(node, sizes, demand)
    }

    /// Whole pages for each of `sizes`, all or none. Other objects are evicted for them only if the
    /// whole demand can be satisfied.
    pub(crate) fn make(
        &self,
        node: &dyn NodeAccess,
        sizes: &[u64],
        demand: &Demand,
    ) -> Result<Vec<Span>, Error> {
        let sizes = all_whole_pages(sizes)?;
        if !demand.wait.is_zero() {
            // In the node's queue the request would wait for memory that this client retains.
            node.trim_all();
        }
        let groups = room::groups(&sizes, GROUPS_MAX);
        let ranges = self.ask(node, &group_sizes(&sizes, &groups), 0, Some(demand))?;
        let mut spans = Vec::with_capacity(sizes.len());
        let mut left = &sizes[..];
        for (range, count) in ranges.into_iter().zip(groups) {
            let (group, rest) = left.split_at(count.min(left.len()));
            spans.extend(cut(range, group));
            left = rest;
        }
        Ok(spans)
    }

    /// Makes granted ranges of the pool writable in place. If that fails, returns all of them.
    fn make_ready(&self, node: &dyn NodeAccess, granted: &[Span]) -> Result<(), Error> {
        if !self.is_writable {
            return Ok(());
        }
        let ready = granted.iter().try_for_each(|span| node.region().make_writable(*span));
        if ready.is_err() {
            self.release(node, granted);
        }
        Ok(ready?)
    }

    /// Takes the pages right behind `end`, if they are free here.
    pub(crate) fn extend(&self, end: Offset, bytes: u64) -> bool {
        let Some(bytes) = bytes.checked_next_multiple_of(page_bytes()) else {
            return false;
        };
        let Some(stop) = end.0.checked_add(bytes) else {
            return false;
        };
        lock(&self.state).free.claim(Run { start: end.0, end: stop })
    }

    /// Takes back unused whole pages. Retains some and returns the rest to the node.
    pub(crate) fn give(&self, node: &dyn NodeAccess, span: Span) {
        // In a forked child the pages belong to the parent, and another of its threads may hold the
        // lock.
        if !node.is_own_process() {
            return;
        }
        let surplus = {
            let mut state = lock(&self.state);
            if let Err(error) = state.free.free(span_run(span)) {
                tracing::error!(%error, "a range was given back twice");
                return;
            }
            state.surplus(self.ahead_bytes)
        };
        self.release(node, &surplus);
    }

    /// Returns unused parts of pages, lines of 128 bytes, which cannot be reused here.
    pub(crate) fn give_lines(&self, node: &dyn NodeAccess, span: Span) {
        if span.length.0 > 0 && node.is_own_process() {
            let connection = lock(&self.state).let_go(&[span]);
            node.give_back(&[span], connection);
        }
    }

    /// Records that the node is about to be asked to make this range part of an object.
    pub(crate) fn seal_requested(&self, span: Span) -> SealTicket {
        lock(&self.state).seal_requested(span)
    }

    /// Records that the node did not make the range part of an object, and that this process uses it
    /// again. False: the range is not this client's any more.
    pub(crate) fn refused(&self, node: &dyn NodeAccess, ticket: SealTicket) -> bool {
        self.change(node, |state| state.end_seal(ticket))
    }

    /// As [`Self::conclude`] with [`SealOutcome::Refused`], for a range of the pool that could not be
    /// made writable again. It returns to the node with its last user, and not to the free ranges,
    /// which are writable. A range that cannot even be made read-only stays this client's.
    pub(crate) fn refused_read_only(&self, node: &dyn NodeAccess, ticket: SealTicket) {
        match node.region().make_read_only(ticket.span) {
            Ok(()) => self.conclude(node, ticket, SealOutcome::Refused),
            Err(error) => tracing::error!(%error, span = %ticket.span, "a range is not given back"),
        }
    }

    /// Records that the range became part of an object.
    pub(crate) fn sealed(&self, node: &dyn NodeAccess, ticket: SealTicket) {
        self.change(node, |state| state.sealed(ticket));
    }

    /// Records that the call of a seal, sent on connection `sent_on`, has ended without an answer.
    /// `open` stays open while bytes of the range may be in use without a hold.
    pub(crate) fn unanswered(
        &self,
        node: &dyn NodeAccess,
        ticket: SealTicket,
        sent_on: Option<u64>,
        open: Option<&UseGuard>,
    ) {
        self.change(node, |state| state.unanswered(ticket, sent_on, open));
    }

    /// As [`Self::unanswered`], for a range that this process no longer uses.
    pub(crate) fn abandoned(
        &self,
        node: &dyn NodeAccess,
        ticket: SealTicket,
        sent_on: Option<u64>,
    ) {
        self.change(node, |state| {
            state.unanswered(ticket, sent_on, None);
            state.unused(ticket);
        });
    }

    /// Records the outcome of a seal whose range may still be in use. Until that ends, the range
    /// stays granted, or the object held.
    pub(crate) fn conclude(&self, node: &dyn NodeAccess, ticket: SealTicket, outcome: SealOutcome) {
        self.change(node, |state| state.conclude(ticket, outcome));
    }

    /// Records that this process no longer uses a range with a seal request. The range returns to
    /// the node once it is known to be refused.
    pub(crate) fn unused(&self, node: &dyn NodeAccess, ticket: SealTicket) {
        if node.is_own_process() {
            self.change(node, |state| state.unused(ticket));
        }
    }

    /// Changes the records, and then disposes of what ended with the change.
    fn change<R>(&self, node: &dyn NodeAccess, change: impl FnOnce(&mut ExtentsState) -> R) -> R {
        let (result, ended) = {
            let mut state = lock(&self.state);
            (change(&mut state), std::mem::take(&mut state.ended))
        };
        ended.into_iter().for_each(|seal| seal.dispose(node));
        result
    }

    /// Returns all free ranges to the node. False if there are none.
    pub(crate) fn trim(&self, node: &dyn NodeAccess) -> bool {
        if !node.is_own_process() {
            return false;
        }
        let free = lock(&self.state).take_all_free();
        self.release(node, &free);
        !free.is_empty()
    }

    /// Returns granted ranges that are neither free here nor in use to the node.
    fn release(&self, node: &dyn NodeAccess, spans: &[Span]) {
        if spans.is_empty() || !node.is_own_process() {
            return;
        }
        let unused = match self.is_writable {
            true => self.protected(node, spans),
            false => spans.to_vec(),
        };
        // Only after the protection: a released range may be granted to another client at once.
        let connection = lock(&self.state).let_go(&unused);
        for batch in unused.chunks(farrow_wire::BATCH_ITEMS_MAX) {
            node.give_back(batch, connection);
        }
    }

    /// The ranges that could be made read-only. The others must not be granted to another client.
    fn protected(&self, node: &dyn NodeAccess, spans: &[Span]) -> Vec<Span> {
        let mut unused = Vec::with_capacity(spans.len());
        for span in spans {
            let Err(error) = node.region().make_read_only(*span) else {
                unused.push(*span);
                continue;
            };
            if matches!(error, MapError::TooManyMaps { .. }) {
                // The range is still writable, and free: the next allocation may take it.
                let _ = lock(&self.state).free.free(span_run(*span));
                tracing::debug!(%error, %span, "a range is not given back yet");
            } else {
                tracing::error!(%error, %span, "a range cannot be given back");
            }
        }
        unused
    }

    /// Prepares the comparison with the node's records for a new connection: `theirs` shows the
    /// outcome of each seal that was not answered. Returns the ranges that remain this client's.
    /// [`Self::reconciled`] follows, without the lock of the connection.
    pub(crate) fn reconcile(&self, connection: u64, theirs: &[Span]) -> Vec<Span> {
        lock(&self.state).reconcile(connection, theirs)
    }

    /// Whether the last comparison showed that the range at this offset was sealed, for a request
    /// whose call has not ended. It was not granted again since.
    pub(crate) fn was_sealed(&self, start: u64) -> bool {
        lock(&self.state).was_sealed(start)
    }

    /// Disposes of what ended with the comparison.
    pub(crate) fn reconciled(&self, node: &dyn NodeAccess) {
        self.change(node, |_| ());
    }
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod orders;
