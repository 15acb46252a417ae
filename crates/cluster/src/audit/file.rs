//! The file of the audit log, which other programs may move away.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::line_queue::LineSink;

/// The permissions of all users, which a log never has.
const ALL_USERS: u32 = 0o007;

/// Interval of checks whether the file was moved.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file that lines are appended to. If it was moved or removed, another one takes its place.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    /// The open file, its device and inode, and when the path was last compared with them.
    open: Option<(File, (u64, u64), Instant)>,
    /// A failed write may have left half of a line.
    has_half_line: bool,
}

impl AuditFile {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), open: None, has_half_line: false }
    }

    /// Opens the file, or creates it for its owner alone. One that existed before loses the
    /// permissions of all users; those of its group stay.
    pub(super) fn open(&mut self) -> io::Result<()> {
        self.open = None;
        // A pipe without a reader must not block, and is refused below.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).custom_flags(flags);
        let file = file.open(&self.path)?;
        let about = file.metadata()?;
        if !about.is_file() {
            let text = format!("{}: not a regular file", self.path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        close_to_all(&file, &about, &self.path);
        self.open = Some((file, (about.dev(), about.ino()), Instant::now()));
        self.has_half_line = false;
        Ok(())
    }

    /// Opens the file again if it was moved.
    fn refresh(&mut self) -> io::Result<()> {
        let path = &self.path;
        let is_moved = self.open.as_mut().is_none_or(|(_, identity, looked)| {
            if looked.elapsed() < LOOK_EVERY {
                return false;
            }
            *looked = Instant::now();
            let about = std::fs::metadata(path);
            about.map_or(true, |about| (about.dev(), about.ino()) != *identity)
        });
        if is_moved { self.open() } else { Ok(()) }
    }
}

/// Removes the permissions of all users. Only the owner of a file can: the log of another one is
/// still written, with a warning.
fn close_to_all(file: &File, about: &Metadata, path: &Path) {
    let mode = about.mode() & 0o7777;
    if mode & ALL_USERS == 0 {
        return;
    }
    let (path, mode) = (path.display(), format!("{mode:04o}"));
    let closed = Permissions::from_mode(about.mode() & 0o7777 & !ALL_USERS);
    match file.set_permissions(closed) {
        Ok(()) => tracing::warn!(%path, mode, "the audit log was open to all users: no longer"),
        Err(error) => {
            tracing::warn!(%path, mode, %error, "the audit log stays open to all users");
        }
    }
}

impl LineSink for AuditFile {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        self.refresh()?;
        let Some((file, ..)) = &mut self.open else {
            return Err(io::ErrorKind::NotFound.into());
        };
        // The rest of a half line is lost; a reader finds it alone in its line.
        let ended = if self.has_half_line { file.write_all(b"\n") } else { Ok(()) };
        let written = ended.and_then(|()| file.write_all(lines));
        self.has_half_line = written.is_err();
        written
    }

    fn changed(&mut self, error: Option<&io::Error>) {
        match error {
            Some(error) => {
                tracing::error!(%error, "the audit log is not written: its lines are counted");
            }
            None => tracing::warn!("the audit log is written again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_is_made_again_and_nothing_is_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("audit"), dir.path().join("audit.1"));
        let mut file = AuditFile::new(&path);
        file.write_lines(b"1\n").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::rename(&path, &moved).unwrap();
        let mut lines = 1;
        // Lines of the next second are still in the moved file.
        while !path.exists() {
            lines += 1;
            file.write_lines(format!("{lines}\n").as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            assert!(lines < 600, "the file is not made again");
        }
        let text = [&moved, &path].map(|path| std::fs::read_to_string(path).unwrap()).concat();
        let expected: String = (1..=lines).map(|line| format!("{line}\n")).collect();
        assert_eq!(text, expected);
    }

    /// A file that existed before, such as one that `logrotate` creates, kept its mode: all users
    /// could read the names of all objects.
    #[test]
    fn a_log_that_existed_before_is_closed_to_all_users_and_its_group_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        for (before, after) in
            [(0o666, 0o660), (0o644, 0o640), (0o604, 0o600), (0o640, 0o640), (0o600, 0o600)]
        {
            std::fs::write(&path, "earlier\n").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            AuditFile::new(&path).write_lines(b"1\n").unwrap();
            let mode = std::fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(mode, after, "{before:o} became {mode:o}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "earlier\n1\n");
        }
    }

    #[test]
    fn only_a_regular_file_is_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&pipe, Path::new("/dev/null"), dir.path(), &dir.path().join("no/file")] {
            AuditFile::new(path).open().unwrap_err();
        }
    }
}
