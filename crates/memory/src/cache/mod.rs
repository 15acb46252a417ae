//! Cache maintenance from user space, for each instruction set.
//!
//! Publishing writes lines back to memory; refreshing makes the next load fetch them from there.
//! Both act on the whole lines around a range. What an instruction set needs lies in a file of
//! its own, with the same few functions in each; which instruction is used is found at run time.
//!
//! Where the order comes from is written at each fence. Line operations are ordered with the
//! stores of the same CPU to the same line; everything else is up to the fences.

use std::sync::OnceLock;

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "powerpc64", path = "powerpc64.rs")]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "powerpc64")),
    path = "portable.rs"
)]
mod isa;

/// An instruction that maintains one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// x86-64: writes back, may keep the line.
    Clwb,
    /// x86-64: writes back and drops the line; many in flight.
    ClflushOpt,
    /// x86-64: writes back and drops the line, one after the other.
    Clflush,
    /// `AArch64`: cleans to the point of coherency.
    DcCvac,
    /// `AArch64`: cleans and invalidates to the point of coherency.
    DcCivac,
    /// POWER: stores the block, may keep it.
    Dcbst,
    /// POWER: stores the block and drops it.
    Dcbf,
    /// No instruction known for this CPU: fences only, so only for coherent fabrics.
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

    /// The method of a mnemonic, whether this CPU has it or not.
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

    /// Has this CPU the instruction?
    #[must_use]
    pub fn is_available(self) -> bool {
        chosen().available.contains(&self)
    }

    /// May [`refresh_lines_by`] use it? It must drop lines, where any instruction here does.
    #[must_use]
    pub fn can_refresh(self) -> bool {
        self.is_available() && (self.drops_line() || self == refresh_method())
    }

    /// Does the next load after it come from memory?
    #[must_use]
    pub const fn drops_line(self) -> bool {
        matches!(self, Self::ClflushOpt | Self::Clflush | Self::DcCivac | Self::Dcbf)
    }
}

/// What this CPU offers and what is used.
#[derive(Clone, Debug)]
struct Chosen {
    line_bytes: u32,
    publish: Method,
    refresh: Method,
    available: Vec<Method>,
}

/// A line is at least a word and at most a page; anything else the CPU says is not believed.
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

/// Bytes of the smallest cache line that maintenance acts on, as this CPU says.
#[must_use]
pub fn line_bytes() -> u32 {
    chosen().line_bytes
}

/// The instruction used to publish where no [profile](crate::profile) says better.
#[must_use]
pub fn publish_method() -> Method {
    chosen().publish
}

/// The instruction used to refresh where no [profile](crate::profile) says better.
#[must_use]
pub fn refresh_method() -> Method {
    chosen().refresh
}

/// Everything this CPU could use.
#[must_use]
pub fn methods_available() -> Vec<Method> {
    chosen().available.clone()
}

/// Writes the lines around `[start, start + length)` back to memory, then fences. Returns how many
/// lines there were.
///
/// # Safety
/// The pages of the range are mapped readable.
pub unsafe fn publish_lines(start: *const u8, length: usize) -> u64 {
    // SAFETY: passed on to the caller.
    unsafe { publish_lines_by(publish_method(), start, length) }
}

/// As [`publish_lines`], by an instruction of the caller's. One this CPU lacks is not used.
///
/// # Safety
/// As [`publish_lines`].
pub unsafe fn publish_lines_by(method: Method, start: *const u8, length: usize) -> u64 {
    // SAFETY: passed on to the caller.
    unsafe { publish_ranges_by(method, std::iter::once((start, length))) }
}

/// As [`publish_lines_by`] for some ranges, with the fences of one.
///
/// # Safety
/// As [`publish_lines`], of each.
pub(crate) unsafe fn publish_ranges_by(
    method: Method,
    ranges: impl Iterator<Item = (*const u8, usize)>,
) -> u64 {
    let chosen = chosen();
    let method = if method.is_available() { method } else { chosen.publish };
    isa::fence_before_publish();
    // SAFETY: passed on to the caller; a line never crosses a page; the CPU has the instruction.
    let each =
        ranges.map(|(at, length)| unsafe { each_line(at, length, chosen.line_bytes, method) });
    let lines = each.sum();
    isa::fence_after_publish();
    lines
}

/// Makes the loads that follow see memory for the lines around the range. Returns how many there
/// were. A dirty line is written back: a node refreshes only what it does not write.
///
/// # Safety
/// The pages of the range are mapped readable.
pub unsafe fn refresh_lines(start: *const u8, length: usize) -> u64 {
    // SAFETY: passed on to the caller.
    unsafe { refresh_lines_by(refresh_method(), start, length) }
}

/// As [`refresh_lines`], by an instruction of the caller's. One this CPU lacks, or that would keep
/// the line, is not used.
///
/// # Safety
/// As [`refresh_lines`].
pub unsafe fn refresh_lines_by(method: Method, start: *const u8, length: usize) -> u64 {
    // SAFETY: passed on to the caller.
    unsafe { refresh_ranges_by(method, std::iter::once((start, length))) }
}

/// As [`refresh_lines_by`] for some ranges, with the fences of one.
///
/// # Safety
/// As [`refresh_lines`], of each.
pub(crate) unsafe fn refresh_ranges_by(
    method: Method,
    ranges: impl Iterator<Item = (*const u8, usize)>,
) -> u64 {
    let chosen = chosen();
    let method = if method.can_refresh() { method } else { chosen.refresh };
    isa::fence_before_refresh();
    // SAFETY: passed on to the caller; a line never crosses a page; the CPU has the instruction.
    let each =
        ranges.map(|(at, length)| unsafe { each_line(at, length, chosen.line_bytes, method) });
    let lines = each.sum();
    isa::fence_after_refresh();
    lines
}

/// Orders earlier non-temporal stores and write-backs before all that follows.
pub fn publish_fence() {
    isa::fence_after_publish();
}

/// Loads after it are not older than it.
pub fn refresh_fence() {
    isa::fence_after_refresh();
}

/// # Safety
/// The pages of the range are mapped readable.
unsafe fn each_line(start: *const u8, length: usize, line_bytes: u32, method: Method) -> u64 {
    let line = line_bytes as usize;
    let lines = lines_around(start, length);
    if lines > 0 {
        let first = start.wrapping_sub(start.addr() % line);
        // SAFETY: these are the lines around the caller's range, all in its mapped pages.
        unsafe { isa::maintain(method, first, lines as usize, line) };
    }
    lines
}

/// How many lines lie around a range.
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

    /// Page-aligned bytes, so that phases are what the test says.
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
        refresh_fence();
    }

    #[test]
    fn a_method_that_cannot_do_it_is_not_used() {
        let mut bytes = page();
        for method in [Method::Clwb, Method::Clflush, Method::DcCvac, Method::Dcbf] {
            bytes[9] += 1;
            // SAFETY: the range is this vector; an instruction of another CPU would be a SIGILL.
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
