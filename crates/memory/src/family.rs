//! Whether any process still maps a region that a client was given: the client itself, or a process
//! that was forked from it, however and by whom.
//!
//! The daemon opens the data section anew for each client, locks one byte of it that stands for the
//! client's place, passes that descriptor and closes its own copy (`crate::locks`). From then on the
//! kernel keeps the account: the lock is there until the last process of the family has unmapped the
//! region, ended, or executed another program. Any daemon can ask, one that was just started too.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::FabricError;
use crate::fabric::Fabric;
use crate::fabric::files::{self, system};
use crate::locks::{self, PLACES_AT};
use crate::units::Section;

/// Opens the data section read-only for the client in place `place`, and locks that place through it.
/// On a file that knows no locks nothing is known of the family later.
///
/// # Errors
/// [`FabricError::System`]: there are no more descriptors, or another process has locked the place.
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

/// Whether a process still maps the data section through what [`open_for_client`] made for this place,
/// or has that descriptor. False where files know no locks.
#[must_use]
pub fn is_mapped_by_client(fabric: &dyn Fabric, place: u32) -> bool {
    let (reader, start) = fabric.read_fd(Section::Data);
    locks::is_locked(reader, place_byte(start, place), 1).unwrap_or_else(|error| {
        tracing::debug!(%error, place, "no locks on this file");
        false
    })
}

/// Several regions may lie in one file, so the start of the data section is added; a region has fewer
/// clients than bytes.
fn place_byte(start: u64, place: u32) -> u64 {
    PLACES_AT.saturating_add(start).saturating_add(u64::from(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::shm::ShmFabric;
    use crate::mapping::Mapping;
    use crate::units::{Geometry, Length, page_bytes};

    /// A daemon that asked whether the descriptor is still open would free what a process reads that
    /// has closed it, as every program does that becomes a service.
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
