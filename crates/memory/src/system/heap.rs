//! The private heap of a process with a large region.

/// Bytes by which the heap grows at once.
const STEP_BYTES: libc::c_int = 8 << 20;

/// Free bytes at the end of the heap that stay with the process.
const FREE_BYTES_MAX: libc::c_int = 32 << 20;

/// Allocations from this size on are mapped, each by a system call.
const MAPPED_BYTES_MIN: libc::c_int = 4 << 20;

/// Gives the free pages of this process' heap back to the system, also those below memory in use, with
/// GNU's C library. Takes time in the number of free ranges.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim changes free memory of the allocator under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the heap of this process grow in large steps, with GNU's C library. Each step waits for the
/// kernel's lock on the address space, which a thread that touches new pages of a region holds for
/// milliseconds at a time. With steps of 128 KiB, a daemon that needs 30 MB waits 240 times.
pub fn grow_heap_in_large_steps() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (what, bytes) in [
        (libc::M_TOP_PAD, STEP_BYTES),
        (libc::M_TRIM_THRESHOLD, FREE_BYTES_MAX),
        (libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
    ] {
        // SAFETY: mallopt changes settings of the allocator under its own lock.
        unsafe { libc::mallopt(what, bytes) };
    }
}
