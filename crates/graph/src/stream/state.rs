//! A graph as plain columns, to be saved and resumed.

use super::call::{CallContext, Edges};
use super::engine::StreamEngine;
use crate::edge::{Adjacency, Stamp};
use crate::memory::AllocationFailed;
use crate::settings::Settings;

/// The content of a graph in order of arrival: enough to resume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphState {
    /// The ids of the edges, if the settings retain them.
    pub ids: Option<Vec<i64>>,
    /// The paying accounts.
    pub sources: Vec<i64>,
    /// The paid accounts.
    pub targets: Vec<i64>,
    /// The timestamps.
    pub times: Vec<i64>,
    /// The given columns that the statistics measure.
    pub columns: Vec<Vec<f64>>,
    /// The latest time of a row so far.
    pub now: Option<i64>,
    /// The number of first edges that the moments of batch mode no longer count.
    pub unmeasured: usize,
    /// All accounts in the order of first appearance, if it is remembered.
    pub order: Vec<i64>,
    /// Rows that were added since the graph was empty.
    pub rows: u64,
}

impl<T: Stamp> StreamEngine<T> {
    pub(crate) fn state(&self) -> GraphState {
        let graph = &self.graph;
        let mut state = GraphState {
            ids: self.columns.ids.as_ref().map(|_| Vec::with_capacity(graph.len())),
            columns: vec![Vec::with_capacity(graph.len()); self.columns.values.len()],
            now: self.now,
            order: graph.in_order(),
            ..GraphState::default()
        };
        for (number, source, target, time) in self.edges() {
            if let Some(ids) = &mut state.ids {
                let sealed = || graph.of(number)?.id(number);
                ids.push(self.columns.id(number).or_else(sealed).unwrap_or_default());
            }
            for (at, column) in state.columns.iter_mut().enumerate() {
                let sealed = || graph.of(number)?.value(at, number);
                column.push(self.columns.value(at, number).or_else(sealed).unwrap_or(f64::NAN));
            }
            state.sources.push(graph.key(source));
            state.targets.push(graph.key(target));
            state.times.push(graph.time(time));
            let front = graph.front(number).unwrap_or(time);
            let is_old = self.columns.recent_time.is_some_and(|old| graph.time(front) < old);
            let is_measured = number >= self.columns.recent || (number < graph.head() && !is_old);
            state.unmeasured += usize::from(!is_measured);
        }
        state
    }

    /// All edges in order of arrival: sequence number, source, target, time.
    fn edges(&self) -> Vec<(u64, u32, u32, T)> {
        let graph = &self.graph;
        let mut all = graph.sealed_edges();
        let late = graph.late_edges().map(|(number, record, _)| (number, record));
        // Some sealed edges may still be in the store.
        let newest = late.chain(graph.records()).filter(|(number, _)| !graph.is_sealed(*number));
        all.extend(newest.map(|(number, one)| (number, one.source, one.target, one.time)));
        all.sort_unstable();
        all
    }

    /// Fills an empty graph.
    pub(crate) fn restore(
        &mut self,
        settings: &Settings,
        state: &GraphState,
    ) -> Result<(), AllocationFailed> {
        self.graph.try_remember(&state.order)?;
        let columns: Vec<&[f64]> = state.columns.iter().map(Vec::as_slice).collect();
        let edges = Edges {
            ids: state.ids.as_deref().unwrap_or(&state.times),
            sources: &state.sources,
            targets: &state.targets,
            times: &state.times,
            columns: &columns,
        };
        let order: Vec<u32> = (0..state.times.len() as u32).collect();
        let (edges, order) = (&edges, order.as_slice());
        self.insert(&CallContext { settings, pool: None, edges, order, interrupt: None })?;
        self.columns.recent = state.unmeasured as u64;
        self.now = state.now;
        Ok(())
    }
}
