//! The bytes of statistics, and the length reserved for them before they are known.

use arrow_schema::DataType;

use super::bounds::{self, BOUND_BYTES_MAX};
use super::{Bound, ColumnStatistics, TableStatistics, statistics_fields};
use crate::schema::SchemaNode;

/// Version of the bytes.
pub const STATISTICS_VERSION: u8 = 1;

/// Version, checksum of the schema, rows, number of fields.
const HEADER_BYTES: usize = 1 + 4 + 8 + 2;
/// Flags and the number of nulls.
const FIELD_BYTES: usize = 1 + 8;

const HAS_NULLS: u8 = 1;
const HAS_NAN: u8 = 1 << 1;
const IS_ASCENDING: u8 = 1 << 2;
const IS_DESCENDING: u8 = 1 << 3;
const HAS_MIN: u8 = 1 << 4;
const HAS_MAX: u8 = 1 << 5;
const MIN_IS_EXACT: u8 = 1 << 6;
const MAX_IS_EXACT: u8 = 1 << 7;

/// The number of fields whose statistics always fit in `bytes_max`, and the bytes to reserve for
/// them. No fields and no bytes if not even one fits.
pub fn reserved_bytes(schema: &SchemaNode, bytes_max: usize) -> (usize, usize) {
    let (mut fields, mut bytes) = (0, HEADER_BYTES);
    for field in statistics_fields(schema).iter().take(u16::MAX.into()) {
        let more = FIELD_BYTES + 2 * width(field.node.data_type()).longest();
        if bytes + more > bytes_max {
            break;
        }
        (fields, bytes) = (fields + 1, bytes + more);
    }
    if fields == 0 { (0, 0) } else { (fields, bytes) }
}

/// How a bound of a type is written.
#[derive(Clone, Copy)]
enum Width {
    /// There are no bounds.
    Nothing,
    Fixed(usize),
    /// A length of one byte, then the bytes.
    Text,
}

impl Width {
    fn longest(self) -> usize {
        match self {
            Width::Nothing => 0,
            Width::Fixed(bytes) => bytes,
            Width::Text => 1 + BOUND_BYTES_MAX,
        }
    }
}

fn width(data_type: &DataType) -> Width {
    match data_type {
        DataType::Dictionary(_, values) => width(values),
        DataType::FixedSizeBinary(_) => Width::Text,
        other if bounds::text(other).is_some() => Width::Text,
        other => bounds::number_bytes(other).map_or(Width::Nothing, Width::Fixed),
    }
}

/// A checksum of the names and types of all fields, nested ones included.
fn schema_checksum(schema: &SchemaNode) -> u32 {
    fn add(mut sum: u32, node: &SchemaNode) -> u32 {
        for text in [node.name().unwrap_or_default(), node.format().as_bytes()] {
            sum = crc32c::crc32c_append(sum, &(text.len() as u64).to_le_bytes());
            sum = crc32c::crc32c_append(sum, text);
        }
        let children = node.children();
        sum = crc32c::crc32c_append(sum, &(children.len() as u64).to_le_bytes());
        sum = children.iter().fold(sum, add);
        node.dictionary().map_or(sum, |values| add(sum, values))
    }
    schema.children().iter().fold(0, add)
}

impl TableStatistics {
    /// The bytes, of as many fields as fit in `bytes_max`; zeros may follow them. `None` if not even
    /// one field fits.
    pub fn encode(&self, schema: &SchemaNode, bytes_max: usize) -> Option<Vec<u8>> {
        let mut fields = Vec::new();
        let mut count = 0_u16;
        for (column, field) in self.columns.iter().zip(statistics_fields(schema)) {
            let before = fields.len();
            column.write(width(field.node.data_type()), &mut fields)?;
            if HEADER_BYTES + fields.len() > bytes_max || count == u16::MAX {
                fields.truncate(before);
                break;
            }
            count += 1;
        }
        let mut bytes = vec![STATISTICS_VERSION];
        bytes.extend(schema_checksum(schema).to_le_bytes());
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend(count.to_le_bytes());
        bytes.extend(fields);
        (count > 0).then_some(bytes)
    }

