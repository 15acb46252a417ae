//! Generates the code of the rows protocol, without protoc.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files = protox::compile(["rows.proto"], [&root])?;
    tonic_prost_build::configure().build_transport(false).bytes(".").compile_fds(files)?;
    Ok(())
}
