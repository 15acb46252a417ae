//! What the graph keeps of an edge beside its ends and its time.

use crate::features::Edges;
use crate::graph::{Dynamic, Entry, Stamp, push};
use crate::running::Values;
use crate::settings::{Column, Statistics};
use std::collections::VecDeque;

/// What an edge carries beside its ends and its time.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Number of arrival of the first value.
    pub head: u64,
    pub ids: Option<VecDeque<i64>>,
    pub values: Vec<VecDeque<f64>>,
    /// Edges that arrived earlier no longer count in the moments (specification, E3).
    pub recent: u64,
}

impl Columns {
    pub(crate) fn push(&mut self, edges: &Edges<'_>, row: usize) {
        if let Some(ids) = &mut self.ids {
            push(ids, edges.ids[row]);
        }
        for (values, column) in self.values.iter_mut().zip(edges.columns) {
            push(values, column[row]);
        }
    }

    /// Forgets what arrived before `head`.
    pub(crate) fn forget(&mut self, head: u64) {
        while self.head < head {
            self.head += 1;
            if let Some(ids) = &mut self.ids {
                ids.pop_front();
            }
            for values in &mut self.values {
                values.pop_front();
            }
        }
    }

    pub(crate) fn shrink(&mut self) {
        self.ids.iter_mut().for_each(VecDeque::shrink_to_fit);
        self.values.iter_mut().for_each(VecDeque::shrink_to_fit);
    }

    fn number(&self, seq: u32) -> u64 {
        self.head + u64::from(seq.wrapping_sub(self.head as u32))
    }
}

/// The measured columns, by their place in the statistics.
pub(crate) struct Measured<'a, T> {
    graph: &'a Dynamic<T>,
    columns: &'a Columns,
    /// None: the timestamps.
    given: Vec<Option<&'a VecDeque<f64>>>,
}

impl<'a, T> Measured<'a, T> {
    pub(crate) fn new(
        graph: &'a Dynamic<T>,
        columns: &'a Columns,
        statistics: &Statistics,
    ) -> Self {
        let mut values = columns.values.iter();
        let given = statistics.columns.iter().map(|column| match column {
            Column::Time => None,
            Column::Given => values.next(),
        });
        Measured { graph, columns, given: given.collect() }
    }
}

impl<T: Stamp> Values<T> for Measured<'_, T> {
    fn value(&self, column: usize, entry: Entry<T>) -> f64 {
        let Some(Some(values)) = self.given.get(column) else {
            return self.graph.time(entry.time) as f64;
        };
        let place = self.columns.number(entry.seq) - self.columns.head;
        values.get(place as usize).copied().unwrap_or(f64::NAN)
    }

    fn is_recent(&self, entry: Entry<T>) -> bool {
        self.columns.number(entry.seq) >= self.columns.recent
    }
}
