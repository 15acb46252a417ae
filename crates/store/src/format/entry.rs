//! A directory entry: 128 bytes with the kind, position and state of an object.
//!
//! The first word has both the life of the slot and its state. So every change after the first
//! publication is one store of one word. A kill between two stores leaves a torn entry only if it
//! was never published.

use farrow_memory::{Length, Offset, Span};

use crate::format::hash::crc_of_words;
use crate::format::ids::{Generation, NamespaceId, ObjectId, ObjectKind, RegionUid, Slot};
use crate::format::layout::Layout;
use crate::format::metadata::METADATA_BYTES_MAX;
use crate::format::options::{BLOCK_BYTES, NAME_GRAIN_BYTES};

/// Words of an entry.
pub(crate) const ENTRY_WORDS: usize = 16;
/// The word with the sequence.
pub(crate) const SEQUENCE_WORD: u64 = 0;
/// The word with the length of the name, in its second byte.
pub(crate) const NAME_LENGTH_WORD: u64 = 1;
/// The word with the offset of the name.
pub(crate) const NAME_WORD: u64 = 9;
/// The word with the checksum.
const CHECKSUM_WORD: usize = 15;
/// The word with the hash of the name.
const NAME_HASH_WORD: u64 = 10;
/// The words that differ in an entry without a name: the checksum, and those of the name.
pub(crate) const CHECKSUM_THEN_NAME: [u64; 4] =
    [CHECKSUM_WORD as u64, NAME_LENGTH_WORD, NAME_WORD, NAME_HASH_WORD];
/// First bit of the residency count in a sequence.
const RESIDENCY_SHIFT: u32 = 35;
/// First bit of the namespace id in the word with the flags, and its mask.
const NAMESPACE_SHIFT: u32 = 20;
const NAMESPACE_MASK: u16 = 0xfff;
/// Bytes of one extra block in the list.
pub(crate) const EXTRA_BYTES: u64 = 16;
/// Bytes of the origin of a replica: the object id, and its crc32c in the low half of a word.
pub(crate) const REPLICA_ORIGIN_BYTES: u64 = 24;
/// Bytes of the position of a block at seal.
pub(crate) const ORIGIN_BYTES: u64 = 8;

/// The state in the sequence word of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryState {
    /// No object; the generation is that of the next object.
    Free,
    /// Being written: the other words are invalid.
    Writing,
    /// An object.
    Sealed,
    /// An object whose bytes are outside of the region.
    Spilled,
    /// An object that the home is about to remove from memory, unless it is held.
    Leaving,
    /// A spilled object that is being restored: the other words are being written.
    Restoring,
    /// An object that cannot be found any more, but may still be held.
    Retiring,
    /// A value that no program writes.
    Unknown,
}

/// The first word of an entry: the state in 3 bits, the generation in 32, and the number of
/// restores in the other 29. A restored object is at another position, and so has another word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Sequence(pub(crate) u64);

impl Sequence {
    /// The first generation. Generation 0 would make a never-used word equal to a free one.
    pub(crate) const FIRST: Self = Self::new(Generation(1), EntryState::Free);

    pub(crate) const fn new(generation: Generation, state: EntryState) -> Self {
        Self::resident(generation, 0, state)
    }

    /// After `residency` restores, at most 2^29 - 1.
    pub(crate) const fn resident(
        generation: Generation,
        residency: u32,
        state: EntryState,
    ) -> Self {
        let state = match state {
            EntryState::Free => 0,
            EntryState::Writing => 1,
            EntryState::Sealed => 2,
            EntryState::Spilled => 3,
            EntryState::Retiring => 4,
            EntryState::Leaving => 5,
            EntryState::Restoring => 6,
            EntryState::Unknown => 7,
        };
        Self((residency as u64) << RESIDENCY_SHIFT | (generation.0 as u64) << 3 | state)
    }

