//! Mapping a region through the file descriptors of a welcome.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use farrow_memory::{
    Access, Address, CoherenceClass, FabricKind, Geometry, Length, PassedFabric, PassedParts,
    Proximity, Region, SharedWords,
};
use farrow_store::REFRESHED_MARKS;
use farrow_wire::{PROTOCOL_VERSION, Welcome, WireError, paths};

use crate::error::Error;

/// Shared marks of refreshed lines on a node-local region, for this user's clients of the same
/// daemon. Without them each process refreshes for itself.
pub(crate) fn shared_marks(socket: &Path, region: &Region, uid: u64) -> Option<SharedWords> {
    if !region.is_node_local() || region.fabric().maintenance().is_some() {
        return None;
    }
    let daemon = std::fs::metadata(socket).ok()?.ino();
    let prefix = format!("farrow-refreshed-{}-", rustix::process::geteuid().as_raw());
    let name = format!("{prefix}{daemon:x}-{uid:016x}");
    SharedWords::open(Path::new(paths::SHM_DIR), &prefix, &name, REFRESHED_MARKS)
        .inspect_err(|error| tracing::debug!(%error, "each process refreshes for itself"))
        .ok()
}

/// Maps the region through the file descriptors received with the welcome.
pub(crate) fn map(
    welcome: &Welcome,
    descriptors: Vec<OwnedFd>,
    proximity: Proximity,
) -> Result<Region, Error> {
    if welcome.version != PROTOCOL_VERSION {
        return Err(WireError::Version { theirs: PROTOCOL_VERSION, ours: welcome.version }.into());
    }
    let count = descriptors.len();
    let Ok([control_read, data_read, data_write]) = <[OwnedFd; 3]>::try_from(descriptors) else {
        return Err(Error::Protocol(format!("{count} descriptors came, 3 were expected")));
    };
    let fabric = PassedFabric::new(PassedParts {
        kind: if welcome.is_device { FabricKind::Device } else { FabricKind::Shm },
        coherence: if welcome.is_node_local {
            CoherenceClass::NodeLocal
        } else {
            CoherenceClass::Coherent
        },
        geometry: Geometry {
            control: Length(welcome.control_bytes),
            data: Length(welcome.data_bytes),
        },
        control_read,
        control_file_offset: welcome.control_file_offset,
        data_read,
        data_write: Some(data_write),
        data_file_offset: welcome.data_file_offset,
    })?;
    let wish = usize::try_from(welcome.base).ok().map(Address);
    Ok(Region::map_from(Arc::new(fabric), Access::Client, wish, proximity)?)
}
