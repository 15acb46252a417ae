//! Memory that the node has granted to this client and that holds nothing yet.
//!
//! The node grants ranges ahead of need, so that most allocations cost no message; what is left
//! over goes back. Ranges are whole pages here; only a page's remains are given back as lines.

use std::collections::BTreeMap;
use std::sync::Mutex;

use farrow_memory::{Length, MapError, Offset, Span, page_bytes};
use farrow_store::{Run, SpaceAllocator};
use farrow_wire::WireSpan;

use crate::error::Error;
use crate::room::{self, Demand, GROUPS_MAX};
use crate::session::{FIRST_CONNECTION, Session, lock};

/// First grant; later ones double up to the greatest, so that a client that writes little takes
/// little and one that writes much asks seldom.
const GRANT_BYTES_FIRST: u64 = 256 << 10;

/// Greatest grant beyond what is needed, and free bytes that a client keeps for its next
/// allocations: so much, and at most this part of the heap, since nobody else can use it.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
const AHEAD_PART_OF_HEAP: u64 = 64;

/// The greatest grant for what is cut up for small objects: a message for several thousands of them.
const CUT_BYTES_MAX: u64 = 8 << 20;

/// Free ranges that a client keeps.
const RETAINED_RUNS_MAX: usize = 2;

/// For allocations of this size or more nothing is granted ahead: the message costs less than
/// the first touch of their pages, and what would be left over lies in others' way.
const EXACT_BYTES_MIN: u64 = 256 << 10;

/// Ranges of one client, handed out by the page.
#[derive(Debug)]
pub(crate) struct Extents {
    /// Ranges are mapped writable over the window while they are here.
    is_writable: bool,
    /// See [`AHEAD_BYTES_MAX`].
    ahead_bytes: u64,
    state: Mutex<ExtentsState>,
}

#[derive(Debug)]
struct ExtentsState {
    free: SpaceAllocator,
    /// All that is granted and not sealed by the node: start to end, merged. What this client
    /// sealed by itself stays in it.
    granted: BTreeMap<u64, u64>,
    /// Ranges that the node was asked to make part of an object, by their starts, until the answer.
    /// What is granted anew meanwhile was sealed, and deleted since: it leaves this list, and no answer
    /// to the seal changes anything any more.
    asked: BTreeMap<u64, SealingRange>,
    /// How often it was asked.
    seals: u64,
    /// The connection for which `granted` was last compared with the node's books.
    connection: u64,
    grant_bytes: u64,
}

/// A range that the node was asked to make part of an object. The number tells the request from one
/// for the same range after it was granted anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SealTicket {
    span: Span,
    number: u64,
}

/// A range between a seal and its answer.
#[derive(Debug)]
struct SealingRange {
    end: u64,
    number: u64,
    /// The answer never came: at the next connection the node says whose the range is.
    is_lost: bool,
}

/// What the node granted, and the connection that said so.
#[derive(Debug, Clone)]
pub(crate) struct Granted {
    pub(crate) ranges: Vec<Span>,
    pub(crate) connection: u64,
}

impl Extents {
    /// None yet, in this heap.
    pub(crate) fn new(heap: Span, is_writable: bool) -> Result<Self, Error> {
        let page = page_bytes();
        let all = Run { start: heap.offset.0, end: heap.offset.0.saturating_add(heap.length.0) };
        let free = SpaceAllocator::with_occupied(all, page, page, [all])
            .map_err(|error| Error::Protocol(format!("the heap of the node: {error}")))?;
        let state = ExtentsState {
            free,
            granted: BTreeMap::new(),
            asked: BTreeMap::new(),
            seals: 0,
            connection: FIRST_CONNECTION,
            grant_bytes: GRANT_BYTES_FIRST,
        };
        let ahead_bytes = (heap.length.0 / AHEAD_PART_OF_HEAP).clamp(page, AHEAD_BYTES_MAX);
        Ok(Self { is_writable, ahead_bytes, state: Mutex::new(state) })
    }

    /// Whole pages of at least `bytes`, which is not 0: of what is free, here or at the node. No
    /// object goes for it.
    pub(crate) fn take(&self, session: &Session, bytes: u64) -> Result<Span, Error> {
        let whole = whole_pages(bytes)?;
        self.take_or_ask(session, whole, |state| state.want(whole, self.ahead_bytes))
    }

