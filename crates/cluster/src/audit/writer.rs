//! The thread that writes the audit log.

use std::sync::mpsc::Receiver;
use std::time::{SystemTime, UNIX_EPOCH};

use farrow_memory::sync::Ordering;

use super::file::LineSink;
use super::{AuditCounts, AuditItem, AuditRecord, line};

/// Records of one write, so that a burst costs few system calls.
const RECORDS_PER_WRITE: usize = 256;

/// Writes records until the event loop drops its side.
pub(super) fn run(queue: &Receiver<AuditRecord>, sink: &mut dyn LineSink, counts: &AuditCounts) {
    let mut reported = 0;
    let mut is_failing = false;
    let mut out = Vec::new();
    while let Ok(first) = queue.recv() {
        out.clear();
        let dropped = counts.dropped.load(Ordering::Relaxed);
        let has_note = dropped > reported;
        if has_note {
            line::append(&mut out, &note_of(dropped - reported));
        }
        let mut lines = 0;
        for record in std::iter::once(first).chain(queue.try_iter().take(RECORDS_PER_WRITE - 1)) {
            lines += record.items.len() as u64;
            line::append(&mut out, &record);
        }
        counts.queued.fetch_sub(lines, Ordering::Relaxed);
        match sink.write_lines(&out) {
            Ok(()) => {
                counts.written.fetch_add(lines, Ordering::Relaxed);
                if has_note {
                    reported = dropped;
                }
                if std::mem::take(&mut is_failing) {
                    tracing::warn!("the audit log is written again");
                }
            }
            Err(error) => {
                counts.dropped.fetch_add(lines, Ordering::Relaxed);
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "the audit log is not written: its lines are counted");
                }
            }
        }
        out.shrink_to(1 << 16);
    }
}

/// The line that stands for lines that are not in the log.
fn note_of(lines: u64) -> AuditRecord {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wall_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let reason = format!("{lines} lines are missing before this one");
    let error = Some(("dropped", reason));
    let items = vec![AuditItem { count: Some(lines), error, ..AuditItem::default() }];
    AuditRecord { wall_ns, action: "audit", actor: None, items }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A file system that is full for some writes.
    struct Disk {
        fails: u32,
        lines: Vec<String>,
        /// Told of each write.
        writes: Sender<bool>,
    }

    impl LineSink for Disk {
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
    }

    fn record(number: u64) -> AuditRecord {
        let items = vec![AuditItem { bytes: Some(number), ..AuditItem::default() }; 2];
        AuditRecord { wall_ns: 0, action: "create", actor: None, items }
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted_in_the_log_once_there_is_room() {
        let counts = AuditCounts::default();
        let (records, queue) = channel();
        let (writes, written) = channel();
        let mut disk = Disk { fails: 3, lines: Vec::new(), writes };
        std::thread::scope(|scope| {
            let (disk, counts) = (&mut disk, &counts);
            scope.spawn(move || run(&queue, disk, counts));
            for number in 0..5 {
                counts.queued.fetch_add(2, Ordering::Relaxed);
                records.send(record(number)).unwrap();
                assert_eq!(written.recv().unwrap(), number < 3);
            }
            drop(records);
        });
        let lines: Vec<serde_json::Value> =
            disk.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            (lines[0]["action"].as_str(), lines[0]["count"].as_u64()),
            (Some("audit"), Some(6))
        );
        let bytes: Vec<_> = lines[1..].iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
        assert_eq!(bytes, [3, 3, 4, 4]);
        let load = |count: &farrow_memory::sync::AtomicU64| count.load(Ordering::Relaxed);
        let totals = (load(&counts.written), load(&counts.dropped), load(&counts.queued));
        assert_eq!(totals, (4, 6, 0));
    }
}
