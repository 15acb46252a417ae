//! Writes valid inputs for the fuzz targets to `crates/arrow/fuzz/corpus`.

use farrow_arrow::testing::{join_messages, message_seed, seed};
use std::path::Path;
use std::{fs, io};

/// Every sample type, and some tables.
const SEEDS: usize = 160;

fn main() -> io::Result<()> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let corpus = fuzz.join("descriptor");
    fs::create_dir_all(&corpus)?;
    for number in 0..SEEDS {
        let (descriptor, arena) = seed(number);
        let length = u16::try_from(descriptor.len()).map_err(io::Error::other)?;
        let mut input = length.to_le_bytes().to_vec();
        input.extend(&descriptor);
        input.extend(arena.as_buffer().as_slice());
        fs::write(corpus.join(format!("seed-{number}")), input)?;
    }
    let corpus = fuzz.join("messages");
    fs::create_dir_all(&corpus)?;
    for number in 0..SEEDS {
        let seed = message_seed(number);
        if let Some(input) = seed.and_then(|(messages, arena)| join_messages(&messages, &arena)) {
            fs::write(corpus.join(format!("seed-{number}")), input)?;
        }
    }
    Ok(())
}
