//! Compiles the bridge (`cpp/bridge.h`), a shared library for each pyarrow at hand, into the Python
//! package. Extracts the docstrings of the stub, for `doc!`.
//!
//! The extension itself needs no pyarrow. These variables change what is built:
//! `FARROW_BRIDGE_PYARROW`: folders of unpacked pyarrow packages, separated by colons, instead of those
//! at hand; empty: no bridge. `FARROW_BRIDGE_CXX`: the C++ compiler, which must use libstdc++.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the package finds its bridges; `src/pyarrow/library.rs` has the same names.
const FOLDER: &str = "../../python/farrow/_bridge";

/// Of what a bridge is made, besides pyarrow.
const SOURCES: [&str; 4] = [
    "cpp/bridge.cc",
    "cpp/bridge.h",
    "../../cpp/include/farrow/farrow.h",
    "../../cpp/include/farrow/memory_pool.hpp",
];

/// The first series of libarrow that has what the bridge uses.
const SERIES_MIN: u32 = 1600;

/// A pyarrow package and the series of its libarrow.
struct PyarrowPackage {
    folder: PathBuf,
    so_version: String,
}

/// The interpreter that maturin builds for.
fn interpreter() -> String {
    env::var("PYO3_PYTHON")
        .or_else(|_| env::var("PYTHON_SYS_EXECUTABLE"))
        .unwrap_or_else(|_| "python3".into())
}

