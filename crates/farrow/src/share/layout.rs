//! The bytes of a reference, and of the object that lists the parts of a value.

use farrow_store::ObjectId;

use crate::error::Error;

/// First bytes of a reference.
const MESSAGE_MAGIC: [u8; 4] = *b"FRWR";
/// First bytes of a list of parts.
const LIST_MAGIC: [u8; 4] = *b"FRWL";
/// Version of both.
const VERSION: u8 = 1;

/// Bytes of a reference: magic, version, form, id.
const MESSAGE_BYTES: usize = 22;
/// Bytes of a list before its ids.
const HEAD_BYTES: usize = 32;
const ID_BYTES: usize = 16;

/// The copies in a list begin at a multiple of this many bytes.
pub(super) const ALIGNMENT: u64 = 64;

/// A region has at most this many bits of offsets; the bits above are the index of a part.
const OFFSET_BITS: u32 = 48;

/// Most parts: one for each node, far above the largest cluster. 14 bits of a descriptor's offset
/// would have room for more.
const PARTS_MAX: usize = 4096;

/// The offset in a descriptor of a byte of a part.
pub(super) fn virtual_offset(index: usize, offset: u64) -> Option<u64> {
    if index > PARTS_MAX || offset >> OFFSET_BITS != 0 {
        return None;
    }
    Some((index as u64) << OFFSET_BITS | offset)
}

/// The part of an offset in a descriptor, and the offset in the part's region.
pub(super) fn place_of(offset: u64) -> (usize, u64) {
    let index = usize::try_from(offset >> OFFSET_BITS).unwrap_or(usize::MAX);
    (index, offset & ((1 << OFFSET_BITS) - 1))
}

/// What the object of a reference is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The value.
    Value,
    /// A list of parts.
    Parts,
}

/// A reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReferenceMessage {
    pub(super) form: Form,
    pub(super) id: ObjectId,
}

impl ReferenceMessage {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MESSAGE_BYTES);
        bytes.extend_from_slice(&MESSAGE_MAGIC);
        bytes.push(VERSION);
        bytes.push(match self.form {
            Form::Value => 0,
            Form::Parts => 1,
        });
        bytes.extend_from_slice(&self.id.to_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let bad = |reason: String| Error::InvalidDescriptor(format!("a reference {reason}"));
        let (magic, rest) = bytes
            .split_first_chunk::<4>()
            .ok_or_else(|| bad(format!("of {} B; one has {MESSAGE_BYTES} B", bytes.len())))?;
        if *magic != MESSAGE_MAGIC {
            return Err(bad(format!("that begins with {magic:?}")));
        }
        let ([version, form], id) = rest
            .split_first_chunk::<2>()
            .ok_or_else(|| bad(format!("of {} B; one has {MESSAGE_BYTES} B", bytes.len())))?;
        if *version != VERSION {
            return Err(bad(format!("of version {version}; this is version {VERSION}")));
        }
        let form = match form {
            0 => Form::Value,
            1 => Form::Parts,
            other => return Err(bad(format!("of form {other}"))),
        };
        let id: [u8; ID_BYTES] = id
            .try_into()
            .map_err(|_| bad(format!("of {} B; one has {MESSAGE_BYTES} B", bytes.len())))?;
        Ok(Self { form, id: ObjectId::from_bytes(id) })
    }
}

/// A list of parts: their ids, the bytes that no part has, and the descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PartList {
    ids: Vec<ObjectId>,
    bytes: Vec<u8>,
    copies: std::ops::Range<usize>,
    descriptor: std::ops::Range<usize>,
}