    pub(crate) const fn state(self) -> EntryState {
        match self.0 & 7 {
            0 => EntryState::Free,
            1 => EntryState::Writing,
            2 => EntryState::Sealed,
            3 => EntryState::Spilled,
            4 => EntryState::Retiring,
            5 => EntryState::Leaving,
            6 => EntryState::Restoring,
            _ => EntryState::Unknown,
        }
    }

    /// The generation.
    pub(crate) const fn generation(self) -> Generation {
        Generation((self.0 >> 3) as u32)
    }

    /// The number of restores.
    pub(crate) const fn residency(self) -> u32 {
        (self.0 >> RESIDENCY_SHIFT) as u32
    }

    pub(crate) const fn with(self, state: EntryState) -> Self {
        Self::resident(self.generation(), self.residency(), state)
    }

    /// Free, in the next life. `None` after the last one: such a slot is never used again.
    pub(crate) fn next_life(self) -> Option<Self> {
        self.generation().0.checked_add(1).map(|g| Self::new(Generation(g), EntryState::Free))
    }
}

/// A sealed object as the directory describes it. All spans are offsets in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its id.
    pub id: ObjectId,
    /// Its kind.
    pub kind: ObjectKind,
    /// The primary block: descriptor, list of extra blocks, and what was copied in.
    pub primary: Span,
    /// The descriptor inside of the primary block; for plain bytes, empty and at the block's start.
    pub descriptor: Span,
    /// Size that users see. A plain-bytes object is the first `size` bytes of its block.
    pub size: Length,
    /// Number of blocks besides the primary one, listed behind the descriptor.
    pub extra_count: u32,
    /// The range of the name in the control section; empty without a name.
    pub name: Span,
    /// Hash of the name; 0 without a name.
    pub name_hash: u64,
    /// crc32c of the descriptor, as computed by the creator.
    pub descriptor_crc: u32,
    /// crc32c of the list of extra blocks.
    pub extra_crc: u32,
    /// Time of the seal, by the home's clock: nanoseconds since 1970.
    pub sealed_at_ns: u64,
    /// The process that created it.
    pub creator_pid: u32,
    /// Client slot of that process at the time.
    pub creator: u32,
    /// Bytes of metadata; they end with the primary block, except for padding to a multiple of 8.
    pub metadata_bytes: u32,
    /// crc32c of the metadata; 0 without metadata.
    pub metadata_crc: u32,
    /// The number of restores.
    pub residency: u32,
    /// Whether its blocks are at other positions than at seal. Then the list behind the descriptor
    /// has, after the extra blocks, the position of each block at seal, the primary one first.
    pub is_relocated: bool,
    /// Whether it is a copy of an object of another region: see [`Entry::origin`].
    pub is_replica: bool,
    /// Whether it exists only to be brought to another node: it goes with its creator.
    pub is_staged: bool,
    /// Its namespace.
    pub namespace: NamespaceId,
}

/// The reason why words are not an entry.
pub(crate) type EntryFault = &'static str;

impl Entry {
    /// Plain bytes that fill a block; all other fields are defaults.
    pub(crate) fn bytes(id: ObjectId, primary: Span) -> Self {
        Self {
            id,
            kind: ObjectKind::Bytes,
            primary,
            descriptor: Span::new(primary.offset, Length(0)),
            size: primary.length,
            extra_count: 0,
            name: Span::default(),
            name_hash: 0,
            descriptor_crc: 0,
            extra_crc: 0,
            sealed_at_ns: 0,
            creator_pid: 0,
            creator: 0,
            metadata_bytes: 0,
            metadata_crc: 0,
            residency: 0,
            is_relocated: false,
            is_replica: false,
            is_staged: false,
            namespace: NamespaceId::DEFAULT,
        }
    }

