//! Where the files of a test lie.

use std::path::Path;

use tempfile::TempDir;

/// A directory on tmpfs if there is one, else in the directory for temporary files.
///
/// # Panics
/// If neither is writable.
#[must_use]
pub fn shared_dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    tempfile::tempdir_in(shm).or_else(|_| tempfile::tempdir()).expect("a directory to write")
}
