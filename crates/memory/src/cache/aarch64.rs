//! `AArch64`. See Arm's manual (DDI 0487), "data cache maintenance by virtual address": operations
//! to the point of coherency, completed by `dsb`. Linux lets user space use them (`SCTLR_EL1.UCI`).

use std::arch::asm;

use super::Method;

pub(super) fn line_bytes() -> u32 {
    let cache_type: u64;
    // SAFETY: reading the cache type register changes nothing; Linux allows or emulates it.
    unsafe {
        asm!("mrs {}, ctr_el0", out(reg) cache_type, options(nomem, nostack, preserves_flags));
    }
    // CTR_EL0.DminLine, bits 19:16: log2 of the words in the smallest data line of all caches.
    4u32 << ((cache_type >> 16) & 15)
}

pub(super) fn publish_method() -> Method {
    Method::DcCvac
}

pub(super) fn refresh_method() -> Method {
    Method::DcCivac
}

pub(super) fn methods_available() -> Vec<Method> {
    vec![Method::DcCvac, Method::DcCivac]
}

/// # Safety
/// `lines` lines from `first` are mapped.
pub(super) unsafe fn maintain(method: Method, first: *const u8, lines: usize, line: usize) {
    let each = |operation: fn(*const u8)| {
        for index in 0..lines {
            operation(first.wrapping_add(index * line));
        }
    };
    match method {
        Method::DcCvac => each(|at| {
            // SAFETY: the line is mapped; the instruction changes no register and no value.
            unsafe { asm!("dc cvac, {}", in(reg) at, options(nostack, preserves_flags)) }
        }),
        _ => each(|at| {
            // SAFETY: as above.
            unsafe { asm!("dc civac, {}", in(reg) at, options(nostack, preserves_flags)) }
        }),
    }
}

/// No fence needed: an operation by address is ordered after this CPU's older accesses to its line.
pub(super) fn fence_before_publish() {}

/// Waits until the lines have reached the point of coherency, before any later access.
pub(super) fn fence_after_publish() {
    dsb();
}

/// Completes the load that found the object sealed before the first line is dropped.
pub(super) fn fence_before_refresh() {
    dsb();
}

/// Waits until the lines are invalidated; `isb` discards later instructions fetched ahead.
pub(super) fn fence_after_refresh() {
    dsb();
    // SAFETY: a barrier touches no memory of its own.
    unsafe { asm!("isb", options(nostack, preserves_flags)) }
}

fn dsb() {
    // SAFETY: a barrier touches no memory of its own.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) }
}