    /// As [`Self::take`], for what many small objects are cut from: more is granted ahead however
    /// much is taken.
    pub(crate) fn take_to_cut(&self, session: &Session, bytes: u64) -> Result<Span, Error> {
        let whole = whole_pages(bytes)?;
        let ahead_bytes = self.ahead_bytes.min(CUT_BYTES_MAX);
        self.take_or_ask(session, whole, |state| state.want_ahead(whole, ahead_bytes))
    }

    /// As [`Self::take_to_cut`], after that found nothing: the node makes room for it if there is
    /// room for what it is for.
    pub(crate) fn make_to_cut(
        &self,
        session: &Session,
        bytes: u64,
        demand: &Demand,
    ) -> Result<Span, Error> {
        let whole = whole_pages(bytes)?;
        let ahead_bytes = self.ahead_bytes.min(CUT_BYTES_MAX);
        let want = lock(&self.state).want_ahead(whole, ahead_bytes);
        self.ask_for_one(session, whole, want, Some(demand))
    }

    /// Takes `whole` bytes of what is free here, or else has the node grant what is wanted.
    fn take_or_ask(
        &self,
        session: &Session,
        whole: u64,
        want: impl FnOnce(&mut ExtentsState) -> u64,
    ) -> Result<Span, Error> {
        let want = {
            let mut state = lock(&self.state);
            match state.take(whole) {
                Some(span) => return Ok(span),
                None => want(&mut state),
            }
        };
        match self.ask_for_one(session, whole, want, None) {
            Err(error @ (Error::OutOfMemory { .. } | Error::QuotaExceeded { .. })) => {
                // What this client keeps for later may be just what is missing.
                if !trim_all(session) {
                    return Err(error);
                }
                self.ask_for_one(session, whole, whole, None)
            }
            taken => taken,
        }
    }

    /// Has the node grant one range, and takes `whole` bytes of it.
    fn ask_for_one(
        &self,
        session: &Session,
        whole: u64,
        want: u64,
        demand: Option<&Demand>,
    ) -> Result<Span, Error> {
        let granted = self.ask(session, &[whole], want, demand)?;
        let granted = granted.first().copied().unwrap_or_default();
        Ok(lock(&self.state).hand_out(granted, whole))
    }

    /// Has the node grant a range for each size. They are in the books, and ready, when this returns.
    fn ask(
        &self,
        session: &Session,
        sizes: &[u64],
        want: u64,
        demand: Option<&Demand>,
    ) -> Result<Vec<Span>, Error> {
        loop {
            let granted = room::ask(session, sizes.to_vec(), want, demand)?;
            if lock(&self.state).accept(&granted) {
                self.make_ready(session, &granted.ranges)?;
                return Ok(granted.ranges);
            }
            // Another thread has found the next daemon since, and given the ranges back.
            tracing::debug!(?granted, "granted by a daemon that has gone");
        }
    }

    /// As [`Self::make`], unless all is free: then it is taken in one piece, with no other
    /// message.
    pub(crate) fn take_or_make(
        &self,
        session: &Session,
        sizes: &[u64],
        demand: &Demand,
    ) -> Result<Vec<Span>, Error> {
        if sizes.is_empty() {
            return Ok(Vec::new());
        }
        if demand.wait.is_zero() {
            let whole = all_whole_pages(sizes)?;
            let all = whole.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
            match self.take(session, all) {
                Ok(span) => return Ok(cut(span, &whole)),
                Err(error) if !room::is_short(&error) => return Err(error),
                Err(_) => {}
            }
        }
        self.make(session, sizes, demand)
    }

    /// Whole pages for each of `sizes`, none of which is 0: all of them or none. Others make room for
    /// them if all of what they are for can be had.
    pub(crate) fn make(
        &self,
        session: &Session,
        sizes: &[u64],
        demand: &Demand,
    ) -> Result<Vec<Span>, Error> {
        let sizes = all_whole_pages(sizes)?;
        if !demand.wait.is_zero() {
            // In the node's queue it would wait for what it keeps itself.
            trim_all(session);
        }
        let groups = room::groups(&sizes, GROUPS_MAX);
        let ranges = self.ask(session, &group_sizes(&sizes, &groups), 0, Some(demand))?;
        let mut spans = Vec::with_capacity(sizes.len());
        let mut left = &sizes[..];
        for (range, count) in ranges.into_iter().zip(groups) {
            let (group, rest) = left.split_at(count.min(left.len()));
            spans.extend(cut(range, group));
            left = rest;
        }
        Ok(spans)
    }

