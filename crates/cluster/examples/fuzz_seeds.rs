//! Writes what real nodes say to each other to `crates/cluster/fuzz/corpus`, for the fuzz targets.

use std::path::Path;
use std::{fs, io};

#[path = "../tests/fuzzed/mod.rs"]
mod fuzzed;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let (peers, decoders) = (corpus.join("peers"), corpus.join("decoders"));
    fs::create_dir_all(&peers)?;
    fs::create_dir_all(&decoders)?;
    for (about, run) in fuzzed::seeds::runs() {
        fs::write(peers.join(about), run)?;
    }
    for (number, message) in fuzzed::seeds::messages().into_iter().enumerate() {
        fs::write(decoders.join(format!("seed-{number}")), message)?;
    }
    Ok(())
}
