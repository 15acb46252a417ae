//! The window of an account with many edges, carried on from trigger to trigger.
//!
//! Causal mode measures an account for each of its rows. For a hub it would read the whole list
//! each time. Here each edge is added once and subtracted once.

use super::moments::Moments;
use crate::accounts::AccountHash;
use crate::edge::{Adjacency, Stamp};
use crate::edge::{EdgeEntry, Vertex};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Windows of accounts with at least this many edges are carried on. For fewer, a scan costs no
/// more. Debug builds also carry on small accounts, for tests.
pub(crate) const LENGTH_MIN: usize = if cfg!(debug_assertions) { 4 } else { 48 };

/// Access to the measured values of edges.
pub(crate) trait EdgeValues<T: Copy>: Sync {
    /// The value of an edge in a measured column.
    fn value(&self, column: usize, entry: EdgeEntry<T>) -> f64;

    /// Appends the values of edges in a measured column.
    fn values(&self, column: usize, entries: &[EdgeEntry<T>], into: &mut Vec<f64>) {
        into.extend(entries.iter().map(|one| self.value(column, *one)));
    }

    /// Whether the moments still count an edge (specification, E3).
    fn is_recent(&self, entry: EdgeEntry<T>) -> bool;
}

/// No measured columns: only edges and neighbours are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoValues;

impl<T: Copy> EdgeValues<T> for NoValues {
    fn value(&self, _: usize, _: EdgeEntry<T>) -> f64 {
        0.0
    }

    fn is_recent(&self, _: EdgeEntry<T>) -> bool {
        true
    }
}

/// The edges on one side of an account in a window.
#[derive(Debug)]
pub(crate) struct SlidingWindow<T> {
    /// The caller's number of the account, because small numbers are reused.
    key: i64,
    /// The last trigger that moved the window, if each trigger sees only earlier edges.
    moved: Option<u32>,
    /// The beginning and the end of the last window. Older edges are subtracted, later ones are not
    /// counted yet.
    window: (T, T),
    /// The counted edges, oldest first. The graph may have removed some of them.
    entries: VecDeque<EdgeEntry<T>>,
    /// The value of each entry in each column.
    values: VecDeque<f64>,
    neighbours: HashMap<u32, u32, AccountHash>,
    pub moments: Vec<Moments>,
}

impl<T: Stamp> SlidingWindow<T> {
    pub(crate) fn new(key: i64, columns: usize) -> SlidingWindow<T> {
        SlidingWindow {
            key,
            moved: None,
            window: (T::default(), T::default()),
            entries: VecDeque::new(),
            values: VecDeque::new(),
            neighbours: HashMap::default(),
            moments: vec![Moments::default(); columns],
        }
    }

    pub(crate) fn degree(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn fan(&self) -> usize {
        self.neighbours.len()
    }

    /// Whether the window is that of this account, and no later trigger has moved it. The beginning
    /// alone is not enough: windows longer than the stream all begin at 0.
    pub(crate) fn is_of<G: Adjacency<T>>(&self, graph: &G, vertex: Vertex<T>) -> bool {
        self.key == graph.key(vertex.account)
            && self.window.0 <= vertex.window.0
            && self.window.1 <= vertex.window.1
            && self.moved.is_none_or(|seq| vertex.view.has_arrived(seq))
    }

    /// Moves to the window of a later trigger, in a graph whose edges arrived in order of time.
    pub(crate) fn advance<G: Adjacency<T>>(
        &mut self,
        graph: &G,
        values: &impl EdgeValues<T>,
        vertex: Vertex<T>,
        with_loops: bool,
    ) {
        let Vertex { account, side, window, view } = vertex;
        (self.moved, self.window) = (view.trigger_seq(), window);
        let last = self.entries.back().copied();
        // Removed edges are subtracted first: a small number may belong to a new account now.
        while let Some(&oldest) = self.entries.front() {
            let is_evicted = view.is_evicted(oldest) || graph.has_dropped(oldest);
            if oldest.time >= window.0 && !is_evicted {
                break;
            }
            self.take();
        }
        let from = last.map_or(window.0, |last| last.time.max(window.0));
        let is_new = |one: &EdgeEntry<T>| last.is_none_or(|last| view.is_after(one.seq, last.seq));
        let edges = graph.ascending(account, side, (from, window.1), view).filter(is_new);
        let is_inside = |one: &EdgeEntry<T>| {
            from <= one.time && one.time <= window.1 && view.sees(*one) && is_new(one)
        };
        let loops = with_loops.then(|| graph.loops(account)).into_iter().flatten();
        let mut loops = loops.filter(is_inside).peekable();
        for entry in edges {
            // Both lists are in order of arrival, and edges are removed in that order.
            while let Some(one) = loops.next_if(|one| view.is_after(entry.seq, one.seq)) {
                self.push(values, one);
            }
            self.push(values, entry);
        }
        for one in loops {
            self.push(values, one);
        }
        self.mend();
        self.fit();
    }

    /// Frees capacity from a busier time.
    fn fit(&mut self) {
        let len = self.entries.len();
        if self.entries.capacity() > len + len / 2 + LENGTH_MIN {
            self.entries.shrink_to(len + len / 4);
            self.values.shrink_to((len + len / 4) * self.moments.len());
        }
        if self.neighbours.capacity() > 4 * (self.neighbours.len() + LENGTH_MIN) {
            self.neighbours.shrink_to(2 * self.neighbours.len());
        }
    }

    /// Rebuilds worn moments. The pivot is the newest value, which stays longest, so this is rare.
    fn mend(&mut self) {
        let columns = self.moments.len();
        for (column, moments) in self.moments.iter_mut().enumerate() {
            if moments.is_worn() {
                let all = self.values.iter().skip(column).step_by(columns).copied();
                let newest = self.values.len() - columns + column;
                *moments = Moments::of(self.values[newest], all);
            }
        }
    }

    fn push(&mut self, values: &impl EdgeValues<T>, entry: EdgeEntry<T>) {
        if self.entries.len() == self.entries.capacity() {
            // Growth is small: doubling would leave half of a hub's memory empty.
            let more = self.entries.len() / 4 + LENGTH_MIN;
            self.entries.reserve_exact(more);
            self.values.reserve_exact(more * self.moments.len());
        }
        self.entries.push_back(entry);
        *self.neighbours.entry(entry.other).or_default() += 1;
        for (column, moments) in self.moments.iter_mut().enumerate() {
            let value = values.value(column, entry);
            self.values.push_back(value);
            moments.add(value);
        }
    }

    fn take(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if let Some(count) = self.neighbours.get_mut(&entry.other) {
            *count -= 1;
            if *count == 0 {
                self.neighbours.remove(&entry.other);
            }
        }
        for moments in &mut self.moments {
            if let Some(value) = self.values.pop_front() {
                moments.take(value);
            }
        }
    }

    pub(crate) fn newest(&self) -> Option<T> {
        self.entries.back().map(|last| last.time)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<EdgeEntry<T>>()
            + self.values.capacity() * size_of::<f64>()
            + self.neighbours.allocation_size()
    }
}
