//! The part of the graph that changes: edges come at the new end and go at the old one.

mod compaction;

use super::adjacency_lists::{Bits, Half, Loops, PIECE, TOUCHED};
use super::arena::{Entry, LENGTH_MAX};
use super::records::{Gone, Owner, Record, Records};
use crate::accounts::{Accounts, NOBODY, Side};
use crate::edge::{Adjacency, Cut, Lens, Stamp};
use crate::memory::{Full, or_abort, reserve};
use crate::threads::both;
use std::collections::BTreeMap;

/// All edges may be those of one account. (Numbers of arrival are kept modulo 2^32 and compared by
/// their distance.)
pub(crate) const EDGES_MAX: usize = LENGTH_MAX;

/// An edge that came after a later one.
#[derive(Clone, Copy, Debug)]
struct Late<T> {
    record: Record<T>,
    /// The latest time that had come before it.
    front: T,
}

/// The last number of arrival before `next` that ends in `seq`.
fn number_before(next: u64, seq: u32) -> u64 {
    next.saturating_sub(u64::from((next as u32).wrapping_sub(seq)))
}

/// What lies in a segment already, and here too until it has been taken out.
#[derive(Clone, Copy, Debug, Default)]
struct Boundary<T> {
    /// Edges that came in order of time are sealed up to this one's time,
    last: Option<T>,
    /// and before this number of arrival.
    next: u64,
}
/// Where a graph was before edges came that are to go again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark<T> {
    next: u64,
    newest: T,
    disorder: Option<u64>,
    numbered: usize,
    appeared: u64,
}

#[derive(Debug)]
pub(crate) struct Dynamic<T> {
    /// The time of offset 0.
    base: i64,
    accounts: Accounts,
    out: Half<T>,
    into: Half<T>,
    loops: Loops<T>,
    /// All edges since the oldest that is alive.
    records: Records<T>,
    /// Number of arrival of the first record.
    head: u64,
    alive: usize,
    /// The latest time of an edge that ever came.
    newest: T,
    /// Number of the last edge that was older than one before it.
    disorder: Option<u64>,
    /// Accounts keep their place in the order of appearance when their edges are gone.
    remembers: bool,
    /// Edges that are alive and came late: no segment takes them. None where there are none.
    late: Option<BTreeMap<u64, Late<T>>>,
    sealed: Boundary<T>,
    /// Number of arrival at which it was made anew, or filled.
    rebuilt_at: u64,
}

impl<T: Stamp> Dynamic<T> {
    pub(crate) fn new(base: i64, remembers: bool) -> Dynamic<T> {
        Dynamic {
            base,
            accounts: Accounts::new(remembers),
            out: Half::new(Side::Out),
            into: Half::new(Side::In),
            loops: Loops::default(),
            records: Records::new(false),
            head: 0,
            alive: 0,
            newest: T::default(),
            disorder: None,
            remembers,
            late: None,
            sealed: Boundary::default(),
            rebuilt_at: 0,
        }
    }

    /// The same for a graph with segments: they know accounts by their small numbers, and have no
    /// place for edges that came late.
    pub(crate) fn before_segments(base: i64) -> Dynamic<T> {
        let records = Records::new(true);
        Dynamic { late: Some(BTreeMap::new()), records, ..Dynamic::new(base, true) }
    }

    pub(crate) fn base(&self) -> i64 {
        self.base
    }

    /// Small numbers of accounts are below this one.
    pub(crate) fn numbered(&self) -> usize {
        self.accounts.numbered()
    }

    /// The stamp of a time, if this graph can hold it.
    pub(crate) fn stamp(&self, time: i64) -> Option<T> {
        T::since(self.base, time)
    }

    pub(crate) fn time(&self, stamp: T) -> i64 {
        self.base.wrapping_add_unsigned(stamp.offset())
    }

