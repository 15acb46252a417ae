//! CPUs without non-temporal stores that are faster than the C library's copy. `AArch64` has
//! `stnp`, a hint that its cores mostly ignore; POWER has none.

use super::StreamMethod;

pub(super) fn methods_available() -> Vec<StreamMethod> {
    vec![StreamMethod::Memcpy]
}

pub(super) fn is_available(_method: StreamMethod) -> bool {
    false
}

/// # Safety
/// As [`super::copy_into`].
pub(super) unsafe fn copy(into: *mut u8, from: &[u8], _method: StreamMethod) {
    // SAFETY: by the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
}

/// # Safety
/// As [`super::fill_into`].
pub(super) unsafe fn fill(into: *mut u8, length: usize, value: u8, _method: StreamMethod) {
    // SAFETY: by the caller's contract.
    unsafe { into.write_bytes(value, length) };
}
