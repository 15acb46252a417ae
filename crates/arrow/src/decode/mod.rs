//! Reading descriptors: [`Decoded::parse`] checks the bytes. [`Decoded::rebuild`] checks every
//! range against the object and builds arrays over it.

mod check;
mod parse;
mod rebuild;

use crate::error::InvalidDescriptor;
use crate::kind::{Kind, NdArray};
use crate::schema::{DEPTH_MAX, SchemaNode};
use crate::{BatchData, DescriptorStamp};
use arrow_array::{RecordBatch, RecordBatchOptions, make_array};
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, Schema};
use std::sync::Arc;

pub use check::BeforeRead;
pub(crate) use check::check_contents;
pub(crate) use parse::{ArrayNode, MemoryRange, Validity};
pub(crate) use rebuild::{rebuild_batches, rebuild_columns};

/// Maps (region offset, length) to a buffer of exactly that length; `None` if the range exceeds
/// the object.
pub type Resolve<'a> = &'a dyn Fn(u64, u64) -> Option<Buffer>;

/// Limits for a descriptor. A descriptor may never have more nodes than bytes, so its own length
/// bounds the memory that a reader allocates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum nesting depth of types; at most 64.
    pub depth_max: usize,
    /// Maximum number of array nodes, with references to dictionaries expanded.
    pub nodes_max: u64,
}

impl Default for Limits {
    /// 64 levels, 16 million nodes (a table of 1,000 columns in 10,000 chunks has 10 million).
    fn default() -> Self {
        Limits { depth_max: DEPTH_MAX, nodes_max: 1 << 24 }
    }
}

/// A parsed descriptor. [`Decoded::rebuild`] checks its ranges.
#[derive(Debug)]
pub struct Decoded {
    kind: Kind,
    stamp: DescriptorStamp,
    pub(crate) content: Content,
}

#[derive(Debug)]
pub(crate) enum Content {
    NdArray { shape: NdArray, data: MemoryRange },
    Arrow(Tree),
}

/// Nodes of all batches, in order of batches, parents before their children.
#[derive(Debug)]
pub(crate) struct Tree {
    pub schema: Arc<SchemaNode>,
    pub nodes: Vec<ArrayNode>,
    pub ranges: Vec<MemoryRange>,
    /// Rows of each batch.
    pub batches: Vec<u64>,
    /// First node of each dictionary, by the number that references use.
    pub dictionaries: Vec<u32>,
}

/// A rebuilt object.
#[derive(Debug, Clone)]
pub enum Rebuilt {
    /// An Arrow object.
    Arrow(ArrowObject),
    /// A NumPy array.
    NdArray(NdArray, Buffer),
}

/// A rebuilt Arrow object; all its buffers are views into the object.
#[derive(Debug, Clone)]
pub struct ArrowObject {
    /// Array, chunked array, record batch or table.
    pub kind: Kind,
    /// The field of an array; a struct of the columns for record batches and tables.
    pub schema: Arc<SchemaNode>,
    /// One batch for each chunk; arrays have one column.
    pub batches: Vec<BatchData>,
}

