//! Finds and loads the bridge of the imported pyarrow: one shared library for each libarrow series.

use super::bridge::Bridge;
use pyo3::prelude::*;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `off`: use the C Data Interface only.
const SWITCH: &str = "FARROW_BRIDGE";

/// The folder of the bridges, beside the extension.
const FOLDER: &str = "_bridge";

/// The file of the bridge for one libarrow series, and its only exported symbol.
const PREFIX: &str = "arrow_";
const SUFFIX: &str = ".so";
const ENTRY: &CStr = c"farrow_bridge";

/// The version of the imported pyarrow, and the series of its libarrow.
pub struct PyarrowVersion {
    pub package: String,
    pub so_version: String,
}

impl PyarrowVersion {
    /// Asks the imported pyarrow.
    pub fn read(py: Python<'_>) -> PyResult<PyarrowVersion> {
        let pyarrow = py.import("pyarrow")?;
        let so_version = pyarrow.getattr("cpp_build_info")?.getattr("so_version")?.extract()?;
        Ok(PyarrowVersion { package: pyarrow.getattr("__version__")?.extract()?, so_version })
    }
}

/// The bridge of this pyarrow, or the reason why there is none.
pub fn load(py: Python<'_>, version: &PyarrowVersion) -> Result<Bridge, String> {
    if std::env::var_os(SWITCH).is_some_and(|value| value == "off") {
        return Err(format!("{SWITCH}=off"));
    }
    let folder = folder(py).map_err(|error| error.to_string())?;
    let so_version = &version.so_version;
    // It becomes part of a path.
    if so_version.is_empty() || !so_version.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("libarrow reports the series {so_version:?}"));
    }
    let path = folder.join(format!("{PREFIX}{so_version}{SUFFIX}"));
    if !path.is_file() {
        return Err(format!(
            "this installation has pools for pyarrow {}, not for {} (libarrow.so.{so_version})",
            majors(&folder),
            version.package,
        ));
    }
    let name = path.display().to_string();
    let bridge = open(&path).map_err(|reason| format!("{name}: {reason}"))?;
    bridge.bind(py).map_err(|error| format!("{name}: {error}"))?;
    Ok(bridge)
}

fn folder(py: Python<'_>) -> PyResult<PathBuf> {
    let extension: PathBuf = py.import("farrow._native")?.getattr("__file__")?.extract()?;
    Ok(extension.with_file_name(FOLDER))
}

/// The majors of pyarrow with a bridge: a libarrow series is a major and two digits of a minor.
fn majors(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<u32> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let series = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
            series.parse::<u32>().ok().map(|series| series / 100)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return "of no series".to_owned();
    }
    found.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The text of the last error of the dynamic loader.
fn loader_error() -> String {
    // SAFETY: the loader returns NULL or a string that lives until this thread's next call of it.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic loader gives no reason".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn open(path: &Path) -> Result<Bridge, String> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // pyarrow has loaded its libarrow, which the loader finds by its SONAME. The library stays
    // loaded: pools and buffers live as long as the process.
    // SAFETY: the path ends with zero; the library's constructors initialize its constants only.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(loader_error());
    }
    // SAFETY: the library is loaded, and the name ends with zero.
    let entry = unsafe { libc::dlsym(library, ENTRY.as_ptr()) };
    if entry.is_null() {
        return Err(loader_error());
    }
    // SAFETY: a library of this folder with this symbol is a bridge; the build is compared before
    // anything else of it is used.
    unsafe { Bridge::new(entry) }
}
