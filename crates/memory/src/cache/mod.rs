//! Cache maintenance from user space, for each instruction set.
//!
//! Publishing writes cache lines back to memory; refreshing makes the next load fetch them from
//! memory. Both act on all lines that a range touches. Each instruction set has its own file with
//! the same functions. The instruction to use is detected at run time.
//!
//! Each fence documents the order it establishes. Line operations are ordered with the stores of
//! the same CPU to the same line; all other order comes from the fences.

use std::sync::OnceLock;

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "powerpc64", path = "powerpc64.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "powerpc64")),
    path = "portable.rs"
)]
mod isa;

/// A cache maintenance instruction that acts on one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// x86-64: writes back, may keep the line.
    Clwb,
    /// x86-64: writes back and drops the line; many can be in flight.
    ClflushOpt,
    /// x86-64: writes back and drops the line; executes one at a time.
    Clflush,
    /// `AArch64`: cleans to the point of coherency.
    DcCvac,
    /// `AArch64`: cleans and invalidates to the point of coherency.
    DcCivac,
    /// POWER: stores the block, may keep it.
    Dcbst,
    /// POWER: stores the block and drops it.
    Dcbf,
    /// No known instruction for this CPU: fences only, which is correct only on coherent fabrics.
    FenceOnly,
}

impl Method {
    /// The mnemonic.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::DcCvac => "dc cvac",
            Self::DcCivac => "dc civac",
            Self::Dcbst => "dcbst",
            Self::Dcbf => "dcbf",
            Self::FenceOnly => "fence only",
        }
    }

    /// The method with this mnemonic, whether or not this CPU supports it.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        [
            Self::Clwb,
            Self::ClflushOpt,
            Self::Clflush,
            Self::DcCvac,
            Self::DcCivac,
            Self::Dcbst,
            Self::Dcbf,
            Self::FenceOnly,
        ]
        .into_iter()
        .find(|method| method.as_str() == name)
    }

    /// Whether this CPU supports the instruction.
    #[must_use]
    pub fn is_available(self) -> bool {
        chosen().available.contains(&self)
    }

    /// Whether [`refresh_lines_by`] may use it. The method must drop lines, if this CPU has any
    /// method that does.
    #[must_use]
    pub fn can_refresh(self) -> bool {
        self.is_available() && (self.drops_line() || self == refresh_method())
    }

    /// Whether the line leaves the cache, so that the next load comes from memory.
    #[must_use]
    pub const fn drops_line(self) -> bool {
        matches!(self, Self::ClflushOpt | Self::Clflush | Self::DcCivac | Self::Dcbf)
    }
}

/// The methods that this CPU supports and the ones that are used.
#[derive(Clone, Debug)]
struct Chosen {
    line_bytes: u32,
    publish: Method,
    refresh: Method,
    available: Vec<Method>,
}

/// Used if the CPU reports an implausible line size: less than a word or more than a page.
const LINE_BYTES_DEFAULT: u32 = 64;

fn chosen() -> &'static Chosen {
    static CHOSEN: OnceLock<Chosen> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let said = isa::line_bytes();
        let is_sane = said.is_power_of_two() && (8..=4096).contains(&said);
        let line_bytes = if is_sane { said } else { LINE_BYTES_DEFAULT };
        Chosen {
            line_bytes,
            publish: isa::publish_method(),
            refresh: isa::refresh_method(),
            available: isa::methods_available(),
        }
    })
}

/// Size in bytes of the smallest cache line that maintenance acts on, as reported by this CPU.
#[must_use]
pub fn line_bytes() -> u32 {
    chosen().line_bytes
}

/// The instruction used to publish if no [profile](crate::profile) selects another one.
#[must_use]
pub fn publish_method() -> Method {
    chosen().publish
}

/// The instruction used to refresh if no [profile](crate::profile) selects another one.
#[must_use]
pub fn refresh_method() -> Method {
    chosen().refresh
}

/// All methods that this CPU supports.
#[must_use]
pub fn methods_available() -> Vec<Method> {
    chosen().available.clone()
}

/// Writes all lines that `[start, start + length)` touches back to memory, then fences. Returns the
/// number of lines.
///
/// # Safety
/// The pages of the range are mapped readable.
pub unsafe fn publish_lines(start: *const u8, length: usize) -> u64 {
    // SAFETY: by the caller's contract.
    unsafe { publish_lines_by(publish_method(), start, length) }
}

/// As [`publish_lines`], with an instruction chosen by the caller. If this CPU does not support it,
/// the default is used.
///
/// # Safety
/// As [`publish_lines`].
pub unsafe fn publish_lines_by(method: Method, start: *const u8, length: usize) -> u64 {
    // SAFETY: by the caller's contract.
    unsafe { publish_ranges_by(method, std::iter::once((start, length))) }
}

/// As [`publish_lines_by`] for several ranges, with one pair of fences.
///
/// # Safety
/// As [`publish_lines`], for each range.
pub(crate) unsafe fn publish_ranges_by(
    method: Method,
    ranges: impl Iterator<Item = (*const u8, usize)>,
) -> u64 {
    let chosen = chosen();
    let method = if method.is_available() { method } else { chosen.publish };
    isa::fence_before_publish();
    // SAFETY: by the caller's contract; a line never crosses a page; the CPU has the instruction.
    let each =
        ranges.map(|(at, length)| unsafe { each_line(at, length, chosen.line_bytes, method) });
    let lines = each.sum();
    isa::fence_after_publish();
    lines
}

/// Drops all lines that the range touches, so that later loads see memory. Returns the number of
/// lines. A dirty line is written back; a node must refresh only memory that it does not write.
///
/// # Safety
/// The pages of the range are mapped readable.
pub unsafe fn refresh_lines(start: *const u8, length: usize) -> u64 {
    // SAFETY: by the caller's contract.
    unsafe { refresh_lines_by(refresh_method(), start, length) }
}

