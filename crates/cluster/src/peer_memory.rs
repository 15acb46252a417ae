//! The memory of other nodes: opens and maps it, describes it to clients, and writes back dirty
//! cache lines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Access, CoherenceClass, Fabric, FabricKind, Geometry, Length, PassedFabric, Proximity, Region,
    Section, Span,
};
use farrow_store::Reader;
use farrow_wire::{Welcome, paths};

use crate::host::own_host;
use crate::lock::Holder;
use crate::node::{MemorySource, NodeOptions};
use crate::protocol::cluster::{MappablePeer, MemoryRoute, Offer};

/// Devices on which other nodes may lend regions. Their offers are not trusted: another node must
/// not choose the files that this node opens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    /// The device of the node's own region, and its coherence class.
    own: Option<(PathBuf, CoherenceClass)>,
    /// Allowed devices, and folders of devices.
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

    /// The coherence class of the device at this path. `None`: the device is not allowed.
    fn coherence(&self, path: &Path, is_node_local: bool) -> Option<CoherenceClass> {
        let path = real(path);
        let own = self.own.as_ref().filter(|(own, _)| *own == path).map(|(_, class)| *class);
        let is_allowed = own.is_some() || self.allowed.iter().any(|one| path.starts_with(one));
        // The stricter of the two classes.
        let is_careful = is_node_local || own == Some(CoherenceClass::NodeLocal);
        is_allowed.then_some(match is_careful {
            true => CoherenceClass::NodeLocal,
            false => CoherenceClass::Coherent,
        })
    }
}