    /// Reads bytes that anybody may have written, of a table of this schema and this many rows.
    /// `None` for another version or schema, and for bytes that are damaged.
    pub fn decode(bytes: &[u8], schema: &SchemaNode, rows: u64) -> Option<Self> {
        Self::decode_any(bytes, schema).filter(|found| found.rows == rows)
    }

    /// As [`Self::decode`], for any number of rows.
    pub(super) fn decode_any(bytes: &[u8], schema: &SchemaNode) -> Option<Self> {
        let mut reader = StatisticsReader(bytes);
        let is_known = reader.take(1)? == [STATISTICS_VERSION]
            && reader.array().map(u32::from_le_bytes)? == schema_checksum(schema);
        let rows = reader.array().map(u64::from_le_bytes)?;
        let count = usize::from(reader.array().map(u16::from_le_bytes)?);
        let fields = statistics_fields(schema);
        let fields = fields.get(..count).filter(|_| is_known)?;
        let columns = fields.iter().map(|field| {
            let column = reader.column(width(field.node.data_type()))?;
            // Only columns and their children have a value or less for each row.
            let is_flat = field.path.len() == 1;
            column.nulls.is_none_or(|nulls| !is_flat || nulls <= rows).then_some(column)
        });
        let columns = columns.collect::<Option<Vec<_>>>()?;
        reader.0.iter().all(|byte| *byte == 0).then_some(Self { rows, columns })
    }
}

impl ColumnStatistics {
    fn write(&self, width: Width, bytes: &mut Vec<u8>) -> Option<()> {
        let is_exact = |bound: &Option<Bound>| bound.as_ref().is_some_and(|bound| bound.is_exact);
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        bytes.push(
            flag(self.nulls.is_some(), HAS_NULLS)
                | flag(self.has_nan, HAS_NAN)
                | flag(self.is_ascending, IS_ASCENDING)
                | flag(self.is_descending, IS_DESCENDING)
                | flag(self.min.is_some(), HAS_MIN)
                | flag(self.max.is_some(), HAS_MAX)
                | flag(is_exact(&self.min), MIN_IS_EXACT)
                | flag(is_exact(&self.max), MAX_IS_EXACT),
        );
        if let Some(nulls) = self.nulls {
            bytes.extend(nulls.to_le_bytes());
        }
        for bound in self.min.iter().chain(&self.max) {
            match width {
                Width::Nothing => return None,
                Width::Fixed(length) if bound.bytes.len() != length => return None,
                Width::Fixed(_) => {}
                Width::Text => bytes.push(u8::try_from(bound.bytes.len()).ok()?),
            }
            bytes.extend(&bound.bytes);
        }
        Some(())
    }
}

struct StatisticsReader<'a>(&'a [u8]);

impl<'a> StatisticsReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn column(&mut self, width: Width) -> Option<ColumnStatistics> {
        let [flags] = self.array()?;
        let has = |bit: u8| flags & bit != 0;
        let nulls = match has(HAS_NULLS) {
            true => Some(u64::from_le_bytes(self.array()?)),
            false => None,
        };
        let mut bound = |bit: u8, exact: u8| {
            if !has(bit) {
                return Some(None);
            }
            let length = match width {
                Width::Nothing => return None,
                Width::Fixed(length) => length,
                Width::Text => usize::from(self.array::<1>()?[0]),
            };
            let bytes = self.take(length)?.to_vec();
            Some(Some(Bound { bytes, is_exact: has(exact) }))
        };
        Some(ColumnStatistics {
            nulls,
            has_nan: has(HAS_NAN),
            is_ascending: has(IS_ASCENDING),
            is_descending: has(IS_DESCENDING),
            min: bound(HAS_MIN, MIN_IS_EXACT)?,
            max: bound(HAS_MAX, MAX_IS_EXACT)?,
        })
    }
}
