//! A simulation of memory that is coherent inside a node only: every node has its own copy of the
//! region's bytes, and only whole cache lines move between it and memory.
//!
//! Publish writes lines to memory in random order. Refresh first writes back the lines that the
//! node made dirty, as a flush does, and then fetches all lines. A seeded demon writes dirty lines
//! back and fetches clean ones at any time, which simulates evictions and prefetches. A line is
//! dirty if it differs from the bytes that the node last saw. So a line that a node never wrote is
//! never written back, and 8-byte words are never torn.
//!
//! A comparison cannot detect a store of the value that is already there. So publish, which
//! declares its range as written, writes all its lines to memory.
//!
//! All copies are files in one directory. Nodes may be in one process or in several: each moves its
//! own lines, under a lock in the directory.

mod caches;
mod copy;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farrow_memory::{
    Access, CoherenceClass, Fabric, FabricKind, Geometry, Length, Maintenance, Proximity, Region,
    Section, Span,
};

pub use caches::{Caches, CallWatch, MaintenanceCall};
use copy::CopyFile;
pub use farrow_memory::profile::Upkeep;

/// Common settings of the nodes of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct CacheSettings {
    /// Bytes of a cache line: 64 or 128.
    pub line_bytes: u32,
    /// Acts of the demon after each publish and refresh.
    pub acts: u32,
    /// Seed of the demon's acts and of the order of lines.
    pub seed: u64,
}

impl Default for CacheSettings {
    fn default() -> Self {
        Self { line_bytes: 64, acts: 4, seed: 1 }
    }
}

/// A node's view of a region: its own copy, as a fabric.
#[derive(Debug)]
pub struct NodeFabric {
    own: Arc<CopyFile>,
    caches: Caches,
    name: String,
}

impl NodeFabric {
    /// Makes zeroed memory for nodes to open.
    ///
    /// # Errors
    /// The system's error.
    pub fn create_memory(dir: &Path, geometry: Geometry) -> io::Result<()> {
        File::create_new(dir.join("lock"))?;
        CopyFile::create(&dir.join("memory"), geometry).map(drop)
    }

    /// A node's caches over the memory in `dir`: existing ones, of this process or another, or new
    /// empty ones.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(
        dir: &Path,
        node: u32,
        geometry: Geometry,
        settings: CacheSettings,
    ) -> io::Result<Arc<Self>> {
        let file = |name: String| {
            let path = dir.join(name);
            match CopyFile::create(&path, geometry) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    CopyFile::open(&path, geometry)
                }
                made => made,
            }
            .map(Arc::new)
        };
        let own = file(format!("node-{node}"))?;
        let seen = file(format!("node-{node}.seen"))?;
        let memory = Arc::new(CopyFile::open(&dir.join("memory"), geometry)?);
        let lock = File::open(dir.join("lock"))?;
        let caches = Caches::new(node, [&own, &seen, &memory], lock, settings);
        let name = format!("node {node} of {}", dir.display());
        Ok(Arc::new(Self { own, caches, name }))
    }

    /// Its caches.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.caches
    }
}

impl Fabric for NodeFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Device
    }

    fn coherence_class(&self) -> CoherenceClass {
        CoherenceClass::NodeLocal
    }

    fn geometry(&self) -> Geometry {
        self.own.geometry()
    }

    fn read_fd(&self, section: Section) -> (BorrowedFd<'_>, u64) {
        self.own.read_fd(section)
    }

    fn write_fd(&self, section: Section) -> Option<(BorrowedFd<'_>, u64)> {
        self.own.write_fd(section)
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn huge_page_bytes(&self) -> Option<Length> {
        None
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        Some(&self.caches)
    }
}

/// Nodes of this process over one memory. Node 0 is the home.
pub struct IncoherentNodes {
    nodes: Vec<Arc<NodeFabric>>,
    dir: tempfile::TempDir,
}

impl fmt::Debug for IncoherentNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes in {}", self.nodes.len(), self.dir.path().display())
    }
}

impl IncoherentNodes {
    /// Makes memory and `nodes` nodes with empty caches.
    ///
    /// # Panics
    /// If there is not enough space.
    #[must_use]
    pub fn new(geometry: Geometry, nodes: u32, settings: CacheSettings) -> Self {
        let dir = crate::directory::shared_dir();
        NodeFabric::create_memory(dir.path(), geometry).expect("make memory");
        let open = |node| NodeFabric::open(dir.path(), node, geometry, settings);
        let nodes = (0..nodes).map(|node| open(node).expect("open a node")).collect();
        Self { nodes, dir }
    }

    /// A node.
    ///
    /// # Panics
    /// If there is no node of this number.
    #[must_use]
    pub fn node(&self, node: u32) -> &Arc<NodeFabric> {
        self.nodes.get(node as usize).expect("no such node")
    }

    /// Directory of the copies, for nodes in other processes.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Maps the region on a node.
    ///
    /// # Panics
    /// If it cannot be mapped.
    #[must_use]
    pub fn map(&self, node: u32, access: Access) -> Arc<Region> {
        let fabric: Arc<dyn Fabric> = Arc::<NodeFabric>::clone(self.node(node));
        let proximity = if node == 0 { Proximity::Local } else { Proximity::Remote };
        let region = Region::map_from(fabric, access, None, proximity);
        Arc::new(region.expect("map a node's copy"))
    }

    /// Lets the demon of each node act `acts` times.
    pub fn disturb(&self, acts: u32) {
        for node in &self.nodes {
            node.caches.disturb(acts);
        }
    }

    /// Calls `watch` before each publish and refresh of every node, from now on.
    ///
    /// # Panics
    /// If a watch is already set.
    pub fn watch(&self, watch: &CallWatch) {
        for node in &self.nodes {
            node.caches.watch(Arc::clone(watch));
        }
    }

    /// The words of a span in memory.
    #[must_use]
    pub fn memory(&self, span: Span) -> Vec<u64> {
        self.node(0).caches.memory(span)
    }
}
