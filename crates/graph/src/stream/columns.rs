//! Edge columns: ids, and the values that statistics measure.

use super::call::Edges;
use super::hybrid::HybridGraph;
use crate::edge::{EdgeEntry, Stamp};
use crate::memory::{AllocationFailed, fit, make_room};
use crate::settings::{Column, StatisticsSettings};
use crate::statistics::EdgeValues;
use std::collections::{BTreeMap, VecDeque};

/// Ids and measured values by sequence number.
#[derive(Debug, Default)]
pub(crate) struct EdgeColumns {
    /// The sequence number of the first value.
    pub head: u64,
    pub ids: Option<VecDeque<i64>>,
    pub values: Vec<VecDeque<f64>>,
    /// The moments do not count edges that arrived earlier (specification, E3).
    pub recent: u64,
    /// The moments do not count edges of segments that are older than this.
    pub recent_time: Option<i64>,
    /// Id and values of late edges that remained when their span was sealed.
    late: BTreeMap<u64, (i64, Vec<f64>)>,
}

impl EdgeColumns {
    pub(crate) fn new(keeps_ids: bool, columns: usize) -> EdgeColumns {
        let ids = keeps_ids.then(VecDeque::new);
        EdgeColumns { ids, values: vec![VecDeque::new(); columns], ..EdgeColumns::default() }
    }

    /// Appends rows. After an error, the caller removes the appended ones with `rewind`.
    pub(crate) fn push(&mut self, edges: &Edges<'_>, rows: &[u32]) -> Result<(), AllocationFailed> {
        if let Some(ids) = &mut self.ids {
            make_room(ids, rows.len())?;
            ids.extend(rows.iter().map(|&row| edges.ids[row as usize]));
        }
        for (values, column) in self.values.iter_mut().zip(edges.columns) {
            make_room(values, rows.len())?;
            values.extend(rows.iter().map(|&row| column[row as usize]));
        }
        Ok(())
    }

    /// Drops the values from `next` on.
    pub(crate) fn rewind(&mut self, next: u64) {
        let retained = usize::try_from(next.saturating_sub(self.head)).unwrap_or(usize::MAX);
        if let Some(ids) = &mut self.ids {
            ids.truncate(retained);
        }
        for values in &mut self.values {
            values.truncate(retained);
        }
    }

    /// Drops the values before `head`.
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

    /// Makes `head` the sequence number of the next value, if there are no ids.
    pub(crate) fn start(&mut self, head: u64) {
        if self.ids.as_ref().is_none_or(VecDeque::is_empty) {
            self.head = self.head.max(head);
        }
    }

    /// Retains the values of an edge beyond `forget`.
    pub(crate) fn keep(&mut self, number: u64) {
        let Some(place) = number.checked_sub(self.head) else { return };
        let id = self.ids.as_ref().and_then(|ids| ids.get(place as usize));
        let values = self.values.iter().filter_map(|all| all.get(place as usize)).copied();
        self.late.insert(number, (id.copied().unwrap_or_default(), values.collect()));
    }

    /// Retains the values of an edge that was never added with `push`.
    pub(crate) fn insert(&mut self, number: u64, id: i64, values: Vec<f64>) {
        self.late.insert(number, (id, values));
    }

    /// Drops the retained values of removed edges.
    pub(crate) fn retain(&mut self, is_alive: impl Fn(u64) -> bool) {
        self.late.retain(|&number, _| is_alive(number));
    }

    pub(crate) fn id(&self, number: u64) -> Option<i64> {
        match number.checked_sub(self.head) {
            Some(place) => self.ids.as_ref()?.get(place as usize).copied(),
            None => self.late.get(&number).map(|(id, _)| *id),
        }
    }

    pub(crate) fn value(&self, column: usize, number: u64) -> Option<f64> {
        match number.checked_sub(self.head) {
            Some(place) => self.values.get(column)?.get(place as usize).copied(),
            None => self.late.get(&number)?.1.get(column).copied(),
        }
    }

    /// Frees memory if much of it is unused.
    pub(crate) fn shrink(&mut self) {
        self.ids.iter_mut().for_each(fit);
        self.values.iter_mut().for_each(fit);
    }

    pub(crate) fn bytes(&self) -> usize {
        let ids = self.ids.iter().map(VecDeque::capacity).sum::<usize>() * size_of::<i64>();
        ids + self.values.iter().map(VecDeque::capacity).sum::<usize>() * size_of::<f64>()
    }
}

/// The measured columns, in the numbering of the statistics.
pub(crate) struct MeasuredColumns<'a, T> {
    graph: &'a HybridGraph<T>,
    columns: &'a EdgeColumns,
    /// The index of each among the given columns; None for the timestamps.
    given: Vec<Option<usize>>,
}

impl<'a, T> MeasuredColumns<'a, T> {
    pub(crate) fn new(
        graph: &'a HybridGraph<T>,
        columns: &'a EdgeColumns,
        statistics: &StatisticsSettings,
    ) -> Self {
        let mut values = 0..columns.values.len();
        let given = statistics.columns.iter().map(|column| match column {
            Column::Time => None,
            Column::Given => values.next(),
        });
        MeasuredColumns { graph, columns, given: given.collect() }
    }
}

impl<T: Stamp> EdgeValues<T> for MeasuredColumns<'_, T> {
    fn value(&self, column: usize, entry: EdgeEntry<T>) -> f64 {
        let Some(&Some(column)) = self.given.get(column) else {
            return self.graph.time(entry.time) as f64;
        };
        let number = self.graph.number(entry.seq);
        let newest = self.columns.value(column, number);
        let sealed = || self.graph.of(number)?.value(column, number);
        newest.or_else(sealed).unwrap_or(f64::NAN)
    }

    fn values(&self, column: usize, entries: &[EdgeEntry<T>], into: &mut Vec<f64>) {
        match self.given.get(column) {
            Some(Some(_)) => into.extend(entries.iter().map(|one| self.value(column, *one))),
            _ => into.extend(entries.iter().map(|one| self.graph.time(one.time) as f64)),
        }
    }

    fn is_recent(&self, entry: EdgeEntry<T>) -> bool {
        let number = self.graph.number(entry.seq);
        if number >= self.columns.recent {
            return true;
        }
        // Edges of segments arrived in order, so their time decides. A late edge counts as long as
        // the edge in front of it.
        let time = self.graph.front(number).unwrap_or(entry.time);
        number < self.graph.head()
            && self.columns.recent_time.is_none_or(|oldest| self.graph.time(time) >= oldest)
    }
}
