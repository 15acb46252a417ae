//! Checks of one node: its structure (constant time), and its contents (all the data).

use crate::error::InvalidDescriptor;
use crate::foreign;
use crate::layout::{ArrayLayout, OffsetWidth, VIEW_BYTES};
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::DataType;

/// Called with bytes of a resolved buffer before they are read. `false`: they cannot be.
pub type BeforeRead<'a> = &'a dyn Fn(&[u8]) -> bool;

/// A node that is checked before it becomes an array.
pub(super) struct Checked<'a> {
    pub data_type: &'a DataType,
    pub layout: ArrayLayout,
    pub length: usize,
    pub offset: usize,
    pub before_read: BeforeRead<'a>,
}

/// The error of bytes that cannot be read.
pub(super) fn unreadable(data_type: &DataType) -> InvalidDescriptor {
    InvalidDescriptor::Data { reason: format!("{data_type}: bytes that cannot be read") }
}

impl Checked<'_> {
    fn error(&self, what: &'static str, needed: usize, found: usize) -> InvalidDescriptor {
        inconsistent(self.data_type, what, needed, found)
    }

    fn total(&self) -> Option<usize> {
        self.length.checked_add(self.offset)
    }

    /// Checks alignment: arrow-rs panics when it builds a typed array over a misaligned buffer.
    pub fn alignment(&self, buffers: &[Buffer]) -> Result<(), InvalidDescriptor> {
        for (index, buffer) in buffers.iter().enumerate() {
            let alignment = alignment_of(self.layout, index);
            if !buffer.as_ptr().addr().is_multiple_of(alignment) {
                let data_type = self.data_type.to_string();
                return Err(InvalidDescriptor::Misaligned { data_type, buffer: index, alignment });
            }
        }
        Ok(())
    }

    /// Checks that every buffer holds offset + length elements. The offsets of an empty array
    /// are replaced by a single zero, which consumers read.
    pub fn sizes(&self, buffers: &mut [Buffer]) -> Result<(), InvalidDescriptor> {
        let total = self.total();
        let one_more = total.and_then(|total| total.checked_add(1));
        match self.layout {
            ArrayLayout::Null
            | ArrayLayout::Struct
            | ArrayLayout::FixedList { .. }
            | ArrayLayout::RunEnd { .. } => Ok(()),
            ArrayLayout::Bits => {
                let bytes = total.map_or(usize::MAX, |total| total.div_ceil(8));
                self.at_least(buffers, 0, bytes)
            }
            ArrayLayout::Fixed { bytes, .. } => self.elements(buffers, 0, total, bytes),
            ArrayLayout::View => self.elements(buffers, 0, total, VIEW_BYTES),
            ArrayLayout::SparseUnion => self.elements(buffers, 0, total, 1),
            ArrayLayout::DenseUnion => {
                self.elements(buffers, 0, total, 1)?;
                self.elements(buffers, 1, total, OffsetWidth::Four.bytes())
            }
            ArrayLayout::ListView(width) => {
                self.elements(buffers, 0, total, width.bytes())?;
                self.elements(buffers, 1, total, width.bytes())
            }
            ArrayLayout::Binary(width) | ArrayLayout::List(width) => {
                if let (0, Some(offsets)) = (self.length, buffers.first_mut()) {
                    *offsets = foreign::zeros().slice_with_length(0, width.bytes());
                    return Ok(());
                }
                self.elements(buffers, 0, one_more, width.bytes())
            }
        }
    }

    /// Checks that a buffer holds `count` elements, and cuts off the rest: arrow-rs panics if
    /// the length of a buffer is not a multiple of its element size.
    fn elements(
        &self,
        buffers: &mut [Buffer],
        index: usize,
        count: Option<usize>,
        bytes: usize,
    ) -> Result<(), InvalidDescriptor> {
        let needed = element_bytes(self.data_type, "a buffer", count, bytes)?;
        self.at_least(buffers, index, needed)?;
        if let Some(buffer) = buffers.get_mut(index)
            && buffer.len() > needed
        {
            *buffer = buffer.slice_with_length(0, needed);
        }
        Ok(())
    }

    fn at_least(
        &self,
        buffers: &[Buffer],
        index: usize,
        needed: usize,
    ) -> Result<(), InvalidDescriptor> {
        let found = buffers.get(index).map_or(0, Buffer::len);
        if found >= needed { Ok(()) } else { Err(self.error("a buffer", needed, found)) }
    }

    /// Checks that children are long enough, and that first and last offsets are in order.
    pub fn children(
        &self,
        buffers: &[Buffer],
        children: &[ArrayData],
    ) -> Result<(), InvalidDescriptor> {
        let total = self.total().unwrap_or(usize::MAX);
        match self.layout {
            ArrayLayout::Binary(width) => {
                self.offsets(width, buffers, buffers.get(1).map_or(0, Buffer::len))
            }
            ArrayLayout::List(width) => {
                self.offsets(width, buffers, children.first().map_or(0, ArrayData::len))
            }
            ArrayLayout::FixedList { items } => {
                let needed = element_bytes(self.data_type, "a child", self.total(), items)?;
                self.all_at_least(children, needed)
            }
            ArrayLayout::Struct | ArrayLayout::SparseUnion => self.all_at_least(children, total),
            ArrayLayout::RunEnd { bytes } => self.runs(bytes, children),
            _ => Ok(()),
        }
    }

    fn all_at_least(&self, children: &[ArrayData], needed: usize) -> Result<(), InvalidDescriptor> {
        match children.iter().map(ArrayData::len).find(|found| *found < needed) {
            Some(found) => Err(self.error("a child", needed, found)),
            None => Ok(()),
        }
    }

    fn offsets(
        &self,
        width: OffsetWidth,
        buffers: &[Buffer],
        values: usize,
    ) -> Result<(), InvalidDescriptor> {
        if self.length == 0 {
            return Ok(());
        }
        let offsets = buffers.first().map(Buffer::as_slice).unwrap_or_default();
        let first = self.read_offset(width, offsets, Some(self.offset))?;
        let last = self.read_offset(width, offsets, self.total())?;
        let (Some(first), Some(last)) = (first, last) else {
            return Err(self.error("an offset that is not negative", 0, 0));
        };
        if first > last {
            return Err(self.error(
                "the last offset, not below the first,",
                first as usize,
                last as usize,
            ));
        }
        if last > values as u64 {
            return Err(self.error("the values", last as usize, values));
        }
        Ok(())
    }

    fn read_offset(
        &self,
        width: OffsetWidth,
        offsets: &[u8],
        index: Option<usize>,
    ) -> Result<Option<u64>, InvalidDescriptor> {
        let start = index.and_then(|index| index.checked_mul(width.bytes()));
        let bytes = start.and_then(|start| offsets.get(start..start.checked_add(width.bytes())?));
        match bytes {
            Some(bytes) if (self.before_read)(bytes) => Ok(width.read(bytes, 0)),
            Some(_) => Err(unreadable(self.data_type)),
            None => Ok(None),
        }
    }

    /// Checks that each run has a value, and that the last run reaches the end of the array.
    fn runs(&self, bytes: usize, children: &[ArrayData]) -> Result<(), InvalidDescriptor> {
        let [ends, values] = children else {
            return Err(self.error("children", 2, children.len()));
        };
        if ends.nulls().is_some() {
            return Err(self.error("run ends without nulls; the nulls", 0, 1));
        }
        if ends.len() != values.len() {
            return Err(self.error("a value for each run", ends.len(), values.len()));
        }
        let total = self.total().unwrap_or(usize::MAX);
        if self.length == 0 {
            return Ok(());
        }
        let last = ends.offset().checked_add(ends.len()).and_then(|end| end.checked_sub(1));
        let raw = ends.buffers().first().map(Buffer::as_slice).unwrap_or_default();
        let at = last.filter(|_| !ends.is_empty()).and_then(|last| last.checked_mul(bytes));
        let raw = at.and_then(|at| raw.get(at..at.checked_add(bytes)?));
        if raw.is_some_and(|raw| !(self.before_read)(raw)) {
            return Err(unreadable(self.data_type));
        }
        let end = raw.and_then(|raw| match bytes {
            2 => raw.try_into().ok().map(|raw| i64::from(i16::from_ne_bytes(raw))),
            4 => raw.try_into().ok().map(|raw| i64::from(i32::from_ne_bytes(raw))),
            _ => raw.try_into().ok().map(i64::from_ne_bytes),
        });
        match end.and_then(|end| usize::try_from(end).ok()) {
            Some(end) if end >= total => Ok(()),
            end => Err(self.error("the last run end", total, end.unwrap_or(0))),
        }
    }
}

