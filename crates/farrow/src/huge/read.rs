//! Reads of a table: whole, or some columns and rows.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use farrow_arrow::{
    ArrowObject, BatchData, Decoded, DescriptorStamp, Kind, Limits, Plan, Rebuilt, RowSlice,
    SchemaNode,
};
use farrow_store::ObjectKind;
use farrow_wire::PartSpec;

use super::layout::{Partition, first_gap};
use super::place::Place;
use super::{HugeTable, schema};
use crate::clock::deadline_after;
use crate::error::Error;
use crate::objects::object::Object;

/// Chunks of nodes that are not mapped, fetched while an earlier one is waited for.
const CHUNKS_AHEAD: usize = 3;

/// The rows of a chunk that a read needs.
#[derive(Debug, Clone, Copy)]
struct ChunkRows<'a> {
    chunk: &'a Partition,
    /// First row and number of rows, counted from the first of the chunk.
    start: u64,
    rows: u64,
}

impl HugeTable {
    /// All rows, in place: one or more batches for each chunk, whose buffers hold the chunk. Chunks
    /// in memory that is not mapped are fetched.
    ///
    /// # Errors
    ///
    /// As [`Self::snapshot`]; [`Error::RowsMissing`] names the first gap;
    /// [`Error::InvalidDescriptor`] for a chunk that contradicts its metadata or the schema.
    pub fn table(&self, version: Option<u64>) -> Result<ArrowObject, Error> {
        self.table_part(version, &PartSpec::default())
    }

    /// As [`Self::table`], of some columns and rows. Only chunks with such rows are used, and only
    /// these columns and rows of them are transferred. Gaps elsewhere do not matter.
    ///
    /// # Errors
    ///
    /// As there; [`Error::InvalidArgument`] for an unknown or ambiguous column.
    pub fn table_part(&self, version: Option<u64>, part: &PartSpec) -> Result<ArrowObject, Error> {
        let schema = self.selected_schema(part)?;
        let snapshot = self.snapshot(version)?;
        let rows = RowSlice { start: part.start, stop: part.stop }.of(snapshot.rows);
        if let Some(gap) = gap_in(&snapshot.partitions, &rows) {
            let last = gap.end.saturating_sub(1);
            let (table, rows) = (self.name.clone(), snapshot.rows);
            return Err(Error::RowsMissing { table, first: gap.start, last, rows });
        }
        let chunks: Vec<ChunkRows<'_>> =
            snapshot.partitions.iter().filter_map(|chunk| ChunkRows::of(chunk, &rows)).collect();
        let mut batches = Vec::with_capacity(chunks.len());
        for (number, chunk) in chunks.iter().enumerate() {
            let (first, ahead) = match number {
                0 => (1, CHUNKS_AHEAD),
                number => (number + CHUNKS_AHEAD, 1),
            };
            for later in chunks.iter().skip(first).take(ahead) {
                self.fetch_ahead(later, part);
            }
            batches.extend(self.rebuild(chunk, part, &schema)?);
        }
        Ok(ArrowObject { kind: Kind::Table, schema, batches })
    }

    /// Whether the rows of a partition are in memory that this process maps. Others are fetched when
    /// they are read.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`] and [`Error::NodeUnreachable`] name its node.
    pub fn is_mapped(&self, partition: &Partition) -> Result<bool, Error> {
        let place = match Place::new(&self.client, partition.id.region().0, &partition.node) {
            Err(Error::NodeLost { .. }) => {
                let now = self.relocate(partition)?;
                Place::new(&self.client, now.id.region().0, &now.node)?
            }
            place => place?,
        };
        Ok(!place.is_by_net())
    }

    /// The schema of the selected columns.
    fn selected_schema(&self, part: &PartSpec) -> Result<Arc<SchemaNode>, Error> {
        let Some(columns) = &part.columns else { return Ok(Arc::clone(&self.schema)) };
        let plan = Plan::table(&self.schema, &[], &mut |_, _| None)?;
        let descriptor = plan.descriptor(DescriptorStamp { region: 0, epoch: 0 }, 0);
        let decoded = Decoded::parse(&descriptor, &Limits::default())?;
        let selected = decoded.select(Some(columns), RowSlice::default())?;
        let decoded = Decoded::parse(&selected.descriptor, &Limits::default())?;
        match decoded.rebuild(&|_, _| None)? {
            Rebuilt::Arrow(empty) => Ok(empty.schema),
            Rebuilt::NdArray { .. } => Ok(Arc::clone(&self.schema)),
        }
    }

    fn fetch_ahead(&self, chunk: &ChunkRows<'_>, part: &PartSpec) {
        let Partition { id, node, .. } = chunk.chunk;
        // If its node has left, the chunk may have moved before: it is looked for when it is read.
        if Place::new(&self.client, id.region().0, node).is_ok_and(|place| place.is_by_net()) {
            self.client.nodes().fetch_ahead(&(*id).into(), chunk.part(part).as_ref());
        }
    }