/// As [`refresh_lines`], with an instruction chosen by the caller. If this CPU does not support it,
/// or if it would keep the line, the default is used.
///
/// # Safety
/// As [`refresh_lines`].
pub unsafe fn refresh_lines_by(method: Method, start: *const u8, length: usize) -> u64 {
    // SAFETY: by the caller's contract.
    unsafe { refresh_ranges_by(method, std::iter::once((start, length))) }
}

/// As [`refresh_lines_by`] for several ranges, with one pair of fences.
///
/// # Safety
/// As [`refresh_lines`], for each range.
pub(crate) unsafe fn refresh_ranges_by(
    method: Method,
    ranges: impl Iterator<Item = (*const u8, usize)>,
) -> u64 {
    let chosen = chosen();
    let method = if method.can_refresh() { method } else { chosen.refresh };
    isa::fence_before_refresh();
    // SAFETY: by the caller's contract; a line never crosses a page; the CPU has the instruction.
    let each =
        ranges.map(|(at, length)| unsafe { each_line(at, length, chosen.line_bytes, method) });
    let lines = each.sum();
    isa::fence_after_refresh();
    lines
}

/// Orders earlier non-temporal stores and write-backs before all later stores.
pub fn publish_fence() {
    isa::fence_after_publish();
}

/// # Safety
/// The pages of the range are mapped readable.
unsafe fn each_line(start: *const u8, length: usize, line_bytes: u32, method: Method) -> u64 {
    let line = line_bytes as usize;
    let lines = lines_around(start, length);
    if lines > 0 {
        let first = start.wrapping_sub(start.addr() % line);
        // SAFETY: these are the lines that the caller's range touches, all in its mapped pages.
        unsafe { isa::maintain(method, first, lines as usize, line) };
    }
    lines
}

/// Number of lines that a range touches.
pub(crate) fn lines_around(start: *const u8, length: usize) -> u64 {
    let line = chosen().line_bytes as usize;
    match length {
        0 => 0,
        _ => (start.addr() % line + length).div_ceil(line) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer for tests that need room for several lines.
    fn page() -> Vec<u64> {
        vec![0; 4096]
    }

    #[test]
    fn the_line_is_a_power_of_two() {
        assert!(line_bytes().is_power_of_two());
        assert!((8..=4096).contains(&line_bytes()));
    }

    #[test]
    fn the_methods_are_among_those_available() {
        let available = methods_available();
        assert!(available.contains(&publish_method()), "{available:?}");
        assert!(available.contains(&refresh_method()), "{available:?}");
        assert!(refresh_method().drops_line() || refresh_method() == Method::FenceOnly);
        for method in available {
            assert_eq!(Method::of_name(method.as_str()), Some(method));
        }
        assert_eq!(Method::of_name("wbinvd"), None);
    }

    #[test]
    fn lines_are_counted_around_the_range() {
        let bytes = page();
        let line = line_bytes() as usize;
        let start = bytes.as_ptr().cast::<u8>();
        let first = start.wrapping_add(start.align_offset(line));
        for (phase, length, expected) in [
            (0, 0, 0),
            (0, 1, 1),
            (0, line, 1),
            (0, line + 1, 2),
            (line - 1, 1, 1),
            (line - 1, 2, 2),
            (3, 10 * line, 11),
        ] {
            let at = first.wrapping_add(phase);
            // SAFETY: at most 12 lines into the 32 KiB of `bytes`.
            let (published, refreshed) =
                unsafe { (publish_lines(at, length), refresh_lines(at, length)) };
            assert_eq!((published, refreshed), (expected, expected), "{phase} {length}");
        }
    }

    #[test]
    fn maintenance_keeps_what_memory_holds() {
        let mut bytes: Vec<u8> = (0..100_000u32).map(|index| (index * 31) as u8).collect();
        // SAFETY: the range is this vector.
        unsafe {
            publish_lines(bytes.as_ptr(), bytes.len());
            refresh_lines(bytes.as_ptr(), bytes.len());
        }
        assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == (index * 31) as u8));
        bytes[777] = 1;
        // SAFETY: the range is this vector.
        unsafe { refresh_lines(bytes.as_ptr(), bytes.len()) };
        assert_eq!(bytes[777], 1);
    }

    #[test]
    fn every_method_of_this_cpu_runs() {
        let bytes = page();
        let line = line_bytes() as usize;
        let start = bytes.as_ptr().cast::<u8>();
        let first = start.wrapping_add(start.align_offset(line));
        for method in methods_available() {
            // SAFETY: four lines inside `bytes`.
            unsafe { isa::maintain(method, first, 4, line) };
        }
        publish_fence();
        isa::fence_after_refresh();
    }

    #[test]
    fn a_method_that_cannot_do_it_is_not_used() {
        let mut bytes = page();
        for method in [Method::Clwb, Method::Clflush, Method::DcCvac, Method::Dcbf] {
            bytes[9] += 1;
            // SAFETY: the range is this vector; executing an unsupported instruction would be a
            // SIGILL.
            let lines = unsafe {
                publish_lines_by(method, bytes.as_ptr().cast(), 8 * bytes.len())
                    + refresh_lines_by(method, bytes.as_ptr().cast(), 8 * bytes.len())
            };
            assert!(lines >= 2 * 8 * bytes.len() as u64 / u64::from(line_bytes()));
        }
        assert_eq!(bytes[9], 4);
        assert!(!Method::Clwb.can_refresh() && !Method::DcCvac.can_refresh());
    }
}
