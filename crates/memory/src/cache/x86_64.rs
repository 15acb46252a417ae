//! x86-64. See Intel's manual, volume 2: `CLWB`, `CLFLUSHOPT` and `CLFLUSH` act on all caches of
//! the coherence domain. The first two are ordered only by fences and by stores to the same line.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

use super::Method;

#[derive(Clone, Copy)]
struct Features {
    line_bytes: u32,
    has_clwb: bool,
    has_clflushopt: bool,
}

/// `cpuid` traps in a virtual machine, so the caller caches the result.
fn features() -> Features {
    // SAFETY: every x86-64 CPU has `cpuid`; newer toolchains declare the call safe.
    #[allow(unused_unsafe)]
    unsafe {
        let basic = __cpuid(0);
        let first = __cpuid(1);
        let seventh = if basic.eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        Features {
            // CPUID.01H:EBX[15:8] is the line in units of 8 bytes.
            line_bytes: ((first.ebx >> 8) & 0xff) * 8,
            has_clwb: seventh >> 24 & 1 == 1,
            has_clflushopt: seventh >> 23 & 1 == 1,
        }
    }
}

pub(super) fn line_bytes() -> u32 {
    features().line_bytes
}

pub(super) fn publish_method() -> Method {
    let features = features();
    if features.has_clwb { Method::Clwb } else { refresh_method() }
}

pub(super) fn refresh_method() -> Method {
    if features().has_clflushopt { Method::ClflushOpt } else { Method::Clflush }
}

pub(super) fn methods_available() -> Vec<Method> {
    let features = features();
    let mut methods = Vec::new();
    if features.has_clwb {
        methods.push(Method::Clwb);
    }
    if features.has_clflushopt {
        methods.push(Method::ClflushOpt);
    }
    // Part of SSE2, which is part of x86-64.
    methods.push(Method::Clflush);
    methods
}

/// # Safety
/// `lines` lines from `first` are mapped, and this CPU has the method's instruction.
pub(super) unsafe fn maintain(method: Method, first: *const u8, lines: usize, line: usize) {
    let each = |operation: fn(*const u8)| {
        for index in 0..lines {
            operation(first.wrapping_add(index * line));
        }
    };
    match method {
        Method::Clwb => each(|at| {
            // SAFETY: the line is mapped; the instruction changes no register and no value.
            unsafe { asm!("clwb [{}]", in(reg) at, options(nostack, preserves_flags)) }
        }),
        Method::ClflushOpt => each(|at| {
            // SAFETY: as above.
            unsafe { asm!("clflushopt [{}]", in(reg) at, options(nostack, preserves_flags)) }
        }),
        _ => each(|at| {
            // SAFETY: as above.
            unsafe { asm!("clflush [{}]", in(reg) at, options(nostack, preserves_flags)) }
        }),
    }
}

/// No fence needed: a write-back is ordered after older stores to its own line, and only those
/// matter.
pub(super) fn fence_before_publish() {}

/// Orders write-backs and non-temporal stores before every later store, such as the store to the
/// entry that makes the object visible to other nodes.
pub(super) fn fence_after_publish() {
    // SAFETY: a fence touches no memory of its own.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) }
}

/// A flush may overtake an older load, such as the one that found the object sealed. A line fetched
/// in between would be stale and would stay in the cache.
pub(super) fn fence_before_refresh() {
    // SAFETY: a fence touches no memory of its own.
    unsafe { asm!("mfence", options(nostack, preserves_flags)) }
}

/// `mfence` waits for the flushes; `lfence` keeps later loads from starting before that.
pub(super) fn fence_after_refresh() {
    // SAFETY: a fence touches no memory of its own.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) }
}
