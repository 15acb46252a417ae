//! Bytes that a Python object owns, for calls without the GIL.

use pyo3::prelude::*;
use std::panic::RefUnwindSafe;

/// Bytes at a fixed address, owned by a Python object.
pub struct Pinned {
    _keep: Py<PyAny>,
    data: *const u8,
    size: usize,
}

// SAFETY: the bytes are only read, and their owner may be dropped on any thread (pyo3 defers the
// drop to a thread that holds the GIL).
unsafe impl Send for Pinned {}
// SAFETY: as above; sharing only reads.
unsafe impl Sync for Pinned {}

// A panic cannot leave it inconsistent: its fields never change.
impl RefUnwindSafe for Pinned {}

impl Pinned {
    /// `data` must stay valid for `size` bytes until `keep` is collected.
    pub fn new(keep: &Bound<'_, PyAny>, data: *const u8, size: usize) -> Pinned {
        Pinned { _keep: keep.clone().unbind(), data, size }
    }

    pub fn bytes(&self) -> &[u8] {
        if self.size == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: `keep` exports this memory and is alive. If another thread writes to it during
        // `put`, the object has a mixture of old and new bytes.
        unsafe { std::slice::from_raw_parts(self.data, self.size) }
    }
}
