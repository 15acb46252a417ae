//! The file of a spilled object: `docs/formats/spill.md`.
//!
//! Head, parts, trailer. The head has all lengths, so that room can be made before the rest is
//! read. The trailer has the checksums, so that the parts can be written in one pass.

use farrow_memory::{Length, Offset, Span};

use crate::format::ids::{ObjectId, ObjectKind};
use crate::format::metadata::METADATA_BYTES_MAX;
use crate::format::options::{BLOCK_BYTES, CAPACITY_MAX};

/// The only version that this program supports.
pub const SPILL_VERSION: u32 = 1;

/// Bytes of the head that are needed to compute its full length.
pub const SPILL_HEAD_BYTES_MIN: u64 = 64;

const MAGIC: [u8; 8] = *b"FRWSPILL";
const BLOCK_RECORD_BYTES: u64 = 16;
const CHECKSUM_BYTES: u64 = 4;

/// Maximum number of blocks of an object: 65,536 besides the primary one, as in the protocol.
const BLOCKS_MAX: u64 = 65_537;

/// Parts before the blocks: descriptor and metadata.
const PARTS_BEFORE: u64 = 2;

/// The reason why bytes are not a valid spill file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpillFault {
    /// The file ends early, or its trailer has a wrong length.
    #[error("{found} B long, {needed} B needed")]
    Short {
        /// Actual length.
        found: u64,
        /// Required length.
        needed: u64,
    },
    /// The file starts with another magic.
    #[error("not a spill file")]
    BadMagic,
    /// Another version of the format.
    #[error("version {found}; this program knows version {SPILL_VERSION}")]
    OtherVersion {
        /// The version found.
        found: u32,
    },
    /// A part was modified or is torn.
    #[error("the checksum of {what} is {computed:#010x}, the file says {stored:#010x}")]
    Checksum {
        /// The part.
        what: &'static str,
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The head contradicts itself, or the file is of another object.
    #[error("{0}")]
    Wrong(&'static str),
}

/// The first part of a spill file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpillHead {
    /// The object.
    pub id: ObjectId,
    /// Its kind.
    pub kind: ObjectKind,
    /// Size that users see.
    pub size: Length,
    /// Bytes of the descriptor.
    pub descriptor_bytes: u64,
    /// Bytes of the metadata.
    pub metadata_bytes: u32,
    /// The ranges of its blocks at seal, the primary one first.
    pub origins: Vec<Span>,
}

impl SpillHead {
    /// The head as in the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length() as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&SPILL_VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::from(self.kind.as_u8()).to_le_bytes());
        let words = [
            self.id.hi,
            self.id.lo,
            self.size.0,
            self.descriptor_bytes,
            self.metadata_bytes.into(),
            self.origins.len() as u64,
        ];
        let blocks = self.origins.iter().flat_map(|span| [span.offset.0, span.length.0]);
        bytes.extend(words.into_iter().chain(blocks).flat_map(u64::to_le_bytes));
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The full length of the head, from its first bytes, at least [`SPILL_HEAD_BYTES_MIN`] of
    /// them.
    ///
    /// # Errors
    /// A [`SpillFault`] with the reason.
    pub fn length_of(start: &[u8]) -> Result<u64, SpillFault> {
        let Some(start) = start.first_chunk::<{ SPILL_HEAD_BYTES_MIN as usize }>() else {
            let found = start.len() as u64;
            return Err(SpillFault::Short { found, needed: SPILL_HEAD_BYTES_MIN });
        };
        if !start.starts_with(&MAGIC) {
            return Err(SpillFault::BadMagic);
        }
        match word(start, 8) as u32 {
            SPILL_VERSION => {}
            found => return Err(SpillFault::OtherVersion { found }),
        }
        match word(start, 56) {
            blocks @ 1..=BLOCKS_MAX => Ok(head_bytes(blocks)),
            _ => Err(SpillFault::Wrong("the number of blocks is out of range")),
        }
    }

    /// Decode a whole head.
    ///
    /// # Errors
    /// A [`SpillFault`] with the reason.
    pub fn decode(bytes: &[u8]) -> Result<Self, SpillFault> {
        let needed = Self::length_of(bytes)?;
        let short = SpillFault::Short { found: bytes.len() as u64, needed };
        let bytes = bytes.get(..needed as usize).ok_or(short)?;
        let (content, stored) = bytes.split_at(bytes.len() - CHECKSUM_BYTES as usize);
        check("the head", content, word(stored, 0) as u32)?;
        let kind = u8::try_from(word(content, 8) >> 32).ok().and_then(ObjectKind::from_u8);
        let blocks = content.get(SPILL_HEAD_BYTES_MIN as usize..).unwrap_or_default();
        let head = Self {
            id: ObjectId { hi: word(content, 16), lo: word(content, 24) },
            kind: kind.ok_or(SpillFault::Wrong("unknown kind"))?,
            size: Length(word(content, 32)),
            descriptor_bytes: word(content, 40),
            metadata_bytes: u32::try_from(word(content, 48))
                .map_err(|_| SpillFault::Wrong("the metadata is too long"))?,
            origins: blocks
                .chunks(BLOCK_RECORD_BYTES as usize)
                .map(|block| Span::new(Offset(word(block, 0)), Length(word(block, 8))))
                .collect(),
        };
        head.validate()?;
        Ok(head)
    }

