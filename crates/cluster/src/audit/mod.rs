//! The audit log: who created and deleted objects, and what was refused, as lines of JSON.
//!
//! The event loop queues records and never waits ([`LineQueue`]). The log has the number of lines
//! that are not in it.

mod file;
mod line;

use std::path::Path;

use farrow_store::ObjectId;

use crate::line_queue::{LineQueue, LineRecord, wall_clock_ns};
use file::AuditFile;

/// Limit on the bytes of queued records, some 65,000 with the longest names; the writer is then
/// half a second behind.
const QUEUED_BYTES_MAX: u64 = 40 << 20;

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
    pub(crate) id: Option<ObjectId>,
    pub(crate) bytes: Option<u64>,
    /// How many objects or lines, if the line stands for several.
    pub(crate) count: Option<u64>,
    /// The kind of the error and its text. `None`: it succeeded.
    pub(crate) error: Option<(&'static str, String)>,
}

impl AuditItem {
    /// Bytes of memory that it occupies.
    pub(crate) fn bytes(&self) -> usize {
        let error = self.error.as_ref().map_or(0, |(_, text)| text.len());
        size_of::<Self>() + self.name.as_ref().map_or(0, String::len) + error
    }
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

impl AuditRecord {
    /// A record of this moment.
    pub(crate) fn now(action: &'static str, actor: Option<Actor>, items: Vec<AuditItem>) -> Self {
        Self { wall_ns: wall_clock_ns(), action, actor, items }
    }
}

impl LineRecord for AuditRecord {
    fn lines(&self) -> u64 {
        self.items.len() as u64
    }

    fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.items.iter().map(AuditItem::bytes).sum::<usize>()) as u64
    }

    fn append(&self, out: &mut Vec<u8>) {
        line::append(out, self);
    }

    fn missing(lines: u64) -> Self {
        let reason = format!("{lines} lines are missing before this one");
        let error = Some(("dropped", reason));
        let items = vec![AuditItem { count: Some(lines), error, ..AuditItem::default() }];
        Self::now("audit", None, items)
    }
}

/// The event loop's side of the audit log.
#[derive(Debug)]
pub(crate) struct AuditLog(LineQueue<AuditRecord>);

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
        LineQueue::start("farrow-audit", file, QUEUED_BYTES_MAX).map(Self)
    }

    /// Queues a record, or counts its lines if too many wait.
    pub(crate) fn push(&self, record: AuditRecord) {
        self.0.push(record);
    }

    /// Lines written and dropped since the start.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.0.totals()
    }
}

impl Drop for AuditLog {
    /// Waits until the queue is written, for a limited time.
    fn drop(&mut self) {
        if !self.0.flush() {
            tracing::error!("the end of the audit log is not written: its file system hangs");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_in_the_log_are_one_line_with_their_number() {
        let mut out = Vec::new();
        AuditRecord::missing(7).append(&mut out);
        let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((line["action"].as_str(), line["count"].as_u64()), (Some("audit"), Some(7)));
        assert_eq!(line["result"], "dropped");
    }

    #[test]
    fn a_record_takes_the_bytes_of_its_names_and_errors() {
        let error = Some(("denied", "x".repeat(50)));
        let item = AuditItem { name: Some("x".repeat(100)), error, ..AuditItem::default() };
        let bytes = |count| AuditRecord::now("create", None, vec![item.clone(); count]).bytes();
        assert_eq!(bytes(3) - bytes(1), 2 * (150 + size_of::<AuditItem>() as u64));
    }
}
