//! A graph as plain columns, to be kept and taken up again.

use crate::core::Core;
use crate::graph::{Adjacency, Stamp};
use crate::settings::Settings;

/// What a graph holds, in order of arrival: enough to go on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Ids of the edges that are alive, where they are kept.
    pub ids: Option<Vec<i64>>,
    /// Who paid.
    pub sources: Vec<i64>,
    /// Who was paid.
    pub targets: Vec<i64>,
    /// When.
    pub times: Vec<i64>,
    /// The given columns that the statistics measure.
    pub columns: Vec<Vec<f64>>,
    /// The latest time that came.
    pub now: Option<i64>,
    /// How many of the first edges the moments of batch mode no longer count.
    pub unmeasured: usize,
    /// All accounts in the order of their first appearance, where that matters.
    pub order: Vec<i64>,
    /// Rows that came since the graph was empty.
    pub rows: u64,
}

impl<T: Stamp> Core<T> {
    pub(crate) fn state(&self) -> State {
        let graph = &self.graph;
        let mut state = State {
            ids: self.columns.ids.as_ref().map(|_| Vec::with_capacity(graph.len())),
            columns: vec![Vec::with_capacity(graph.len()); self.columns.values.len()],
            now: self.now,
            order: graph.in_order(),
            ..State::default()
        };
        for (number, record) in graph.records() {
            let place = (number - self.columns.head) as usize;
            if let (Some(ids), Some(all)) = (&mut state.ids, &self.columns.ids) {
                ids.extend(all.get(place));
            }
            for (column, all) in state.columns.iter_mut().zip(&self.columns.values) {
                column.extend(all.get(place));
            }
            state.sources.push(graph.key(record.source));
            state.targets.push(graph.key(record.target));
            state.times.push(graph.time(record.time));
            state.unmeasured += usize::from(number < self.columns.recent);
        }
        state
    }

    /// Fills an empty graph.
    pub(crate) fn restore(&mut self, settings: &Settings, state: &State) {
        self.graph.remember(&state.order);
        let columns: Vec<&[f64]> = state.columns.iter().map(Vec::as_slice).collect();
        let edges = crate::Edges {
            ids: state.ids.as_deref().unwrap_or(&state.times),
            sources: &state.sources,
            targets: &state.targets,
            times: &state.times,
            columns: &columns,
        };
        let order: Vec<u32> = (0..state.times.len() as u32).collect();
        self.insert(settings, &edges, &order);
        self.columns.recent = state.unmeasured as u64;
        self.now = state.now;
    }
}