/// Writes each docstring of the stub to `OUT_DIR/doc`.
fn write_docstrings() -> Result<(), String> {
    const SCRIPT: &str = "docstrings.py";
    const STUB: &str = "../../python/farrow/_native.pyi";
    println!("cargo:rerun-if-changed={SCRIPT}");
    println!("cargo:rerun-if-changed={STUB}");
    let folder = env::var("OUT_DIR").map_err(|error| format!("OUT_DIR: {error}"))?;
    let python = interpreter();
    let output = Command::new(&python)
        .args([SCRIPT, STUB])
        .arg(Path::new(&folder).join("doc"))
        .output()
        .map_err(|error| format!("{python} does not run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(format!("{python} cannot read the docstrings of {STUB}: {reason}"))
}

/// The folders of the pyarrow packages that the interpreter of the build can import. Under pip's
/// build isolation, that is the one of the isolated folder; the one of the environment is the
/// other, and the one that counts.
fn packages_at_hand() -> Result<Vec<PathBuf>, String> {
    const SCRIPT: &str = "\
import importlib.util, os, sysconfig
found = [os.path.join(sysconfig.get_path(name), 'pyarrow') for name in ('platlib', 'purelib')]
spec = importlib.util.find_spec('pyarrow')
found += spec.submodule_search_locations or () if spec else ()
print(*found, sep='\\n')";
    let python = interpreter();
    let output = Command::new(&python)
        .args(["-c", SCRIPT])
        .output()
        .map_err(|error| format!("{python} does not run: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{python} cannot look for pyarrow: {reason}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect())
}

/// The series in the headers of a package; None if the folder has no headers.
fn so_version(folder: &Path) -> Option<String> {
    let config = folder.join("include/arrow/util/config.h");
    println!("cargo:rerun-if-changed={}", config.display());
    let text = fs::read_to_string(config).ok()?;
    let line = text.lines().find(|line| line.starts_with("#define ARROW_SO_VERSION"))?;
    let version = line.split('"').nth(1)?;
    version.bytes().all(|byte| byte.is_ascii_digit()).then(|| version.to_owned())
}

/// The pyarrow packages to build for: one of each series.
fn find_packages() -> Result<Vec<PyarrowPackage>, String> {
    let chosen = env::var_os("FARROW_BRIDGE_PYARROW");
    let folders = match &chosen {
        Some(list) => {
            env::split_paths(list).filter(|folder| !folder.as_os_str().is_empty()).collect()
        }
        None => packages_at_hand()?,
    };
    let mut found: Vec<PyarrowPackage> = Vec::new();
    for folder in folders {
        match so_version(&folder) {
            Some(so_version) if found.iter().any(|other| other.so_version == so_version) => {}
            // All else works with it, and the bridge of another one at hand is not used there.
            Some(so_version) if chosen.is_none() && is_too_early(&so_version) => {
                println!("cargo:warning=no memory pool for the pyarrow of {}", folder.display());
            }
            Some(so_version) => found.push(PyarrowPackage { folder, so_version }),
            None if chosen.is_some() => {
                return Err(format!("{} is no pyarrow package with headers", folder.display()));
            }
            None => {}
        }
    }
    Ok(found)
}

fn is_too_early(so_version: &str) -> bool {
    so_version.parse::<u32>().is_ok_and(|series| series < SERIES_MIN)
}

fn bridge_path(so_version: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("arrow_{so_version}.so"))
}

/// Compiles the bridge for one pyarrow. A running process keeps the file that it has mapped.
fn compile(pyarrow: &PyarrowPackage, build: &str) -> Result<(), String> {
    let path = bridge_path(&pyarrow.so_version);
    let new = path.with_extension(format!("new.{}", std::process::id()));
    // The type `Command` is what matters here: `cc` knows the compiler and the flags of the target.
    let mut compiler = cc::Build::new();
    compiler.cpp(true).std("c++20").opt_level(2).debug(false);
    if let Some(program) = env::var_os("FARROW_BRIDGE_CXX") {
        compiler.compiler(program);
    }
    let compiler = compiler.try_get_compiler().map_err(|error| error.to_string())?;
    let output = compiler
        .to_command()
        .args(["-shared", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-s"])
        .arg(format!("-DFARROW_BRIDGE_BUILD=\"{build}\""))
        .args(["-Icpp", "-I../../cpp/include", "-isystem"])
        .arg(pyarrow.folder.join("include"))
        .arg("cpp/bridge.cc")
        .arg("-L")
        .arg(&pyarrow.folder)
        // The package has only the versioned name of libarrow.so. It is loaded before a bridge is.
        .arg(format!("-l:libarrow.so.{}", pyarrow.so_version))
        .args(["-Wl,-z,defs", "-o"])
        .arg(&new)
        .output()
        .map_err(|error| format!("{}: {error}", compiler.path().display()))?;
    if !output.status.success() {
        return Err(format!(
            "{} cannot build the memory pool for the pyarrow of {}. FARROW_BRIDGE_PYARROW= (empty) \
             builds farrow without a pool. {}",
            compiler.path().display(),
            pyarrow.folder.display(),
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    println!("cargo:rerun-if-changed={}", path.display());
    fs::rename(&new, &path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Names the sources of the bridge: an extension uses no bridge of other sources.
fn name_of_build() -> Result<String, String> {
    let mut hasher = DefaultHasher::new();
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        fs::read(source).map_err(|error| format!("{source}: {error}"))?.hash(&mut hasher);
    }
    Ok(format!("{} {:016x}", env!("CARGO_PKG_VERSION"), hasher.finish()))
}

/// Removes the bridges for other pyarrows, of an earlier build.
fn remove_others(packages: &[PyarrowPackage]) -> std::io::Result<()> {
    for entry in fs::read_dir(FOLDER)? {
        let path = entry?.path();
        let is_library = path.extension().is_some_and(|extension| extension == "so");
        let is_wanted = |pyarrow: &PyarrowPackage| path == bridge_path(&pyarrow.so_version);
        if is_library && !packages.iter().any(is_wanted) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Builds the bridges. A bridge of an earlier build is replaced at once: programs may use it now.
fn build_bridges() -> Result<(), String> {
    let build = name_of_build()?;
    println!("cargo:rustc-env=FARROW_BRIDGE_BUILD={build}");
    let packages = find_packages()?;
    fs::create_dir_all(FOLDER).map_err(|error| format!("{FOLDER}: {error}"))?;
    if packages.is_empty() {
        println!("cargo:warning=no pyarrow with headers here: built without a memory pool");
    }
    packages.iter().try_for_each(|pyarrow| compile(pyarrow, &build))?;
    remove_others(&packages).map_err(|error| format!("{FOLDER}: {error}"))
}

fn main() {
    for variable in
        ["PYO3_PYTHON", "PYTHON_SYS_EXECUTABLE", "FARROW_BRIDGE_PYARROW", "FARROW_BRIDGE_CXX"]
    {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    if let Err(reason) = write_docstrings().and_then(|()| build_bridges()) {
        println!("cargo::error={reason}");
    }
    // Bind farrow_* symbols to this library, also with a libfarrow_capi.so in the same process.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-Bsymbolic");
}
