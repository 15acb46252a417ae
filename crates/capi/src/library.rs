//! Where this library is installed, and so where its daemon is.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder of programs in the prefix of this library, if it is in one.
pub(crate) fn programs() -> Option<PathBuf> {
    programs_of(&file()?)
}

/// The folder of programs for a library at `PREFIX/lib/FILE` (also `lib64`) or `PREFIX/lib/ARCH/FILE`.
/// Other places are in no prefix.
fn programs_of(file: &Path) -> Option<PathBuf> {
    let folder = file.parent()?;
    let is_lib = |folder: &Path| {
        folder
            .file_name()
            .is_some_and(|name| name.as_bytes() == b"lib" || name.as_bytes() == b"lib64")
    };
    let lib =
        if is_lib(folder) { folder } else { folder.parent().filter(|above| is_lib(above))? };
    Some(lib.parent()?.join("bin"))
}

/// The file that contains this code: the shared library, or the program that it is linked into.
fn file() -> Option<PathBuf> {
    // SAFETY: the structure holds pointers only, for which zero bytes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = file as *const () as *const libc::c_void;
    // SAFETY: the loader only compares the address, and writes to `info`.
    if unsafe { libc::dladdr(here, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader owns the name, and keeps it while the code of this function is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    // A program that was found by the PATH has a relative name that leads nowhere.
    if !name.is_absolute() {
        return None;
    }
    std::fs::canonicalize(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_in_the_prefix_of_the_library() {
        let of = |file: &str| programs_of(Path::new(file)).map(PathBuf::into_os_string);
        assert_eq!(of("/opt/farrow/lib/libfarrow.so.0.1"), Some("/opt/farrow/bin".into()));
        assert_eq!(of("/usr/lib64/libfarrow.so.0.1"), Some("/usr/bin".into()));
        assert_eq!(of("/usr/lib/x86_64-linux-gnu/libfarrow.so.0.1"), Some("/usr/bin".into()));
        // No prefix: other users may write in such folders.
        assert_eq!(of("/tmp/build/libfarrow.so"), None);
        assert_eq!(of("/libfarrow.so"), None);
    }

    #[test]
    fn the_file_of_this_code_is_known() {
        assert_eq!(file(), std::env::current_exe().unwrap().canonicalize().ok());
    }
}
