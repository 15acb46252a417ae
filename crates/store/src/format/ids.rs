//! Identifiers that never repeat: regions, lives of directory slots, objects.

use std::fmt;
use std::str::FromStr;

use crate::format::full_name::own_name;

/// A namespace: 0 is the default one, which always exists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NamespaceId(pub u16);

impl NamespaceId {
    /// The namespace of a client that requests none.
    pub const DEFAULT: Self = Self(0);
}

/// The id of a region: a random number, drawn at creation and never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionUid(pub u64);

impl fmt::Display for RegionUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A position in the directory of one region, or a client entry behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

/// The life of a slot. It only grows, so an object id is never assigned twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(pub u32);

/// The id of an object: 128 bits, unique for all time if region uids are.
///
/// The high half is the region's uid. The low half is the generation (32 bits, high) and the slot
/// (32 bits, low), so an id leads to its entry with one load and no search.
///
/// ```
/// use farrow_store::{Generation, ObjectId, RegionUid, Slot};
/// let id = ObjectId::new(RegionUid(0xfeed), Generation(3), Slot(9));
/// assert_eq!(id.to_string(), "000000000000feed0000000300000009");
/// assert_eq!(id.to_string().parse::<ObjectId>(), Ok(id));
/// assert_eq!(ObjectId::from_bytes(id.to_bytes()), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The region's uid.
    pub hi: u64,
    /// Generation in the high 32 bits, slot in the low 32.
    pub lo: u64,
}

impl ObjectId {
    /// The id of a slot in the given generation.
    #[must_use]
    pub const fn new(region: RegionUid, generation: Generation, slot: Slot) -> Self {
        Self { hi: region.0, lo: ((generation.0 as u64) << 32) | slot.0 as u64 }
    }

    /// The region of this object.
    #[must_use]
    pub const fn region(self) -> RegionUid {
        RegionUid(self.hi)
    }

    /// The slot of this object.
    #[must_use]
    pub const fn slot(self) -> Slot {
        Slot((self.lo & 0xffff_ffff) as u32)
    }

    /// The generation of that slot.
    #[must_use]
    pub const fn generation(self) -> Generation {
        Generation((self.lo >> 32) as u32)
    }

    /// 16 bytes, big-endian, high half first, so that bytes sort like ids.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        (((self.hi as u128) << 64) | self.lo as u128).to_be_bytes()
    }

    /// The id that [`ObjectId::to_bytes`] wrote.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let all = u128::from_be_bytes(bytes);
        Self { hi: (all >> 64) as u64, lo: all as u64 }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.hi, self.lo)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectId({self})")
    }
}

/// A reference to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// By its id.
    Id(ObjectId),
    /// By its name.
    Name(&'a str),
}

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "object {id}"),
            Self::Name(name) => write!(f, "object named {:?}", own_name(name)),
        }
    }
}

impl From<ObjectId> for Target<'_> {
    fn from(id: ObjectId) -> Self {
        Self::Id(id)
    }
}

impl<'a> From<&'a str> for Target<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name)
    }
}

/// The error for text that is not an object id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an object id is 32 hexadecimal digits; this text has {bytes} bytes or another character")]
pub struct InvalidObjectId {
    /// Length of the text.
    pub bytes: usize,
}

impl FromStr for ObjectId {
    type Err = InvalidObjectId;

    fn from_str(text: &str) -> Result<Self, InvalidObjectId> {
        let invalid = InvalidObjectId { bytes: text.len() };
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(invalid);
        }
        let all = u128::from_str_radix(text, 16).map_err(|_| invalid)?;
        Ok(Self::from_bytes(all.to_be_bytes()))
    }
}

/// The kind of an object, so that a reader gets back the same type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ObjectKind {
    /// Plain bytes, with no descriptor.
    Bytes = 1,
    /// One numpy array.
    NdArray = 2,
    /// One Arrow array.
    Array = 3,
    /// A sequence of Arrow arrays of one type.
    ChunkedArray = 4,
    /// One Arrow record batch.
    RecordBatch = 5,
    /// A sequence of Arrow record batches of one schema.
    Table = 6,
}

impl ObjectKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Bytes,
        Self::NdArray,
        Self::Array,
        Self::ChunkedArray,
        Self::RecordBatch,
        Self::Table,
    ];

    /// The number of this kind in a region.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_u8() == number)
    }

    /// A human-readable name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::NdArray => "ndarray",
            Self::Array => "array",
            Self::ChunkedArray => "chunked array",
            Self::RecordBatch => "record batch",
            Self::Table => "table",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_text_and_bytes() {
        let id = ObjectId::new(RegionUid(u64::MAX), Generation(u32::MAX), Slot(u32::MAX));
        assert_eq!(id.to_string().parse::<ObjectId>(), Ok(id));
        assert_eq!(ObjectId::from_bytes(id.to_bytes()), id);
        assert_eq!(id.region(), RegionUid(u64::MAX));
        assert_eq!(id.generation(), Generation(u32::MAX));
        assert_eq!(id.slot(), Slot(u32::MAX));
        let id = ObjectId::new(RegionUid(1), Generation(2), Slot(3));
        assert_eq!((id.region().0, id.generation().0, id.slot().0), (1, 2, 3));
        assert_eq!(id.to_bytes()[7], 1);
        assert_eq!(id.to_bytes()[11], 2);
        assert_eq!(id.to_bytes()[15], 3);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "0", "+0000000000000000000000000000001", &"g".repeat(32), &"0".repeat(33)]
        {
            assert!(text.parse::<ObjectId>().is_err(), "{text}");
        }
    }

    #[test]
    fn kinds_survive_their_numbers() {
        for kind in ObjectKind::ALL {
            assert_eq!(ObjectKind::from_u8(kind.as_u8()), Some(kind));
        }
        assert_eq!(ObjectKind::from_u8(0), None);
        assert_eq!(ObjectKind::from_u8(7), None);
    }
}
