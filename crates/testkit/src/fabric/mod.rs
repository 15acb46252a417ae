//! The conformance suite of fabrics: what every back end must do, and the back ends there are.

use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Access, CoherenceClass, Fabric, FabricError, Geometry, Length, Offset, PassedFabric,
    PassedParts, Proximity, Region, Section, Span, page_bytes,
};
use tempfile::TempDir;

use crate::incoherent::{Cluster, NodeFabric, Settings};

pub mod access;
pub mod coherence;
pub mod mapping;
pub mod protection;

/// Makes a region's memory, twice: as its home and as its clients hold it.
#[derive(Clone, Copy)]
pub struct Backend {
    /// For messages.
    pub name: &'static str,
    /// Makes a new region.
    pub make: fn(Geometry) -> Made,
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A region's memory, and what must outlive it.
pub struct Made {
    /// As the home has it.
    pub home: Arc<dyn Fabric>,
    /// As a client has it.
    pub client: Arc<dyn Fabric>,
    /// As a client on another node has it, where the back end has nodes; else as a client.
    pub other: Arc<dyn Fabric>,
    /// A directory to be removed, for one.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.home.describe(), self.client.describe())
    }
}

impl Made {
    /// Maps it as the home, anywhere.
    #[must_use]
    pub fn map_home(&self) -> Arc<Region> {
        Arc::new(Region::map(Arc::clone(&self.home), Access::Home, None).expect("map as home"))
    }

    /// Maps it as a client, anywhere.
    #[must_use]
    pub fn map_client(&self) -> Arc<Region> {
        let region = Region::map(Arc::clone(&self.client), Access::Client, None);
        Arc::new(region.expect("map as client"))
    }

    /// Maps it as a client on another node, anywhere.
    #[must_use]
    pub fn map_other(&self) -> Arc<Region> {
        let fabric = Arc::clone(&self.other);
        let region = Region::map_from(fabric, Access::Client, None, Proximity::Remote);
        Arc::new(region.expect("map as client of another node"))
    }

    /// One fabric for everybody.
    fn shared(fabric: Arc<dyn Fabric>, keep: Box<dyn Any + Send + Sync>) -> Self {
        let (client, other) = (Arc::clone(&fabric), Arc::clone(&fabric));
        Self { home: fabric, client, other, keep }
    }
}

/// A directory on tmpfs if there is one, else where temporary files go.
///
/// # Panics
/// If neither can be written.
#[must_use]
pub fn shared_dir() -> TempDir {
    let shm = Path::new("/dev/shm");
    tempfile::tempdir_in(shm).or_else(|_| tempfile::tempdir()).expect("a directory to write")
}

/// What a daemon passes to its clients, as they would hold it.
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

/// Files on tmpfs, held by home and client alike.
pub const SHM_FILES: Backend = Backend {
    name: "shm files",
    make: |geometry| {
        let dir = shared_dir();
        let fabric: Arc<dyn Fabric> =
            Arc::new(ShmFabric::create(dir.path(), "region", geometry).expect("create"));
        Made::shared(fabric, Box::new(dir))
    },
};

/// Memory files, held by home and client alike.
pub const MEMFD: Backend = Backend {
    name: "memfd",
    make: |geometry| {
        let fabric: Arc<dyn Fabric> =
            Arc::new(ShmFabric::memfd("region", geometry).expect("memfd"));
        Made::shared(fabric, Box::new(()))
    },
};

/// A regular file as a device, from an offset on.
pub const DEVICE: Backend = Backend {
    name: "device",
    make: |geometry| {
        let (fabric, dir) = device(geometry, CoherenceClass::Coherent);
        Made::shared(fabric, Box::new(dir))
    },
};

/// The same, coherent inside a node only.
pub const DEVICE_NODE_LOCAL: Backend = Backend {
    name: "device, node-local",
    make: |geometry| {
        let (fabric, dir) = device(geometry, CoherenceClass::NodeLocal);
        Made::shared(fabric, Box::new(dir))
    },
};

/// Memory files that the home passed to the client.
pub const PASSED_MEMFD: Backend = Backend {
    name: "passed memfd",
    make: |geometry| {
        let made = (MEMFD.make)(geometry);
        let pass = || Arc::new(pass(&*made.home, CoherenceClass::Coherent).expect("pass"));
        Made { client: pass(), other: pass(), ..made }
    },
};

/// A device that the home passed to the client.
pub const PASSED_DEVICE: Backend = Backend {
    name: "passed device, node-local",
    make: |geometry| {
        let made = (DEVICE_NODE_LOCAL.make)(geometry);
        let pass = || Arc::new(pass(&*made.home, CoherenceClass::NodeLocal).expect("pass"));
        Made { client: pass(), other: pass(), ..made }
    },
};

/// Simulated nodes with lines of 64 B: home and client on one, the other client on another.
pub const INCOHERENT_64: Backend =
    Backend { name: "incoherent, lines of 64 B", make: |geometry| incoherent(geometry, 64) };

/// The same with lines of 128 B.
pub const INCOHERENT_128: Backend =
    Backend { name: "incoherent, lines of 128 B", make: |geometry| incoherent(geometry, 128) };

fn incoherent(geometry: Geometry, line_bytes: u32) -> Made {
    let cluster = Cluster::new(geometry, 2, Settings { line_bytes, ..Settings::default() });
    let node = |node| -> Arc<dyn Fabric> { Arc::<NodeFabric>::clone(cluster.node(node)) };
    let (home, client, other) = (node(0), node(0), node(1));
    Made { home, client, other, keep: Box::new(cluster) }
}

fn device(geometry: Geometry, coherence: CoherenceClass) -> (Arc<dyn Fabric>, TempDir) {
    let dir = shared_dir();
    // Something lies before the region, as on a device that holds several.
    let before = 3 * page_bytes();
    let path: PathBuf = dir.path().join("device");
    let file = std::fs::File::create_new(&path).expect("create");
    file.set_len(before + geometry.total().0).expect("set length");
    let fabric = DeviceFabric::open(&path, before, geometry, coherence).expect("open");
    (Arc::new(fabric), dir)
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

/// One test for each contract, over one back end.
///
/// ```
/// mod memfd {
///     farrow_testkit::fabric_contracts!(farrow_testkit::fabric::MEMFD);
/// }
/// ```
#[macro_export]
macro_rules! fabric_contracts {
    ($backend:expr) => {
        $crate::fabric_contracts!(@each $backend;
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
    (@each $backend:expr; $($module:ident: $($contract:ident),+;)+) => {
        $($(
            #[test]
            fn $contract() {
                $crate::fabric::$module::$contract(&$backend);
            }
        )+)+
    };
}