    /// Granted ranges are written in place where they are the pool's. If that cannot be, all of them
    /// go back.
    fn make_ready(&self, session: &Session, granted: &[Span]) -> Result<(), Error> {
        if !self.is_writable {
            return Ok(());
        }
        let ready = granted.iter().try_for_each(|span| session.region.make_writable(*span));
        if ready.is_err() {
            self.release(session, granted);
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

    /// Whole pages that hold nothing any more. Keeps some and gives the rest to the node.
    pub(crate) fn give(&self, session: &Session, span: Span) {
        // In a forked child they are the parent's, and another of its threads may have the lock.
        if !session.is_own_process() {
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
        self.release(session, &surplus);
    }

    /// Parts of pages, lines of 128 bytes, that hold nothing and are of no use here.
    pub(crate) fn give_lines(&self, session: &Session, span: Span) {
        if span.length.0 > 0 && session.is_own_process() {
            let connection = lock(&self.state).let_go(&[span]);
            session.give_back(&[span], connection);
        }
    }

    /// The node is about to be asked to make this range part of an object.
    pub(crate) fn asked(&self, span: Span) -> SealTicket {
        lock(&self.state).asked_to_seal(span)
    }

    /// The node did not make it part of an object.
    pub(crate) fn refused(&self, ticket: SealTicket) {
        lock(&self.state).end_seal(ticket);
    }

    /// The range became part of an object.
    pub(crate) fn sealed(&self, ticket: SealTicket) {
        lock(&self.state).sealed(ticket);
    }

    /// The seal was never answered.
    pub(crate) fn in_limbo(&self, session: &Session, ticket: SealTicket) {
        if session.is_own_process() {
            lock(&self.state).in_limbo(ticket);
        }
    }

    /// Gives all free ranges back to the node. False: there are none.
    pub(crate) fn trim(&self, session: &Session) -> bool {
        if !session.is_own_process() {
            return false;
        }
        let free = {
            let mut state = lock(&self.state);
            let runs: Vec<Span> = state.free.runs().map(run_span).collect();
            let free = |run: &Span| state.free.claim(span_run(*run));
            runs.into_iter().filter(free).collect::<Vec<_>>()
        };
        self.release(session, &free);
        !free.is_empty()
    }

    /// Gives ranges to the node that are granted and neither free here nor in use.
    fn release(&self, session: &Session, spans: &[Span]) {
        if spans.is_empty() || !session.is_own_process() {
            return;
        }
        let gone = match self.is_writable {
            true => self.protected(session, spans),
            false => spans.to_vec(),
        };
        // Only now: what is out of the books may be granted to anybody at once.
        let connection = lock(&self.state).let_go(&gone);
        for batch in gone.chunks(farrow_wire::BATCH_ITEMS_MAX) {
            session.give_back(batch, connection);
        }
    }

    /// Those of the ranges that could be made read-only. The others may not go to anybody else.
    fn protected(&self, session: &Session, spans: &[Span]) -> Vec<Span> {
        let mut gone = Vec::with_capacity(spans.len());
        for span in spans {
            let Err(error) = session.region.make_read_only(*span) else {
                gone.push(*span);
                continue;
            };
            if matches!(error, MapError::TooManyMaps { .. }) {
                // As writable as before, and free: the next allocation may take it.
                let _ = lock(&self.state).free.free(span_run(*span));
                tracing::debug!(%error, %span, "a range is not given back yet");
            } else {
                tracing::error!(%error, %span, "a range cannot be given back");
            }
        }
        gone
    }

    /// Before the books are compared with the node's for a new connection: ranges that were sealed or
    /// not, nobody knows, are forgotten. Returns what is ours.
    pub(crate) fn reconcile(&self, connection: u64) -> Vec<Span> {
        lock(&self.state).reconcile(connection)
    }
}

impl ExtentsState {
    /// Pages that are free here.
    fn take(&mut self, whole: u64) -> Option<Span> {
        self.free.allocate(whole, alignment_for(whole)).map(run_span)
    }

    /// How much to ask the node for, when so much is needed.
    fn want(&mut self, whole: u64, ahead_bytes: u64) -> u64 {
        if whole >= EXACT_BYTES_MIN {
            return whole;
        }
        self.want_ahead(whole, ahead_bytes)
    }

    fn want_ahead(&mut self, whole: u64, ahead_bytes: u64) -> u64 {
        let want = self.grant_bytes.min(ahead_bytes).max(whole);
        self.grant_bytes = (self.grant_bytes * 2).min(AHEAD_BYTES_MAX);
        want
    }

    /// Takes in what the node granted. False: the books were compared with the node's since then, which
    /// gave it back as nobody's.
    fn accept(&mut self, granted: &Granted) -> bool {
        let is_valid = granted.connection == self.connection;
        if is_valid {
            granted.ranges.iter().for_each(|range| self.insert_granted(*range));
        }
        is_valid
    }

    /// Takes ranges out of the books. Returns the connection that is to be told.
    fn let_go(&mut self, spans: &[Span]) -> u64 {
        spans.iter().for_each(|span| self.remove_granted(*span));
        self.connection
    }

    fn asked_to_seal(&mut self, span: Span) -> SealTicket {
        self.seals += 1;
        let Run { start, end } = span_run(span);
        self.asked.insert(start, SealingRange { end, number: self.seals, is_lost: false });
        SealTicket { span, number: self.seals }
    }

    /// False: what was sealed was deleted since, and granted anew.
    fn end_seal(&mut self, ticket: SealTicket) -> bool {
        let start = ticket.span.offset.0;
        let is_open = self.asked.get(&start).is_some_and(|one| one.number == ticket.number);
        is_open && self.asked.remove(&start).is_some()
    }

    fn sealed(&mut self, ticket: SealTicket) {
        if self.end_seal(ticket) {
            self.remove_granted(ticket.span);
        }
    }

    fn in_limbo(&mut self, ticket: SealTicket) {
        let asked = self.asked.get_mut(&ticket.span.offset.0);
        if let Some(asked) = asked.filter(|one| one.number == ticket.number) {
            asked.is_lost = true;
        }
    }

    /// See [`Extents::reconcile`]. A seal under way may be answered yet: its range stays.
    fn reconcile(&mut self, connection: u64) -> Vec<Span> {
        self.connection = connection;
        let lost: Vec<Run> = (self.asked.iter())
            .filter(|(_, asked)| asked.is_lost)
            .map(|(start, asked)| Run { start: *start, end: asked.end })
            .collect();
        self.asked.retain(|_, asked| !asked.is_lost);
        // Those that are granted yet go back to the node: a writer's may be mapped read-only.
        lost.into_iter().for_each(|run| self.remove_granted(run_span(run)));
        let runs = self.granted.iter().map(|(start, end)| Run { start: *start, end: *end });
        runs.map(run_span).collect()
    }

    /// Hands out the first `whole` bytes of what was just granted; others may take the rest.
    fn hand_out(&mut self, granted: Span, whole: u64) -> Span {
        let (head, tail) = split(granted, whole);
        if let Some(tail) = tail {
            let _ = self.free.free(span_run(tail));
        }
        head
    }

    fn insert_granted(&mut self, span: Span) {
        // What was sealed, and deleted since, may be granted anew.
        self.remove_granted(span);
        self.end_seals(span);
        let Run { mut start, mut end } = span_run(span);
        if let Some((before, stop)) = self.granted.range(..start).next_back()
            && *stop == start
        {
            start = *before;
        }
        if let Some(stop) = self.granted.remove(&end) {
            end = stop;
        }
        self.granted.insert(start, end);
    }

    /// Seals of what overlaps this have been carried out, whatever is still to be heard of them.
    fn end_seals(&mut self, span: Span) {
        let Run { start, end } = span_run(span);
        let ended: Vec<Run> = (self.asked.range(..end).rev())
            .take_while(|(_, asked)| asked.end > start)
            .map(|(from, asked)| Run { start: *from, end: asked.end })
            .collect();
        for run in ended {
            self.asked.remove(&run.start);
            self.remove_granted(run_span(run));
        }
    }

    fn remove_granted(&mut self, span: Span) {
        let Run { start, end } = span_run(span);
        let touched: Vec<(u64, u64)> = self
            .granted
            .range(..end)
            .rev()
            .take_while(|(_, stop)| **stop > start)
            .map(|(from, stop)| (*from, *stop))
            .collect();
        for (from, stop) in touched {
            self.granted.remove(&from);
            if from < start {
                self.granted.insert(from, start);
            }
            if stop > end {
                self.granted.insert(end, stop);
            }
        }
    }

    /// Takes out free ranges beyond what is worth keeping. The longest that fit are retained, and few of them:
    /// each is a place where nobody's long range can be.
    fn surplus(&mut self, retained: u64) -> Vec<Span> {
        let mut runs: Vec<Span> = self.free.runs().map(run_span).collect();
        runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.length));
        let (mut count, mut bytes) = (0, 0);
        runs.retain(|run| {
            let is_retained = count < RETAINED_RUNS_MAX && bytes + run.length.0 <= retained;
            if is_retained {
                (count, bytes) = (count + 1, bytes + run.length.0);
            }
            !is_retained
        });
        runs.retain(|run| self.free.claim(span_run(*run)));
        runs
    }
}

/// Gives all that this client keeps for later back to the node. False: there is nothing.
fn trim_all(session: &Session) -> bool {
    let own = session.extents.trim(session);
    let pool = session.pool.trim(session);
    own || pool
}

fn whole_pages(bytes: u64) -> Result<u64, Error> {
    let too_much = || Error::InvalidArgument(format!("{bytes} B are more than memory can hold"));
    bytes.max(1).checked_next_multiple_of(page_bytes()).ok_or_else(too_much)
}

fn all_whole_pages(sizes: &[u64]) -> Result<Vec<u64>, Error> {
    let whole: Vec<u64> = sizes.iter().map(|size| whole_pages(*size)).collect::<Result<_, _>>()?;
    let all = whole.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
    whole_pages(all.unwrap_or(u64::MAX)).map(|_| whole)
}

/// The sizes in a range, one after the other; the last has what is left.
fn cut(range: Span, sizes: &[u64]) -> Vec<Span> {
    let mut left = range;
    let mut spans: Vec<Span> = Vec::with_capacity(sizes.len());
    for size in sizes {
        let (head, rest) = split(left, *size);
        spans.push(head);
        left = rest.unwrap_or(Span { length: Length(0), ..left });
    }
    if let Some(last) = spans.last_mut() {
        last.length.0 += left.length.0;
    }
    spans
}

/// How much each group needs.
fn group_sizes(sizes: &[u64], groups: &[usize]) -> Vec<u64> {
    let mut left = sizes.iter();
    groups.iter().map(|count| left.by_ref().take(*count).sum()).collect()
}

/// Ranges of a huge page or more begin at one where that costs nothing.
fn alignment_for(bytes: u64) -> u64 {
    if bytes >= farrow_store::HUGE_GRANT_BYTES { farrow_store::HUGE_GRANT_BYTES } else { 1 }
}

fn split(span: Span, bytes: u64) -> (Span, Option<Span>) {
    let head = Span { offset: span.offset, length: Length(bytes.min(span.length.0)) };
    let rest = span.length.0.saturating_sub(bytes);
    let offset = Offset(span.offset.0 + head.length.0);
    (head, (rest > 0).then_some(Span { offset, length: Length(rest) }))
}

pub(crate) fn run_span(run: Run) -> Span {
    Span { offset: Offset(run.start), length: Length(run.end.saturating_sub(run.start)) }
}

pub(crate) fn span_run(span: Span) -> Run {
    Run { start: span.offset.0, end: span.offset.0.saturating_add(span.length.0) }
}

/// What of `theirs` is in none of `ours`.
pub(crate) fn difference(theirs: &[Span], ours: &[Span]) -> Vec<WireSpan> {
    let mut ours: Vec<Run> = ours.iter().copied().map(span_run).collect();
    ours.sort_unstable();
    let mut left = Vec::new();
    for span in theirs {
        let Run { mut start, end } = span_run(*span);
        for our in &ours {
            if our.end <= start || our.start >= end {
                continue;
            }
            if our.start > start {
                left.push((start, our.start - start));
            }
            start = start.max(our.end);
        }
        if start < end {
            left.push((start, end - start));
        }
    }
    left
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod orders;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: u64, end: u64) -> Span {
        run_span(Run { start, end })
    }

    #[test]
    fn what_the_node_granted_and_we_do_not_know_is_found() {
        let ours = [of(10, 20), of(30, 40)];
        assert_eq!(difference(&[of(10, 20)], &ours), []);
        assert_eq!(difference(&[of(0, 50)], &ours), [(0, 10), (20, 10), (40, 10)]);
        assert_eq!(difference(&[of(15, 35)], &ours), [(20, 10)]);
        assert_eq!(difference(&[of(1, 2), of(38, 45)], &ours), [(1, 1), (40, 5)]);
    }

    #[test]
    fn granted_ranges_merge_and_are_cut() {
        let heap = of(0, 64 * page_bytes());
        let extents = Extents::new(heap, false).unwrap();
        let mut state = lock(&extents.state);
        state.insert_granted(of(0, 10));
        state.insert_granted(of(20, 30));
        state.insert_granted(of(10, 20));
        assert_eq!(state.granted, BTreeMap::from([(0, 30)]));
        state.remove_granted(of(5, 8));
        state.remove_granted(of(25, 30));
        assert_eq!(state.granted, BTreeMap::from([(0, 5), (8, 25)]));
        state.remove_granted(of(0, 30));
        assert!(state.granted.is_empty());
    }
}
