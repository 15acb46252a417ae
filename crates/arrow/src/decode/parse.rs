//! From bytes to nodes. Counts are checked before anything is allocated for them.

use super::{Content, Decoded, Limits, Tree};
use crate::DescriptorStamp;
use crate::describe::{DICTIONARY_REFERENCE, HAS_OFFSET, HAS_VALIDITY};
use crate::describe::{NODE_FLAGS_KNOWN, NULL_COUNT_UNKNOWN};
use crate::error::{InvalidDescriptor, SchemaError};
use crate::kind::{Kind, NdArray, Order};
use crate::layout::{ArrayLayout, child_count, child_type, same_type};
use crate::schema::{DEPTH_MAX, SchemaNode, read_schema};
use crate::wire::{DescriptorReader, HEADER_BYTES, MAGIC, VERSION};
use arrow_schema::DataType;
use std::sync::Arc;

/// Arrow counts elements in signed 64-bit numbers.
pub(crate) const LENGTH_MAX: u64 = i64::MAX as u64;
/// NumPy arrays have at most 64 axes (`NPY_MAXDIMS` of NumPy 2).
const AXES_MAX: usize = 64;

/// A range of bytes in the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    pub offset: u64,
    pub length: u64,
}

/// Validity of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    /// `None`: the rebuild counts the nulls.
    pub null_count: Option<u64>,
    pub bit_offset: u64,
    pub range: MemoryRange,
}

/// One array node.
#[derive(Debug, Clone)]
pub(crate) struct ArrayNode {
    pub length: u64,
    pub offset: u64,
    pub validity: Option<Validity>,
    /// Index of the node's first range.
    pub first_range: u32,
    pub range_count: u32,
    /// Number of the dictionary that the node shares; `None` if it has its own.
    pub dictionary: Option<u32>,
}

pub(super) fn parse(bytes: &[u8], limits: &Limits) -> Result<Decoded, InvalidDescriptor> {
    let mut reader = DescriptorReader::new(bytes);
    let magic: [u8; 4] = reader.array()?;
    if magic != MAGIC {
        return Err(InvalidDescriptor::BadMagic { found: magic });
    }
    let version = u16::from_le_bytes(reader.array()?);
    if version != VERSION {
        return Err(InvalidDescriptor::Version { found: version, supported: VERSION });
    }
    let kind = reader.byte()?;
    let flags = reader.byte()?;
    let kind = Kind::from_u8(kind).ok_or(InvalidDescriptor::UnknownKind { found: kind })?;
    if flags != 0 {
        return Err(reader.bad("flags", flags.into()));
    }
    let mut word = || reader.array().map(u64::from_le_bytes);
    let stamp = DescriptorStamp { region: word()?, epoch: word()? };
    let (base, stated) = (word()?, word()?);
    debug_assert_eq!(reader.at(), HEADER_BYTES);
    if stated != bytes.len() as u64 {
        return Err(InvalidDescriptor::Length { stated, found: bytes.len() as u64 });
    }
    let content = match kind {
        Kind::NdArray => ndarray(&mut reader, base)?,
        _ => arrow(&mut reader, base, kind, limits, bytes.len())?,
    };
    match reader.remaining() {
        0 => Ok(Decoded { kind, stamp, content }),
        extra => Err(InvalidDescriptor::TrailingBytes { extra }),
    }
}

fn range(reader: &mut DescriptorReader<'_>, base: u64) -> Result<MemoryRange, InvalidDescriptor> {
    let length = reader.number()?;
    if length == 0 {
        return Ok(MemoryRange { offset: 0, length: 0 });
    }
    let place = reader.number()?;
    let (origin, offset) = (if place & 1 == 0 { base } else { 0 }, place >> 1);
    let offset = origin.checked_add(offset).filter(|offset| offset.checked_add(length).is_some());
    let offset = offset.ok_or(InvalidDescriptor::OutOfBounds { offset: place >> 1, length })?;
    Ok(MemoryRange { offset, length })
}

