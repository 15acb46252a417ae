//! `ArrowArray` to `ArrayData`.

use super::abi::{CArray, array_fields};
use crate::error::{ImportError, SchemaError};
use crate::foreign;
use crate::layout::{ArrayLayout, OffsetWidth, VIEW_BYTES, child_count, child_type};
use crate::schema::{DEPTH_MAX, SchemaNode};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::DataType;
use std::ptr::NonNull;
use std::sync::Arc;

/// Imports an array of the type of `schema`, and takes ownership of it.
///
/// # Safety
/// `array` must satisfy the contract of the C Data Interface and have that type: its pointers
/// are valid, and its buffers are as long as its length and offset require.
///
/// # Errors
/// [`ImportError`] if it is already released, or its counts do not fit the type.
pub unsafe fn import_array(
    array: FFI_ArrowArray,
    schema: &SchemaNode,
) -> Result<ArrayData, ImportError> {
    let owner = Arc::new(array);
    // SAFETY: guaranteed by the caller.
    let mut data = unsafe { import(&owner, &owner, schema.data_type(), 0) }?;
    data.align_buffers();
    Ok(data)
}

struct Import<'a> {
    owner: &'a Arc<FFI_ArrowArray>,
    fields: &'a CArray,
    data_type: &'a DataType,
    layout: ArrayLayout,
    length: usize,
    offset: usize,
}

/// # Safety
/// As [`import_array`]; `array` is owned by `owner`.
unsafe fn import(
    owner: &Arc<FFI_ArrowArray>,
    array: &FFI_ArrowArray,
    data_type: &DataType,
    depth: usize,
) -> Result<ArrayData, ImportError> {
    if depth > DEPTH_MAX {
        return Err(SchemaError::TooDeep { max: DEPTH_MAX }.into());
    }
    let fields = array_fields(array);
    if fields.release.is_none() {
        return Err(ImportError::Null { what: "an ArrowArray" });
    }
    let layout = ArrayLayout::of(data_type)
        .ok_or_else(|| SchemaError::NoFormat { data_type: data_type.to_string() })?;
    let sizes = (usize::try_from(fields.length), usize::try_from(fields.offset));
    let (Ok(length), Ok(offset)) = sizes else {
        return Err(count(data_type, "length and offset", 0, fields.length.min(fields.offset)));
    };
    if length.checked_add(offset).is_none_or(|end| end > isize::MAX as usize) {
        return Err(count(data_type, "length and offset", i64::MAX, fields.length));
    }
    // An empty array needs no offset, and its buffers may be missing.
    let offset = if length == 0 { 0 } else { offset };
    let import = Import { owner, fields, data_type, layout, length, offset };
    // SAFETY: guaranteed by the caller.
    unsafe { import.array(depth) }
}

fn count(data_type: &DataType, what: &'static str, needed: i64, found: i64) -> ImportError {
    ImportError::Count { data_type: data_type.to_string(), what, needed, found }
}