    /// All accounts in the order of their first appearance, where it is remembered.
    pub(crate) fn in_order(&self) -> Vec<i64> {
        self.accounts.in_order()
    }

    /// Accounts by their small numbers, from one on; where none is forgotten.
    pub(crate) fn keys(&self, from: usize) -> Vec<i64> {
        self.accounts.keys(from).collect()
    }

    /// Makes an empty graph know accounts in this order.
    pub(crate) fn remember(&mut self, accounts: &[i64]) {
        or_abort(self.try_remember(accounts));
    }

    /// The same, and what there was no memory for. Some of them are known then.
    pub(crate) fn try_remember(&mut self, accounts: &[i64]) -> Result<(), Full> {
        accounts.iter().try_for_each(|&account| self.accounts.intern(account).map(|_| ()))
    }

    fn half(&self, side: Side) -> &Half<T> {
        match side {
            Side::Out => &self.out,
            Side::In => &self.into,
        }
    }

    /// The small numbers of both ends of so many edges (source, target, time), for `insert`. Where
    /// there is no memory, `found` tells who is known now; `forget_idle` forgets them.
    pub(crate) fn intern(
        &mut self,
        count: usize,
        edge: impl Fn(usize) -> (i64, i64, T) + Sync,
        found: &mut Vec<Record<T>>,
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<(), Full> {
        found.clear();
        reserve(found, count)?;
        let unknown = Record { source: NOBODY, target: NOBODY, time: T::default() };
        found.resize(count, unknown);
        if count > 1 {
            let accounts = &self.accounts;
            let (some, others) = found.split_at_mut(count / 2);
            let (middle, edge) = (some.len(), &edge);
            let first_half = || accounts.guess(some, edge);
            both(pool, count, first_half, || accounts.guess(others, |at| edge(middle + at)));
        }
        for at in 0..count {
            let (source, target, time) = edge(at);
            let Record { source: who, target: whom, .. } = found[at];
            found[at] = unknown;
            found[at].time = time;
            let ends = self.intern_one(source, who).and_then(|who| {
                found[at].source = who;
                self.intern_one(target, whom)
            });
            match ends {
                Ok(whom) => found[at].target = whom,
                Err(full) => {
                    found.truncate(at + 1);
                    return Err(full);
                }
            }
        }
        Ok(())
    }

    fn intern_one(&mut self, key: i64, who: u32) -> Result<u32, Full> {
        if who == NOBODY { self.accounts.intern(key) } else { Ok(who) }
    }

    /// Forgets those of these accounts that have no edges, where accounts are forgotten.
    pub(crate) fn forget_idle(&mut self, accounts: impl Iterator<Item = u32>) {
        if self.remembers {
            return;
        }
        let mut rest = accounts;
        loop {
            let mut some = [NOBODY; TOUCHED];
            let mut count = 0;
            let mut read = false;
            for (place, account) in some.iter_mut().zip(&mut rest) {
                *place = account;
                // The waits overlap.
                read ^= self.out.touch_list(account) ^ self.into.touch_list(account);
                count += 1;
            }
            std::hint::black_box(read);
            let mut idle = [0; TOUCHED];
            let mut found = 0;
            for account in some {
                if account != NOBODY && !self.has_edges(account) {
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

    /// Adds edges behind all others, whose ends `intern` has found; the number of arrival of the
    /// first. Where there is no memory, nothing has changed.
    pub(crate) fn insert(
        &mut self,
        records: &[Record<T>],
        pool: Option<&rayon::ThreadPool>,
    ) -> Result<u64, Full> {
        let number = self.next();
        let first = number as u32;
        self.records.make_room(records.len())?;
        self.out.make_room(self.accounts.numbered())?;
        self.into.make_room(self.accounts.numbered())?;
        let Dynamic { out, into, loops, .. } = self;
        let (mut first_half, mut second_half) = (Ok(()), Ok(()));
        let insert_out = || first_half = out.insert(records, first);
        both(pool, records.len(), insert_out, || second_half = into.insert(records, first));
        let third = loops.insert(records, first);
        if let Err(full) = first_half.and(second_half).and(third) {
            // Each has taken back what itself had.
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
                    late.insert(number, Late { record, front: self.newest });
                }
            }
            self.newest = self.newest.max(record.time);
        }
        self.alive += records.len();
        Ok(number)
    }

    /// Where the graph is, for `rewind`.
    pub(crate) fn mark(&self) -> Mark<T> {
        Mark {
            next: self.next(),
            newest: self.newest,
            disorder: self.disorder,
            numbered: self.accounts.numbered(),
            appeared: self.accounts.appeared(),
        }
    }

    /// Takes back all edges that came since, as if they never had; none has been removed.
    pub(crate) fn rewind(&mut self, mark: Mark<T>) {
        for number in (mark.next..self.next()).rev() {
            if let Some(record) = self.record(number) {
                self.remove_all(&[Gone { record, seq: number as u32 }], None);
            }
        }
        // Records of removed edges leave by themselves at the old end: all of them, if no edge is left.
        self.head = self.head.min(mark.next);
        self.records.truncate((mark.next - self.head) as usize);
        (self.newest, self.disorder) = (mark.newest, mark.disorder);
        self.accounts.rewind(mark.numbered, mark.appeared);
    }

    /// Takes edges out; passes over those that are not there.
    pub(crate) fn remove_all(&mut self, gone: &[Gone<T>], pool: Option<&rayon::ThreadPool>) {
        for piece in gone.chunks(PIECE) {
            let mut chosen = Bits::NONE;
            for (at, one) in piece.iter().enumerate() {
                if self.forget(self.number(one.seq)) {
                    chosen.set(at);
                    self.alive -= 1;
                }
            }
            let Dynamic { out, into, loops, .. } = self;
            let (mut last_out, mut last_in) = (Bits::NONE, Bits::NONE);
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
            self.forget_idle(ends.flatten());
            self.head += self.records.pop_gone();
        }
    }

    /// Takes an edge out of the records; false if it is in none.
    fn forget(&mut self, number: u64) -> bool {
        let was_late = self.late.as_mut().is_some_and(|late| late.remove(&number).is_some());
        let Some(place) = number.checked_sub(self.head) else { return was_late };
        let place = place as usize;
        let is_there = self.records.owner(place).is_some();
        self.records.mark_gone(place);
        is_there
    }

    /// The edge at a place of the records, if it is alive.
    fn at(&self, place: usize) -> Option<Record<T>> {
        if self.records.are_whole() {
            return self.records.whole(place);
        }
        let Owner { source, is_loop } = self.records.owner(place)?;
        let seq = (self.head + place as u64) as u32;
        let head = self.is_ordered().then_some(self.head as u32);
        let entry = if is_loop {
            self.loops.find(source, seq, head)
        } else {
            self.out.find(source, seq, head)
        }?;
        Some(Record { source, target: entry.other, time: entry.time })
    }

    /// Reads ahead for those who look at edges one after the other, from this number on; the first
    /// number beyond.
    pub(crate) fn touch_from(&self, number: u64) -> u64 {
        let end = number + TOUCHED as u64;
        self.touch_owners(number..end);
        end
    }

    /// Reads where the edges of these numbers are looked for, so that the waits overlap.
    fn touch_owners(&self, numbers: impl Iterator<Item = u64> + Clone) {
        if self.records.are_whole() {
            return;
        }
        let places = numbers.filter_map(|number| number.checked_sub(self.head));
        let owners = places.filter_map(|place| self.records.owner(place as usize));
        self.out.touch_oldest(owners.map(|one| one.source));
    }

    /// Adds an edge that came late before all that the records will hold, with the latest time
    /// that had come before it.
    pub(crate) fn straggle(&mut self, number: u64, record: Record<T>, front: T) {
        let head = self.head;
        self.head = number;
        or_abort(self.insert(&[record], None));
        self.records.truncate(0);
        self.head = head;
        if let Some(late) = &mut self.late {
            late.insert(number, Late { record, front });
        }
    }

    /// Has the next edge be number `next`, where there is none yet.
    pub(crate) fn skip(&mut self, next: u64) {
        if self.records.is_empty() {
            self.head = self.head.max(next);
            self.rebuilt_at = self.head;
        }
    }

    /// Stops to show what came in order of time before number `next`: a segment has it, whose last
    /// edge is of time `last`. `drain` takes it out.
    pub(crate) fn seal(&mut self, next: u64, last: T) {
        self.skip(next);
        self.newest = self.newest.max(last);
        self.sealed = Boundary { last: Some(last), next };
    }

    /// Whether something is left to `drain`.
    pub(crate) fn is_draining(&self) -> bool {
        self.head < self.sealed.next
    }

    /// Takes out what has been sealed, so many edges at most.
    pub(crate) fn drain(&mut self, most: usize) {
        if !self.is_draining() {
            return;
        }
        let end = self.sealed.next.min(self.head.saturating_add(most as u64));
        let numbers = (self.head..end).filter(|one| !self.is_late(*one));
        let gone = numbers.filter_map(|number| self.gone(number)).collect::<Vec<_>>();
        self.remove_all(&gone, None);
        // What came late stays, apart from the records.
        while self.head < end && self.records.pop() {
            self.head += 1;
        }
    }

    /// An edge that is alive, to be taken out.
    pub(crate) fn gone(&self, number: u64) -> Option<Gone<T>> {
        Some(Gone { record: self.record(number)?, seq: number as u32 })
    }

    fn is_late(&self, number: u64) -> bool {
        self.late.as_ref().is_some_and(|late| late.contains_key(&number))
    }

    /// What came in order before this number of arrival is in segments.
    pub(crate) fn sealed_end(&self) -> u64 {
        self.sealed.next
    }

    /// The number of arrival that ends in `seq`, of an edge that is in the graph.
    pub(crate) fn number(&self, seq: u32) -> u64 {
        number_before(self.next(), seq)
    }

    /// Whether a segment has this edge.
    pub(crate) fn is_sealed(&self, number: u64) -> bool {
        number < self.sealed.next && !self.is_late(number)
    }

    /// Whether a segment shows this edge.
    fn is_hidden(&self, entry: Entry<T>) -> bool {
        self.is_draining() && self.is_sealed(self.number(entry.seq))
    }

    /// An edge that is alive.
    pub(crate) fn record(&self, number: u64) -> Option<Record<T>> {
        let Some(place) = number.checked_sub(self.head) else {
            return self.late.as_ref()?.get(&number).map(|late| late.record);
        };
        self.at(usize::try_from(place).ok()?)
    }

    /// As `stragglers`, with those that will be once what is sealed has been taken out.
    pub(crate) fn unsealed(&self) -> impl Iterator<Item = (u64, Record<T>, T)> {
        let end = self.sealed.next.max(self.head);
        let late = self.late.iter().flat_map(move |late| late.range(..end));
        late.map(|(&number, late)| (number, late.record, late.front))
    }

    /// Edges that came late, older than all `records`: number of arrival, what it is, and the
    /// latest time that had come before it.
    pub(crate) fn stragglers(&self) -> impl Iterator<Item = (u64, Record<T>, T)> {
        let late = self.late.iter().flat_map(|late| late.range(..self.head));
        late.map(|(&number, late)| (number, late.record, late.front))
    }

    /// The latest time that had come before an edge that came late.
    pub(crate) fn front(&self, number: u64) -> Option<T> {
        self.late.as_ref()?.get(&number).map(|late| late.front)
    }

    /// The next edges to be sealed, from the oldest on, up to the first in order of time for which
    /// `is_over`; None in the place of those that cannot be.
    pub(crate) fn prefix(
        &self,
        is_over: impl Fn(T) -> bool,
    ) -> impl Iterator<Item = Option<Record<T>>> {
        let all = (self.head..).zip(0..self.records.len());
        let all = all.map(|(number, at)| self.at(at).filter(|_| !self.is_late(number)));
        all.take_while(move |one| one.is_none_or(|record| !is_over(record.time)))
    }

    /// Edges that are alive, in order of arrival, `stragglers` apart.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, Record<T>)> {
        self.records_from(self.head)
    }

    /// The same from one number of arrival on.
    pub(crate) fn records_from(&self, number: u64) -> impl Iterator<Item = (u64, Record<T>)> {
        let from = number.saturating_sub(self.head) as usize;
        (self.head + from as u64..).zip(from..self.records.len()).filter_map(move |(number, at)| {
            if (at - from).is_multiple_of(TOUCHED) {
                self.touch_from(number);
            }
            Some((number, self.at(at)?))
        })
    }

    /// Number of arrival of the oldest record.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Number of arrival that the next edge will have.
    pub(crate) fn next(&self) -> u64 {
        self.head + self.records.len() as u64
    }

    /// Edges that are alive.
    pub(crate) fn len(&self) -> usize {
        self.alive
    }

    /// Accounts that are known.
    pub(crate) fn accounts(&self) -> usize {
        self.accounts.len()
    }

    pub(crate) fn find(&self, key: i64) -> Option<u32> {
        self.accounts.find(key)
    }

    /// The same graph with another base, or another type of stamps.
    pub(crate) fn restamp<S: Stamp>(self, base: i64) -> Dynamic<S> {
        let shift = i128::from(self.base) - i128::from(base);
        let change = |time: T| {
            // Stale entries of free blocks may lie outside; nobody reads them.
            let offset = (i128::from(time.offset()) + shift).clamp(0, i128::from(S::OFFSET_MAX));
            S::from_offset(offset as u64)
        };
        Dynamic {
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
                let again = |Late { record, front }| Late {
                    record: record.restamp(&change),
                    front: change(front),
                };
                late.into_iter().map(|(number, late)| (number, again(late))).collect()
            }),
            sealed: Boundary { last: self.sealed.last.map(change), next: self.sealed.next },
            rebuilt_at: self.rebuilt_at,
        }
    }

