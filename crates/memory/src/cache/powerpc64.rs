//! POWER. See Power ISA, book II, "cache management instructions": `dcbst` and `dcbf` are ordered
//! like loads, that is, only by `sync`.

use std::arch::asm;

use super::Method;

/// Block size of every 64-bit server POWER, used if the kernel does not report one.
const BLOCK_BYTES_DEFAULT: u32 = 128;

pub(super) fn line_bytes() -> u32 {
    // AT_DCACHEBSIZE of the kernel's asm/auxvec.h: bytes of a data cache block.
    const AT_DCACHEBSIZE: libc::c_ulong = 19;
    // SAFETY: reads the auxiliary vector that the kernel gave this process.
    match unsafe { libc::getauxval(AT_DCACHEBSIZE) } {
        0 => BLOCK_BYTES_DEFAULT,
        bytes => u32::try_from(bytes).unwrap_or(BLOCK_BYTES_DEFAULT),
    }
}

pub(super) fn publish_method() -> Method {
    Method::Dcbst
}

pub(super) fn refresh_method() -> Method {
    Method::Dcbf
}

pub(super) fn methods_available() -> Vec<Method> {
    vec![Method::Dcbst, Method::Dcbf]
}

/// # Safety
/// `lines` blocks from `first` are mapped.
pub(super) unsafe fn maintain(method: Method, first: *const u8, lines: usize, line: usize) {
    let each = |operation: fn(*const u8)| {
        for index in 0..lines {
            operation(first.wrapping_add(index * line));
        }
    };
    match method {
        Method::Dcbst => each(|at| {
            // SAFETY: the block is mapped; the instruction changes no register and no value.
            unsafe { asm!("dcbst 0, {}", in(reg) at, options(nostack, preserves_flags)) }
        }),
        _ => each(|at| {
            // SAFETY: as above.
            unsafe { asm!("dcbf 0, {}", in(reg) at, options(nostack, preserves_flags)) }
        }),
    }
}

/// Orders older stores before the write-back of the blocks.
pub(super) fn fence_before_publish() {
    sync();
}

/// Waits until the blocks are in memory, before any later access.
pub(super) fn fence_after_publish() {
    sync();
}

/// Completes the load that found the object sealed before the first block is dropped.
pub(super) fn fence_before_refresh() {
    sync();
}

/// Waits until the blocks are dropped; `isync` discards later instructions fetched ahead.
pub(super) fn fence_after_refresh() {
    sync();
    // SAFETY: a barrier touches no memory of its own.
    unsafe { asm!("isync", options(nostack, preserves_flags)) }
}

fn sync() {
    // SAFETY: a barrier touches no memory of its own.
    unsafe { asm!("sync", options(nostack, preserves_flags)) }
}
