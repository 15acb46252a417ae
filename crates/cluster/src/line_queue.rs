//! Lines that a thread writes, so that the event loop never waits for a disk, a terminal or the
//! reader of a pipe.
//!
//! The queue is bounded. Lines beyond the limit are counted, and so are lines that cannot be
//! written. The next line that is written has their number.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farrow_memory::sync::{AtomicU64, Ordering};
use time::OffsetDateTime;

/// Bytes after which lines are written, so that a burst costs few system calls and little memory.
const WRITE_BYTES: usize = 1 << 20;

/// A buffer that grew beyond this is freed.
const RETAINED_BYTES_MAX: usize = 64 << 10;

/// Time that the end of the node waits for the writer: a file system that hangs, or a pipe that is
/// not read, must not hold it up.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Where lines are written.
pub(crate) trait LineSink {
    /// Writes whole lines. After an error, part of them may be written.
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()>;

    /// The first error after a success, or `None`: the first success after an error.
    fn changed(&mut self, _error: Option<&io::Error>) {}
}

/// One or several lines that are queued together.
pub(crate) trait LineRecord: Send + 'static {
    /// The number of lines.
    fn lines(&self) -> u64;

    /// Bytes of memory that they occupy.
    fn bytes(&self) -> u64;

    /// Appends the lines.
    fn append(&self, out: &mut Vec<u8>);

    /// The record that stands for missing lines.
    fn missing(lines: u64) -> Self;
}

/// Counts since the start.
#[derive(Debug, Default)]
struct LineCounts {
    /// Lines.
    written: AtomicU64,
    /// Lines that are neither written nor to be written.
    dropped: AtomicU64,
    /// Bytes of the records that wait.
    queued_bytes: AtomicU64,
}

#[derive(Debug)]
enum Item<R> {
    Record(R),
    /// Gets a message when everything before it is written, or refused.
    Flush(Sender<()>),
}

/// The side of a queue that never waits.
#[derive(Debug)]
pub(crate) struct LineQueue<R> {
    items: Sender<Item<R>>,
    counts: Arc<LineCounts>,
    bytes_max: u64,
}

impl<R: LineRecord> LineQueue<R> {
    /// Starts the thread that writes, which ends after the queue is dropped. `bytes_max`: limit on
    /// the bytes that wait.
    ///
    /// # Errors
    ///
    /// There is no thread.
    pub(crate) fn start(
        thread: &str,
        mut sink: impl LineSink + Send + 'static,
        bytes_max: u64,
    ) -> io::Result<Self> {
        let (items, queue) = channel();
        let counts = Arc::new(LineCounts::default());
        let of_thread = Arc::clone(&counts);
        let thread = std::thread::Builder::new().name(thread.into());
        thread.spawn(move || run(&queue, &mut sink, &of_thread))?;
        Ok(Self { items, counts, bytes_max })
    }

    /// Queues a record, or counts its lines if too many bytes wait.
    pub(crate) fn push(&self, record: R) {
        let (lines, bytes) = (record.lines(), record.bytes());
        let queued = self.counts.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = queued.saturating_add(bytes) <= self.bytes_max;
        if !(has_room && self.items.send(Item::Record(record)).is_ok()) {
            self.counts.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }

    /// Lines written and dropped since the start.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.counts.written), load(&self.counts.dropped))
    }

    /// Waits until the queue is written, for a limited time. Returns whether it is.
    pub(crate) fn flush(&self) -> bool {
        let (end, ended) = channel();
        self.items.send(Item::Flush(end)).is_ok() && ended.recv_timeout(FLUSH_MAX).is_ok()
    }
}

