//! Where the files of a test lie.

use tempfile::TempDir;

/// Environment variable with the directory for those of a process that is to be killed, which removes
/// none of its own.
pub const SHARED_DIR_PARENT: &str = "FARROW_TEST_SHARED_DIR";

/// A directory on tmpfs if there is one, else in the directory for temporary files.
///
/// # Panics
/// If neither is writable.
#[must_use]
pub fn shared_dir() -> TempDir {
    let parent = std::env::var_os(SHARED_DIR_PARENT).unwrap_or_else(|| "/dev/shm".into());
    tempfile::tempdir_in(parent).or_else(|_| tempfile::tempdir()).expect("a directory to write")
}
