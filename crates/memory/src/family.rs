//! Detects whether a client or any of its descendants still maps a region. A family is a client and
//! all processes forked from it, directly or indirectly.
//!
//! The daemon opens the data section separately for each client. It locks one byte whose position
//! encodes the client's slot, passes the descriptor and closes its own copy (`crate::locks`). The
//! kernel keeps the lock until the last process of the family has unmapped the region, exited or
//! executed another program. Any daemon can query the lock, including one that has just started.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::fabric::files::{self, system};
use crate::locks::{self, PLACES_AT};
use crate::units::Section;

/// Opens the data section read-only for the client in slot `place`, and locks the byte of that slot
/// through the new descriptor. On a file without lock support, [`is_mapped_by_client`] later
/// returns false.
///
/// # Errors
/// [`FabricError::System`] if no descriptor is left, or if another process has locked the slot.
pub fn open_for_client(fabric: &dyn Fabric, place: u32) -> Result<OwnedFd, FabricError> {
    let path = Path::new("the data section");
    let (reader, start) = fabric.read_fd(Section::Data);
    let opened = files::reopen(reader, path, OFlags::RDONLY)?;
    match locks::lock_byte(opened.as_fd(), place_byte(start, place)) {
        Ok(()) => Ok(opened),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
            Err(system("lock", path, rustix::io::Errno::AGAIN))
        }
        Err(error) => {
            tracing::warn!(%error, "no locks on this file: forked children are not known");
            Ok(opened)
        }
    }
}

/// Whether a process still has the descriptor that [`open_for_client`] returned for this slot, or
/// maps the data section through it. False if the file does not support locks.
#[must_use]
pub fn is_mapped_by_client(fabric: &dyn Fabric, place: u32) -> bool {
    let (reader, start) = fabric.read_fd(Section::Data);
    locks::is_locked(reader, place_byte(start, place), 1).unwrap_or_else(|error| {
        tracing::debug!(%error, place, "no locks on this file");
        false
    })
}

/// Whether the kernel says that no process maps the data section through this slot. False also if the
/// file does not support locks.
#[must_use]
pub fn is_unmapped_by_client(fabric: &dyn Fabric, place: u32) -> bool {
    let (reader, start) = fabric.read_fd(Section::Data);
    matches!(locks::is_locked(reader, place_byte(start, place), 1), Ok(false))
}

/// One file may contain several regions, so the start of the data section is added. A region has
/// fewer clients than bytes, so the positions of two regions do not collide.
fn place_byte(start: u64, place: u32) -> u64 {
    PLACES_AT.saturating_add(start).saturating_add(u64::from(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::shm::ShmFabric;
    use crate::mapping::Mapping;
    use crate::units::{Geometry, Length, page_bytes};

    /// Regression: a mapping must count even after its descriptor was closed, as every program does
    /// that turns into a service. Otherwise the daemon would free memory that is still being read.
    #[test]
    fn a_place_is_in_use_as_long_as_it_is_mapped() {
        let page = Length(page_bytes());
        let geometry = Geometry { control: page, data: Length(4 * page.0) };
        let dir = tempfile::tempdir().unwrap();
        let memory = ShmFabric::memfd("family", geometry).unwrap();
        let file = ShmFabric::create(dir.path(), "family", geometry).unwrap();
        for fabric in [&memory as &dyn Fabric, &file] {
            let opened = open_for_client(fabric, 3).unwrap();
            let mapping = Mapping::of_file(opened.as_fd(), 0, page, false).unwrap();
            drop(opened);
            assert!(is_mapped_by_client(fabric, 3));
            assert!(!is_mapped_by_client(fabric, 2) && !is_mapped_by_client(fabric, 4));
            drop(mapping);
            assert!(!is_mapped_by_client(fabric, 3));
        }
    }
}