/// Checks all contents: the null counts, and the full validation of arrow-rs.
pub(crate) fn check_contents(data: &ArrayData) -> Result<(), InvalidDescriptor> {
    check_null_counts(data)?;
    check_expansion(data)?;
    data.validate_full().map_err(|error| InvalidDescriptor::Data { reason: error.to_string() })
}

/// Checks null counts: kernels allocate by the count, and then write by the bitmap.
fn check_null_counts(data: &ArrayData) -> Result<(), InvalidDescriptor> {
    if let Some(nulls) = data.nulls() {
        let valid = nulls.inner().count_set_bits();
        let found = nulls.len() - valid;
        if found != nulls.null_count() {
            let reason = format!("null count is {}, the bitmap has {found}", nulls.null_count());
            return Err(InvalidDescriptor::Data { reason });
        }
    }
    data.child_data().iter().try_for_each(check_null_counts)
}

/// Bytes that arrow-rs's validation may allocate for one fixed-size list, beyond its data.
const EXPANSION_BYTES_MAX: usize = 1 << 20;

/// Limits the memory that arrow-rs allocates for the validation of a fixed-size list: it repeats
/// each validity bit for each item. Items may have no bytes (nulls, empty structs), so a few
/// bytes of bitmap could require any amount of memory.
fn check_expansion(data: &ArrayData) -> Result<(), InvalidDescriptor> {
    if let (DataType::FixedSizeList(_, items), Some(child)) =
        (data.data_type(), data.child_data().first())
    {
        let items = usize::try_from(*items).unwrap_or(0);
        let expanded = data.len().saturating_mul(items) / 8;
        let limit = EXPANSION_BYTES_MAX.saturating_add(data_bytes(child));
        if data.nulls().is_some() && expanded > limit {
            let reason = format!("{} items in a fixed-size list of no data", data.len());
            return Err(InvalidDescriptor::Data { reason });
        }
    }
    data.child_data().iter().try_for_each(check_expansion)
}

