//! Makes the code for the protocol between nodes, and for that of etcd, with no protoc.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files = protox::compile(["farrow/v1/node.proto"], [&root])?;
    tonic_prost_build::configure().build_transport(false).bytes(".farrow.v1").compile_fds(files)?;
    let files = protox::compile(["etcd/rpc.proto"], [&root])?;
    tonic_prost_build::configure().build_transport(false).build_server(false).compile_fds(files)?;
    Ok(())
}
