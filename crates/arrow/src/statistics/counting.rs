//! The division of a count into tasks, which several threads take one after the other.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use arrow_buffer::NullBuffer;
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::parts::BatchRows;
use super::scan::RangeStatistics;
use super::values::Part;
use super::{TableStatistics, bounds, statistics_fields};
use crate::describe::BatchData;
use crate::layout::{ArrayLayout, OffsetWidth};
use crate::schema::{DEPTH_MAX, SchemaNode};

/// Elements of a task: long enough that taking one costs nothing, short enough that their values
/// stay in a second-level cache.
const TASK_ROWS: usize = 1 << 15;

/// Those of a dictionary, all values of which are read once in each task.
const DICTIONARY_TASK_ROWS: usize = 1 << 18;

/// A count of the columns of a table, to be done by one thread or more.
#[derive(Debug)]
pub struct Counting<'a> {
    /// Rows of each part.
    rows: Vec<u64>,
    types: Vec<&'a DataType>,
    tasks: Vec<CountTask<'a>>,
    /// Addresses of what the tasks read, in order, and the tasks.
    addresses: Vec<(usize, usize)>,
    next: Mutex<Range<usize>>,
}

#[derive(Debug)]
struct CountTask<'a> {
    /// The part of the table that it belongs to.
    part: usize,
    /// Its number among the fields that have statistics.
    field: usize,
    work: CountWork<'a>,
    done: OnceLock<RangeStatistics<'a>>,
}

#[derive(Debug)]
enum CountWork<'a> {
    Count(Part<'a>),
    /// Nothing but the nulls is known.
    Opaque(RangeStatistics<'a>),
}

impl<'a> Counting<'a> {
    /// Plans the count of the first `fields_max` fields of [`statistics_fields`].
    pub fn new(schema: &'a SchemaNode, batches: &'a [BatchData], fields_max: usize) -> Self {
        let all = |(batch, data): (usize, &BatchData)| BatchRows { batch, rows: 0..data.rows };
        let whole: Vec<_> = batches.iter().enumerate().map(all).collect();
        Self::of_parts(schema, batches, &[whole], fields_max)
    }

    /// As [`Self::new`], for each of some parts of the table.
    pub(super) fn of_parts(
        schema: &'a SchemaNode,
        batches: &'a [BatchData],
        parts: &[Vec<BatchRows>],
        fields_max: usize,
    ) -> Self {
        let fields = statistics_fields(schema);
        let types: Vec<_> =
            fields.iter().take(fields_max).map(|field| field.node.data_type()).collect();
        let mut plan = Planned { tasks: Vec::new(), fields_max: types.len(), part: 0 };
        for (number, part) in parts.iter().enumerate() {
            plan.part = number;
            for BatchRows { batch, rows } in part {
                let Some(batch) = batches.get(*batch) else { continue };
                let mut field = 0;
                for (column, node) in batch.columns.iter().zip(schema.children()) {
                    let end = rows.end.min(column.len());
                    let rows = rows.start.min(end)..end;
                    field = plan.visit(field, node, Some((column, rows, None)), 1);
                }
            }
        }
        let rows_of = |part: &Vec<BatchRows>| part.iter().map(|one| one.rows.len() as u64).sum();
        let rows = parts.iter().map(rows_of).collect();
        let next = Mutex::new(0..plan.tasks.len());
        let numbered = plan.tasks.iter().enumerate();
        let mut addresses: Vec<_> =
            numbered.filter_map(|(number, task)| Some((task.work.address()?, number))).collect();
        addresses.sort_unstable();
        Self { rows, types, tasks: plan.tasks, addresses, next }
    }

    /// Number of tasks that are not done: more threads than this have nothing to do.
    pub fn tasks_left(&self) -> usize {
        self.tasks.iter().filter(|task| task.done.get().is_none()).count()
    }

    /// Does the tasks whose values begin in a piece of a buffer, which is then in the cache.
    pub fn work_on(&self, piece: &[u8]) {
        let begin = piece.as_ptr().addr();
        let end = begin.saturating_add(piece.len());
        let first = self.addresses.partition_point(|(address, _)| *address < begin);
        let here = self.addresses.iter().skip(first).take_while(|(address, _)| *address < end);
        for task in here.filter_map(|(_, number)| self.tasks.get(*number)) {
            task.done.get_or_init(|| task.work.count());
        }
    }

    /// Does tasks until none is left. Another thread may still be at its last one.
    pub fn work(&self) {
        while let Some(task) = self.next_task() {
            task.done.get_or_init(|| task.work.count());
        }
    }

    fn next_task(&self) -> Option<&CountTask<'a>> {
        let number = self.next.lock().unwrap_or_else(PoisonError::into_inner).next()?;
        self.tasks.get(number)
    }

    /// The statistics, after [`Self::work`] has returned in each thread.
    pub fn finish(&self) -> TableStatistics {
        self.finish_parts().into_iter().next().unwrap_or_default()
    }

    /// As [`Self::finish`], of each part.
    pub fn finish_parts(&self) -> Vec<TableStatistics> {
        let mut sums = vec![vec![RangeStatistics::empty(); self.types.len()]; self.rows.len()];
        for task in &self.tasks {
            let piece = *task.done.get_or_init(|| task.work.count());
            if let Some(sum) = sums.get_mut(task.part).and_then(|sums| sums.get_mut(task.field)) {
                *sum = sum.then(piece);
            }
        }
        let column =
            |(sum, data_type): (&RangeStatistics<'a>, &&DataType)| bounds::column(sum, data_type);
        let part = |(sums, rows): (&Vec<RangeStatistics<'a>>, &u64)| {
            let columns = sums.iter().zip(&self.types).map(column).collect();
            TableStatistics { rows: *rows, columns }
        };
        sums.iter().zip(&self.rows).map(part).collect()
    }
}

impl<'a> CountWork<'a> {
    fn address(&self) -> Option<usize> {
        match self {
            CountWork::Count(part) => part.address(),
            CountWork::Opaque(_) => None,
        }
    }

    fn count(&self) -> RangeStatistics<'a> {
        match self {
            CountWork::Count(part) => part.count(),
            CountWork::Opaque(piece) => *piece,
        }
    }
}

