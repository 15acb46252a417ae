//! How much to bring for a page fault: one chunk, and more for a reader that reads on.

use super::CHUNK_BYTES;
use crate::units::{Length, Offset, Span};

/// The most that is brought for one fault: a few milliseconds of a fast network.
const WINDOW_BYTES_MAX: u64 = 4 << 20;

/// Readers that are recognized at a time, for example of columns that are read side by side.
const READERS_MAX: usize = 32;

/// One who reads on.
#[derive(Debug, Clone, Copy)]
struct SequentialReader {
    /// Where the next fault is expected.
    next: u64,
    window: u64,
}

/// The readers of an object. Offsets are those of its file.
#[derive(Debug)]
pub struct ReadAhead {
    /// Where the buffers end, in order.
    ends: Vec<u64>,
    /// Least recently seen first.
    readers: Vec<SequentialReader>,
}

impl ReadAhead {
    /// `ends`: where the buffers end, in any order.
    #[must_use]
    pub fn new(mut ends: Vec<u64>) -> Self {
        ends.sort_unstable();
        Self { ends, readers: Vec::new() }
    }

    /// The range to bring for a fault. It starts at or before the fault, at a multiple of a chunk,
    /// and ends with the buffer at the latest: the next one may never be read.
    pub fn span_for(&mut self, fault: Offset) -> Span {
        let start = fault.0 - fault.0 % CHUNK_BYTES;
        let reader = self.readers.iter().position(|one| one.next == start);
        let window = match reader {
            Some(index) => (self.readers.remove(index).window * 2).min(WINDOW_BYTES_MAX),
            None => CHUNK_BYTES,
        };
        let after = self.ends.partition_point(|end| *end <= fault.0);
        let buffer_end = self.ends.get(after).copied().unwrap_or(u64::MAX);
        let last = buffer_end.saturating_add(CHUNK_BYTES - 1);
        let last = last - last % CHUNK_BYTES;
        let end = start.saturating_add(window).min(last.max(start + CHUNK_BYTES));
        if self.readers.len() >= READERS_MAX {
            self.readers.remove(0);
        }
        self.readers.push(SequentialReader { next: end, window });
        Span::new(Offset(start), Length(end - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(ahead: &mut ReadAhead, at: u64) -> (u64, u64) {
        let span = ahead.span_for(Offset(at));
        (span.offset.0, span.length.0)
    }

    #[test]
    fn a_sequential_reader_gets_more_each_time_up_to_the_end_of_its_buffer() {
        let end = 3 * CHUNK_BYTES + 40 * WINDOW_BYTES_MAX;
        let mut ahead = ReadAhead::new(vec![end, 2 * CHUNK_BYTES]);
        let mut at = 2 * CHUNK_BYTES;
        let mut sizes = Vec::new();
        while at < end {
            let (start, bytes) = bytes_of(&mut ahead, at);
            assert_eq!(start, at);
            sizes.push(bytes);
            at += bytes;
        }
        assert_eq!(at, end);
        assert_eq!(sizes[..3], [CHUNK_BYTES, 2 * CHUNK_BYTES, 4 * CHUNK_BYTES]);
        assert_eq!(sizes[10], WINDOW_BYTES_MAX);
    }

    #[test]
    fn other_readers_get_one_chunk_each() {
        let mut ahead = ReadAhead::new(vec![100 * CHUNK_BYTES]);
        for at in [50, 20, 70, 10] {
            let found = bytes_of(&mut ahead, at * CHUNK_BYTES + 4096);
            assert_eq!(found, (at * CHUNK_BYTES, CHUNK_BYTES));
        }
        // Two that alternate are both seen.
        for (at, chunks) in [(51, 2), (21, 2), (53, 4), (23, 4)] {
            let found = bytes_of(&mut ahead, at * CHUNK_BYTES);
            assert_eq!(found, (at * CHUNK_BYTES, chunks * CHUNK_BYTES));
        }
        for at in 0..1000 {
            bytes_of(&mut ahead, at * 3 * CHUNK_BYTES);
        }
        assert!(ahead.readers.len() <= READERS_MAX);
    }
}
