//! The blocking calls that open objects of other nodes and transfer their bytes.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length, Offset, Region, Span, page_bytes};
use farrow_net::cache::MirrorHold;
use farrow_net::frame::Opened;
use farrow_net::peer::{Peer, Piece, Placement};
use farrow_net::source::HoldId;
use farrow_wire::PartSpec;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::part::{self, NEW_BLOCK_AT, NewBlocks, OpenedPart};
use crate::protocol::net::NetFault;

/// Time limit for the transfer of an object: a terabyte at 300 MB/s. A transfer without progress
/// fails much sooner.
const LOAD_MAX: Duration = Duration::from_secs(3600);

/// The memory into which objects of other nodes are transferred.
pub(super) struct ReplicaMemory {
    pub(super) region: Arc<Region>,
    /// The data section of the region.
    map: Arc<FileMap>,
    new_blocks: NewBlocks,
}

/// A transfer that has ended: bytes of the peer, and microseconds from the first request to the last
/// byte.
pub(super) struct TransferCost {
    pub(super) bytes: u64,
    pub(super) elapsed_us: u64,
}

impl ReplicaMemory {
    pub(super) fn new(region: Arc<Region>, map: Arc<FileMap>) -> Self {
        Self { region, map, new_blocks: NewBlocks::default() }
    }

    /// Opens an object at a peer, or a part of it.
    pub(super) fn open(
        &self,
        peer: &Peer,
        want: &[u8],
        part: Option<&PartSpec>,
    ) -> Result<(u64, Opened), NetFault> {
        let held = peer.open(want)?;
        let (hold, opened) = (held.hold, held.opened);
        let Some(part) = part else { return Ok((hold.0, opened)) };
        let part = part::part_of(&opened, part, &mut |spans| read_spans(peer, hold, spans));
        let opened = part.and_then(|OpenedPart { opened, new_block }| {
            self.new_blocks.add((peer.name().to_owned(), hold.0), new_block)?;
            Ok((hold.0, opened))
        });
        opened.inspect_err(|_| peer.release(hold))
    }

    /// Forgets what an open has left for the transfer of its object.
    pub(super) fn release(&self, node: &str, hold: u64) {
        self.new_blocks.take(node, hold);
    }

    /// Transfers pieces of an opened object into blocks of the region, and publishes them.
    pub(super) fn load(
        &self,
        peer: &Peer,
        hold: u64,
        pieces: Vec<Piece>,
    ) -> Result<TransferCost, NetFault> {
        let control = self.region.geometry().control.0;
        let written: Vec<Span> = pieces
            .iter()
            .map(|piece| Span::new(Offset(piece.to.0.wrapping_add(control)), piece.from.length))
            .collect();
        let other = |error: &dyn Display| NetFault::Other(error.to_string());
        let (new, pieces): (Vec<_>, Vec<_>) =
            pieces.into_iter().partition(|piece| piece.from.offset == NEW_BLOCK_AT);
        for piece in new {
            let block = self.new_blocks.take(peer.name(), hold);
            let block = block.filter(|block| block.len() as u64 == piece.from.length.0);
            let none = || other(&format!("the part of hold {hold} has no new block of its length"));
            let written = self.map.write(piece.to, &block.ok_or_else(none)?);
            written.map_err(|error| other(&error))?;
        }
        let bytes: u64 = pieces.iter().map(|piece| piece.from.length.0).sum();
        let placement = Placement::new(Arc::clone(&self.map), pieces);
        let placement = placement.map_err(|error| other(&error))?;
        let since = Instant::now();
        peer.read(placement, HoldId(hold), LOAD_MAX)?;
        let elapsed_us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        for span in written {
            self.region.publish(span).map_err(|error| other(&error))?;
        }
        Ok(TransferCost { bytes, elapsed_us })
    }
}

/// Brings ranges of an object into its file, as far as they are missing, and returns how many bytes
/// were.
pub(super) fn bring(
    peer: &Peer,
    object: &MirrorHold,
    hold: u64,
    ranges: &[Span],
) -> Result<u64, NetFault> {
    let fetched = peer.fetch(object, HoldId(hold), ranges, LOAD_MAX);
    fetched.map(|report| report.fetched.0).map_err(NetFault::from)
}

/// Reads spans of a held object of a peer, which do not overlap, into memory of this process.
fn read_spans(peer: &Peer, hold: HoldId, spans: &[Span]) -> Result<Vec<Vec<u8>>, NetFault> {
    let other = |error: &dyn Display| NetFault::Other(format!("memory for contents: {error}"));
    let mut pieces = Vec::with_capacity(spans.len());
    let mut total = 0u64;
    for span in spans {
        pieces.push(Piece { from: *span, to: Offset(total) });
        total = total.saturating_add(span.length.0);
    }
    let length = Length(total.max(1).next_multiple_of(page_bytes()));
    let file = memfd_create("farrow-part", MemfdFlags::CLOEXEC).map_err(|error| other(&error))?;
    ftruncate(&file, length.0).map_err(|error| other(&error))?;
    let map = Arc::new(FileMap::new(file, 0, length, true).map_err(|error| other(&error))?);
    let placement = Placement::new(Arc::clone(&map), pieces.clone());
    peer.read(placement.map_err(|error| other(&error))?, hold, LOAD_MAX)?;
    // After the read no thread writes there.
    let bytes = pieces.iter().map(|piece| {
        let span = Span::new(piece.to, piece.from.length);
        map.sealed(span).map(<[u8]>::to_vec).map_err(|error| other(&error))
    });
    bytes.collect()
}