    /// The range of the list of extra blocks: behind the descriptor, at the next multiple of 8. If
    /// the object is relocated, the positions at seal are included.
    #[must_use]
    pub fn extra_list(&self) -> Option<Span> {
        let start = Length(self.descriptor.end()?.0).round_up(8)?;
        let extra = u64::from(self.extra_count);
        let origins = if self.is_relocated { (extra + 1) * ORIGIN_BYTES } else { 0 };
        Some(Span::new(Offset(start.0), Length(extra * EXTRA_BYTES + origins)))
    }

    /// The range of the metadata: at the end of the primary block. `None`: it would not fit there.
    #[must_use]
    pub fn metadata(&self) -> Option<Span> {
        let length = Length(self.metadata_bytes.into());
        let start = self.primary.end()?.0.checked_sub(length.round_up(8)?.0)?;
        (start >= self.primary.offset.0).then_some(Span::new(Offset(start), length))
    }

    /// The range of a replica's origin: before the metadata. `None`: it is no replica, or the
    /// origin would not fit there.
    #[must_use]
    pub fn origin(&self) -> Option<Span> {
        let start = self.metadata()?.offset.0.checked_sub(REPLICA_ORIGIN_BYTES)?;
        let is_there = self.is_replica && start >= self.primary.offset.0;
        is_there.then_some(Span::new(Offset(start), Length(REPLICA_ORIGIN_BYTES)))
    }

    /// The bytes of a plain-bytes object.
    #[must_use]
    pub fn payload(&self) -> Span {
        Span::new(self.primary.offset, self.size)
    }

    /// The sequence word of this entry while it is sealed.
    pub(crate) fn sequence(&self) -> Sequence {
        Sequence::resident(self.id.generation(), self.residency, EntryState::Sealed)
    }

    /// The words of this entry, as published.
    pub(crate) fn encode(&self) -> [u64; ENTRY_WORDS] {
        let mut words = [
            self.sequence().0,
            u64::from(self.kind.as_u8())
                | (self.name.length.0 & 0xff) << 8
                | u64::from(self.is_relocated) << 16
                | u64::from(self.is_replica) << 17
                | u64::from(self.is_staged) << 18
                | u64::from(self.namespace.0 & NAMESPACE_MASK) << NAMESPACE_SHIFT
                | u64::from(self.extra_count) << 32,
            self.id.hi,
            self.id.lo,
            self.primary.offset.0,
            self.primary.length.0,
            self.descriptor.offset.0,
            self.descriptor.length.0,
            self.size.0,
            self.name.offset.0,
            self.name_hash,
            u64::from(self.descriptor_crc) | u64::from(self.extra_crc) << 32,
            self.sealed_at_ns,
            u64::from(self.creator_pid) | u64::from(self.creator) << 32,
            u64::from(self.metadata_bytes) | u64::from(self.metadata_crc) << 32,
            0,
        ];
        words[CHECKSUM_WORD] = checksum(&words);
        words
    }

