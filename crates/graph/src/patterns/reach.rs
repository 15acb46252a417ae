//! The accounts that can be on a cycle that a trigger completes.
//!
//! A cycle through the trigger `a -> b` is a path from `b` back to `a`. Two searches walk towards
//! each other; the one with less work takes the next step. For most triggers, one of the two has no
//! next step, and the search ends. Otherwise both stop when together they have seen all hops that a
//! path can use.
//!
//! Source: pruning by reachability before the enumeration, in Blanusa et al., Fast Parallel
//! Algorithms for Enumeration of Simple, Temporal, and Hop-Constrained Cycles, TOPC 2023.

use crate::accounts::AccountTable;
use crate::edge::{EdgeEntry, Side};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The end of a list of steps.
pub(crate) const NONE: u32 = u32::MAX;

/// An edge that a path may use. An account's steps to one neighbour are adjacent in its list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathStep<T> {
    /// The neighbour nearer to the search's origin.
    pub to: u32,
    pub seq: u32,
    pub time: T,
    pub next: u32,
}

/// All steps of one account to one neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRun<T> {
    /// The time of the last step.
    pub latest: T,
    /// The first step.
    pub first: u32,
    pub to: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct AccountLabel {
    /// The first step towards the origin.
    pub head: u32,
    /// The best priority so far; smaller is better. Once the runs exist: their range.
    pub priority: u64,
    pub is_on_path: bool,
    pub has_runs: bool,
    pub is_done: bool,
}

impl Default for AccountLabel {
    fn default() -> AccountLabel {
        AccountLabel {
            head: NONE,
            priority: u64::MAX,
            is_on_path: false,
            has_runs: false,
            is_done: false,
        }
    }
}

/// One of the two searches.
#[derive(Debug)]
pub(crate) struct TimedReach<T> {
    pub labels: AccountTable<AccountLabel>,
    pub steps: Vec<PathStep<T>>,
    pub runs: Vec<StepRun<T>>,
    /// Priority, number of the step that led here, account. Accounts of one priority are in order
    /// of discovery, because small numbers depend on the accounts that the graph has forgotten.
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// The accounts to which the last expansion led, as heap entries.
    pub fresh: Vec<(u64, u32, u32)>,
    pub work: u64,
}

impl<T> Default for TimedReach<T> {
    fn default() -> TimedReach<T> {
        TimedReach {
            labels: AccountTable::default(),
            steps: Vec::new(),
            runs: Vec::new(),
            heap: BinaryHeap::new(),
            fresh: Vec::new(),
            work: 0,
        }
    }
}

/// The ends of one search: edges into the trigger's source, or out of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchEnds {
    /// The side whose edges the search follows.
    pub side: Side,
    pub origin: u32,
    pub goal: u32,
}

impl<T: Copy> TimedReach<T> {
    pub(crate) fn start(&mut self, ends: SearchEnds) {
        self.labels.clear();
        self.steps.clear();
        self.runs.clear();
        self.heap.clear();
        self.fresh.clear();
        self.work = 0;
        let (label, _) = self.labels.entry(ends.origin);
        label.priority = 0;
        self.heap.push(Reverse((0, 0, ends.origin)));
    }

    /// Priority and account of the next step.
    pub(crate) fn peek(&mut self) -> Option<(u64, u32)> {
        while let Some(&Reverse((priority, _, account))) = self.heap.peek() {
            let label = self.labels.get(account)?;
            if !label.is_done && label.priority == priority {
                return Some((priority, account));
            }
            self.heap.pop();
        }
        None
    }

    /// Marks the account that `peek` returned as done.
    pub(crate) fn take(&mut self, account: u32) {
        self.heap.pop();
        if let Some(label) = self.labels.get_mut(account) {
            label.is_done = true;
        }
    }

