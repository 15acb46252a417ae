//! Arrow buffers over memory that this crate does not own.

use arrow_buffer::Buffer;
use arrow_buffer::alloc::Allocation;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// An Arrow buffer over `length` bytes at `address`, which `owner` keeps alive.
///
/// # Safety
///
/// The bytes must be readable, and must not change, until `owner` is dropped: the buffer and
/// everything sliced from it holds a reference to `owner`.
pub unsafe fn foreign_buffer(
    address: NonNull<u8>,
    length: usize,
    owner: Arc<dyn Allocation>,
) -> Buffer {
    // SAFETY: the caller guarantees that `owner` keeps the bytes readable and unchanged.
    unsafe { Buffer::from_custom_allocation(address, length, owner) }
}

/// 64 zero bytes, 64-bit aligned: the offsets of an empty array. The C Data Interface requires
/// one offset there, and consumers read it.
pub(crate) fn zeros() -> Buffer {
    static ZEROS: OnceLock<Buffer> = OnceLock::new();
    ZEROS.get_or_init(|| Buffer::from_vec(vec![0u64; 8])).clone()
}

/// An empty buffer, aligned for every Arrow type.
pub(crate) fn empty() -> Buffer {
    static EMPTY: OnceLock<Buffer> = OnceLock::new();
    EMPTY.get_or_init(|| Buffer::from_vec(Vec::<u128>::new())).clone()
}