    /// Decode words copied from slot `slot`. The checksum covers the words as published, in state
    /// sealed. In a spilled entry, the position fields are invalid. In an interrupted restore they
    /// may be half written, so the checksum is not checked.
    pub(crate) fn decode(
        words: &[u64; ENTRY_WORDS],
        uid: RegionUid,
        slot: Slot,
        layout: &Layout,
    ) -> Result<Self, EntryFault> {
        let sequence = Sequence(words[0]);
        let generation = sequence.generation();
        let mut published = *words;
        published[0] = sequence.with(EntryState::Sealed).0;
        let state = sequence.state();
        if state != EntryState::Restoring && checksum(&published) != words[CHECKSUM_WORD] {
            return Err("checksum differs");
        }
        let kind = ObjectKind::from_u8((words[1] & 0xff) as u8).ok_or("unknown kind")?;
        let name_bytes = Length(words[1] >> 8 & 0xff);
        let entry = Self {
            id: ObjectId { hi: words[2], lo: words[3] },
            kind,
            primary: Span::new(Offset(words[4]), Length(words[5])),
            descriptor: Span::new(Offset(words[6]), Length(words[7])),
            size: Length(words[8]),
            extra_count: (words[1] >> 32) as u32,
            name: Span::new(Offset(words[9]), name_bytes),
            name_hash: words[10],
            descriptor_crc: words[11] as u32,
            extra_crc: (words[11] >> 32) as u32,
            sealed_at_ns: words[12],
            creator_pid: words[13] as u32,
            creator: (words[13] >> 32) as u32,
            metadata_bytes: words[14] as u32,
            metadata_crc: (words[14] >> 32) as u32,
            residency: sequence.residency(),
            is_relocated: words[1] >> 16 & 1 == 1,
            is_replica: words[1] >> 17 & 1 == 1,
            is_staged: words[1] >> 18 & 1 == 1,
            namespace: NamespaceId((words[1] >> NAMESPACE_SHIFT) as u16 & NAMESPACE_MASK),
        };
        if entry.id != ObjectId::new(uid, generation, slot) {
            return Err("id is not of this slot");
        }
        if matches!(state, EntryState::Spilled | EntryState::Restoring) {
            entry.validate_name(layout)?;
        } else {
            entry.validate(layout)?;
        }
        Ok(entry)
    }

    /// The entry of an object that was about to lose its name when the home was killed: these words
    /// with the name cleared. `None` if they are damaged otherwise.
    pub(crate) fn decode_unnamed(
        words: &[u64; ENTRY_WORDS],
        uid: RegionUid,
        slot: Slot,
        layout: &Layout,
    ) -> Option<Self> {
        let mut cleared = *words;
        cleared[NAME_LENGTH_WORD as usize] &= !(0xff << 8);
        cleared[NAME_WORD as usize] = 0;
        cleared[NAME_HASH_WORD as usize] = 0;
        Self::decode(&cleared, uid, slot, layout).ok()
    }

    /// The same object without its name.
    pub(crate) fn unnamed(self) -> Self {
        Self { name: Span::default(), name_hash: 0, ..self }
    }

    /// The same object without a position.
    pub(crate) fn nowhere(self) -> Self {
        let (primary, descriptor) = (Span::default(), Span::default());
        Self { primary, descriptor, is_relocated: false, ..self }
    }

    /// Length of the primary block at seal. A restored object has the descriptor, the lists and the
    /// metadata appended to it.
    pub(crate) fn primary_bytes_at_seal(&self) -> Length {
        match self.is_relocated {
            true => Length(self.descriptor.offset.0.saturating_sub(self.primary.offset.0)),
            false => self.primary.length,
        }
    }

    /// Check that all parts are within their limits. Requests are checked too, before they are
    /// written.
    pub(crate) fn validate(&self, layout: &Layout) -> Result<(), EntryFault> {
        if self.primary.is_empty() || !self.primary.is_aligned(BLOCK_BYTES) {
            return Err("primary block is empty or unaligned");
        }
        if !layout.heap.contains(self.primary) {
            return Err("primary block leaves the heap");
        }
        if !self.primary.contains(self.descriptor) || !self.descriptor.offset.is_multiple_of(8) {
            return Err("descriptor leaves the primary block or is unaligned");
        }
        let is_bytes = self.kind == ObjectKind::Bytes;
        if is_bytes != self.descriptor.is_empty() {
            return Err("plain bytes have no descriptor, everything else has one");
        }
        if is_bytes && (self.size > self.primary.length || self.extra_count > 0) {
            return Err("plain bytes leave the primary block");
        }
        let list = self.extra_list().ok_or("list of extra blocks leaves the primary block")?;
        if (self.extra_count > 0 || self.is_relocated) && !self.primary.contains(list) {
            return Err("list of extra blocks leaves the primary block");
        }
        let content = if is_bytes { self.payload() } else { list };
        let metadata = self.metadata().ok_or("metadata leaves the primary block")?;
        if self.metadata_bytes > METADATA_BYTES_MAX {
            return Err("metadata is over 4096 bytes");
        }
        if self.metadata_bytes > 0 && content.end().is_none_or(|end| end > metadata.offset) {
            return Err("metadata overlaps what it is about");
        }
        if self.is_replica {
            let origin = self.origin().ok_or("the origin leaves the primary block")?;
            if content.end().is_none_or(|end| end > origin.offset) {
                return Err("the origin overlaps the contents");
            }
        }
        self.validate_name(layout)
    }

