//! The conformance suite of fabrics: the contracts of every back end, and the back ends.

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    CoherenceClass, Fabric, FabricError, Geometry, Length, Offset, PassedFabric, PassedParts,
    Section, Span, page_bytes,
};
use tempfile::TempDir;

pub use crate::directory::shared_dir;
use crate::incoherent::{CacheSettings, IncoherentNodes, NodeFabric};

pub mod access;
pub mod coherence;
pub mod mapping;
pub mod protection;
mod wire;
pub mod world;

pub use world::{ConformanceRegion, Role};

/// Makes a region's memory, for its home and for its clients.
#[derive(Clone, Copy)]
pub struct Backend {
    /// Name in messages.
    pub name: &'static str,
    /// Makes a new region.
    pub make: fn(Geometry) -> Made,
    /// How another process gets access to it.
    pub reach: AccessMethod,
}

/// How a process that did not make a region's memory gets access to it.
#[derive(Clone, Copy, Debug)]
pub enum AccessMethod {
    /// It opens the files in [`Made::dir`], as the daemon of another node does.
    Opened(fn(&Path, Geometry, Role) -> Arc<dyn Fabric>),
    /// It receives file descriptors, as a client does from its daemon.
    Passed,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A region's memory, and everything that must outlive it.
pub struct Made {
    /// The fabric of the home.
    pub home: Arc<dyn Fabric>,
    /// The fabric of a client.
    pub client: Arc<dyn Fabric>,
    /// The fabric of a client on another node, if the back end has nodes; else that of a client.
    pub other: Arc<dyn Fabric>,
    /// Directory of its files; empty if it has no name.
    pub dir: PathBuf,
    /// For example, a directory to be removed.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.home.describe(), self.client.describe())
    }
}

impl Made {
    /// One fabric for all parties, in a directory if it has a name.
    fn shared(fabric: Arc<dyn Fabric>, dir: Option<TempDir>) -> Self {
        let (client, other) = (Arc::clone(&fabric), Arc::clone(&fabric));
        let path = dir.as_ref().map(|dir| dir.path().to_owned()).unwrap_or_default();
        Self { home: fabric, client, other, dir: path, keep: Box::new(dir) }
    }
}

/// The fabric of a client that received a daemon's file descriptors.
///
/// # Errors
/// Those of [`PassedFabric::new`].
pub fn pass(fabric: &dyn Fabric, coherence: CoherenceClass) -> Result<PassedFabric, FabricError> {
    let own = |fd: BorrowedFd<'_>| -> OwnedFd { fd.try_clone_to_owned().expect("dup") };
    let (control, control_file_offset) = fabric.read_fd(Section::Control);
    let (data, data_file_offset) = fabric.read_fd(Section::Data);
    PassedFabric::new(PassedParts {
        kind: fabric.kind(),
        coherence,
        geometry: fabric.geometry(),
        control_read: own(control),
        control_file_offset,
        data_read: own(data),
        data_write: fabric.write_fd(Section::Data).map(|(fd, _)| own(fd)),
        data_file_offset,
    })
}

/// Pages before the region, as on a device with several regions.
const DEVICE_PAGES_BEFORE: u64 = 3;

/// Files on tmpfs, used by home and client alike.
pub const SHM_FILES: Backend = Backend {
    name: "shm files",
    make: |geometry| {
        let dir = shared_dir();
        let fabric: Arc<dyn Fabric> =
            Arc::new(ShmFabric::create(dir.path(), "region", geometry).expect("create"));
        Made::shared(fabric, Some(dir))
    },
    reach: AccessMethod::Opened(|dir, _, _| {
        Arc::new(ShmFabric::join(dir, "region").expect("join"))
    }),
};

/// Memory files, used by home and client alike.
pub const MEMFD: Backend = Backend {
    name: "memfd",
    make: |geometry| {
        let fabric: Arc<dyn Fabric> =
            Arc::new(ShmFabric::memfd("region", geometry).expect("memfd"));
        Made::shared(fabric, None)
    },
    reach: AccessMethod::Passed,
};

/// A regular file as a device, from an offset on.
pub const DEVICE: Backend = Backend {
    name: "device",
    make: |geometry| device(geometry, CoherenceClass::Coherent),
    reach: AccessMethod::Opened(|dir, geometry, _| {
        join_device(dir, geometry, CoherenceClass::Coherent)
    }),
};

/// A regular file as a device that is coherent inside a node only.
pub const DEVICE_NODE_LOCAL: Backend = Backend {
    name: "device, node-local",
    make: |geometry| device(geometry, CoherenceClass::NodeLocal),
    reach: AccessMethod::Opened(|dir, geometry, _| {
        join_device(dir, geometry, CoherenceClass::NodeLocal)
    }),
};

/// Memory files that the home passed to the client.
pub const PASSED_MEMFD: Backend = Backend {
    name: "passed memfd",
    make: |geometry| {
        let made = (MEMFD.make)(geometry);
        let pass = || Arc::new(pass(&*made.home, CoherenceClass::Coherent).expect("pass"));
        Made { client: pass(), other: pass(), ..made }
    },
    reach: AccessMethod::Passed,
};

/// A device that the home passed to the client.
pub const PASSED_DEVICE: Backend = Backend {
    name: "passed device, node-local",
    make: |geometry| {
        let made = (DEVICE_NODE_LOCAL.make)(geometry);
        let pass = || Arc::new(pass(&*made.home, CoherenceClass::NodeLocal).expect("pass"));
        Made { client: pass(), other: pass(), ..made }
    },
    reach: AccessMethod::Passed,
};