impl Decoded {
    /// Reads a descriptor. Nothing in it is trusted, and no other memory is read.
    ///
    /// # Errors
    /// [`InvalidDescriptor`], with the problem and its position.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Decoded, InvalidDescriptor> {
        parse::parse(bytes, limits)
    }

    /// Kind of the object.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Region and epoch that the offsets are relative to.
    pub fn stamp(&self) -> DescriptorStamp {
        self.stamp
    }

    /// The schema, unless this is a NumPy array.
    pub fn schema(&self) -> Option<&SchemaNode> {
        match &self.content {
            Content::Arrow(tree) => Some(&tree.schema),
            Content::NdArray { .. } => None,
        }
    }

    /// Every range of bytes (region offset, length) that the object refers to: unchecked,
    /// unsorted, with repetitions.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let (nodes, ranges, data): (&[ArrayNode], &[MemoryRange], _) = match &self.content {
            Content::Arrow(tree) => (&tree.nodes, &tree.ranges, None),
            Content::NdArray { data, .. } => (&[], &[], Some(*data)),
        };
        let validity = nodes.iter().filter_map(|node| node.validity).map(|validity| validity.range);
        let all = validity.chain(ranges.iter().copied()).chain(data);
        all.filter(|range| range.length > 0).map(|range| (range.offset, range.length))
    }

    /// Rebuilds the object over memory.
    ///
    /// The time is proportional to the number of buffers, not of rows. Reads are limited to first
    /// and last offsets, last run ends, and bitmaps that are small or lack a null count. Every
    /// view is within the object, aligned, and long enough. The *contents* are not checked: other
    /// offsets, views, dictionary indices, type codes, union offsets, run ends, the null counts
    /// of large bitmaps, and UTF-8. Arrow kernels do not check them either, and may read out of
    /// bounds if they are wrong. Use this method only if the writer is trusted to write
    /// well-formed arrays, else [`Decoded::rebuild_checked`]. See `docs/formats/descriptor.md`,
    /// "What is checked".
    ///
    /// # Errors
    /// [`InvalidDescriptor`] for any range, count or length that does not fit.
    pub fn rebuild(&self, resolve: Resolve<'_>) -> Result<Rebuilt, InvalidDescriptor> {
        self.rebuild_with(resolve, &|_| true)
    }

    /// Like [`Decoded::rebuild`], over memory that may not be there yet.
    ///
    /// # Errors
    /// As [`Decoded::rebuild`], and [`InvalidDescriptor::Data`] for bytes that cannot be read.
    pub fn rebuild_with(
        &self,
        resolve: Resolve<'_>,
        before_read: BeforeRead<'_>,
    ) -> Result<Rebuilt, InvalidDescriptor> {
        match &self.content {
            Content::NdArray { shape, data } => {
                Ok(Rebuilt::NdArray(shape.clone(), rebuild::resolve_range(*data, resolve)?))
            }
            Content::Arrow(tree) => {
                let batches = rebuild_batches(self.kind, tree, (resolve, before_read))?;
                let schema = Arc::clone(&tree.schema);
                Ok(Rebuilt::Arrow(ArrowObject { kind: self.kind, schema, batches }))
            }
        }
    }

    /// Like [`Decoded::rebuild`], and then checks all contents, which reads all the data. The
    /// result is as safe to compute on as arrays built by arrow-rs, while the bytes do not
    /// change.
    ///
    /// # Errors
    /// As [`Decoded::rebuild`], and [`InvalidDescriptor::Data`].
    pub fn rebuild_checked(&self, resolve: Resolve<'_>) -> Result<Rebuilt, InvalidDescriptor> {
        let rebuilt = self.rebuild(resolve)?;
        if let Rebuilt::Arrow(object) = &rebuilt {
            for column in object.batches.iter().flat_map(|batch| &batch.columns) {
                check::check_contents(column)?;
            }
        }
        Ok(rebuilt)
    }
}

impl ArrowObject {
    /// The batches as arrow-rs record batches; an array becomes a batch of one column.
    /// [`SchemaNode::to_field`] lists the losses in the schema.
    ///
    /// # Errors
    /// Any error of arrow-rs, for example for nulls in a field that is not nullable.
    pub fn record_batches(&self) -> Result<Vec<RecordBatch>, ArrowError> {
        let schema = match self.schema.to_schema() {
            Some(schema) if self.kind.is_tabular() => schema,
            _ => Schema::new(vec![self.schema.to_field()]),
        };
        let schema = Arc::new(schema);
        let batches = self.batches.iter().map(|batch| {
            let columns = batch.columns.iter().cloned().map(make_array).collect();
            let options = RecordBatchOptions::new().with_row_count(Some(batch.rows));
            RecordBatch::try_new_with_options(Arc::clone(&schema), columns, &options)
        });
        batches.collect()
    }

    /// Total number of rows.
    pub fn rows(&self) -> u64 {
        self.batches.iter().fold(0, |sum, batch| sum.saturating_add(batch.rows as u64))
    }
}
