//! Reads a stream of transactions from a file: four consecutive columns of little-endian int64
//! (edge id, source, target, timestamp), sorted by time. Benchmarks share it.

use farrow_graph::Edges;
use std::path::Path;

/// A stream in memory.
#[derive(Debug)]
pub struct Dump {
    words: Vec<i64>,
    rows: usize,
}

impl Dump {
    /// Reads a file.
    ///
    /// # Errors
    /// Those of [`std::fs::read`].
    pub fn read(path: &Path) -> std::io::Result<Dump> {
        let bytes = std::fs::read(path)?;
        let words: Vec<i64> =
            bytes.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
        Ok(Dump { rows: words.len() / 4, words })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The times of all rows.
    pub fn times(&self) -> &[i64] {
        self.column(3, 0, self.rows)
    }

    /// The rows from `from` to `to`.
    pub fn part(&self, from: usize, to: usize) -> Edges<'_> {
        Edges {
            ids: self.column(0, from, to),
            sources: self.column(1, from, to),
            targets: self.column(2, from, to),
            times: self.column(3, from, to),
            columns: &[],
        }
    }

    fn column(&self, number: usize, from: usize, to: usize) -> &[i64] {
        &self.words[number * self.rows + from..number * self.rows + to]
    }
}
