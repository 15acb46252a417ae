//! A CPU whose cache instructions are not known here: fences, which is enough where the fabric is
//! coherent, and nothing more.

use super::Method;
use crate::sync::{Ordering, fence};

pub(super) fn line_bytes() -> u32 {
    super::LINE_BYTES_DEFAULT
}

pub(super) fn publish_method() -> Method {
    Method::FenceOnly
}

pub(super) fn refresh_method() -> Method {
    Method::FenceOnly
}

pub(super) fn methods_available() -> Vec<Method> {
    vec![Method::FenceOnly]
}

/// # Safety
/// None; the other instruction sets have a contract here.
pub(super) unsafe fn maintain(_method: Method, _first: *const u8, _lines: usize, _line: usize) {}

pub(super) fn fence_before_publish() {
    fence(Ordering::SeqCst);
}

pub(super) fn fence_after_publish() {
    fence(Ordering::SeqCst);
}

pub(super) fn fence_before_refresh() {
    fence(Ordering::SeqCst);
}

pub(super) fn fence_after_refresh() {
    fence(Ordering::SeqCst);
}