fn ndarray(reader: &mut DescriptorReader<'_>, base: u64) -> Result<Content, InvalidDescriptor> {
    let dtype = std::str::from_utf8(reader.text()?)
        .map_err(|_| SchemaError::BadText { what: "the dtype" })?
        .to_owned();
    let item_bytes = reader.number()?;
    let order = match reader.byte()? {
        0 => Order::C,
        1 => Order::F,
        other => return Err(reader.bad("order", other.into())),
    };
    let axes = reader.count("axes", 1)?;
    if axes > AXES_MAX {
        return Err(reader.bad("axes", axes as u64));
    }
    let shape = (0..axes).map(|_| reader.number()).collect::<Result<Vec<_>, _>>()?;
    let data = range(reader, base)?;
    let shape = NdArray { dtype, item_bytes, shape, order };
    let needed = shape.bytes().filter(|_| shape.shape.iter().all(|axis| *axis <= LENGTH_MAX));
    let needed = needed.ok_or_else(|| reader.bad("shape", u64::MAX))?;
    if needed != data.length {
        return Err(InvalidDescriptor::Inconsistent {
            data_type: shape.dtype,
            what: "the data of an ndarray",
            needed,
            found: data.length,
        });
    }
    Ok(Content::NdArray { shape, data })
}

fn arrow(
    reader: &mut DescriptorReader<'_>,
    base: u64,
    kind: Kind,
    limits: &Limits,
    total: usize,
) -> Result<Content, InvalidDescriptor> {
    let depth_max = limits.depth_max.min(DEPTH_MAX);
    // The root of a table is not an array, so its columns may nest one level deeper.
    let schema = read_schema(reader, 0, depth_max + usize::from(kind.is_tabular()))?;
    let is_struct = matches!(schema.data_type(), DataType::Struct(_));
    if kind.is_tabular() && !is_struct {
        let reason = "the root of a table must be a struct";
        return Err(SchemaError::BadChild { format: schema.format().into(), reason }.into());
    }
    let count = reader.count("batches", 1)?;
    if matches!(kind, Kind::Array | Kind::RecordBatch) && count != 1 {
        return Err(reader.bad("batches", count as u64));
    }
    let single = std::slice::from_ref(&schema);
    let columns = if kind.is_tabular() { schema.children() } else { single };
    let mut batches = Vec::with_capacity(count);
    let mut nodes = NodeParser {
        base,
        nodes: Vec::new(),
        ranges: Vec::new(),
        dictionaries: Vec::new(),
        expanded: 0,
        nodes_max: limits.nodes_max.min(total as u64),
        depth_max,
    };
    for _ in 0..count {
        let rows = reader.number()?;
        if rows > LENGTH_MAX {
            return Err(reader.bad("rows", rows));
        }
        batches.push(rows);
        for column in columns {
            let found = nodes.read(reader, column.data_type(), 0)?;
            if found != rows {
                return Err(InvalidDescriptor::Inconsistent {
                    data_type: column.data_type().to_string(),
                    what: "a column of the batch",
                    needed: rows,
                    found,
                });
            }
        }
    }
    let NodeParser { nodes, ranges, dictionaries, .. } = nodes;
    let dictionaries = dictionaries.into_iter().map(|dictionary| dictionary.node).collect();
    let schema: Arc<SchemaNode> = Arc::new(schema);
    Ok(Content::Arrow(Tree { schema, nodes, ranges, batches, dictionaries }))
}

struct ParsedDictionary {
    node: u32,
    nodes: u64,
    data_type: DataType,
}

struct NodeParser {
    base: u64,
    nodes: Vec<ArrayNode>,
    ranges: Vec<MemoryRange>,
    dictionaries: Vec<ParsedDictionary>,
    expanded: u64,
    nodes_max: u64,
    depth_max: usize,
}

impl NodeParser {
    fn expand(&mut self, nodes: u64) -> Result<(), InvalidDescriptor> {
        self.expanded = self.expanded.saturating_add(nodes);
        if self.expanded > self.nodes_max {
            return Err(InvalidDescriptor::TooManyNodes { max: self.nodes_max });
        }
        Ok(())
    }

