//! Fallible growth: without memory a graph reports an error and keeps its contents.

use crate::error::GraphError;
use std::alloc::{Layout, handle_alloc_error};
use std::collections::VecDeque;

/// An allocation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocationFailed {
    /// The size of the allocation.
    pub bytes: usize,
}

impl AllocationFailed {
    /// The error of a call with `rows` rows, of which `taken` are in the graph.
    pub(crate) fn error(self, rows: usize, taken: usize) -> GraphError {
        GraphError::OutOfMemory { rows, bytes: self.bytes, taken }
    }
}

/// Reserves room for exactly `more` values.
pub(crate) fn reserve_exact<V>(all: &mut Vec<V>, more: usize) -> Result<(), AllocationFailed> {
    let bytes = all.len().saturating_add(more).saturating_mul(size_of::<V>());
    all.try_reserve_exact(more).map_err(|_| AllocationFailed { bytes })
}

/// Reserves room for `more` values; growth at least doubles the capacity.
pub(crate) fn reserve<V>(all: &mut Vec<V>, more: usize) -> Result<(), AllocationFailed> {
    let bytes = all.len().saturating_add(more).saturating_mul(size_of::<V>());
    all.try_reserve(more).map_err(|_| AllocationFailed { bytes })
}

/// Reserves room for `more` values. Capacity grows by a sixteenth, so that a large deque is never
/// half empty.
pub(crate) fn make_room<V>(deque: &mut VecDeque<V>, more: usize) -> Result<(), AllocationFailed> {
    if deque.capacity() - deque.len() >= more {
        return Ok(());
    }
    let more = (deque.len() / 16).max(256).max(more);
    let bytes = (deque.len() + more).saturating_mul(size_of::<V>());
    deque.try_reserve_exact(more).map_err(|_| AllocationFailed { bytes })
}

/// Shrinks a deque of which more than an eighth is free.
pub(crate) fn fit<V>(deque: &mut VecDeque<V>) {
    let len = deque.len();
    if deque.capacity() > len + len / 8 + 512 {
        deque.shrink_to(len + len / 32);
    }
}

/// Checks that `bytes` can be allocated now. Trees and search tables cannot report a failed
/// allocation, so callers check in advance.
pub(crate) fn probe(bytes: usize) -> Result<(), AllocationFailed> {
    let mut room: Vec<u8> = Vec::new();
    reserve_exact(&mut room, bytes)?;
    // Otherwise the compiler removes the unused allocation.
    std::hint::black_box(room.as_ptr());
    Ok(())
}

/// Aborts the process on an error, for callers that cannot report it.
pub(crate) fn or_abort<V>(grown: Result<V, AllocationFailed>) -> V {
    grown.unwrap_or_else(|full| {
        let layout = Layout::array::<u8>(full.bytes).unwrap_or(Layout::new::<u8>());
        handle_alloc_error(layout)
    })
}
