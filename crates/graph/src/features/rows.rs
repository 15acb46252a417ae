//! Checks of a call's rows: their columns, their number, and the memory for them.

use super::engine::{Engine, with_engine};
use super::{GraphFeatures, ROWS_AT_ONCE};
use crate::error::GraphError;
use crate::memory::probe;
use crate::settings::{Mode, StatisticsSettings};
use crate::store::EDGES_MAX;
use crate::stream::{Edges, FeatureOutput, LEARNT_AT_ONCE, call_bytes};
use hashbrown::HashMap;

/// Calls with at most this many rows skip the memory check in advance.
const FEW_ROWS: usize = 64;
/// The most memory that a row adds to a graph. A record takes 16 B. Two entries take 16 B each, in
/// blocks that are half empty. Two accounts take 20 B each, and 14 B in the index and their order.
/// An id takes 8 B. Growth adds a sixteenth, and a second copy of the index.
const ROW_GROWTH_BYTES: usize = 208;
/// The most memory that a measured value adds to a graph.
const VALUE_GROWTH_BYTES: usize = 9;

impl GraphFeatures {
    /// The number of measured columns that each call must pass.
    pub(super) fn given_columns(&self) -> usize {
        self.settings.statistics.as_ref().map_or(0, StatisticsSettings::given)
    }

    pub(super) fn rows_of(&self, edges: &Edges<'_>) -> Result<std::ops::Range<u32>, GraphError> {
        let expected = edges.ids.len();
        let lengths = [
            ("source", edges.sources.len()),
            ("target", edges.targets.len()),
            ("timestamp", edges.times.len()),
        ];
        let measured = edges.columns.iter().map(|column| ("measured", column.len()));
        for (column, rows) in lengths.into_iter().chain(measured) {
            if rows != expected {
                return Err(GraphError::Rows { column, rows, expected });
            }
        }
        let expected_columns = self.given_columns();
        if edges.columns.len() != expected_columns {
            let given = edges.columns.len();
            return Err(GraphError::Columns { given, expected: expected_columns });
        }
        for (column, values) in edges.columns.iter().enumerate() {
            let mut rows = values.iter().copied().enumerate();
            if let Some((row, value)) = rows.find(|(_, value)| !value.is_finite()) {
                return Err(GraphError::NotFinite { column, row, value });
            }
        }
        match u32::try_from(expected) {
            Ok(rows) if expected <= EDGES_MAX => Ok(0..rows),
            _ => Err(GraphError::TooMany { added: expected, alive: 0, most: EDGES_MAX }),
        }
    }

    /// Checks that the output has the right length for `rows` rows.
    pub(super) fn check_output(
        &self,
        output: &FeatureOutput<'_>,
        rows: usize,
    ) -> Result<(), GraphError> {
        let FeatureOutput { cells, stride, offset, .. } = output;
        let (given, used) = (cells.len(), offset.saturating_add(self.settings.width()));
        if *stride < used || given != rows.saturating_mul(*stride) {
            let expected = rows.max(1).saturating_mul(used.max(*stride));
            return Err(GraphError::Room { given, expected });
        }
        Ok(())
    }

    /// Checks that memory is available for these rows: for the growth of the graph, and for the
    /// call.
    pub(super) fn afford(&self, edges: &Edges<'_>) -> Result<(), GraphError> {
        let (settings, rows) = (&self.settings, edges.ids.len());
        if rows <= FEW_ROWS {
            // A single part checks its own memory.
            return Ok(());
        }
        let (added, at_once) = match settings.mode {
            Mode::Batch => (rows, rows),
            Mode::Causal => (self.most_at_once(edges.times), rows.min(ROWS_AT_ONCE)),
        };
        let row = ROW_GROWTH_BYTES + VALUE_GROWTH_BYTES * edges.columns.len();
        let order = rows.saturating_mul(size_of::<u32>());
        let bytes = added.saturating_mul(row).saturating_add(call_bytes(settings, at_once));
        probe(bytes.saturating_add(order)).map_err(|full| full.error(rows, 0))
    }

    /// The most rows with these times that the graph holds at once in causal mode.
    fn most_at_once(&self, times: &[i64]) -> usize {
        if times.len() <= LEARNT_AT_ONCE || !times.is_sorted() {
            return times.len();
        }
        let horizon = i128::from(self.settings.horizon());
        let (mut first, mut most) = (0, 0);
        for (at, &time) in times.iter().enumerate() {
            while i128::from(times[first]) < i128::from(time) - horizon {
                first += 1;
            }
            most = most.max(at + 1 - first);
        }
        // Edges that become too old in one part of a call are removed after that part.
        (most + LEARNT_AT_ONCE).min(times.len())
    }

    /// Ensures that the graph can hold `added` more rows with these times.
    pub(super) fn make_room(&mut self, edges: &Edges<'_>, added: usize) -> Result<(), GraphError> {
        let alive = with_engine!(&self.engine, |engine| engine.span(), 0);
        if alive.saturating_add(added) > EDGES_MAX {
            return Err(GraphError::TooMany { added, alive, most: EDGES_MAX });
        }
        let (Some(&first), Some(&last)) = (edges.times.iter().min(), edges.times.iter().max())
        else {
            return Ok(());
        };
        let engine = std::mem::replace(&mut self.engine, Engine::Empty);
        let (engine, reached) = engine.reaching(&self.settings, first, last);
        self.engine = engine;
        reached.map_err(|full| full.error(added, 0))
    }
}

/// The rows of a batch in order of time, without repeated ids, and each row's position in that
/// order (specification, B2).
pub(super) fn order_of_batch(edges: &Edges<'_>) -> (Vec<u32>, Vec<u32>) {
    if edges.ids.is_sorted_by(|one, next| one < next) && edges.times.is_sorted() {
        let order: Vec<u32> = (0u32..).zip(edges.ids).map(|(row, _)| row).collect();
        return (order.clone(), order);
    }
    let mut first_rows: HashMap<i64, u32> = HashMap::with_capacity(edges.ids.len());
    let mut order = Vec::with_capacity(edges.ids.len());
    let mut same = Vec::with_capacity(edges.ids.len());
    for (row, id) in (0u32..).zip(edges.ids) {
        let first = *first_rows.entry(*id).or_insert(row);
        if first == row {
            order.push(row);
        }
        same.push(first);
    }
    order.sort_by_key(|&row| edges.times[row as usize]);
    let mut place_of = vec![0; edges.ids.len()];
    for (place, &row) in (0u32..).zip(&order) {
        place_of[row as usize] = place;
    }
    let places = same.into_iter().map(|row| place_of[row as usize]).collect();
    (order, places)
}