/// The path with all links resolved.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Maps the memory of another node by the first route that works, and checks that it contains the
/// offered region.
pub(crate) fn map(offer: &Offer, devices: &Devices) -> Result<MappablePeer, String> {
    if offer.ways.is_empty() {
        return Err("it lets no other node map its memory".to_owned());
    }
    let mut reasons = Vec::new();
    for way in &offer.ways {
        match open(way, offer, devices).and_then(|fabric| check(fabric, offer)) {
            Ok(memory) => return Ok(memory),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

fn open(way: &MemoryRoute, offer: &Offer, devices: &Devices) -> Result<PassedFabric, String> {
    match way {
        MemoryRoute::Shm { dir, name } => {
            if offer.host != own_host() {
                return Err("it is in the memory of another machine".to_owned());
            }
            ShmFabric::join(dir, name).map_err(|error| error.to_string())
        }
        MemoryRoute::Held { lock } => {
            if offer.host != own_host() {
                return Err("it is in the memory of another machine".to_owned());
            }
            let held = Holder::read(lock)?.open_memory()?;
            let held = held.ok_or_else(|| {
                format!("{} names no memory: it is another node's now", lock.display())
            })?;
            held.join().map_err(|error| error.to_string())
        }
        MemoryRoute::Device { path, file_offset, is_node_local } => {
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

fn check(fabric: PassedFabric, offer: &Offer) -> Result<MappablePeer, String> {
    let fabric: Arc<dyn Fabric> = Arc::new(fabric);
    let region = Region::map_from(Arc::clone(&fabric), Access::Client, None, Proximity::Remote);
    let region = region.map_err(|error| error.to_string())?;
    let reader = Reader::open(Arc::new(region)).map_err(|error| error.to_string())?;
    let found = reader.uid().0;
    if found != offer.region_uid {
        return Err(format!("region {found:#018x} lies there, not {:#018x}", offer.region_uid));
    }
    Ok(MappablePeer { fabric, reader })
}

/// The routes to a node's own memory, which is in a folder, on a device, or without a name.
pub(crate) fn ways(options: &NodeOptions, dir: Option<&Path>) -> Vec<MemoryRoute> {
    let (source, name) = (&options.source, paths::region_name(&options.socket));
    match (source, dir) {
        (MemorySource::Device { path, file_offset, coherence }, _) => {
            let is_node_local = *coherence == CoherenceClass::NodeLocal;
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            vec![MemoryRoute::Device { path, file_offset: *file_offset, is_node_local }]
        }
        (_, Some(dir)) => {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
            vec![MemoryRoute::Shm { dir, name }]
        }
        (_, None) => {
            let lock = paths::lock_of(&options.socket);
            vec![MemoryRoute::Held { lock: std::path::absolute(&lock).unwrap_or(lock) }]
        }
    }
}

/// Describes in a welcome how this machine maps the memory.
pub(crate) fn describe(memory: &MappablePeer, welcome: &mut Welcome) {
    let fabric = &memory.fabric;
    let geometry = fabric.geometry();
    welcome.is_device = fabric.kind() == FabricKind::Device;
    welcome.is_node_local = fabric.coherence_class() == CoherenceClass::NodeLocal;
    welcome.control_bytes = geometry.control.0;
    welcome.data_bytes = geometry.data.0;
    welcome.control_file_offset = fabric.read_fd(Section::Control).1;
    welcome.data_file_offset = fabric.read_fd(Section::Data).1;
}

/// Whether the memory disappeared with the last process of its node: it had no name, and no process
/// lends it. Then it never returns.
pub(crate) fn has_ended(memory: &MappablePeer) -> bool {
    farrow_memory::is_lent(memory.fabric.read_fd(Section::Control).0) == Some(false)
}

/// Writes back and invalidates this machine's cache lines of these spans.
pub(crate) fn clean(memory: &MappablePeer, spans: &[Span]) -> Result<(), String> {
    farrow_store::clean(memory.reader.region(), spans).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use farrow_store::{Home, Layout, RegionOptions};

    use super::*;

    /// A region in a folder, and its home.
    fn lent(dir: &Path, name: &str) -> (Home, Offer) {
        let options = RegionOptions::for_capacity(Length(256 << 10));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric: Arc<dyn Fabric> = Arc::new(ShmFabric::create(dir, name, geometry).unwrap());
        let region = Region::map(fabric, Access::Home, None).unwrap();
        let home = Home::create(Arc::new(region), &options, 0).unwrap();
        let offer = Offer {
            host: own_host(),
            region_uid: home.uid().0,
            control_bytes: geometry.control.0,
            data_bytes: geometry.data.0,
            capacity: home.layout().heap.length.0,
            base: 0,
            ways: vec![MemoryRoute::Shm { dir: dir.to_owned(), name: name.to_owned() }],
        };
        (home, offer)
    }

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    fn refused(offer: &Offer, devices: &Devices) -> String {
        map(offer, devices).err().unwrap_or_else(|| panic!("mapped: {offer:?}"))
    }

    #[test]
    fn the_region_that_is_meant_is_mapped_and_no_other_that_lies_there() {
        let dir = folder();
        let (home, offer) = lent(dir.path(), "one");
        let (other, _) = lent(dir.path(), "two");
        let devices = Devices::default();
        assert_eq!(map(&offer, &devices).unwrap().reader.uid(), home.uid());
        let uid = other.uid().0;
        for wrong in [uid, home.uid().0 ^ 1, 0, u64::MAX] {
            let why = refused(&Offer { region_uid: wrong, ..offer.clone() }, &devices);
            let (found, meant) = (format!("{:#018x}", home.uid().0), format!("{wrong:#018x}"));
            assert!(why.contains(&found) && why.contains(&meant), "{why}");
        }
        // The first route that works is used. If none does, the error lists the cause of each.
        let there = offer.ways[0].clone();
        let astray = MemoryRoute::Shm { dir: dir.path().to_owned(), name: "two".into() };
        let nowhere = MemoryRoute::Shm { dir: dir.path().to_owned(), name: "three".into() };
        let ways = vec![astray.clone(), nowhere.clone(), there];
        let found = map(&Offer { ways, ..offer.clone() }, &devices).unwrap();
        assert_eq!(found.reader.uid(), home.uid());
        let why = refused(&Offer { ways: vec![astray, nowhere], ..offer.clone() }, &devices);
        assert!(why.contains(&format!("{uid:#018x}")) && why.contains("three"), "{why}");
        let why = refused(&Offer { ways: Vec::new(), ..offer }, &devices);
        assert!(why.contains("lets no other node map"), "{why}");
    }

    #[test]
    fn memory_of_another_machine_is_not_looked_for_in_this_ones_files() {
        let dir = folder();
        let (_home, offer) = lent(dir.path(), "one");
        let why = refused(&Offer { host: "elsewhere".into(), ..offer }, &Devices::default());
        assert!(why.contains("another machine"), "{why}");
    }

    #[test]
    fn names_and_files_that_are_no_region_are_refused() {
        let dir = folder();
        let (home, offer) = lent(dir.path(), "one");
        drop(home);
        let named = |name: &str| {
            let ways = vec![MemoryRoute::Shm { dir: dir.path().to_owned(), name: name.into() }];
            refused(&Offer { ways, ..offer.clone() }, &Devices::default())
        };
        for name in ["", "..", "../one", "a/b", "nul\0"] {
            assert!(!named(name).is_empty(), "{name:?}");
        }
        let file = |name: &str, part: &str| dir.path().join(format!("{name}.{part}"));
        // Files of the right length with only zeros, and a changed header.
        for (name, at) in [("zeros", None), ("changed", Some(40))] {
            for part in ["control", "data"] {
                std::fs::copy(file("one", part), file(name, part)).unwrap();
            }
            let mut bytes = std::fs::read(file(name, "control")).unwrap();
            match at {
                Some(at) => bytes[at] ^= 1,
                None => bytes.fill(0),
            }
            std::fs::write(file(name, "control"), bytes).unwrap();
            assert!(!named(name).is_empty(), "{name}");
        }
        // An exact copy is a region, so the changes caused the errors. A truncated copy is not.
        std::fs::copy(file("one", "control"), file("changed", "control")).unwrap();
        let ways = vec![MemoryRoute::Shm { dir: dir.path().to_owned(), name: "changed".into() }];
        assert!(map(&Offer { ways, ..offer.clone() }, &Devices::default()).is_ok());
        for part in ["data", "control"] {
            let cut = std::fs::File::options().write(true).open(file("changed", part)).unwrap();
            cut.set_len(1 << 16).unwrap();
            assert!(!named("changed").is_empty(), "{part}");
        }
    }

    #[test]
    fn what_a_device_is_said_to_hold_is_not_believed() {
        let dir = folder();
        let path = dir.path().join("device");
        let options = RegionOptions::for_capacity(Length(256 << 10));
        let geometry = Layout::new(&options).unwrap().geometry;
        let total = geometry.total().0;
        std::fs::File::create(&path).unwrap().set_len(2 * total).unwrap();
        let coherence = CoherenceClass::NodeLocal;
        let fabric: Arc<dyn Fabric> =
            Arc::new(DeviceFabric::open(&path, total, geometry, coherence).unwrap());
        let region = Region::map(fabric, Access::Home, None).unwrap();
        let home = Home::create(Arc::new(region), &options, 0).unwrap();
        let devices = Devices::new(&MemorySource::Automatic, &[dir.path().to_owned()]);
        let at = |file_offset, control_bytes, data_bytes| Offer {
            host: "elsewhere".into(),
            region_uid: home.uid().0,
            control_bytes,
            data_bytes,
            capacity: 1,
            base: 0,
            ways: vec![MemoryRoute::Device {
                path: path.clone(),
                file_offset,
                is_node_local: false,
            }],
        };
        let (control, data) = (geometry.control.0, geometry.data.0);
        assert_eq!(map(&at(total, control, data), &devices).unwrap().reader.uid(), home.uid());
        let page = 4096;
        for (what, offer) in [
            ("elsewhere on it", at(0, control, data)),
            ("off a page", at(total + 1, control, data)),
            ("beyond its end", at(2 * total, control, data)),
            ("beyond all ends", at(u64::MAX - page + 1, control, data)),
            ("shorter than it is", at(total, control, data - page)),
            ("without data", at(total, control, 0)),
            ("with less control", at(total, control - page, data + page)),
            ("longer than the device", at(total, control, data + total)),
            ("longer than anything", at(total, u64::MAX, u64::MAX)),
            ("that wraps", at(total, control, 0_u64.wrapping_sub(control))),
        ] {
            assert!(!refused(&offer, &devices).is_empty(), "{what}");
        }
        let why = refused(&at(total, control, data), &Devices::default());
        assert!(why.contains("nor allowed"), "{why}");
    }

    #[test]
    fn a_welcome_states_how_this_machine_maps_the_memory_whatever_the_other_said() {
        let dir = folder();
        let (_home, offer) = lent(dir.path(), "one");
        let memory = map(&offer, &Devices::default()).unwrap();
        let lies = Welcome {
            version: 1,
            region_uid: offer.region_uid,
            is_device: true,
            is_node_local: true,
            control_bytes: 1,
            data_bytes: u64::MAX,
            control_file_offset: 2,
            data_file_offset: 3,
            base: 4,
            slot: 5,
            nonce: 6,
            hold_blocks: vec![(7, 8)],
            entry_pages: Vec::new(),
            grants: Vec::new(),
            pid: 9,
            memory: "there".into(),
            namespace: 10,
            events_from: 11,
            are_objects_limited: true,
        };
        let mut reported = lies.clone();
        describe(&memory, &mut reported);
        let truth = Welcome {
            is_device: false,
            is_node_local: false,
            control_bytes: offer.control_bytes,
            data_bytes: offer.data_bytes,
            control_file_offset: 0,
            data_file_offset: 0,
            ..lies
        };
        assert_eq!(reported, truth);
    }

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
