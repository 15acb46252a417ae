//! Checked access to the buffers and children of an array, and the window that is described.

use crate::error::DescribeError;
use arrow_buffer::Buffer;
use arrow_data::ArrayData;

/// The part of an array that is described.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// First element, counted from the start of the array's buffers.
    pub first: usize,
    /// Number of elements.
    pub length: usize,
    /// Elements retained before the first one: below eight, except for run-end encoded arrays.
    pub lead: usize,
}

impl Window {
    /// First element that the descriptor refers to.
    pub fn start(self) -> usize {
        self.first - self.lead
    }

    /// Elements that the descriptor refers to.
    pub fn covered(self) -> usize {
        self.lead + self.length
    }
}

pub(super) fn overflow() -> DescribeError {
    DescribeError::Overflow { what: "elements" }
}

pub(super) fn malformed(
    data: &ArrayData,
    reason: &'static str,
    needed: usize,
    found: usize,
) -> DescribeError {
    DescribeError::Malformed {
        data_type: data.data_type().to_string(),
        reason,
        needed: needed as u64,
        found: found as u64,
    }
}

pub(super) fn buffer(data: &ArrayData, index: usize) -> Result<&Buffer, DescribeError> {
    let buffers = data.buffers();
    buffers.get(index).ok_or_else(|| malformed(data, "too few buffers", index + 1, buffers.len()))
}

pub(super) fn child(data: &ArrayData, index: usize) -> Result<&ArrayData, DescribeError> {
    let children = data.child_data();
    children
        .get(index)
        .ok_or_else(|| malformed(data, "too few children", index + 1, children.len()))
}

pub(super) fn check_range(
    data: &ArrayData,
    buffer: &Buffer,
    start: usize,
    length: usize,
) -> Result<(), DescribeError> {
    let end = start.checked_add(length).ok_or_else(overflow)?;
    if end <= buffer.len() {
        return Ok(());
    }
    Err(malformed(data, "a buffer is too short", end, buffer.len()))
}

/// Buffer, first byte and number of bytes of the window's elements plus `extra` elements.
pub(super) fn element_range(
    data: &ArrayData,
    index: usize,
    window: Window,
    bytes: usize,
    extra: usize,
) -> Result<(&Buffer, usize, usize), DescribeError> {
    let start = window.start().checked_mul(bytes).ok_or_else(overflow)?;
    let count = window.covered().checked_add(extra).ok_or_else(overflow)?;
    let length = count.checked_mul(bytes).ok_or_else(overflow)?;
    let buffer = buffer(data, index)?;
    check_range(data, buffer, start, length)?;
    Ok((buffer, start, length))
}