    fn validate(&self) -> Result<(), SpillFault> {
        let mut sum = 0_u64;
        for span in &self.origins {
            if span.is_empty() || !span.is_aligned(BLOCK_BYTES) || span.end().is_none() {
                return Err(SpillFault::Wrong("a block is empty or not a multiple of 128 B"));
            }
            sum = sum.saturating_add(span.length.0);
        }
        let primary = self.origins.first().map_or(0, |span| span.length.0);
        let is_bytes = self.kind == ObjectKind::Bytes;
        if sum.max(self.descriptor_bytes) > CAPACITY_MAX.0 {
            return Err(SpillFault::Wrong("longer than any region"));
        }
        if self.metadata_bytes > METADATA_BYTES_MAX {
            return Err(SpillFault::Wrong("the metadata is too long"));
        }
        if is_bytes != (self.descriptor_bytes == 0) || (is_bytes && self.size.0 > primary) {
            return Err(SpillFault::Wrong("its lengths contradict its kind"));
        }
        Ok(())
    }

    /// Bytes of the head.
    #[must_use]
    pub fn length(&self) -> u64 {
        head_bytes(self.origins.len() as u64)
    }

    /// Bytes of each part, in order: descriptor, metadata, blocks.
    pub fn part_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        let before = [self.descriptor_bytes, self.metadata_bytes.into()];
        before.into_iter().chain(self.origins.iter().map(|span| span.length.0))
    }

    /// Bytes of the trailer.
    #[must_use]
    pub fn trailer_bytes(&self) -> u64 {
        (PARTS_BEFORE + self.origins.len() as u64 + 1) * CHECKSUM_BYTES
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.length() + self.part_bytes().sum::<u64>() + self.trailer_bytes()
    }

    /// The trailer with the checksums of all parts.
    #[must_use]
    pub fn encode_trailer(&self, checksums: &[u32]) -> Vec<u8> {
        let mut bytes: Vec<u8> = checksums.iter().copied().flat_map(u32::to_le_bytes).collect();
        bytes.extend_from_slice(&self.seal_of(&bytes).to_le_bytes());
        bytes
    }

    /// The checksums of all parts, from the trailer.
    ///
    /// # Errors
    /// A [`SpillFault`] with the reason.
    pub fn decode_trailer(&self, bytes: &[u8]) -> Result<Vec<u32>, SpillFault> {
        if bytes.len() as u64 != self.trailer_bytes() {
            let (found, needed) = (bytes.len() as u64, self.trailer_bytes());
            return Err(SpillFault::Short { found, needed });
        }
        let (content, stored) = bytes.split_at(bytes.len() - CHECKSUM_BYTES as usize);
        let (stored, computed) = (word(stored, 0) as u32, self.seal_of(content));
        if stored != computed {
            return Err(SpillFault::Checksum { what: "the trailer", stored, computed });
        }
        Ok(content.chunks(CHECKSUM_BYTES as usize).map(|crc| word(crc, 0) as u32).collect())
    }

    /// The checksum of head and trailer, which ties the trailer to this head.
    fn seal_of(&self, checksums: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.encode()), checksums)
    }
}

fn head_bytes(blocks: u64) -> u64 {
    SPILL_HEAD_BYTES_MIN + blocks * BLOCK_RECORD_BYTES + CHECKSUM_BYTES
}

fn check(what: &'static str, bytes: &[u8], stored: u32) -> Result<(), SpillFault> {
    match crc32c::crc32c(bytes) {
        computed if computed == stored => Ok(()),
        computed => Err(SpillFault::Checksum { what, stored, computed }),
    }
}

/// Up to 8 bytes as a little-endian number; missing bytes count as zero.
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes.get(at..).unwrap_or_default()) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> SpillHead {
        SpillHead {
            id: ObjectId { hi: 1, lo: 2 },
            kind: ObjectKind::Table,
            size: Length(1000),
            descriptor_bytes: 24,
            metadata_bytes: 3,
            origins: vec![
                Span::new(Offset(4096), Length(256)),
                Span::new(Offset(8192), Length(128)),
            ],
        }
    }

    #[test]
    fn heads_and_trailers_are_the_same_after_the_way_out_and_back() {
        let (head, bytes) = (head(), head().encode());
        assert_eq!(bytes.len() as u64, head.length());
        assert_eq!(SpillHead::decode(&bytes), Ok(head.clone()));
        let trailer = head.encode_trailer(&[1, 2, 3, 4]);
        assert_eq!(head.decode_trailer(&trailer), Ok(vec![1, 2, 3, 4]));
        assert_eq!(head.file_bytes(), (bytes.len() + trailer.len()) as u64 + 24 + 3 + 256 + 128);
    }

    #[test]
    fn every_changed_byte_and_every_length_is_refused() {
        let (head, bytes) = (head(), head().encode());
        let trailer = head.encode_trailer(&[1, 2, 3, 4]);
        for at in 0..bytes.len() {
            assert!(SpillHead::decode(&bytes[..at]).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            assert!(SpillHead::decode(&changed).is_err(), "changed at {at}");
        }
        for at in 0..trailer.len() {
            assert!(head.decode_trailer(&trailer[..at]).is_err(), "cut at {at}");
            let mut changed = trailer.clone();
            changed[at] ^= 1;
            assert!(head.decode_trailer(&changed).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn the_bytes_are_fixed() {
        let bytes = head().encode();
        assert_eq!(&bytes[..16], b"FRWSPILL\x01\0\0\0\x06\0\0\0");
        assert_eq!(&bytes[56..72], [2, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), 64 + 2 * 16 + 4);
    }
}
