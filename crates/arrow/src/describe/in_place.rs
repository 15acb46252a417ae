//! Whether an array can stay where it is.

use super::place::Placer;
use crate::error::DescribeError;
use crate::layout::{ArrayLayout, VIEW_BYTES};
use crate::schema::DEPTH_MAX;
use arrow_data::ArrayData;

/// Whether no buffer that a window of an array can use needs a copy.
pub(super) fn all_in_place(
    data: &ArrayData,
    placer: &mut Placer<'_>,
    depth: usize,
) -> Result<bool, DescribeError> {
    if depth >= DEPTH_MAX {
        return Err(DescribeError::TooDeep { max: DEPTH_MAX });
    }
    let alignment = |index: usize| match ArrayLayout::of(data.data_type()) {
        Some(ArrayLayout::Fixed { alignment, .. }) => alignment,
        Some(ArrayLayout::Binary(width)) if index == 0 => width.bytes(),
        Some(ArrayLayout::List(width) | ArrayLayout::ListView(width)) => width.bytes(),
        Some(ArrayLayout::View) if index == 0 => VIEW_BYTES,
        Some(ArrayLayout::DenseUnion) if index == 1 => 4,
        _ => 1,
    };
    if data.is_empty() {
        return Ok(true);
    }
    if let Some(nulls) = data.nulls()
        && !placer.is_in_place(nulls.buffer(), 1)
    {
        return Ok(false);
    }
    for (index, buffer) in data.buffers().iter().enumerate() {
        if !placer.is_in_place(buffer, alignment(index)) {
            return Ok(false);
        }
    }
    for child in data.child_data() {
        if !all_in_place(child, placer, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}