    /// The earliest time of an edge that is alive.
    pub(crate) fn earliest(&self) -> Option<i64> {
        let late = self.stragglers().map(|(_, record, _)| record.time);
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

    /// Entries of a window: those that the lens shows where edges came in order, and at least
    /// those where they did not.
    fn window(&self, account: u32, side: Side, (from, to): (T, T), lens: Lens<T>) -> &[Entry<T>] {
        let half = self.half(side);
        if !self.is_ordered() {
            return half.span(account, |one| one.time < from, |one| one.time > to);
        }
        let from = match self.sealed.last {
            Some(last) if self.is_draining() => from.max(T::after(last)),
            _ => from,
        };
        let is_early = |from: T| move |one: Entry<T>| one.time < from;
        match lens.cut((from, to)) {
            Cut::Times(from, to) => half.span(account, is_early(from), |one| one.time > to),
            Cut::Arrivals(from) => {
                half.span(account, is_early(from), |one| !lens.has_come(one.seq))
            }
            Cut::Each => half.span(
                account,
                |one| (one.time < from) | lens.is_gone(one),
                |one| (one.time > to) | !lens.has_come(one.seq),
            ),
        }
    }
}

impl<T: Stamp> Adjacency<T> for Dynamic<T> {
    fn is_ordered(&self) -> bool {
        match &self.late {
            Some(late) => late.is_empty(),
            None => self.disorder.is_none_or(|number| number < self.head),
        }
    }

