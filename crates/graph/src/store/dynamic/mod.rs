//! The store of the newest edges: edges are added at the new end and removed at the old one.

mod adjacency;
mod compaction;
mod numbers;
mod sealing;
#[cfg(test)]
mod tests;
use super::self_loops::SelfLoops;
use crate::edge::{EdgeRecord, EdgeRemoval, NO_ACCOUNT, Side};
pub(crate) use numbers::{NumberMoves, NumberingError, NumbersInUse};

use super::adjacency_lists::{AdjacencyLists, EdgeBits, REMOVED_TOGETHER, TOUCHED};
use super::arena::LENGTH_MAX;
use super::records::{EdgeRecords, RecordOwner};
use crate::accounts::{Accounts, AccountsCheckpoint};
use crate::edge::{Adjacency, Stamp};
use crate::memory::{AllocationFailed, reserve};
use crate::threads::both;
use std::collections::BTreeMap;

/// The largest number of edges, since all may belong to one account. Sequence numbers are stored
/// modulo 2^32 and compared by their distance.
pub(crate) const EDGES_MAX: usize = LENGTH_MAX;

/// An edge that arrived after an edge with a later time.
#[derive(Clone, Copy, Debug)]
struct LateEdge<T> {
    record: EdgeRecord<T>,
    /// The latest time of an earlier edge.
    front: T,
}

/// The last sequence number up to `next` whose low 32 bits are `seq`.
fn number_before(next: u64, seq: u32) -> u64 {
    next.saturating_sub(u64::from((next as u32).wrapping_sub(seq)))
}

/// The edges that are in segments, and also here until they are drained.
#[derive(Clone, Copy, Debug, Default)]
struct SealedBoundary<T> {
    /// Edges that arrived in order are sealed up to this time.
    last: Option<T>,
    /// Only edges before this sequence number are sealed.
    next: u64,
}
/// The state of the store before edges that may be rolled back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreCheckpoint<T> {
    next: u64,
    newest: T,
    disorder: Option<u64>,
    accounts: AccountsCheckpoint,
    emptied: usize,
}

#[derive(Debug)]
pub(crate) struct DynamicGraph<T> {
    /// The time of offset 0.
    base: i64,
    accounts: Accounts,
    out: AdjacencyLists<T>,
    into: AdjacencyLists<T>,
    loops: SelfLoops<T>,
    /// All edges from the oldest live one on.
    records: EdgeRecords<T>,
    /// Sequence number of the first record.
    head: u64,
    alive: usize,
    /// The latest time of any edge so far.
    newest: T,
    /// Sequence number of the last edge that was older than an earlier one.
    disorder: Option<u64>,
    /// Whether accounts without edges keep their position in the order of appearance.
    remembers: bool,
    /// Late edges that are alive, if segments are used: no segment contains them.
    late: Option<BTreeMap<u64, LateEdge<T>>>,
    sealed: SealedBoundary<T>,
    /// The sequence number at which the graph was rebuilt or filled.
    rebuilt_at: u64,
    /// With segments: how often an account has lost its last edge on a side, or a row in a segment,
    /// since small numbers were last released.
    emptied: usize,
}

impl<T: Stamp> DynamicGraph<T> {
    pub(crate) fn new(base: i64, remembers: bool) -> DynamicGraph<T> {
        DynamicGraph {
            base,
            accounts: Accounts::new(remembers),
            out: AdjacencyLists::new(Side::Out),
            into: AdjacencyLists::new(Side::In),
            loops: SelfLoops::default(),
            records: EdgeRecords::new(false),
            head: 0,
            alive: 0,
            newest: T::default(),
            disorder: None,
            remembers,
            late: None,
            sealed: SealedBoundary::default(),
            rebuilt_at: 0,
            emptied: 0,
        }
    }

    /// A store for a graph with segments. Segments refer to accounts by small numbers, so accounts
    /// without edges here are forgotten only by `release`. Segments contain no late edges.
    pub(crate) fn before_segments(base: i64, remembers: bool) -> DynamicGraph<T> {
        let (records, late) = (EdgeRecords::new(true), Some(BTreeMap::new()));
        let accounts = Accounts::with_segments(remembers);
        DynamicGraph { late, records, accounts, ..DynamicGraph::new(base, remembers) }
    }

    pub(crate) fn base(&self) -> i64 {
        self.base
    }