/// Simulated nodes with lines of 64 B: home and client on one, the other client on another.
pub const INCOHERENT_64: Backend = Backend {
    name: "incoherent, lines of 64 B",
    make: |geometry| incoherent(geometry, 64),
    reach: AccessMethod::Opened(|dir, geometry, role| open_node(dir, geometry, role, 64)),
};

/// Simulated nodes with lines of 128 B: home and client on one, the other client on another.
pub const INCOHERENT_128: Backend = Backend {
    name: "incoherent, lines of 128 B",
    make: |geometry| incoherent(geometry, 128),
    reach: AccessMethod::Opened(|dir, geometry, role| open_node(dir, geometry, role, 128)),
};

fn incoherent(geometry: Geometry, line_bytes: u32) -> Made {
    let cluster =
        IncoherentNodes::new(geometry, 2, CacheSettings { line_bytes, ..CacheSettings::default() });
    let node = |node| -> Arc<dyn Fabric> { Arc::<NodeFabric>::clone(cluster.node(node)) };
    let (home, client, other) = (node(0), node(0), node(1));
    Made { home, client, other, dir: cluster.dir(), keep: Box::new(cluster) }
}

/// The caches of a node are in files too, so a process can be on any node.
fn open_node(dir: &Path, geometry: Geometry, role: Role, line_bytes: u32) -> Arc<dyn Fabric> {
    let node = u32::from(role == Role::Other);
    let settings = CacheSettings { line_bytes, ..CacheSettings::default() };
    NodeFabric::open(dir, node, geometry, settings).expect("open a node")
}

fn device(geometry: Geometry, coherence: CoherenceClass) -> Made {
    let dir = shared_dir();
    let before = DEVICE_PAGES_BEFORE * page_bytes();
    let path: PathBuf = dir.path().join("device");
    let file = std::fs::File::create_new(&path).expect("create");
    file.set_len(before + geometry.total().0).expect("set length");
    let fabric = DeviceFabric::open(&path, before, geometry, coherence).expect("open");
    Made::shared(Arc::new(fabric), Some(dir))
}

fn join_device(dir: &Path, geometry: Geometry, coherence: CoherenceClass) -> Arc<dyn Fabric> {
    let before = DEVICE_PAGES_BEFORE * page_bytes();
    let joined = DeviceFabric::join(&dir.join("device"), before, geometry, coherence);
    Arc::new(joined.expect("join"))
}

/// A small geometry: 4 pages of control, 64 of data.
#[must_use]
pub fn geometry() -> Geometry {
    Geometry { control: Length(4 * page_bytes()), data: Length(64 * page_bytes()) }
}

/// `count` pages of data, from page `first` of data on, in a region of [`geometry`].
#[must_use]
pub fn data_pages(first: u64, count: u64) -> Span {
    let start = geometry().control.0 + first * page_bytes();
    Span::new(Offset(start), Length(count * page_bytes()))
}

/// One test for each contract, over one back end: with all parties in one process, or each in its
/// own process.
///
/// ```
/// mod memfd {
///     farrow_testkit::fabric_contracts!(farrow_testkit::fabric::MEMFD);
/// }
/// mod memfd_in_processes {
///     farrow_testkit::fabric_contracts!(farrow_testkit::fabric::MEMFD, in processes);
/// }
/// ```
#[macro_export]
macro_rules! fabric_contracts {
    ($backend:expr) => {
        $crate::fabric_contracts!(@all one_process $backend);
    };
    ($backend:expr, in processes) => {
        $crate::fabric_contracts!(@all processes $backend);
    };
    (@all $place:ident $backend:expr) => {
        $crate::fabric_contracts!(@each $place $backend;
            mapping: descriptors_have_their_modes, two_maps_show_the_same_bytes,
                a_taken_address_falls_back, a_free_address_is_taken, a_bad_wish_is_refused,
                addresses_and_offsets_agree, the_map_goes_with_its_last_owner,
                pages_are_committed, populating_changes_nothing;
            access: nothing_outside_is_reached, words_are_whole, only_what_is_writable_is_written,
                an_alias_shows_in_the_window, large_writes_arrive, calls_and_maps_agree,
                lines_are_maintained_only_where_needed;
            coherence: what_is_published_arrives, neighbours_keep_their_lines,
                what_is_not_written_is_not_written_back, words_are_never_torn;
            protection: a_client_cannot_write_by_construction, a_home_cannot_write_data,
                a_sealed_range_is_read_only_by_construction, a_retired_range_is_read_only_at_once,
                a_writer_keeps_its_range_writable, maps_merge_again, protection_wants_data_pages;
        );
    };
    (@each $place:ident $backend:expr; $($module:ident: $($contract:ident),+;)+) => {
        $($(
            #[test]
            fn $contract() {
                let world = $crate::fabric_contracts!(@world $place $backend, $contract);
                $crate::fabric::$module::$contract(&world);
                world.finish();
            }
        )+)+
    };
    (@world one_process $backend:expr, $contract:ident) => {
        $crate::fabric::ConformanceRegion::in_one_process(&$backend)
    };
    (@world processes $backend:expr, $contract:ident) => {
        $crate::fabric::ConformanceRegion::in_processes(
            &$backend,
            concat!(module_path!(), "::", stringify!($contract)),
        )
    };
}