impl Import<'_> {
    fn total(&self) -> usize {
        self.length + self.offset
    }

    /// # Safety
    /// As [`import_array`].
    unsafe fn array(&self, depth: usize) -> Result<ArrayData, ImportError> {
        // The buffers first: an impossible length is detected before nulls are counted.
        // SAFETY: guaranteed by the caller.
        let buffers = unsafe { self.buffers() }?;
        // SAFETY: likewise.
        let nulls = unsafe { self.nulls() }?;
        // SAFETY: likewise.
        let children = unsafe { self.children(depth) }?;
        let builder = ArrayData::builder(self.data_type.clone())
            .len(self.length)
            .offset(self.offset)
            .nulls(nulls)
            .buffers(buffers)
            .child_data(children);
        // SAFETY: the producer guarantees well-formed arrays, and the buffers have the lengths
        // that the C Data Interface implies.
        Ok(unsafe { builder.build_unchecked() })
    }

    /// Number of buffers before those that `ArrayData` has: the validity bitmap. Unions of Arrow
    /// before 1.0 also have one, which is ignored.
    fn leading_buffers(&self) -> Result<usize, ImportError> {
        let found = usize::try_from(self.fields.n_buffers).unwrap_or(0);
        let own = self.layout.buffers();
        let lengths = usize::from(self.layout == ArrayLayout::View);
        let leading = match found.checked_sub(own + lengths) {
            Some(extra) if self.layout == ArrayLayout::View && extra >= 1 => 1,
            Some(extra @ (0 | 1)) if !self.layout.has_validity() => extra,
            Some(1) => 1,
            _ => {
                let needed = (own + lengths + usize::from(self.layout.has_validity())) as i64;
                let found = self.fields.n_buffers;
                return Err(count(self.data_type, "the number of buffers", needed, found));
            }
        };
        if found > 0 && self.fields.buffers.is_null() {
            return Err(ImportError::Null { what: "the buffers of an ArrowArray" });
        }
        Ok(leading)
    }

    /// # Safety
    /// `index` must be below `n_buffers`, and `buffers` not null.
    unsafe fn pointer(&self, index: usize) -> Option<NonNull<u8>> {
        // SAFETY: there are `n_buffers` pointers, by contract.
        let pointer = unsafe { self.fields.buffers.add(index).read_unaligned() };
        NonNull::new(pointer.cast::<u8>().cast_mut())
    }

    /// # Safety
    /// As [`Import::pointer`]; the buffer is at least `length` bytes long.
    unsafe fn buffer(&self, index: usize, length: usize) -> Result<Buffer, ImportError> {
        if length == 0 {
            return Ok(foreign::empty());
        }
        // SAFETY: guaranteed by the caller.
        let pointer = unsafe { self.pointer(index) };
        let pointer = pointer.ok_or(ImportError::Null { what: "a buffer of an ArrowArray" })?;
        let owner = Arc::clone(self.owner);
        // SAFETY: by contract the buffer is that long and lives until the owner is released.
        Ok(unsafe { foreign::foreign_buffer(pointer, length, owner) })
    }

    /// # Safety
    /// As [`import_array`].
    unsafe fn nulls(&self) -> Result<Option<NullBuffer>, ImportError> {
        let leading = self.leading_buffers()?;
        if leading == 0
            || !self.layout.has_validity()
            || self.length == 0
            || self.fields.null_count == 0
        {
            return Ok(None);
        }
        // SAFETY: there is at least one buffer.
        if unsafe { self.pointer(0) }.is_none() {
            return Ok(None);
        }
        // SAFETY: a validity bitmap has a bit for each of offset + length elements.
        let bits = unsafe { self.buffer(0, self.total().div_ceil(8)) }?;
        let bits = BooleanBuffer::new(bits, self.offset, self.length);
        Ok(Some(match usize::try_from(self.fields.null_count) {
            // SAFETY: the producer guarantees the count; it is -1 if unknown.
            Ok(nulls) if nulls <= self.length => unsafe { NullBuffer::new_unchecked(bits, nulls) },
            _ => NullBuffer::new(bits),
        }))
    }

    /// # Safety
    /// As [`import_array`].
    unsafe fn buffers(&self) -> Result<Vec<Buffer>, ImportError> {
        let first = self.leading_buffers()?;
        let total = self.total();
        let bytes = |count: usize, bytes: usize| {
            let total = count.checked_mul(bytes).filter(|total| *total <= isize::MAX as usize);
            total.ok_or_else(|| count_error(self, count))
        };
        // SAFETY: the lengths below are those that the C Data Interface implies; the number
        // of buffers was checked by `leading_buffers`.
        unsafe {
            Ok(match self.layout {
                ArrayLayout::Null | ArrayLayout::FixedList { .. } | ArrayLayout::Struct => {
                    Vec::new()
                }
                ArrayLayout::RunEnd { .. } => Vec::new(),
                ArrayLayout::Bits => vec![self.buffer(first, total.div_ceil(8))?],
                ArrayLayout::Fixed { bytes: width, .. } => {
                    vec![self.buffer(first, bytes(total, width)?)?]
                }
                ArrayLayout::SparseUnion => vec![self.buffer(first, total)?],
                ArrayLayout::DenseUnion => {
                    vec![self.buffer(first, total)?, self.buffer(first + 1, bytes(total, 4)?)?]
                }
                ArrayLayout::ListView(width) => {
                    let bytes = bytes(total, width.bytes())?;
                    vec![self.buffer(first, bytes)?, self.buffer(first + 1, bytes)?]
                }
                ArrayLayout::List(width) => vec![self.offsets(first, width)?],
                ArrayLayout::Binary(width) => {
                    let offsets = self.offsets(first, width)?;
                    let last = if self.length == 0 { Some(0) } else { width.read(&offsets, total) };
                    let last = last.and_then(|last| usize::try_from(last).ok());
                    let last = last.filter(|last| *last <= isize::MAX as usize);
                    let last =
                        last.ok_or_else(|| count(self.data_type, "the last offset", 0, -1))?;
                    vec![offsets, self.buffer(first + 1, last)?]
                }
                ArrayLayout::View => self.view_buffers(first)?,
            })
        }
    }

    /// # Safety
    /// As [`import_array`].
    unsafe fn offsets(&self, index: usize, width: OffsetWidth) -> Result<Buffer, ImportError> {
        if self.length == 0 {
            // Producers may omit the offsets of an empty array, or pass an unreadable pointer.
            return Ok(foreign::zeros().slice_with_length(0, width.bytes()));
        }
        let count = self.total() + 1;
        let bytes = count.checked_mul(width.bytes()).filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| count_error(self, count))?;
        // SAFETY: there is one more offset than elements.
        unsafe { self.buffer(index, bytes) }
    }

    /// Views, then the data buffers; the last buffer of the structure holds the lengths.
    ///
    /// # Safety
    /// As [`import_array`].
    unsafe fn view_buffers(&self, first: usize) -> Result<Vec<Buffer>, ImportError> {
        let found = usize::try_from(self.fields.n_buffers).unwrap_or(0);
        let data_buffers = found.saturating_sub(first + 2);
        let views = self.total().checked_mul(VIEW_BYTES).filter(|n| *n <= isize::MAX as usize);
        let views = views.ok_or_else(|| count_error(self, self.total()))?;
        let mut buffers = Vec::with_capacity(1 + data_buffers);
        // SAFETY: there is a view for each element.
        buffers.push(unsafe { self.buffer(first, views) }?);
        // SAFETY: the last buffer, if there are data buffers, holds their lengths.
        let lengths = unsafe { self.pointer(found.saturating_sub(1)) };
        for index in 0..data_buffers {
            let lengths =
                lengths.ok_or(ImportError::Null { what: "the lengths of view buffers" })?;
            // SAFETY: it has one 64-bit length for each data buffer.
            let length = unsafe { lengths.cast::<i64>().add(index).read_unaligned() };
            let bytes = usize::try_from(length)
                .map_err(|_| count(self.data_type, "the length of a data buffer", 0, length))?;
            // SAFETY: the data buffer is that long.
            buffers.push(unsafe { self.buffer(first + 1 + index, bytes) }?);
        }
        Ok(buffers)
    }

    /// # Safety
    /// As [`import_array`].
    unsafe fn children(&self, depth: usize) -> Result<Vec<ArrayData>, ImportError> {
        if let DataType::Dictionary(_, values) = self.data_type {
            // SAFETY: the dictionary is null or an array, by contract.
            let dictionary = unsafe { self.fields.dictionary.as_ref() };
            let dictionary =
                dictionary.ok_or(ImportError::Null { what: "the dictionary of an ArrowArray" })?;
            // SAFETY: the caller's guarantee covers the dictionary.
            return Ok(vec![unsafe { import(self.owner, dictionary, values, depth + 1) }?]);
        }
        let needed = child_count(self.data_type);
        if usize::try_from(self.fields.n_children) != Ok(needed) {
            let found = self.fields.n_children;
            return Err(count(self.data_type, "the number of children", needed as i64, found));
        }
        let mut children = Vec::with_capacity(needed);
        for index in 0..needed {
            let Some(data_type) = child_type(self.data_type, index) else { break };
            if self.fields.children.is_null() {
                return Err(ImportError::Null { what: "the children of an ArrowArray" });
            }
            // SAFETY: there are `n_children` pointers, each null or to an array, by contract.
            let child = unsafe { (*self.fields.children.add(index)).as_ref() };
            let child = child.ok_or(ImportError::Null { what: "a child of an ArrowArray" })?;
            // SAFETY: the caller's guarantee covers the children.
            children.push(unsafe { import(self.owner, child, data_type, depth + 1) }?);
        }
        Ok(children)
    }
}

fn count_error(import: &Import<'_>, elements: usize) -> ImportError {
    count(import.data_type, "the bytes of a buffer", i64::MAX, elements as i64)
}
