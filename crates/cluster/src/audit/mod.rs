//! The audit log: who created and deleted objects, and what was refused, as lines of JSON.
//!
//! The event loop queues records and never waits: beyond a limit they are counted instead, and the
//! log has their number. A thread writes them. A line that the file system refuses is counted, too.

mod file;
mod line;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use farrow_memory::sync::{AtomicU64, Ordering};

use file::AuditFile;

/// Limit on queued lines. With the longest names they take some 40 MiB; the writer is then half a
/// second behind.
const LINES_QUEUED_MAX: u64 = 1 << 16;

/// Time that the end of the node waits for the writer: a file system that hangs must not hold it up.
const END_MAX: Duration = Duration::from_secs(2);

/// A client, as it is recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Actor {
    /// Process id; of another node's client, as that node reports it.
    pub(crate) pid: u32,
    /// User id, likewise.
    pub(crate) uid: u32,
    /// The other node.
    pub(crate) node: Option<String>,
    pub(crate) namespace: String,
}

/// What became of one object, or of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AuditItem {
    pub(crate) name: Option<String>,
    /// The two halves of its id.
    pub(crate) id: Option<(u64, u64)>,
    pub(crate) bytes: Option<u64>,
    /// How many objects or lines, if the line stands for several.
    pub(crate) count: Option<u64>,
    /// The kind of the error and its text. `None`: it succeeded.
    pub(crate) error: Option<(&'static str, String)>,
}

/// What one request, or the node itself, did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AuditRecord {
    /// Nanoseconds since 1970.
    pub(crate) wall_ns: u64,
    pub(crate) action: &'static str,
    /// `None`: the node itself.
    pub(crate) actor: Option<Actor>,
    /// One line each.
    pub(crate) items: Vec<AuditItem>,
}

/// Lines since the start.
#[derive(Debug, Default)]
struct AuditCounts {
    written: AtomicU64,
    /// Neither written nor to be written.
    dropped: AtomicU64,
    queued: AtomicU64,
}

/// The event loop's side of the audit log.
#[derive(Debug)]
pub(crate) struct AuditLog {
    /// `None`: the log ends.
    records: Option<Sender<AuditRecord>>,
    counts: Arc<AuditCounts>,
    ended: Receiver<()>,
}

impl AuditLog {
    /// Opens the file, and starts the thread that writes to it. `is_restart`: a file that cannot be
    /// opened is no reason to lose what is in memory, and is tried again.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or is not a regular one, or there is no thread.
    pub(crate) fn open(path: &Path, is_restart: bool) -> std::io::Result<Self> {
        let mut file = AuditFile::new(path);
        match file.open() {
            Err(error) if is_restart => {
                tracing::error!(path = %path.display(), %error, "the audit log is not written");
            }
            opened => opened?,
        }
        let (records, queue) = channel();
        let (end, ended) = channel();
        let counts = Arc::new(AuditCounts::default());
        let of_thread = Arc::clone(&counts);
        std::thread::Builder::new().name("farrow-audit".into()).spawn(move || {
            writer::run(&queue, &mut file, &of_thread);
            drop(end);
        })?;
        Ok(Self { records: Some(records), counts, ended })
    }

    /// Queues a record, or counts its lines if too many wait.
    pub(crate) fn push(&self, record: AuditRecord) {
        let lines = record.items.len() as u64;
        let queued = self.counts.queued.fetch_add(lines, Ordering::Relaxed);
        let has_room = queued.saturating_add(lines) <= LINES_QUEUED_MAX;
        let is_queued =
            has_room && self.records.as_ref().is_some_and(|records| records.send(record).is_ok());
        if !is_queued {
            self.counts.queued.fetch_sub(lines, Ordering::Relaxed);
            self.counts.dropped.fetch_add(lines, Ordering::Relaxed);
        }
    }

    /// Lines written and dropped since the start.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.counts.written), load(&self.counts.dropped))
    }
}

impl Drop for AuditLog {
    /// Waits until the queue is written, for a limited time.
    fn drop(&mut self) {
        self.records = None;
        // The thread drops the other end.
        if self.ended.recv_timeout(END_MAX) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::error!("the end of the audit log is not written: its file system hangs");
        }
    }
}