    /// Holds a chunk, or a part of it, where it is now. True: only the part was transferred.
    fn hold(&self, chunk: &Partition, part: Option<&PartSpec>) -> Result<(Object, bool), Error> {
        let deadline = deadline_after(self.client.session().timeout);
        let mut chunk = chunk.clone();
        loop {
            let held = match Place::new(&self.client, chunk.id.region().0, &chunk.node) {
                Ok(place) => place.hold(chunk.id, part)?,
                // The chunk may have moved before its node left.
                Err(Error::NodeLost { .. }) => None,
                Err(error) => return Err(error),
            };
            match held {
                Some(held) => return Ok(held),
                None if Instant::now() >= deadline => {
                    return Err(self.removed_version(chunk.version));
                }
                None => chunk = self.relocate(&chunk)?,
            }
        }
    }

    /// The batches of a chunk, checked against the table.
    fn rebuild(
        &self,
        chunk: &ChunkRows<'_>,
        part: &PartSpec,
        expected: &SchemaNode,
    ) -> Result<Vec<BatchData>, Error> {
        let version = chunk.chunk.version;
        let wrong = |what: String| {
            let name = &self.name;
            Error::InvalidDescriptor(format!("version {version} of huge table {name:?}: {what}"))
        };
        let part = chunk.part(part);
        let (object, is_part) = self.hold(chunk.chunk, part.as_ref())?;
        let kind = object.kind();
        if !matches!(kind, ObjectKind::Table | ObjectKind::RecordBatch) {
            return Err(wrong(format!("a {}, no rows", kind.as_str())));
        }
        let arrow = match &part {
            Some(part) if !is_part => object.rebuild_part(part)?,
            _ => object.rebuild_arrow()?,
        };
        if let Some(difference) = schema::difference(expected, &arrow.schema) {
            return Err(wrong(difference));
        }
        let rows = arrow.batches.iter().map(|batch| batch.rows as u64).sum::<u64>();
        if rows != chunk.rows {
            return Err(wrong(format!("{rows} rows, not {}", chunk.rows)));
        }
        Ok(arrow.batches.into_iter().filter(|batch| batch.rows > 0).collect())
    }
}

impl<'a> ChunkRows<'a> {
    /// The rows of a chunk that lie in a range.
    fn of(chunk: &'a Partition, wanted: &Range<u64>) -> Option<Self> {
        let first = wanted.start.max(chunk.position);
        let end = wanted.end.min(chunk.end());
        let rows = end.checked_sub(first).filter(|rows| *rows > 0)?;
        Some(Self { chunk, start: first - chunk.position, rows })
    }

    /// What of the chunk is needed; `None`: all of it.
    fn part(&self, wanted: &PartSpec) -> Option<PartSpec> {
        let is_whole = self.rows == self.chunk.rows;
        if is_whole && wanted.columns.is_none() {
            return None;
        }
        let columns = wanted.columns.clone();
        if is_whole {
            return Some(PartSpec { columns, start: None, stop: None });
        }
        // Rows of a table count in `i64`.
        let bound = |row: u64| i64::try_from(row).ok();
        let (start, stop) = (bound(self.start), bound(self.start + self.rows));
        Some(PartSpec { columns, start, stop })
    }
}

/// The first gap among these rows.
fn gap_in(chunks: &[Partition], rows: &Range<u64>) -> Option<Range<u64>> {
    let inside: Vec<Partition> = chunks
        .iter()
        .filter_map(|chunk| ChunkRows::of(chunk, rows))
        .map(|some| Partition {
            position: some.chunk.position + some.start - rows.start,
            rows: some.rows,
            ..some.chunk.clone()
        })
        .collect();
    let end = inside.last().map_or(0, Partition::end);
    let wanted = rows.end - rows.start;
    let gap = first_gap(&inside).or((end < wanted).then_some(end..wanted))?;
    Some(rows.start + gap.start..rows.start + gap.end)
}

#[cfg(test)]
mod tests {
    use farrow_store::ObjectId;

    use super::*;

    fn chunk(position: u64, rows: u64) -> Partition {
        let id = ObjectId { hi: 1, lo: position };
        Partition { version: 1, position, rows, node: "a".into(), bytes: 8 * rows, id }
    }

    #[test]
    fn only_gaps_among_the_rows_matter() {
        let chunks = [chunk(0, 10), chunk(15, 5), chunk(20, 10)];
        for (rows, gap) in [
            (0..10, None),
            (3..3, None),
            (15..30, None),
            (17..22, None),
            (0..30, Some(10..15)),
            (9..11, Some(10..11)),
            (12..14, Some(12..14)),
            (14..16, Some(14..15)),
        ] {
            assert_eq!(gap_in(&chunks, &rows), gap, "{rows:?}");
        }
    }

    #[test]
    fn of_each_chunk_only_its_rows_are_read() {
        let chunks = [chunk(0, 10), chunk(10, 10), chunk(20, 10)];
        let rows = 5..20;
        let parts: Vec<_> = chunks.iter().filter_map(|one| ChunkRows::of(one, &rows)).collect();
        let bounds: Vec<_> = parts.iter().map(|one| (one.start, one.rows)).collect();
        assert_eq!(bounds, [(5, 5), (0, 10)]);
        let whole = PartSpec::default();
        let columns = PartSpec { columns: Some(vec!["n".into()]), ..PartSpec::default() };
        let [first, second] = parts[..] else { panic!("{parts:?}") };
        assert_eq!(first.part(&whole).map(|it| (it.start, it.stop)), Some((Some(5), Some(10))));
        assert_eq!(second.part(&whole), None);
        assert_eq!(second.part(&columns), Some(columns));
    }
}