impl PartList {
    /// A list with room for its copies and its descriptor.
    pub(super) fn new(ids: Vec<ObjectId>, copy_bytes: u64, descriptor_bytes: u64) -> Self {
        let copies_at = copies_at(ids.len());
        let copies = copies_at..copies_at + copy_bytes as usize;
        let descriptor_at = copies.end.next_multiple_of(8);
        let descriptor = descriptor_at..descriptor_at + descriptor_bytes as usize;
        let mut bytes = Vec::with_capacity(descriptor.end);
        bytes.extend_from_slice(&LIST_MAGIC);
        bytes.extend_from_slice(&[VERSION, 0, 0, 0]);
        bytes.extend_from_slice(&(ids.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&copy_bytes.to_le_bytes());
        bytes.extend_from_slice(&descriptor_bytes.to_le_bytes());
        for id in &ids {
            bytes.extend_from_slice(&id.to_bytes());
        }
        bytes.resize(descriptor.end, 0);
        Self { ids, bytes, copies, descriptor }
    }

    /// Copies out and checks the list in an object. The copies stay in the object.
    pub(super) fn decode(object: &[u8]) -> Result<Self, Error> {
        let bad = |reason: String| Error::InvalidDescriptor(format!("a list of parts {reason}"));
        let short = || bad(format!("that ends after {} B", object.len()));
        let head: [u8; HEAD_BYTES] = *object.first_chunk().ok_or_else(short)?;
        let [magic, version, counts @ ..] = words_of(head);
        if magic != u32::from_le_bytes(LIST_MAGIC) || version != u32::from(VERSION) {
            return Err(bad(format!("that begins with {magic:#x}, {version:#x}")));
        }
        let [parts, copies, descriptor] = pairs(counts);
        let count = usize::try_from(parts).ok().filter(|count| (1..=PARTS_MAX).contains(count));
        let count = count.ok_or_else(|| bad(format!("of {parts} parts")))?;
        let copies_at = copies_at(count);
        let copies_end =
            usize::try_from(copies).ok().and_then(|copies| copies_at.checked_add(copies));
        let descriptor_at = copies_end.and_then(|end| end.checked_next_multiple_of(8));
        let length = usize::try_from(descriptor).ok();
        let end = descriptor_at.zip(length).and_then(|(start, length)| start.checked_add(length));
        let (Some(copies_end), Some(start), Some(end)) = (copies_end, descriptor_at, end) else {
            return Err(bad(format!("with {copies} B of copies, a descriptor of {descriptor} B")));
        };
        let ids = object.get(HEAD_BYTES..HEAD_BYTES + count * ID_BYTES).ok_or_else(short)?;
        let ids = ids.as_chunks::<ID_BYTES>().0.iter().copied().map(ObjectId::from_bytes).collect();
        let bytes = object.get(start..end).ok_or_else(short)?.to_vec();
        Ok(Self { ids, copies: copies_at..copies_end, descriptor: 0..bytes.len(), bytes })
    }

    pub(super) fn ids(&self) -> &[ObjectId] {
        &self.ids
    }

    /// Offset of the copies in the object.
    pub(super) fn copies_at(&self) -> u64 {
        self.copies.start as u64
    }

    pub(super) fn copies_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.copies.clone()).unwrap_or_default()
    }

    pub(super) fn descriptor(&self) -> &[u8] {
        self.bytes.get(self.descriptor.clone()).unwrap_or_default()
    }

    pub(super) fn set_descriptor(&mut self, descriptor: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.descriptor.clone())
            && place.len() == descriptor.len()
        {
            place.copy_from_slice(descriptor);
        }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

fn copies_at(parts: usize) -> usize {
    (HEAD_BYTES + parts * ID_BYTES).next_multiple_of(ALIGNMENT as usize)
}

fn words_of(head: [u8; HEAD_BYTES]) -> [u32; HEAD_BYTES / 4] {
    let mut words = [0; HEAD_BYTES / 4];
    for (word, bytes) in words.iter_mut().zip(head.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

fn pairs(words: [u32; 6]) -> [u64; 3] {
    let mut pairs = [0; 3];
    for (pair, [low, high]) in pairs.iter_mut().zip(words.as_chunks::<2>().0) {
        *pair = u64::from(*low) | u64::from(*high) << 32;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(lo: u64) -> ObjectId {
        ObjectId { hi: 7, lo }
    }

    #[test]
    fn a_reference_keeps_its_bytes() {
        let message =
            ReferenceMessage { form: Form::Parts, id: ObjectId { hi: 0x0102, lo: 0x0304 } };
        let bytes = message.encode();
        assert_eq!(bytes.len(), MESSAGE_BYTES);
        assert_eq!(&bytes[..6], b"FRWR\x01\x01");
        assert_eq!(ReferenceMessage::decode(&bytes).unwrap(), message);
        for cut in 0..bytes.len() {
            assert!(ReferenceMessage::decode(&bytes[..cut]).is_err(), "{cut} B");
        }
        for (at, value) in [(0, 0), (4, 2), (5, 2)] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert!(ReferenceMessage::decode(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_list_survives_and_a_damaged_one_is_refused() {
        let mut parts = PartList::new(vec![id(1), id(2)], 100, 40);
        assert_eq!(parts.copies_at(), 64);
        parts.copies_mut().fill(3);
        parts.set_descriptor(&[9; 40]);
        let bytes = parts.into_bytes();
        let found = PartList::decode(&bytes).unwrap();
        assert_eq!((found.ids(), found.descriptor()), (&[id(1), id(2)][..], &[9; 40][..]));
        for cut in 0..bytes.len() {
            assert!(PartList::decode(&bytes[..cut]).is_err(), "{cut} B");
        }
        // Counts that overflow, or that no memory could hold.
        for at in [8, 16, 24] {
            let mut wrong = bytes.clone();
            wrong[at..at + 8].fill(0xff);
            assert!(PartList::decode(&wrong).is_err(), "word at {at}");
        }
    }

    #[test]
    fn offsets_name_a_part_and_a_place() {
        let place = (3, (1 << 48) - 1);
        assert_eq!(place_of(virtual_offset(place.0, place.1).unwrap()), place);
        assert_eq!(virtual_offset(0, 1 << 48), None);
        assert_eq!(virtual_offset(PARTS_MAX + 1, 0), None);
    }
}
