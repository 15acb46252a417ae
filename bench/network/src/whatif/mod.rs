//! The cost of the same search in remote memory of other speeds, by the thesis' formula: the local
//! time, plus for each miss the difference between remote and local latency.

mod counter;
mod model;
mod rows;
mod wait;

pub use counter::EventCounter;
pub use model::{LINE_BYTES, LineCache, LineCacheShape};
pub use rows::{RemoteMemory, Touched};
pub use wait::LineWait;

use std::time::Instant;

/// A link to remote memory.
#[derive(Clone, Copy, Debug)]
pub struct MemoryLink {
    /// Its name.
    pub name: &'static str,
    /// Latency of a load of one line, in ns.
    pub latency_ns: f64,
}

/// Links with a published latency: ThymesisFlow (the thesis' prototype), CXL memory, direct and
/// behind a switch, and Power10's memory inception as announced.
pub const LINKS: [MemoryLink; 4] = [
    MemoryLink { name: "ThymesisFlow", latency_ns: 900.0 },
    MemoryLink { name: "CXL, switched", latency_ns: 400.0 },
    MemoryLink { name: "CXL, direct", latency_ns: 170.0 },
    MemoryLink { name: "Power10", latency_ns: 150.0 },
];

/// The median; of an even count the lower of both middle values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or(f64::NAN)
}

/// Seconds that a search would take.
pub fn predicted(local_seconds: f64, misses: u64, remote_ns: f64, local_ns: f64) -> f64 {
    local_seconds + misses as f64 * (remote_ns - local_ns).max(0.0) * 1e-9
}

/// Parts of a pointer chase; the fastest counts, because other programs use this machine too.
const SLICES: u32 = 40;

/// Latency of an uncached load, in ns: a pointer chase through `bytes` of memory, line by line in
/// an order that prefetchers cannot predict.
pub fn local_latency_ns(bytes: usize, steps: u32) -> f64 {
    let words_of_line = LINE_BYTES as usize / size_of::<u32>();
    let lines = (bytes / LINE_BYTES as usize).max(2);
    // Sattolo's shuffle: one cycle through all lines.
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    for at in (1..lines).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(at, ((u128::from(random) * at as u128) >> 64) as usize);
    }
    let mut memory = vec![0u32; lines * words_of_line];
    for (line, next) in order.iter().enumerate() {
        memory[line * words_of_line] = *next;
    }
    drop(order);
    let (mut at, mut best) = (0u32, f64::INFINITY);
    let steps = (steps / SLICES).max(1);
    for _ in 0..SLICES {
        let began = Instant::now();
        for _ in 0..steps {
            at = memory[at as usize * words_of_line];
        }
        best = best.min(began.elapsed().as_secs_f64());
    }
    std::hint::black_box(at);
    best * 1e9 / f64::from(steps)
}

#[cfg(test)]
mod tests {
    use super::{median, predicted};

    #[test]
    fn one_slow_run_does_not_count() {
        assert_eq!(median(vec![1.0, 9.0, 2.0]).to_bits(), 2f64.to_bits());
        assert_eq!(median(vec![4.0, 3.0]).to_bits(), 3f64.to_bits());
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn each_miss_adds_what_remote_memory_takes_longer() {
        assert!((predicted(1.0, 1_000_000, 900.0, 100.0) - 1.8).abs() < 1e-9);
        // No link is faster than memory here.
        assert!((predicted(1.0, 1_000_000, 50.0, 100.0) - 1.0).abs() < 1e-9);
    }
}