    /// Notes that `entry`, an edge of `account`, leads towards the origin. Among the edges to one
    /// neighbour, the caller notes last the one that a path should try first.
    pub(crate) fn note(
        &mut self,
        ends: SearchEnds,
        account: u32,
        entry: EdgeEntry<T>,
        priority: u64,
    ) {
        self.work += 1;
        if entry.other == ends.origin {
            return;
        }
        let at = self.steps.len() as u32;
        let (label, _) = self.labels.entry(entry.other);
        let next = std::mem::replace(&mut label.head, at);
        let is_better = priority < label.priority;
        if is_better {
            label.priority = priority;
        }
        self.steps.push(PathStep { to: account, seq: entry.seq, time: entry.time, next });
        // A path ends at the goal.
        if is_better && entry.other != ends.goal {
            self.fresh.push((priority, at, entry.other));
        }
    }

    /// Queues the fresh accounts for which `is_worth_it` holds.
    pub(crate) fn queue(&mut self, is_worth_it: impl Fn(u32) -> bool) {
        let mut retained = 0;
        for at in 0..self.fresh.len() {
            let one = self.fresh[at];
            self.fresh[retained] = one;
            retained += usize::from(is_worth_it(one.2));
        }
        self.fresh.truncate(retained);
        for &one in &self.fresh {
            self.heap.push(Reverse(one));
        }
    }

    pub(crate) fn head(&self, account: u32) -> u32 {
        self.labels.get(account).map_or(NONE, |label| label.head)
    }

    pub(crate) fn step(&self, at: u32) -> Option<&PathStep<T>> {
        self.steps.get(at as usize)
    }

    /// The runs of an account in decreasing order of their last time, after both searches. A path
    /// ignores the runs that end before its arrival.
    pub(crate) fn runs_of(&mut self, account: u32) -> std::ops::Range<u32>
    where
        T: Ord,
    {
        let Some(label) = self.labels.get_mut(account) else { return 0..0 };
        if label.has_runs {
            return (label.priority >> 32) as u32..label.priority as u32;
        }
        let from = self.runs.len();
        let mut cursor = label.head;
        while let Some(step) = self.steps.get(cursor as usize) {
            match self.runs.get_mut(from..).and_then(<[_]>::last_mut) {
                Some(run) if run.to == step.to => run.latest = step.time,
                _ => self.runs.push(StepRun { latest: step.time, first: cursor, to: step.to }),
            }
            cursor = step.next;
            self.work += 1;
        }
        let runs = from as u32..self.runs.len() as u32;
        (label.has_runs, label.priority) =
            (true, u64::from(runs.start) << 32 | u64::from(runs.end));
        if let Some(made) = self.runs.get_mut(from..) {
            made.sort_by_key(|run| Reverse(run.latest));
        }
        runs
    }

    pub(crate) fn set_on_path(&mut self, account: u32, is_on_path: bool) {
        if let Some(label) = self.labels.get_mut(account) {
            label.is_on_path = is_on_path;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.labels.bytes()
            + self.steps.capacity() * size_of::<PathStep<T>>()
            + self.runs.capacity() * size_of::<StepRun<T>>()
            + self.heap.capacity() * size_of::<Reverse<(u64, u32, u32)>>()
            + self.fresh.capacity() * size_of::<(u64, u32, u32)>()
    }
}

/// The tables of a search for temporal cycles: both searches, and the path with its frames.
#[derive(Debug)]
pub(crate) struct TimedSearches<T, F> {
    pub towards: TimedReach<T>,
    pub away: TimedReach<T>,
    pub path: Vec<F>,
}

impl<T, F> Default for TimedSearches<T, F> {
    fn default() -> TimedSearches<T, F> {
        TimedSearches {
            towards: TimedReach::default(),
            away: TimedReach::default(),
            path: Vec::new(),
        }
    }
}

impl<T: Copy, F> TimedSearches<T, F> {
    pub(crate) fn bytes(&self) -> usize {
        self.towards.bytes() + self.away.bytes() + self.path.capacity() * size_of::<F>()
    }
}