fn data_bytes(data: &ArrayData) -> usize {
    let own = data.buffers().iter().fold(0usize, |sum, buffer| sum.saturating_add(buffer.len()));
    data.child_data().iter().fold(own, |sum, child| sum.saturating_add(data_bytes(child)))
}

pub(super) fn inconsistent(
    data_type: &DataType,
    what: &'static str,
    needed: usize,
    found: usize,
) -> InvalidDescriptor {
    InvalidDescriptor::Inconsistent {
        data_type: data_type.to_string(),
        what,
        needed: needed as u64,
        found: found as u64,
    }
}

/// Bytes of `count` elements of `bytes` each.
fn element_bytes(
    data_type: &DataType,
    what: &'static str,
    count: Option<usize>,
    bytes: usize,
) -> Result<usize, InvalidDescriptor> {
    let total = count.and_then(|count| count.checked_mul(bytes));
    total.ok_or_else(|| inconsistent(data_type, what, usize::MAX, 0))
}

/// Alignment that a buffer needs.
fn alignment_of(layout: ArrayLayout, index: usize) -> usize {
    match layout {
        ArrayLayout::Fixed { alignment, .. } => alignment,
        ArrayLayout::Binary(width) | ArrayLayout::List(width) if index == 0 => width.bytes(),
        ArrayLayout::ListView(width) => width.bytes(),
        ArrayLayout::View if index == 0 => VIEW_BYTES,
        ArrayLayout::DenseUnion if index == 1 => OffsetWidth::Four.bytes(),
        _ => 1,
    }
}
