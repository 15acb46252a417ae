//! Compiles the C++ half against the headers of the pyarrow wheel, and links its libarrow. Extracts
//! the docstrings of the stub, for `doc!`.

use std::env;
use std::path::Path;
use std::process::Command;

/// Properties of the installed pyarrow.
struct Pyarrow {
    include: String,
    libraries: String,
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

/// Asks the interpreter of the maturin build; the environment has pip's isolated folder.
fn find_pyarrow() -> Result<Pyarrow, String> {
    let python = interpreter();
    let script = "import pyarrow as pa; print(pa.get_include(), pa.get_library_dirs()[0], \
                  pa.cpp_build_info.so_version, sep='\\n')";
    let output = Command::new(&python)
        .args(["-c", script])
        .output()
        .map_err(|error| format!("{python} does not run: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines().map(str::to_owned);
    match (lines.next(), lines.next(), lines.next()) {
        (Some(include), Some(libraries), Some(so_version)) => {
            Ok(Pyarrow { include, libraries, so_version })
        }
        _ => Err(format!(
            "{python} cannot import pyarrow, which the extension is built against \
             (pip install 'pyarrow==26.0.*', or set PYO3_PYTHON): {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn main() {
    println!("cargo:rerun-if-env-changed=PYO3_PYTHON");
    println!("cargo:rerun-if-env-changed=PYTHON_SYS_EXECUTABLE");
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-changed=../../cpp/include");
    if let Err(reason) = write_docstrings() {
        println!("cargo::error={reason}");
        return;
    }
    let pyarrow = match find_pyarrow() {
        Ok(pyarrow) => pyarrow,
        Err(reason) => {
            println!("cargo::error={reason}");
            return;
        }
    };
    // Build again for another pyarrow, or if pip's temporary folder was removed.
    let config = Path::new(&pyarrow.include).join("arrow/util/config.h");
    println!("cargo:rerun-if-changed={}", config.display());

    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .include("cpp")
        .include("../../cpp/include")
        .flag("-isystem")
        .flag(&pyarrow.include)
        .flag("-fvisibility=hidden")
        .flag("-fvisibility-inlines-hidden")
        .file("cpp/shim.cc")
        .compile("farrow_shim");

    // The wheel has only the versioned name of libarrow.so: link by that.
    println!("cargo:rustc-link-search=native={}", pyarrow.libraries);
    println!("cargo:rustc-link-arg-cdylib=-Wl,-l:libarrow.so.{}", pyarrow.so_version);
    // For site-packages with both. Not needed after an import of pyarrow: the library is loaded.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-rpath,$ORIGIN/../pyarrow");
    // Bind farrow_* symbols to this library, also with a libfarrow_capi.so in the same process.
    println!("cargo:rustc-link-arg-cdylib=-Wl,-Bsymbolic");
}
