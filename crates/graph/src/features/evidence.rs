//! Found patterns, with the callers' account numbers and edge ids.

use crate::edge::{Adjacency, Stamp, Visibility};
use crate::edge::{EdgeEntry, Side};
use crate::kind::PatternKind;
use crate::patterns::{PatternMatch, Trigger, is_before};
use crate::settings::{Mode, Settings};
use crate::stream::{EdgeColumns, HybridGraph};

/// A pattern that an edge completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The kind of pattern.
    pub kind: PatternKind,
    /// The size, as the bins count it.
    pub size: u32,
    /// The id of the edge that completed it.
    pub trigger: i64,
    /// Star: its centre. Scatter-gather: the account that scatters, the one that gathers, then the
    /// middle accounts in order of their numbers. Cycle: the accounts from the trigger's target
    /// around to its source.
    pub accounts: Vec<i64>,
    /// The ids of all edges, in order of time, then of arrival.
    pub edges: Vec<i64>,
}

/// Collects the edges of a pattern, because searches note only accounts.
struct EdgeCollector<'a, T> {
    graph: &'a HybridGraph<T>,
    view: Visibility<T>,
    is_causal: bool,
    trigger: Trigger<T>,
    edges: Vec<EdgeEntry<T>>,
}

impl<T: Stamp> EdgeCollector<'_, T> {
    /// All edges of one account in a window.
    fn star(&mut self, account: u32, side: Side, window: (T, T)) {
        self.edges.extend(self.graph.ascending(account, side, window, self.view));
    }

    /// The edges between two accounts in a window.
    fn pair(&mut self, source: u32, target: u32, window: (T, T)) -> Vec<EdgeEntry<T>> {
        if source == target {
            let loops = self.graph.loops(source);
            let inside = |one: &EdgeEntry<T>| {
                window.0 <= one.time && one.time <= window.1 && self.view.sees(*one)
            };
            return loops.filter(inside).collect();
        }
        let length = |account, side| self.graph.at_most(account, side, window, self.view);
        let (account, side, other) = if length(source, Side::Out) <= length(target, Side::In) {
            (source, Side::Out, target)
        } else {
            (target, Side::In, source)
        };
        let all = self.graph.ascending(account, side, window, self.view);
        all.filter(|one| one.other == other).collect()
    }

    /// All edges of a pattern, except the trigger of a cycle.
    fn collect(&mut self, kind: PatternKind, accounts: &[u32], window: u64) {
        let time = self.trigger.time;
        let (open, closed) = (time.open(window), time.closed(window));
        let centre = accounts.first().copied().unwrap_or_default();
        match kind {
            PatternKind::FanIn | PatternKind::DegreeIn => self.star(centre, Side::In, (open, time)),
            PatternKind::FanOut | PatternKind::DegreeOut => {
                self.star(centre, Side::Out, (open, time))
            }
            PatternKind::GatherScatter => {
                self.star(centre, Side::In, (open, time));
                self.star(centre, Side::Out, (open, time));
            }
            PatternKind::ScatterGather => self.scatter_gather(accounts, closed.onward()),
            PatternKind::TemporalCycle => self.temporal_cycle(accounts, closed),
            PatternKind::SimpleCycle => self.simple_cycle(accounts, closed),
        }
    }

    fn scatter_gather(&mut self, accounts: &[u32], window: (T, T)) {
        let [from, to, middles @ ..] = accounts else { return };
        for &middle in middles {
            for (source, target) in [(*from, middle), (middle, *to)] {
                let legs = self.pair(source, target, window);
                self.edges.extend(legs);
            }
        }
    }

    /// The hops of a simple cycle. Among edges of the trigger's instant, the order of accounts
    /// decides.
    fn simple_cycle(&mut self, accounts: &[u32], from: T) {
        let time = self.trigger.time;
        for hop in accounts.windows(2) {
            let (source, target) = (hop[0], hop[1]);
            let is_before = is_before(self.graph, self.is_causal, target, self.trigger.target);
            let hops = self.pair(source, target, (from, time));
            self.edges.extend(hops.into_iter().filter(|one| one.time < time || is_before));
        }
    }

    /// The hops of a temporal cycle that belong to any choice with increasing times.
    fn temporal_cycle(&mut self, accounts: &[u32], from: T) {
        let Some(last) = self.trigger.time.offset().checked_sub(1) else { return };
        let mut earliest = from.offset();
        let mut hops = Vec::new();
        for hop in accounts.windows(2) {
            let window = (T::from_offset(earliest), T::from_offset(last));
            let edges = self.pair(hop[0], hop[1], window);
            let Some(first) = edges.first() else { return };
            earliest = first.time.offset() + 1;
            hops.push(edges);
        }
        let mut before = self.trigger.time;
        for mut edges in hops.into_iter().rev() {
            edges.retain(|one| one.time < before);
            before = edges.last().map_or(before, |one| one.time);
            self.edges.extend(edges);
        }
    }
}

/// Translates the matches of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct PatternNamer<'a, T> {
    pub graph: &'a HybridGraph<T>,
    pub columns: &'a EdgeColumns,
    pub settings: &'a Settings,
    pub triggers: &'a [Trigger<T>],
    /// The sequence number of the batch's first edge.
    pub first: u64,
}

impl<T: Stamp> PatternNamer<'_, T> {
    /// A pattern with its accounts and edges.
    pub(super) fn name(&self, found: &PatternMatch) -> Pattern {
        let PatternNamer { graph, settings, first, .. } = *self;
        let trigger = self.triggers[found.place as usize];
        let is_causal = settings.mode == Mode::Causal;
        let view = if is_causal {
            Visibility::until(first as u32, found.place, trigger.time, trigger.floor)
        } else {
            Visibility::all(first as u32)
        };
        let mut all = EdgeCollector { graph, view, is_causal, trigger, edges: Vec::new() };
        let own_seq = (first as u32).wrapping_add(found.place);
        let own = EdgeEntry { time: trigger.time, other: trigger.target, seq: own_seq };
        let window = settings.pattern(found.kind).map_or(0, |pattern| pattern.window);
        // No account is forgotten before the call ends.
        let accounts: Vec<u32> = found.accounts.iter().filter_map(|&key| graph.find(key)).collect();
        all.collect(found.kind, &accounts, window);
        if matches!(found.kind, PatternKind::TemporalCycle | PatternKind::SimpleCycle) {
            all.edges.push(own);
        }
        let number = |seq: u32| graph.number(seq);
        let mut edges: Vec<(T, u64)> =
            all.edges.into_iter().map(|one| (one.time, number(one.seq))).collect();
        edges.sort_unstable();
        edges.dedup();
        Pattern {
            kind: found.kind,
            size: found.size,
            trigger: self.id(number(own.seq)).unwrap_or_default(),
            accounts: found.accounts.clone(),
            edges: edges.into_iter().filter_map(|(_, number)| self.id(number)).collect(),
        }
    }

    /// The id of an edge by its sequence number.
    fn id(&self, number: u64) -> Option<i64> {
        self.columns.id(number).or_else(|| self.graph.of(number)?.id(number))
    }
}
