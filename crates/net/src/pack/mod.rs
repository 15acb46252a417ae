//! Compression of pieces on their way, where it saves time.
//!
//! A reader that knows its link asks for packed pieces (`ReadPacked`), with the rate at which one of
//! its connections receives plain ones. The home compresses a sample of each request, and measures
//! what that takes. It packs the pieces of the request if the time for compressing and decompressing
//! is less than the time that the link needs for the bytes saved. Time is measured, so a busy home
//! packs less. Where samples do not pay, fewer are taken. The reader compares the rate of packed
//! pieces with that of plain ones, and stops asking for a while if they are not faster: then
//! something else than the link limits the transfer.
//!
//! A packed piece is a CRC-32C of its bytes, then an LZ4 block. Its length is that of the requested
//! piece, so no length of the peer is used for memory.

mod measure;
mod trial;
pub(crate) mod wish;

use std::sync::Arc;
use std::time::Instant;

use farrow_memory::sync::{AtomicU64, Ordering};

use crate::PIECE_BYTES_MAX;
use crate::error::{BodyError, FrameError};
use measure::SamplePace;
pub(crate) use trial::{PackTrial, Stretch};
pub use wish::PackWish;

/// Bytes of the checksum in front of a block.
const CHECKSUM_BYTES: usize = 4;

/// Compressed and timed before the pieces of a request. LZ4 refers back by at most twice as much, so
/// the ratio of a sample is close to that of a piece.
const SAMPLE_BYTES: usize = 32 << 10;

/// A connection that receives this much in a second leaves LZ4 no time: it compresses some 0.7 GB/s
/// on a core, so that even bytes that shrink to nothing would take longer.
const RATE_MAX: u64 = 1 << 30;

/// When pieces are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackMode {
    /// Where measurements say that it saves time.
    #[default]
    Auto,
    /// Never.
    Off,
    /// All pieces that become smaller.
    Lz4,
}

/// Packed pieces that were sent and received.
#[derive(Debug, Default)]
pub struct PackedCounts {
    sent: [AtomicU64; 2],
    received: [AtomicU64; 2],
}

impl PackedCounts {
    /// Bytes of the pieces that were sent packed, and of their packed form.
    #[must_use]
    pub fn sent(&self) -> [u64; 2] {
        self.sent.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// As [`Self::sent`], of those that were received.
    #[must_use]
    pub fn received(&self) -> [u64; 2] {
        self.received.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    fn add(counts: &[AtomicU64; 2], plain: usize, packed: usize) {
        for (count, bytes) in counts.iter().zip([plain, packed]) {
            count.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

/// When this node packs, and what it has packed.
#[derive(Clone, Debug, Default)]
pub struct PackingOptions {
    /// When pieces are packed.
    pub packing: PackMode,
    /// Counts of all connections.
    pub counts: Arc<PackedCounts>,
}

impl PackingOptions {
    /// What a reader asks for, if it asks for packed pieces. `plain_rate`: the bytes a second that
    /// one connection receives of plain pieces; 0 if they are not known.
    pub(crate) fn wish(&self, plain_rate: u64) -> Option<PackWish> {
        match self.packing {
            PackMode::Off => None,
            PackMode::Lz4 => Some(PackWish { rate: 0 }),
            PackMode::Auto => {
                (1..=RATE_MAX).contains(&plain_rate).then_some(PackWish { rate: plain_rate })
            }
        }
    }
}

/// The compressor of one connection.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    packed: Vec<u8>,
    pace: SamplePace,
}

impl Packer {
    /// Whether the pieces of a request are to be packed. `bytes` are those of one of them.
    pub(crate) fn should_pack(&mut self, wish: PackWish, bytes: &[u8]) -> bool {
        if wish.rate == 0 {
            return true;
        }
        if !self.pace.is_due() {
            return false;
        }
        let sample = bytes.get(..SAMPLE_BYTES).unwrap_or(bytes);
        let begin = Instant::now();
        let packed = self.compress(sample);
        let pays = packed.is_some_and(|packed| wish.pays(sample.len(), packed, begin.elapsed()));
        self.pace.on_sample(pays);
        pays
    }

    /// The packed form of a piece, if that is shorter.
    pub(crate) fn pack(&mut self, piece: &[u8], counts: &PackedCounts) -> Option<&[u8]> {
        let length = self.compress(piece)?;
        if length + CHECKSUM_BYTES >= piece.len() {
            return None;
        }
        let packed = self.packed.get_mut(..length + CHECKSUM_BYTES)?;
        packed.get_mut(..CHECKSUM_BYTES)?.copy_from_slice(&checksum(piece).to_le_bytes());
        PackedCounts::add(&counts.sent, piece.len(), packed.len());
        Some(packed)
    }

    /// Compresses behind the place of the checksum. Returns the length of the block.
    fn compress(&mut self, bytes: &[u8]) -> Option<usize> {
        let max = lz4_flex::block::get_maximum_output_size(PIECE_BYTES_MAX as usize);
        self.packed.resize(CHECKSUM_BYTES + max, 0);
        let into = self.packed.get_mut(CHECKSUM_BYTES..)?;
        lz4_flex::block::compress_into(bytes, into).ok()
    }
}

/// The bytes of a packed piece of this length.
///
/// # Errors
/// [`FrameError::Body`]: no block, or one of another length, or other bytes.
pub fn unpack(packed: &[u8], length: u64, counts: &PackedCounts) -> Result<Vec<u8>, FrameError> {
    let wrong = |error| FrameError::Body { what: "Packed", error };
    let (found, block) =
        packed.split_first_chunk::<CHECKSUM_BYTES>().ok_or(wrong(BodyError::Short {
            requested: CHECKSUM_BYTES as u64,
            left: packed.len() as u64,
        }))?;
    if length > PIECE_BYTES_MAX {
        let (what, bytes, max) = ("piece", length, PIECE_BYTES_MAX);
        return Err(wrong(BodyError::TooLong { what, bytes, max }));
    }
    let mut plain = vec![0; length as usize];
    let unpacked = lz4_flex::block::decompress_into(block, &mut plain);
    let unpacked = unpacked.map_err(|error| wrong(BodyError::NotPacked(error.to_string())))?;
    if unpacked as u64 != length {
        return Err(wrong(BodyError::Unpacked { bytes: unpacked as u64, expected: length }));
    }
    let (found, computed) = (u32::from_le_bytes(*found), checksum(&plain));
    if found != computed {
        return Err(wrong(BodyError::PackedChecksum { found, computed }));
    }
    PackedCounts::add(&counts.received, plain.len(), packed.len());
    Ok(plain)
}

fn checksum(bytes: &[u8]) -> u32 {
    // The crate returns every checksum as 64 bits; this one has 32.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failure is the result
mod tests;
