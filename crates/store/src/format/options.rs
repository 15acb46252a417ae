//! Sizes and limits of a new region, and the limits of the format.

use farrow_memory::{Length, page_bytes};

use crate::error::FormatError;

/// Blocks start and end at multiples of this: two lines of 64 bytes or one of 128, so that no two
/// objects share a cache line on any supported machine.
pub const BLOCK_BYTES: u64 = 128;

/// A name takes a multiple of this, so that its first word is aligned.
pub(crate) const NAME_GRAIN_BYTES: u64 = 32;

/// Maximum length of a name. The directory entry has one byte for it.
pub const NAME_BYTES_MAX: u64 = 255;

/// Name heap bytes for each object. With names up to this length, directory slots run out before
/// name space does. File and partition paths are usually shorter.
const NAME_BYTES_USUAL: u64 = 128;

/// Grants of this size or more start at a multiple of it if one fits: a huge page on x86-64.
pub const HUGE_GRANT_BYTES: u64 = 2 << 20;

/// Maximum number of directory entries. 2^28 entries take 32 GiB, beyond any current machine, and
/// every count and product in the layout stays far below 2^64.
pub const OBJECTS_MAX: u32 = 1 << 28;

/// Maximum number of clients, of grants and of hold blocks. 2^20 hold blocks of 4 KiB take 4 GiB.
pub const RECORDS_MAX: u32 = 1 << 20;

/// Maximum number of namespaces besides the default one: an entry has 12 bits for its namespace.
pub const NAMESPACES_MAX: u32 = 4095;

/// Maximum length of a namespace name. It leaves an object 191 bytes for its own name.
pub const NAMESPACE_NAME_BYTES_MAX: u64 = 63;

/// Maximum number of writers of one namespace: they fill its record.
pub const WRITERS_MAX: usize = 8;

/// Maximum heap length. On common machines the kernel maps at most 2^47 bytes in a process.
pub const CAPACITY_MAX: Length = Length(1 << 47);

/// The sizes of a region. All counts are limits for its whole life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    /// Bytes of the heap; rounded up to whole pages.
    pub capacity: Length,
    /// Objects at one time, including retiring ones.
    pub objects_max: u32,
    /// Clients at one time.
    pub clients_max: u32,
    /// Hold blocks: one page each, 496 holds in a page of 4 KiB.
    pub hold_blocks_max: u32,
    /// Grants at one time. Each range that a client still owns between two of its objects counts.
    pub grants_max: u32,
    /// Bytes for names; each name takes a multiple of 32.
    pub name_bytes: Length,
    /// Objects at one time that clients seal themselves, rounded up to whole entry pages.
    pub client_objects_max: u32,
    /// Number of events that a subscriber may lag behind before it misses some.
    pub events_max: u32,
    /// Namespaces besides the default one.
    pub namespaces_max: u32,
}

impl RegionOptions {
    /// Options for a heap of `capacity`, with limits in proportion.
    ///
    /// One object for each 16 KiB, at least 1024 and at most 4 Mi. An object takes 128 B of
    /// directory, up to 64 B of index and 128 B of names; one that a client seals itself takes 122
    /// B. So the tables take about 2.8 % of a large region.
    #[must_use]
    pub fn for_capacity(capacity: Length) -> Self {
        let objects_max = (capacity.0 / (16 << 10)).clamp(1 << 10, 4 << 20) as u32;
        let clients_max = 1024;
        Self {
            capacity,
            objects_max,
            clients_max,
            hold_blocks_max: 2 * clients_max,
            grants_max: (capacity.0 / (64 << 10)).clamp(4 << 10, 1 << 20) as u32,
            name_bytes: Length(u64::from(objects_max) * NAME_BYTES_USUAL),
            client_objects_max: objects_max,
            events_max: (objects_max / 16).clamp(1 << 10, 16 << 10),
            namespaces_max: 64,
        }
    }

    /// Check that every number is within the limits of the format.
    ///
    /// # Errors
    /// [`FormatError::OutOfRange`] with the number and its limits.
    pub fn validate(&self) -> Result<(), FormatError> {
        let name_bytes_max = u64::from(OBJECTS_MAX) * (NAME_BYTES_MAX + 1);
        let ranges = [
            ("capacity", self.capacity.0, page_bytes(), CAPACITY_MAX.0),
            ("objects_max", self.objects_max.into(), 1, OBJECTS_MAX.into()),
            ("clients_max", self.clients_max.into(), 1, RECORDS_MAX.into()),
            ("hold_blocks_max", self.hold_blocks_max.into(), 1, RECORDS_MAX.into()),
            ("grants_max", self.grants_max.into(), 1, RECORDS_MAX.into()),
            ("name_bytes", self.name_bytes.0, NAME_GRAIN_BYTES, name_bytes_max),
            ("client_objects_max", self.client_objects_max.into(), 1, OBJECTS_MAX.into()),
            ("events_max", self.events_max.into(), 1, RECORDS_MAX.into()),
            ("namespaces_max", self.namespaces_max.into(), 1, NAMESPACES_MAX.into()),
        ];
        for (what, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(FormatError::OutOfRange { what, value, min, max });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_from_a_page_to_the_longest() {
        for capacity in [page_bytes(), 1 << 20, 1 << 30, 1 << 36, CAPACITY_MAX.0] {
            RegionOptions::for_capacity(Length(capacity)).validate().unwrap();
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_their_limits() {
        let good = RegionOptions::for_capacity(Length(1 << 20));
        let refused = |options: RegionOptions, what: &str| match options.validate() {
            Err(FormatError::OutOfRange { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{what}: {other:?}"),
        };
        refused(RegionOptions { capacity: Length(0), ..good.clone() }, "capacity");
        refused(RegionOptions { capacity: Length(u64::MAX), ..good.clone() }, "capacity");
        refused(RegionOptions { objects_max: 0, ..good.clone() }, "objects_max");
        refused(RegionOptions { objects_max: u32::MAX, ..good.clone() }, "objects_max");
        refused(RegionOptions { clients_max: 0, ..good.clone() }, "clients_max");
        refused(RegionOptions { hold_blocks_max: 0, ..good.clone() }, "hold_blocks_max");
        refused(RegionOptions { grants_max: u32::MAX, ..good.clone() }, "grants_max");
        refused(RegionOptions { name_bytes: Length(0), ..good }, "name_bytes");
    }
}