struct Planned<'a> {
    tasks: Vec<CountTask<'a>>,
    fields_max: usize,
    /// The part of the table whose rows are planned.
    part: usize,
}

/// Elements of an array, and which of them are null because their parent is.
type Elements<'a> = (&'a ArrayData, Range<usize>, Option<NullBuffer>);

impl<'a> Planned<'a> {
    /// Plans a field and those nested in it; without elements, they are unknown. Returns the
    /// number of the next field.
    fn visit(
        &mut self,
        field: usize,
        node: &'a SchemaNode,
        elements: Option<Elements<'a>>,
        depth: usize,
    ) -> usize {
        if field >= self.fields_max {
            return field;
        }
        let elements = elements.filter(|(data, rows, _)| rows.end <= data.len());
        let elements = elements.map(|(data, rows, parent)| {
            let own = data.nulls().map(|nulls| nulls.slice(rows.start, rows.len()));
            (data, rows, NullBuffer::union(own.as_ref(), parent.as_ref()))
        });
        match &elements {
            Some((data, rows, nulls)) => self.count(field, data, rows, nulls.as_ref()),
            None => self.push(field, CountWork::Opaque(RangeStatistics::opaque(1, None))),
        }
        let mut next = field + 1;
        if !super::has_counted_children(node.data_type()) || depth >= DEPTH_MAX {
            return next;
        }
        for (number, child) in node.children().iter().enumerate() {
            let below = elements.as_ref().and_then(|elements| child_of(elements, number));
            next = self.visit(next, child, below, depth + 1);
        }
        next
    }

    fn count(
        &mut self,
        field: usize,
        data: &'a ArrayData,
        rows: &Range<usize>,
        nulls: Option<&NullBuffer>,
    ) {
        let is_logical = ArrayLayout::of(data.data_type()).is_some_and(ArrayLayout::has_validity);
        if !is_logical && *data.data_type() != DataType::Null {
            // Null is decided by the values of unions and run-end encoded arrays.
            return self
                .push(field, CountWork::Opaque(RangeStatistics::opaque(rows.len() as u64, None)));
        }
        let task_rows = match data.data_type() {
            DataType::Dictionary(_, _) => DICTIONARY_TASK_ROWS,
            _ => TASK_ROWS,
        };
        for start in rows.clone().step_by(task_rows) {
            let rows_here = start..rows.end.min(start.saturating_add(task_rows));
            let nulls = nulls.map(|nulls| nulls.slice(start - rows.start, rows_here.len()));
            self.push(field, CountWork::Count(Part { data, rows: rows_here, nulls }));
        }
    }

    fn push(&mut self, field: usize, work: CountWork<'a>) {
        let part = self.part;
        self.tasks.push(CountTask { part, field, work, done: OnceLock::new() });
    }
}

/// The elements of a child that some elements of its parent refer to; of list views, all.
fn child_of<'a>(elements: &Elements<'a>, number: usize) -> Option<Elements<'a>> {
    let (data, rows, nulls) = elements;
    let child = data.child_data().get(number)?;
    let shift = data.offset();
    let list = |width: OffsetWidth| {
        if rows.is_empty() {
            return Some((child, 0..0, None));
        }
        let offsets = data.buffers().first()?;
        let offset =
            |row: usize| usize::try_from(width.read(offsets, row.checked_add(shift)?)?).ok();
        let (first, last) = (offset(rows.start)?, offset(rows.end)?);
        (first <= last).then_some((child, first..last, None))
    };
    match ArrayLayout::of(data.data_type())? {
        ArrayLayout::Struct => Some((child, rows.start + shift..rows.end + shift, nulls.clone())),
        ArrayLayout::List(width) => list(width),
        // Without rows no element counts, as a part has no batches without rows.
        ArrayLayout::ListView(_) if rows.is_empty() => Some((child, 0..0, None)),
        ArrayLayout::ListView(_) => Some((child, 0..child.len(), None)),
        ArrayLayout::FixedList { items } => {
            let at = |row: usize| row.checked_add(shift)?.checked_mul(items);
            Some((child, at(rows.start)?..at(rows.end)?, None))
        }
        _ => None,
    }
}