/// Writes records until the other side of the queue is dropped.
fn run<R: LineRecord>(queue: &Receiver<Item<R>>, sink: &mut dyn LineSink, counts: &LineCounts) {
    let mut reported = 0;
    let mut is_failing = false;
    let mut out = Vec::new();
    while let Ok(first) = queue.recv() {
        out.clear();
        let dropped = counts.dropped.load(Ordering::Relaxed);
        let has_note = dropped > reported;
        if has_note {
            R::missing(dropped - reported).append(&mut out);
        }
        let (mut lines, mut bytes, mut flush) = (0, 0, None);
        let mut next = Some(first);
        while let Some(item) = next {
            match item {
                Item::Record(record) => {
                    lines += record.lines();
                    bytes += record.bytes();
                    record.append(&mut out);
                }
                Item::Flush(end) => flush = Some(end),
            }
            let is_full = out.len() >= WRITE_BYTES || flush.is_some();
            next = if is_full { None } else { queue.try_recv().ok() };
        }
        counts.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let written = if out.is_empty() { Ok(()) } else { sink.write_lines(&out) };
        match &written {
            Ok(()) => {
                counts.written.fetch_add(lines, Ordering::Relaxed);
                reported = if has_note { dropped } else { reported };
            }
            Err(_) => drop(counts.dropped.fetch_add(lines, Ordering::Relaxed)),
        }
        if !out.is_empty() && written.is_err() != is_failing {
            is_failing = written.is_err();
            sink.changed(written.err().as_ref());
        }
        out.shrink_to(RETAINED_BYTES_MAX);
        if let Some(end) = flush {
            // The other side may have stopped waiting.
            let _ = end.send(());
        }
    }
}

/// A time in UTC, as RFC 3339 has it, with microseconds. `wall_ns`: nanoseconds since 1970.
pub(crate) fn utc(wall_ns: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(wall_ns.into());
    let at = at.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let (hour, minute, second) = (at.hour(), at.minute(), at.second());
    let micros = at.microsecond();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Nanoseconds since 1970 by the wall clock.
pub(crate) fn wall_clock_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use super::*;

    /// A file system that is full for some writes.
    struct Disk {
        fails: u32,
        lines: Vec<String>,
        changes: Vec<bool>,
        /// Gets a message for each write.
        writes: Sender<bool>,
    }

    impl LineSink for &mut Disk {
        fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
            let is_full = self.fails > 0;
            self.fails = self.fails.saturating_sub(1);
            let _ = self.writes.send(is_full);
            if is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let text = String::from_utf8(lines.to_vec()).unwrap();
            self.lines.extend(text.lines().map(str::to_owned));
            Ok(())
        }

        fn changed(&mut self, error: Option<&io::Error>) {
            self.changes.push(error.is_some());
        }
    }

    /// Two lines of a number.
    struct Two(u64);

    impl LineRecord for Two {
        fn lines(&self) -> u64 {
            2
        }

        fn bytes(&self) -> u64 {
            100
        }

        fn append(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(format!("{0}\n{0}\n", self.0).as_bytes());
        }

        fn missing(lines: u64) -> Self {
            Self(1000 + lines)
        }
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted_in_the_log_once_there_is_room() {
        let counts = Arc::new(LineCounts::default());
        let (items, queue) = channel();
        let (writes, written) = channel();
        let mut disk = Disk { fails: 3, lines: Vec::new(), changes: Vec::new(), writes };
        let lines = LineQueue { items, counts: Arc::clone(&counts), bytes_max: 250 };
        std::thread::scope(|scope| {
            let (disk, counts) = (&mut disk, &counts);
            scope.spawn(move || run(&queue, &mut { disk }, counts));
            for number in 0..5 {
                lines.push(Two(number));
                assert_eq!(written.recv().unwrap(), number < 3);
            }
            assert!(lines.flush());
            assert_eq!(lines.totals(), (4, 6));
            drop(lines);
        });
        assert_eq!(disk.lines, ["1006", "1006", "3", "3", "4", "4"]);
        assert_eq!(disk.changes, [true, false]);
        assert_eq!(counts.queued_bytes.load(Ordering::Relaxed), 0);
    }

    /// The reader of a pipe that has stopped.
    struct Stuck(Receiver<()>);

    impl LineSink for Stuck {
        fn write_lines(&mut self, _lines: &[u8]) -> io::Result<()> {
            let _ = self.0.recv();
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_stopped_costs_its_lines_and_no_time() {
        let (go_on, waits) = channel();
        let lines = LineQueue::start("test", Stuck(waits), 1000).unwrap();
        for number in 0..100 {
            lines.push(Two(number));
        }
        let (written, dropped) = lines.totals();
        // Ten wait, and the writer may have taken some.
        assert!(written == 0 && (160..=180).contains(&dropped), "{written} {dropped}");
        assert!(lines.counts.queued_bytes.load(Ordering::Relaxed) <= 1000);
        assert!(!lines.flush(), "nothing is written");
        drop(go_on);
        assert!(lines.flush());
        assert_eq!(lines.totals(), (200 - dropped, dropped));
    }
}