    fn has_dropped(&self, entry: Entry<T>) -> bool {
        (self.head as u32).wrapping_sub(entry.seq).cast_signed() > 0
    }

    fn has_any(&self, account: u32, side: Side) -> bool {
        self.half(side).has_any(account)
    }

    fn touch_any(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.half(side).touch_lists(accounts);
    }

    fn key(&self, account: u32) -> i64 {
        self.accounts.key(account)
    }

    fn order(&self, account: u32) -> u64 {
        self.accounts.order(account)
    }

    fn ascending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> impl Iterator<Item = Entry<T>> {
        let is_exact = self.is_ordered();
        let inside = self.window(account, side, window, lens).iter().copied();
        inside.filter(move |one| is_exact || (lens.sees(*one) && !self.is_hidden(*one)))
    }

    fn descending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> impl Iterator<Item = Entry<T>> {
        let is_exact = self.is_ordered();
        let inside = self.window(account, side, window, lens).iter().rev().copied();
        inside.filter(move |one| is_exact || (lens.sees(*one) && !self.is_hidden(*one)))
    }

    fn slice(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
    ) -> Option<&[Entry<T>]> {
        self.is_ordered().then(|| self.window(account, side, window, lens))
    }

    fn gather(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        lens: Lens<T>,
        most: usize,
        into: &mut Vec<Entry<T>>,
    ) -> bool {
        if !self.is_ordered() {
            into.extend(self.ascending(account, side, window, lens));
            return true;
        }
        let inside = self.window(account, side, window, lens);
        if inside.len() <= most {
            into.extend_from_slice(inside);
        }
        inside.len() <= most
    }

    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.half(side).touch(accounts);
    }

    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, _window: (T, T)) {
        self.half(side).touch(accounts);
    }

    fn touch_rows(&self, _: Side, _: impl Iterator<Item = u32> + Clone, _: (T, T)) {}

    fn count_bound(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        self.at_most(account, side, window, lens)
    }

    fn at_most(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        let inside = self.window(account, side, window, lens);
        if self.is_ordered() || !self.is_draining() {
            return inside.len();
        }
        inside.iter().filter(|one| !self.is_hidden(**one)).count()
    }

    fn first(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> Option<T> {
        self.ascending(account, side, window, lens).next().map(|one| one.time)
    }

    fn last(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> Option<T> {
        self.descending(account, side, window, lens).next().map(|one| one.time)
    }

    fn count(&self, account: u32, side: Side, window: (T, T), lens: Lens<T>) -> usize {
        let inside = self.window(account, side, window, lens);
        if self.is_ordered() {
            inside.len()
        } else {
            inside.iter().filter(|one| lens.sees(**one) && !self.is_hidden(**one)).count()
        }
    }

    fn loops(&self, account: u32) -> impl Iterator<Item = Entry<T>> {
        let all = self.loops.get(account);
        all.iter().copied().filter(|one| !self.is_hidden(*one))
    }
}

#[cfg(test)]
mod tests {
    use super::{Adjacency, Dynamic, Gone, Side};
    use crate::edge::Lens;
    use proptest::prelude::*;

    /// Edges of an account by the callers' numbers: other end, time, number of arrival.
    fn edges(graph: &Dynamic<u32>, key: i64, side: Side) -> Vec<(i64, u32, u32)> {
        let Some(account) = graph.find(key) else { return Vec::new() };
        let window = (0, u32::MAX);
        let all =
            graph.ascending(account, side, window, Lens::whole(0)).chain(graph.loops(account));
        all.map(|one| (graph.key(one.other), one.time, one.seq)).collect()
    }

    fn add(graph: &mut Dynamic<u32>, rows: &[(i64, i64, u32)]) {
        let mut found = Vec::new();
        graph.intern(rows.len(), |at| rows[at], &mut found, None).unwrap();
        graph.insert(&found, None).unwrap();
    }

    proptest! {
        /// A graph that gives room back, whose accounts get other small numbers, is the same as one
        /// that does not.
        #[test]
        fn a_graph_that_shrinks_is_the_same(
            steps in prop::collection::vec((0..90i64, 0..90i64, 0..9u32, 0..40u8), 1..900),
        ) {
            let mut graph = Dynamic::<u32>::new(0, false);
            let mut other = Dynamic::<u32>::new(0, false);
            let mut renumbered = 0;
            for (number, &(source, target, late, kind)) in (0u64..).zip(&steps) {
                let target = if kind % 4 == 1 { 0 } else { target };
                let row = (source, target, number as u32 + late);
                // Now and then most leave.
                let left = if kind == 0 { 5 } else { 300 };
                for graph in [&mut graph, &mut other] {
                    add(graph, &[row]);
                    while graph.len() > left {
                        let oldest = graph.gone(graph.head());
                        graph.remove_all(oldest.as_slice(), None);
                    }
                }
                renumbered += u32::from(graph.shrink(100));
                if kind < 4 {
                    prop_assert_eq!(graph.accounts(), other.accounts());
                    prop_assert!(graph.numbered() <= other.numbered());
                    for account in 0..90 {
                        for side in [Side::Out, Side::In] {
                            prop_assert_eq!(edges(&graph, account, side), edges(&other, account, side));
                        }
                    }
                    let key = |graph: &Dynamic<u32>, account| graph.key(account);
                    let records = |graph: &Dynamic<u32>| -> Vec<_> {
                        let all = graph.records();
                        all.map(|(at, one)| (at, key(graph, one.source), key(graph, one.target), one.time)).collect()
                    };
                    prop_assert_eq!(records(&graph), records(&other));
                }
            }
            // Streams this long cannot all be those in which nothing ever leaves.
            prop_assert!(steps.len() < 800 || renumbered > 0);
        }

        /// A graph made anew holds what it held, and goes on alike.
        #[test]
        fn a_graph_made_anew_is_the_same(
            steps in prop::collection::vec((0..40i64, 0..40i64, 0..50u32, 0..4u8), 1..500),
            remembers: bool,
            far: bool,
        ) {
            let key = |account: i64| if far { (account - 20) << 40 } else { account };
            let mut graph = Dynamic::<u32>::new(0, remembers);
            for (number, &(source, target, time, kind)) in (0u64..).zip(&steps) {
                // A hub, so that there are long lists.
                let target = if kind == 1 { 0 } else { target };
                add(&mut graph, &[(key(source), key(target), number as u32 / 2 + time)]);
                // Some leave, at the old end and between.
                let leaving = if kind == 0 { graph.head() } else { number.saturating_sub(30) };
                let leaving = graph.record(leaving).map(|record| Gone { record, seq: leaving as u32 });
                if let Some(gone) = leaving.filter(|_| kind != 2) {
                    graph.remove_all(&[gone], None);
                }
            }
            let mut anew = graph.rebuilt(None).unwrap();
            for round in 0..2 {
                prop_assert_eq!(anew.accounts(), graph.accounts());
                prop_assert_eq!(anew.in_order(), graph.in_order());
                prop_assert_eq!((anew.head(), anew.next(), anew.len()), (graph.head(), graph.next(), graph.len()));
                prop_assert_eq!(anew.is_ordered(), graph.is_ordered());
                for account in (0..40).map(key) {
                    for side in [Side::Out, Side::In] {
                        prop_assert_eq!(edges(&anew, account, side), edges(&graph, account, side), "round {}", round);
                    }
                }
                let oldest = graph.gone(graph.head());
                for graph in [&mut graph, &mut anew] {
                    let gone = graph.gone(graph.head());
                    prop_assert_eq!(gone.is_some(), oldest.is_some());
                    graph.remove_all(gone.as_slice(), None);
                    add(graph, &[(key(1), key(0), 600), (key(77), key(77), 601)]);
                }
            }
        }
    }
}
