//! Tables of many types, generated from a seed.

use std::sync::Arc;

use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use farrow_arrow::testing::{SplitMix64, random_array, sample_types};
use farrow_arrow::{ArrowObject, BatchData, SchemaNode};

use crate::StepResult;

/// Maximum rows of a batch: a table of a few batches fits a few pages.
const ROWS_MAX: usize = 40;

/// The types of the generated arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variety {
    /// Every Arrow type, with offsets at every level.
    Every,
    /// Types that Python can build from buffers, without offsets: pyarrow takes one offset for a
    /// bitmap and its values, where arrow-rs has two.
    Plain,
}

/// The original of a table, in private memory.
#[derive(Clone, Debug)]
pub struct OriginalTable {
    pub schema: SchemaRef,
    pub batches: Vec<BatchData>,
}

impl OriginalTable {
    /// A table of integers, text, lists and a dictionary, with and without nulls, and a column of
    /// another type.
    pub fn random(random: &mut SplitMix64, variety: Variety) -> Self {
        let item = Field::new("item", DataType::Int32, true);
        let mut types = vec![
            DataType::Int64,
            DataType::Utf8,
            DataType::List(Arc::new(item)),
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        ];
        let mut others = if variety == Variety::Every { every_type() } else { plain_types() };
        types.push(others.swap_remove(random.below(others.len())));
        let named = types.into_iter().enumerate();
        let fields = named.map(|(index, one)| Field::new(format!("column {index}"), one, true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let mut table = Self { schema, batches: Vec::new() };
        for _ in 0..1 + random.below(2) {
            table.batches.push(table.batch(random, variety));
        }
        table
    }

    /// Another batch of the same schema.
    pub fn batch(&self, random: &mut SplitMix64, variety: Variety) -> BatchData {
        let rows = random.below(ROWS_MAX + 1);
        let mut column = |field: &Arc<Field>| loop {
            let array = random_array(random, field.data_type(), rows, true);
            if variety == Variety::Every || is_plain(&array) {
                return array;
            }
        };
        BatchData { rows, columns: self.schema.fields().iter().map(&mut column).collect() }
    }

    pub fn schema_node(&self) -> StepResult<SchemaNode> {
        SchemaNode::try_from(self.schema.as_ref()).map_err(crate::text)
    }

    /// Checks that every value read equals the original.
    pub fn compare(&self, object: &ArrowObject) -> StepResult<()> {
        if *object.schema != self.schema_node()? {
            return Err("another schema".to_owned());
        }
        let rows = object.batches.iter().map(|batch| batch.rows);
        let columns = object.batches.iter().map(|batch| batch.columns.as_slice());
        self.compare_columns(rows.zip(columns))
    }

    /// Compares batches: their rows, and their columns.
    pub fn compare_columns<'a>(
        &self,
        batches: impl ExactSizeIterator<Item = (usize, &'a [ArrayData])>,
    ) -> StepResult<()> {
        if batches.len() != self.batches.len() {
            return Err(format!("{} batches, not {}", batches.len(), self.batches.len()));
        }
        for (number, ((rows, columns), built)) in batches.zip(&self.batches).enumerate() {
            if rows != built.rows || columns.len() != built.columns.len() {
                return Err(format!("batch {number} has {rows} rows, not {}", built.rows));
            }
            let pairs = columns.iter().zip(&built.columns).enumerate();
            for (column, (found, built)) in pairs {
                if found != built || found.null_count() != built.null_count() {
                    let what = built.data_type();
                    return Err(format!("other values in batch {number}, column {column}: {what}"));
                }
            }
        }
        Ok(())
    }
}

/// All types of columns. A union without types has no elements, so it is left out.
fn every_type() -> Vec<DataType> {
    let has_values =
        |one: &DataType| !matches!(one, DataType::Union(fields, _) if fields.is_empty());
    sample_types().into_iter().filter(has_values).collect()
}

fn plain_types() -> Vec<DataType> {
    let fields = [("a", DataType::Int16), ("b", DataType::LargeUtf8)];
    let fields = fields.map(|(name, one)| Field::new(name, one, true));
    vec![
        DataType::Boolean,
        DataType::UInt8,
        DataType::Decimal128(30, 4),
        DataType::FixedSizeBinary(5),
        DataType::LargeBinary,
        DataType::Timestamp(TimeUnit::Nanosecond, None),
        DataType::Struct(fields.into_iter().collect()),
        DataType::LargeList(Arc::new(Field::new("item", DataType::Utf8, true))),
    ]
}

fn is_plain(array: &ArrayData) -> bool {
    array.offset() == 0
        && array.nulls().is_none_or(|nulls| nulls.offset() == 0)
        && array.child_data().iter().all(is_plain)
}
