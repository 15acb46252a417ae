//! CPUs without known cache maintenance instructions: fences only, which is enough on coherent
//! fabrics and nowhere else.

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
/// No requirements; the function is unsafe because those of the other instruction sets are.
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
