//! Writes what real nodes say to each other, and clients to them, to `crates/cluster/fuzz/corpus`, for the fuzz targets.

use std::path::Path;
use std::{fs, io};

#[path = "../tests/fuzzed/mod.rs"]
mod fuzzed;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let [peers, decoders, protocol] =
        ["peers", "decoders", "protocol"].map(|target| corpus.join(target));
    for folder in [&peers, &decoders, &protocol] {
        fs::create_dir_all(folder)?;
    }
    for (about, run) in fuzzed::clients::seeds() {
        fs::write(protocol.join(about), run)?;
    }
    for (about, run) in fuzzed::seeds::runs() {
        fs::write(peers.join(about), run)?;
    }
    for (number, message) in fuzzed::seeds::messages().into_iter().enumerate() {
        fs::write(decoders.join(format!("seed-{number}")), message)?;
    }
    Ok(())
}
