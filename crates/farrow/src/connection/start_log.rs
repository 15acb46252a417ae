//! The messages of a private node: an error repeats them if it does not start.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::process::Stdio;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

/// Bytes of messages that are stored, more than a start writes. Nothing reads the messages of a node
/// that serves, and the memory is free only when the node ends.
const BYTES_MAX: u64 = 256 << 10;

/// Bytes that an error repeats, from the end of the messages.
const LAST_WORDS_MAX: u64 = 2048;

/// A file in memory that cannot grow: beyond its end, a write of the node fails.
#[derive(Debug)]
pub(super) struct StartLog(File);

impl StartLog {
    pub(super) fn new() -> io::Result<Self> {
        let file = memfd_create("farrowd-log", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, BYTES_MAX)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        Ok(Self(file.into()))
    }

    /// The standard error of the node.
    pub(super) fn stdio(&self) -> io::Result<Stdio> {
        self.0.try_clone().map(Stdio::from)
    }

    /// The end of what the node wrote before it ended.
    pub(super) fn last_words(mut self) -> String {
        let mut words = Vec::new();
        // The node wrote at the position of this file: both have one open file.
        let end = self.0.stream_position().unwrap_or_default();
        let from = end.saturating_sub(LAST_WORDS_MAX);
        if self.0.seek(SeekFrom::Start(from)).is_ok() {
            let _ = self.0.take(end - from).read_to_end(&mut words);
        }
        String::from_utf8_lossy(&words).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;

    fn written(script: &str) -> StartLog {
        let log = StartLog::new().unwrap();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).stderr(log.stdio().unwrap());
        shell.status().unwrap();
        log
    }

    #[test]
    fn the_last_words_of_a_daemon_are_the_end_of_its_log() {
        assert_eq!(written("echo no room >&2").last_words(), "no room\n");
        assert_eq!(written("true").last_words(), "");
        let words = written("yes 'it starts' | head -1000 >&2; echo no room >&2").last_words();
        assert!(words.ends_with("it starts\nno room\n"), "{words}");
        assert_eq!(words.len() as u64, LAST_WORDS_MAX);
    }

    /// The file grew with each message of a node for as long as the node served.
    #[test]
    fn the_log_of_a_node_that_serves_does_not_grow() {
        let log = written("yes 'it serves' | head -c 1000000 >&2");
        let about = log.0.metadata().unwrap();
        assert_eq!(about.len(), BYTES_MAX);
        assert!(about.blocks() * 512 <= BYTES_MAX, "{} blocks", about.blocks());
        let words = log.last_words();
        assert!(words.contains("\nit serves\n") && !words.contains('\0'), "{words}");
    }
}
