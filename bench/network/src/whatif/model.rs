//! A model of a set-associative LRU cache, driven by the lines that a search touches.

use serde::Serialize;
use std::path::Path;

/// Bytes of a cache line of all machines of [`super::LINKS`] except Power10 (128).
pub const LINE_BYTES: u64 = 64;

/// The shape of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LineCacheShape {
    /// Bytes of data.
    pub bytes: u64,
    /// Lines of one set.
    pub ways: u64,
}

/// The shape if the system describes no cache: 32 MiB, 16 ways.
const UNKNOWN: LineCacheShape = LineCacheShape { bytes: 32 << 20, ways: 16 };

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_suffix('K') {
        Some(kilobytes) => kilobytes.parse::<u64>().ok()?.checked_mul(1024),
        None => text.parse().ok(),
    }
}

/// The number of CPUs in a list such as `0-3,8`.
fn cpus(list: &str) -> Option<u64> {
    let count = |part: &str| match part.split_once('-') {
        None => part.trim().parse::<u64>().ok().map(|_| 1),
        Some((from, to)) => {
            let (from, to): (u64, u64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            to.checked_sub(from)?.checked_add(1)
        }
    };
    list.split(',').map(count).sum()
}

impl LineCacheShape {
    /// One core's share of the last cache that a folder such as
    /// `/sys/devices/system/cpu/cpu0/cache` describes.
    pub fn of_machine(folder: &Path) -> LineCacheShape {
        let level = |at: usize| {
            let folder = folder.join(format!("index{at}"));
            let text = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            let bytes = number(&text("size")?)?;
            let ways = number(&text("ways_of_associativity")?)?;
            let shared = cpus(&text("shared_cpu_list")?)?;
            (ways > 0 && shared > 0).then(|| LineCacheShape { bytes: bytes / shared, ways })
        };
        (0..8).filter_map(level).next_back().unwrap_or(UNKNOWN)
    }
}

/// A cache of addresses.
#[derive(Debug)]
pub struct LineCache {
    /// Lines of each set, the most recently used first.
    sets: Vec<u64>,
    ways: usize,
    count: u64,
}

/// No line.
const NONE: u64 = u64::MAX;

impl LineCache {
    /// An empty cache.
    pub fn new(shape: LineCacheShape) -> LineCache {
        let ways = shape.ways.max(1);
        let count = (shape.bytes / LINE_BYTES / ways).max(1);
        LineCache { sets: vec![NONE; (count * ways) as usize], ways: ways as usize, count }
    }

    /// Touches a line; returns whether it was missing.
    pub fn touch(&mut self, line: u64) -> bool {
        // Real caches hash addresses, too: buffers a power of two apart do not collide.
        let hash = u128::from(line.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * u128::from(self.count);
        let at = (hash >> 64) as usize * self.ways;
        let Some(set) = self.sets.get_mut(at..at + self.ways) else { return true };
        let found = set.iter().position(|&known| known == line);
        let from = found.unwrap_or(set.len() - 1);
        set.copy_within(0..from, 1);
        set[0] = line;
        found.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::{LineCache, LineCacheShape, cpus, number};

    #[test]
    fn sizes_and_lists_of_processors_are_read() {
        assert_eq!(
            (number("107520K\n"), number("12"), number("x")),
            (Some(110_100_480), Some(12), None)
        );
        assert_eq!(
            (cpus("0-3,8\n"), cpus("5"), cpus("3-1"), cpus("")),
            (Some(5), Some(1), None, None)
        );
    }

    #[test]
    fn the_line_that_was_not_used_for_longest_goes() {
        // One set of three lines.
        let mut model = LineCache::new(LineCacheShape { bytes: 192, ways: 3 });
        let missed: Vec<bool> =
            [1, 2, 3, 1, 4, 2, 1].into_iter().map(|line| model.touch(line)).collect();
        assert_eq!(missed, [true, true, true, false, true, true, false]);
    }

    #[test]
    fn what_fits_misses_once_and_a_cycle_through_more_always() {
        let mut model = LineCache::new(LineCacheShape { bytes: 64 * 8, ways: 8 });
        let misses = |model: &mut LineCache, lines: u64| {
            (0..3).flat_map(|_| 0..lines).filter(|&line| model.touch(line)).count()
        };
        assert_eq!(misses(&mut model, 8), 8);
        let mut model = LineCache::new(LineCacheShape { bytes: 64 * 8, ways: 8 });
        assert_eq!(misses(&mut model, 9), 27);
    }
}
