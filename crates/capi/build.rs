//! Names the shared library: `make install-c` installs it as `libfarrow`.

fn main() {
    // Before 1.0, a minor version may change the interface.
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarrow.so.{major}.{minor}");
}