    fn validate_name(&self, layout: &Layout) -> Result<(), EntryFault> {
        if !self.name.is_empty()
            && (!layout.names.contains(self.name)
                || !self.name.offset.is_multiple_of(NAME_GRAIN_BYTES))
        {
            return Err("name leaves the name heap or is unaligned");
        }
        Ok(())
    }
}

/// crc32c of the 120 bytes before the checksum.
fn checksum(words: &[u64; ENTRY_WORDS]) -> u64 {
    crc_of_words::<{ CHECKSUM_WORD * 8 }>(words)
}

/// The list of extra blocks behind a descriptor, for the client that writes it.
#[must_use]
pub fn encode_extra(blocks: &[Span]) -> Vec<u8> {
    blocks
        .iter()
        .flat_map(|block| [block.offset.0, block.length.0])
        .flat_map(u64::to_le_bytes)
        .collect()
}

/// The bytes of a replica's origin.
pub(crate) fn encode_origin(id: ObjectId) -> [u8; REPLICA_ORIGIN_BYTES as usize] {
    let mut bytes = [0; REPLICA_ORIGIN_BYTES as usize];
    let id = [id.hi.to_le_bytes(), id.lo.to_le_bytes()].concat();
    let words = [&id[..], &u64::from(crc32c::crc32c(&id)).to_le_bytes()].concat();
    bytes.copy_from_slice(&words);
    bytes
}

/// The inverse of [`encode_origin`].
pub(crate) fn decode_origin(
    bytes: &[u8; REPLICA_ORIGIN_BYTES as usize],
) -> Result<ObjectId, EntryFault> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let id = ObjectId { hi: word(0), lo: word(8) };
    if encode_origin(id) != *bytes {
        return Err("the checksum of its origin differs");
    }
    Ok(id)
}

/// Decode the list behind a descriptor: the extra blocks, and for a relocated object the position
/// of each block at seal, the primary one first.
pub(crate) fn decode_list(
    bytes: &[u8],
    entry: &Entry,
    layout: &Layout,
) -> Result<(Vec<Span>, Vec<Offset>), EntryFault> {
    let extra_bytes = u64::from(entry.extra_count) * EXTRA_BYTES;
    let (extra, origins) = usize::try_from(extra_bytes)
        .ok()
        .and_then(|at| bytes.split_at_checked(at))
        .ok_or("list of extra blocks ends early")?;
    let (origins, _) = origins.as_chunks::<8>();
    let origins = origins.iter().map(|word| Offset(u64::from_le_bytes(*word))).collect();
    Ok((decode_extra(extra, layout)?, origins))
}

/// Decode a list of extra blocks. Checks that each block is aligned and in the heap, and nothing
/// else.
fn decode_extra(bytes: &[u8], layout: &Layout) -> Result<Vec<Span>, EntryFault> {
    let (words, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() {
        return Err("list of extra blocks ends within a block");
    }
    words
        .iter()
        .map(|both| {
            let both = u128::from_le_bytes(*both);
            let span = Span::new(Offset(both as u64), Length((both >> 64) as u64));
            let is_good =
                !span.is_empty() && span.is_aligned(BLOCK_BYTES) && layout.heap.contains(span);
            is_good.then_some(span).ok_or("extra block is empty, unaligned or leaves the heap")
        })
        .collect()
}

#[cfg(test)]
mod tests;