    /// Reads a node and its children; returns its length.
    fn read(
        &mut self,
        reader: &mut DescriptorReader<'_>,
        data_type: &DataType,
        depth: usize,
    ) -> Result<u64, InvalidDescriptor> {
        if depth >= self.depth_max {
            return Err(SchemaError::TooDeep { max: self.depth_max }.into());
        }
        self.expand(1)?;
        let layout = ArrayLayout::of(data_type)
            .ok_or_else(|| SchemaError::NoFormat { data_type: data_type.to_string() })?;
        let head = reader.byte()?;
        let is_dictionary = matches!(layout, ArrayLayout::Fixed { is_dictionary: true, .. });
        if head & !NODE_FLAGS_KNOWN != 0
            || (head & HAS_VALIDITY != 0 && !layout.has_validity())
            || (head & HAS_VALIDITY == 0 && head & NULL_COUNT_UNKNOWN != 0)
            || (head & DICTIONARY_REFERENCE != 0 && !is_dictionary)
        {
            return Err(reader.bad("node flags", head.into()));
        }
        let length = reader.number()?;
        let offset = if head & HAS_OFFSET != 0 { reader.number()? } else { 0 };
        if length.checked_add(offset).is_none_or(|end| end > LENGTH_MAX) {
            return Err(reader.bad("length and offset", length));
        }
        let validity = self.validity(reader, head, length)?;
        let first_range = self.ranges.len() as u32;
        let variadic =
            if layout == ArrayLayout::View { reader.count("data buffers", 1)? } else { 0 };
        for _ in 0..layout.buffers() + variadic {
            self.ranges.push(range(reader, self.base)?);
        }
        let range_count = self.ranges.len() as u32 - first_range;
        let index = self.nodes.len();
        let dictionary = None;
        self.nodes.push(ArrayNode {
            length,
            offset,
            validity,
            first_range,
            range_count,
            dictionary,
        });
        if is_dictionary {
            return self.dictionary(reader, data_type, head, index, depth).map(|()| length);
        }
        for child in 0..child_count(data_type) {
            if let Some(child) = child_type(data_type, child) {
                self.read(reader, child, depth + 1)?;
            }
        }
        Ok(length)
    }

    fn validity(
        &mut self,
        reader: &mut DescriptorReader<'_>,
        head: u8,
        length: u64,
    ) -> Result<Option<Validity>, InvalidDescriptor> {
        if head & HAS_VALIDITY == 0 {
            return Ok(None);
        }
        let null_count = match head & NULL_COUNT_UNKNOWN {
            0 => Some(reader.number()?),
            _ => None,
        };
        if null_count.is_some_and(|count| count > length) {
            return Err(reader.bad("null count", null_count.unwrap_or(0)));
        }
        let bit_offset = reader.number()?;
        if bit_offset.checked_add(length).is_none_or(|end| end > LENGTH_MAX) {
            return Err(reader.bad("validity bit offset", bit_offset));
        }
        let range = range(reader, self.base)?;
        Ok(Some(Validity { null_count, bit_offset, range }))
    }

    fn dictionary(
        &mut self,
        reader: &mut DescriptorReader<'_>,
        data_type: &DataType,
        head: u8,
        index: usize,
        depth: usize,
    ) -> Result<(), InvalidDescriptor> {
        let values = child_type(data_type, 0)
            .ok_or_else(|| SchemaError::NoFormat { data_type: data_type.to_string() })?;
        if head & DICTIONARY_REFERENCE == 0 {
            let node = self.nodes.len() as u32;
            let before = self.expanded;
            self.read(reader, values, depth + 1)?;
            let nodes = self.expanded - before;
            let data_type = values.clone();
            self.dictionaries.push(ParsedDictionary { node, nodes, data_type });
            return Ok(());
        }
        let number = reader.number()?;
        let known = usize::try_from(number).ok().and_then(|number| self.dictionaries.get(number));
        let known = known.filter(|known| same_type(&known.data_type, values));
        let nodes = known.ok_or_else(|| reader.bad("dictionary reference", number))?.nodes;
        self.expand(nodes)?;
        if let Some(node) = self.nodes.get_mut(index) {
            node.dictionary = Some(number as u32);
        }
        Ok(())
    }
}
