//! The memory of other nodes: opened and mapped, described to clients, cleaned of dirty lines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Access, CoherenceClass, Fabric, FabricKind, Geometry, Length, PassedFabric, Proximity, Region,
    Section, Span,
};
use farrow_store::Reader;

use crate::node::MemorySource;
use crate::protocol::cluster::{NeighbourMemory, Offer, Way};
use crate::wire::Welcome;

/// Devices that other nodes may lend regions on. What they offer is their word: it is not for them
/// to say which files this node opens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    /// That of the node's own region, and what it guarantees.
    own: Option<(PathBuf, CoherenceClass)>,
    /// Others, and all below them.
    allowed: Vec<PathBuf>,
}

impl Devices {
    pub(crate) fn new(source: &MemorySource, allowed: &[PathBuf]) -> Self {
        let own = match source {
            MemorySource::Device { path, coherence, .. } => Some((real(path), *coherence)),
            _ => None,
        };
        Self { own, allowed: allowed.iter().map(|path| real(path)).collect() }
    }

    /// What the device at this path guarantees; `None`: it is not to be opened.
    fn coherence(&self, path: &Path, is_node_local: bool) -> Option<CoherenceClass> {
        let path = real(path);
        let own = self.own.as_ref().filter(|(own, _)| *own == path).map(|(_, class)| *class);
        let is_allowed = own.is_some() || self.allowed.iter().any(|one| path.starts_with(one));
        // The more careful of both words.
        let is_careful = is_node_local || own == Some(CoherenceClass::NodeLocal);
        is_allowed.then_some(match is_careful {
            true => CoherenceClass::NodeLocal,
            false => CoherenceClass::Coherent,
        })
    }
}

/// Without links on the way.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Maps the memory of another node by the first way that works, and sees that it is the region
/// that is meant.
pub(crate) fn map(offer: &Offer, devices: &Devices) -> Result<NeighbourMemory, String> {
    let mut reasons = Vec::new();
    for way in &offer.ways {
        match open(way, offer, devices).and_then(|fabric| check(fabric, offer)) {
            Ok(memory) => return Ok(memory),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

fn open(way: &Way, offer: &Offer, devices: &Devices) -> Result<PassedFabric, String> {
    match way {
        Way::Shm { dir, name } => {
            if offer.host != own_host() {
                return Err("it is in the memory of another machine".to_owned());
            }
            ShmFabric::join(dir, name).map_err(|error| error.to_string())
        }
        Way::Device { path, file_offset, is_node_local } => {
            let geometry =
                Geometry { control: Length(offer.control_bytes), data: Length(offer.data_bytes) };
            let coherence = devices.coherence(path, *is_node_local).ok_or_else(|| {
                format!("{} is neither this node's device nor allowed", path.display())
            })?;
            DeviceFabric::join(path, *file_offset, geometry, coherence)
                .map_err(|error| error.to_string())
        }
    }
}

fn check(fabric: PassedFabric, offer: &Offer) -> Result<NeighbourMemory, String> {
    let fabric: Arc<dyn Fabric> = Arc::new(fabric);
    let region = Region::map_from(Arc::clone(&fabric), Access::Client, None, Proximity::Remote);
    let region = region.map_err(|error| error.to_string())?;
    let reader = Reader::open(Arc::new(region)).map_err(|error| error.to_string())?;
    let found = reader.uid().0;
    if found != offer.region_uid {
        return Err(format!("region {found:#018x} lies there, not {:#018x}", offer.region_uid));
    }
    Ok(NeighbourMemory { fabric, reader })
}

/// The ways to a node's own memory.
pub(crate) fn ways(source: &MemorySource, dir: Option<&Path>, name: &str) -> Vec<Way> {
    match (source, dir) {
        (MemorySource::Device { path, file_offset, coherence }, _) => {
            let is_node_local = *coherence == CoherenceClass::NodeLocal;
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            vec![Way::Device { path, file_offset: *file_offset, is_node_local }]
        }
        (_, Some(dir)) => {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
            vec![Way::Shm { dir, name: name.to_owned() }]
        }
        (_, None) => Vec::new(),
    }
}

/// The kernel and the process namespace that this process runs in: where two nodes have the same,
/// they share tmpfs, and each sees the processes of the other.
pub(crate) fn own_host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// Puts into a welcome how this machine maps the memory.
pub(crate) fn describe(memory: &NeighbourMemory, welcome: &mut Welcome) {
    let fabric = &memory.fabric;
    let geometry = fabric.geometry();
    welcome.is_device = fabric.kind() == FabricKind::Device;
    welcome.is_node_local = fabric.coherence_class() == CoherenceClass::NodeLocal;
    welcome.control_bytes = geometry.control.0;
    welcome.data_bytes = geometry.data.0;
    welcome.control_file_offset = fabric.read_fd(Section::Control).1;
    welcome.data_file_offset = fabric.read_fd(Section::Data).1;
}

/// Writes back what this machine's caches hold of these parts, and forgets it.
pub(crate) fn clean(memory: &NeighbourMemory, spans: &[Span]) -> Result<(), String> {
    farrow_store::clean(memory.reader.region(), spans).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_devices_that_are_named_here_are_opened_and_the_careful_word_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("more/other"));
        let coherence = CoherenceClass::NodeLocal;
        let source = MemorySource::Device { path: own.clone(), file_offset: 0, coherence };
        let devices = Devices::new(&source, &[dir.path().join("more")]);
        assert_eq!(devices.coherence(&own, false), Some(CoherenceClass::NodeLocal));
        assert_eq!(devices.coherence(&other, false), Some(CoherenceClass::Coherent));
        assert_eq!(devices.coherence(&other, true), Some(CoherenceClass::NodeLocal));
        for path in ["/etc/passwd", "/dev/mem"] {
            assert_eq!(devices.coherence(Path::new(path), true), None, "{path}");
        }
        assert_eq!(devices.coherence(&dir.path().join("more2"), true), None);
    }
}