    /// All small numbers are below this one.
    pub(crate) fn numbered(&self) -> usize {
        self.accounts.numbered()
    }

    /// The stamp of a time, if it fits.
    pub(crate) fn stamp(&self, time: i64) -> Option<T> {
        T::since(self.base, time)
    }

    pub(crate) fn time(&self, stamp: T) -> i64 {
        self.base.wrapping_add_unsigned(stamp.offset())
    }

    /// All accounts in the order of first appearance, if it is remembered.
    pub(crate) fn in_order(&self) -> Vec<i64> {
        self.accounts.in_order()
    }

    /// Adds accounts in this order. Without memory, some of them are added.
    pub(crate) fn try_remember(&mut self, accounts: &[i64]) -> Result<(), AllocationFailed> {
        accounts.iter().try_for_each(|&account| self.accounts.intern(account).map(|_| ()))
    }

    fn half(&self, side: Side) -> &AdjacencyLists<T> {
        match side {
            Side::Out => &self.out,
            Side::In => &self.into,
        }
    }

    /// Finds the small numbers of both ends of `count` edges (source, target, time), for `insert`.
    /// On an error, `found` has the ends found so far; `release_idle` forgets them.
    pub(crate) fn intern(
        &mut self,
        count: usize,
        edge: impl Fn(usize) -> (i64, i64, T) + Sync,
        found: &mut Vec<EdgeRecord<T>>,
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<(), AllocationFailed> {
        found.clear();
        reserve(found, count)?;
        let unknown = EdgeRecord { source: NO_ACCOUNT, target: NO_ACCOUNT, time: T::default() };
        found.resize(count, unknown);
        if count > 1 {
            let accounts = &self.accounts;
            let (some, upper) = found.split_at_mut(count / 2);
            let (middle, edge) = (some.len(), &edge);
            let first_half = || accounts.guess(some, edge);
            both(pool, count, first_half, || accounts.guess(upper, |at| edge(middle + at)));
        }
        for at in 0..count {
            let (source, target, time) = edge(at);
            let EdgeRecord { source: known_source, target: known_target, .. } = found[at];
            found[at] = unknown;
            found[at].time = time;
            let ends = self.intern_one(source, known_source).and_then(|account| {
                found[at].source = account;
                self.intern_one(target, known_target)
            });
            match ends {
                Ok(account) => found[at].target = account,
                Err(full) => {
                    found.truncate(at + 1);
                    return Err(full);
                }
            }
        }
        Ok(())
    }

    fn intern_one(&mut self, key: i64, known: u32) -> Result<u32, AllocationFailed> {
        if known == NO_ACCOUNT { self.accounts.intern(key) } else { Ok(known) }
    }

    /// Forgets those of these accounts that have no edges, unless accounts are remembered.
    pub(crate) fn release_idle(&mut self, accounts: impl Iterator<Item = u32>) {
        if self.remembers {
            return;
        }
        if self.late.is_some() {
            self.emptied += accounts.count();
            return;
        }
        let mut rest = accounts;
        loop {
            let mut some = [NO_ACCOUNT; TOUCHED];
            let mut count = 0;
            let mut read = false;
            for (place, account) in some.iter_mut().zip(&mut rest) {
                *place = account;
                // Cache misses overlap.
                read ^= self.out.touch_list(account) ^ self.into.touch_list(account);
                count += 1;
            }
            std::hint::black_box(read);
            let mut idle = [0; TOUCHED];
            let mut found = 0;
            for account in some {
                if account != NO_ACCOUNT && !self.has_edges(account) {
                    idle[found] = account;
                    found += 1;
                }
            }
            self.accounts.forget(&idle[..found]);
            if count < TOUCHED {
                return;
            }
        }
    }

    fn has_edges(&self, account: u32) -> bool {
        self.out.has_any(account) || self.into.has_any(account) || self.loops.has_any(account)
    }

    /// Adds edges whose ends `intern` has found, and returns the sequence number of the first.
    /// Without memory, nothing changes.
    pub(crate) fn insert(
        &mut self,
        records: &[EdgeRecord<T>],
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<u64, AllocationFailed> {
        let number = self.next();
        let first = number as u32;
        self.records.make_room(records.len())?;
        self.out.make_room(self.accounts.numbered())?;
        self.into.make_room(self.accounts.numbered())?;
        let DynamicGraph { out, into, loops, .. } = self;
        let (mut first_half, mut second_half) = (Ok(()), Ok(()));
        let insert_out = || first_half = out.insert(records, first);
        both(pool, records.len(), insert_out, || second_half = into.insert(records, first));
        let third = loops.insert(records, first);
        if let Err(full) = first_half.and(second_half).and(third) {
            // A part that fails has removed its own edges.
            if first_half.is_ok() {
                out.take_back(records, first);
            }
            if second_half.is_ok() {
                into.take_back(records, first);
            }
            if third.is_ok() {
                loops.take_back(records, first);
            }
            return Err(full);
        }
        for (number, &record) in (number..).zip(records) {
            self.records.push(record);
            if record.time < self.newest {
                self.disorder = Some(number);
                if let Some(late) = &mut self.late {
                    late.insert(number, LateEdge { record, front: self.newest });
                }
            }
            self.newest = self.newest.max(record.time);
        }
        self.alive += records.len();
        Ok(number)
    }

    /// A checkpoint for `rewind`.
    pub(crate) fn checkpoint(&self) -> StoreCheckpoint<T> {
        StoreCheckpoint {
            next: self.next(),
            newest: self.newest,
            disorder: self.disorder,
            accounts: self.accounts.checkpoint(),
            emptied: self.emptied,
        }
    }

    /// Commits all accounts: no earlier checkpoint is needed any more.
    pub(crate) fn commit_accounts(&mut self) {
        self.accounts.commit();
    }

    /// Removes all edges since a checkpoint. None of them has been removed before.
    pub(crate) fn rewind(&mut self, checkpoint: StoreCheckpoint<T>) {
        for number in (checkpoint.next..self.next()).rev() {
            if let Some(record) = self.record(number) {
                self.remove_all(&[EdgeRemoval { record, seq: number as u32 }], None);
            }
        }
        // `remove_all` drops removed records at the old end. If no edge is left, it has dropped all
        // records.
        self.head = self.head.min(checkpoint.next);
        self.records.truncate((checkpoint.next - self.head) as usize);
        (self.newest, self.disorder) = (checkpoint.newest, checkpoint.disorder);
        self.accounts.rewind(checkpoint.accounts);
        self.emptied = checkpoint.emptied;
    }

    /// Removes edges; skips those that are not in the graph.
    pub(crate) fn remove_all(
        &mut self,
        removals: &[EdgeRemoval<T>],
        pool: Option<&rayon::ThreadPool>,
    ) {
        for piece in removals.chunks(REMOVED_TOGETHER) {
            let mut chosen = EdgeBits::NONE;
            for (at, one) in piece.iter().enumerate() {
                if self.forget(self.number(one.seq)) {
                    chosen.set(at);
                    self.alive -= 1;
                }
            }
            let DynamicGraph { out, into, loops, .. } = self;
            let (mut last_out, mut last_in) = (EdgeBits::NONE, EdgeBits::NONE);
            let remove_out = || last_out = out.remove_all(piece, &chosen);
            both(pool, piece.len(), remove_out, || last_in = into.remove_all(piece, &chosen));
            for (at, one) in piece.iter().enumerate().filter(|(at, _)| chosen.has(*at)) {
                if loops.remove(one.record, one.seq) {
                    last_out.set(at);
                }
            }
            let ends = piece.iter().enumerate().flat_map(|(at, one)| {
                let source = Some(one.record.source).filter(|_| last_out.has(at));
                [source, Some(one.record.target).filter(|_| last_in.has(at))]
            });
            self.release_idle(ends.flatten());
            self.head += self.records.pop_removed();
        }
    }

    /// Removes an edge from the records and the late edges; false if neither has it.
    fn forget(&mut self, number: u64) -> bool {
        let was_late = self.late.as_mut().is_some_and(|late| late.remove(&number).is_some());
        let Some(place) = number.checked_sub(self.head) else { return was_late };
        let place = place as usize;
        let is_there = self.records.owner(place).is_some();
        self.records.mark_removed(place);
        is_there
    }

    /// The edge at a position of the records, if it is alive.
    fn at(&self, place: usize) -> Option<EdgeRecord<T>> {
        if self.records.are_whole() {
            return self.records.whole(place);
        }
        let RecordOwner { source, is_loop } = self.records.owner(place)?;
        let seq = (self.head + place as u64) as u32;
        let head = self.is_ordered().then_some(self.head as u32);
        let entry = if is_loop {
            self.loops.find(source, seq, head)
        } else {
            self.out.find(source, seq, head)
        }?;
        Some(EdgeRecord { source, target: entry.other, time: entry.time })
    }

    /// Prefetches for a scan of records from a sequence number on. Returns the first number that is
    /// not prefetched.
    pub(crate) fn touch_from(&self, number: u64) -> u64 {
        let end = number + TOUCHED as u64;
        self.touch_owners(number..end);
        end
    }

    /// Prefetches the lists of the edges with these sequence numbers, so that cache misses overlap.
    fn touch_owners(&self, numbers: impl Iterator<Item = u64> + Clone) {
        if self.records.are_whole() {
            return;
        }
        let places = numbers.filter_map(|number| number.checked_sub(self.head));
        let owners = places.filter_map(|place| self.records.owner(place as usize));
        self.out.touch_oldest(owners.map(|one| one.source));
    }

    /// The removal of an edge that is alive.
    pub(crate) fn removal(&self, number: u64) -> Option<EdgeRemoval<T>> {
        Some(EdgeRemoval { record: self.record(number)?, seq: number as u32 })
    }

    /// The sequence number of an edge in the graph, from its low 32 bits.
    pub(crate) fn number(&self, seq: u32) -> u64 {
        number_before(self.next(), seq)
    }

    /// An edge that is alive, by sequence number.
    pub(crate) fn record(&self, number: u64) -> Option<EdgeRecord<T>> {
        let Some(place) = number.checked_sub(self.head) else {
            return self.late.as_ref()?.get(&number).map(|late| late.record);
        };
        self.at(usize::try_from(place).ok()?)
    }

    /// The edges that are alive, in order of arrival, without `late_edges`.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, EdgeRecord<T>)> {
        self.records_from(self.head)
    }

    /// The edges that are alive from a sequence number on.
    pub(crate) fn records_from(&self, number: u64) -> impl Iterator<Item = (u64, EdgeRecord<T>)> {
        let from = number.saturating_sub(self.head) as usize;
        (self.head + from as u64..).zip(from..self.records.len()).filter_map(move |(number, at)| {
            if (at - from).is_multiple_of(TOUCHED) {
                self.touch_from(number);
            }
            Some((number, self.at(at)?))
        })
    }

    /// The sequence number of the first record.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// The sequence number of the next edge.
    pub(crate) fn next(&self) -> u64 {
        self.head + self.records.len() as u64
    }

    /// The number of live edges.
    pub(crate) fn len(&self) -> usize {
        self.alive
    }

    /// The number of known accounts.
    pub(crate) fn accounts(&self) -> usize {
        self.accounts.len()
    }

    pub(crate) fn find(&self, key: i64) -> Option<u32> {
        self.accounts.find(key)
    }

    /// The same store with another base, or another type of stamps.
    pub(crate) fn restamp<S: Stamp>(self, base: i64) -> DynamicGraph<S> {
        let shift = i128::from(self.base) - i128::from(base);
        let change = |time: T| {
            // Stale entries of free blocks may be out of range; they are never read.
            let offset = (i128::from(time.offset()) + shift).clamp(0, i128::from(S::OFFSET_MAX));
            S::from_offset(offset as u64)
        };
        DynamicGraph {
            base,
            out: self.out.restamp(change),
            into: self.into.restamp(change),
            loops: self.loops.restamp(change),
            records: self.records.restamp(&change),
            accounts: self.accounts,
            head: self.head,
            alive: self.alive,
            newest: change(self.newest),
            disorder: self.disorder,
            remembers: self.remembers,
            late: self.late.map(|late| {
                let again = |LateEdge { record, front }| LateEdge {
                    record: record.restamp(&change),
                    front: change(front),
                };
                late.into_iter().map(|(number, late)| (number, again(late))).collect()
            }),
            sealed: SealedBoundary { last: self.sealed.last.map(change), next: self.sealed.next },
            rebuilt_at: self.rebuilt_at,
            emptied: self.emptied,
        }
    }

    /// The earliest time of an edge that is alive.
    pub(crate) fn earliest(&self) -> Option<i64> {
        let late = self.late_edges().map(|(_, record, _)| record.time);
        let times = self.records().map(|(_, record)| record.time).chain(late);
        times.min().map(|time| self.time(time))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.accounts.bytes()
            + self.out.bytes()
            + self.into.bytes()
            + self.loops.bytes()
            + self.records.bytes()
    }
}
