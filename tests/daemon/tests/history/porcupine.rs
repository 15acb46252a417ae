//! Has porcupine judge what the checker of the test judged, by the Go program in `tests/history`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::path::{Path, PathBuf};
use std::process::Command;

/// Says that a machine without Go is a failure.
const REQUIRE: &str = "FARROW_GO";

/// Whether all parts of a file are linearizable, and in words; `None`, with a word, where the program
/// cannot be built and is not required.
pub fn judge(file: &Path) -> Option<(bool, String)> {
    let program = match build() {
        Ok(program) => program,
        Err(reason) => {
            let is_required = std::env::var(REQUIRE).is_ok_and(|word| word == "require");
            assert!(!is_required, "no porcupine: {reason}");
            println!("not judged by porcupine: {reason}; {REQUIRE}=require makes it a failure");
            return None;
        }
    };
    let judged = Command::new(program).arg(file).output().unwrap();
    let words = String::from_utf8_lossy(&judged.stdout).trim().to_owned();
    let code = judged.status.code();
    assert!(matches!(code, Some(0 | 1)), "{}", String::from_utf8_lossy(&judged.stderr));
    Some((code == Some(0), words))
}

/// The program; its one module comes from the proxy of Go, at the version and sum in `go.sum`.
fn build() -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../history");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("history-porcupine");
    let built = Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .output()
        .map_err(|error| format!("go: {error}"))?;
    match built.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&built.stderr).trim().to_owned()),
    }
}
