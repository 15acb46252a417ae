//! The wire protocol, and its keys of rows.

use farrow_graph::ListKind;

/// The code that `build.rs` generates from `proto/rows.proto`.
#[allow(missing_docs, unreachable_pub, missing_debug_implementations, clippy::all)]
pub(crate) mod pb {
    include!(concat!(env!("OUT_DIR"), "/farrow.bench.network.rs"));
}

/// Entries of one answer, in bytes, beyond which the rest of the rows is left for another call.
/// One row may be longer.
pub(crate) const ANSWER_BYTES: usize = 4 << 20;
/// Limit of a message. An answer holds at least one row, of up to 2^31 entries in theory; real rows
/// are far shorter.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// A row of a segment: 30 bits of segment, 32 of account, 2 of list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey(u64);

impl RowKey {
    /// The key of a row.
    pub fn new(segment: u32, account: u32, list: ListKind) -> RowKey {
        RowKey(u64::from(segment) << 34 | u64::from(account) << 2 | list as u64)
    }

    /// Segment, account and list; None for an invalid key.
    pub fn parts(self) -> Option<(u32, u32, ListKind)> {
        let list = ListKind::ALL.get((self.0 & 3) as usize)?;
        Some(((self.0 >> 34) as u32, (self.0 >> 2) as u32, *list))
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }
}

impl From<u64> for RowKey {
    fn from(bits: u64) -> RowKey {
        RowKey(bits)
    }
}
