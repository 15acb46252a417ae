//! Memory that is coherent inside a node only, made visible: every simulated node has a copy of
//! the region's bytes, and only whole cache lines move between it and memory.
//!
//! Publish copies lines home in random order. Refresh copies lines in, after those that the node
//! made dirty were copied home, as a flush does. A seeded demon writes dirty lines back and fetches
//! clean ones anew at any time: that is all that evictions and prefetches can do to what a node
//! sees. Lines are dirty where they differ from what the node last saw, so a line that a node never
//! wrote is never written back, and 8-byte words are never torn.
//!
//! One thing a comparison cannot see is a store of the value that is there already. So publish,
//! which says "I wrote this", brings all its lines home.
//!
//! All copies are files in one directory. Nodes may live in one process or in several: each moves
//! its own lines, under a lock of the directory's.

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

pub use caches::{Caches, Call, Upkeep, Watch};
use copy::CopyFile;

/// What the nodes of a cluster have in common.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of a cache line: 64 or 128.
    pub line_bytes: u32,
    /// Acts of the demon after each publish and refresh.
    pub acts: u32,
    /// What the demon does, and the order of lines.
    pub seed: u64,
}

impl Default for Settings {
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
    /// Makes memory, all zero, for nodes to open.
    ///
    /// # Errors
    /// The system's answer.
    pub fn create_memory(dir: &Path, geometry: Geometry) -> io::Result<()> {
        File::create_new(dir.join("lock"))?;
        CopyFile::create(&dir.join("memory"), geometry).map(drop)
    }

    /// A node's caches over the memory in `dir`: those it has, in this process or another, or empty
    /// ones.
    ///
    /// # Errors
    /// The system's answer.
    pub fn open(
        dir: &Path,
        node: u32,
        geometry: Geometry,
        settings: Settings,
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
pub struct Cluster {
    nodes: Vec<Arc<NodeFabric>>,
    dir: tempfile::TempDir,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes in {}", self.nodes.len(), self.dir.path().display())
    }
}

impl Cluster {
    /// Makes memory and `nodes` nodes with empty caches.
    ///
    /// # Panics
    /// If there is no room for them.
    #[must_use]
    pub fn new(geometry: Geometry, nodes: u32, settings: Settings) -> Self {
        let dir = crate::fabric::shared_dir();
        NodeFabric::create_memory(dir.path(), geometry).expect("make memory");
        let open = |node| NodeFabric::open(dir.path(), node, geometry, settings);
        let nodes = (0..nodes).map(|node| open(node).expect("open a node")).collect();
        Self { nodes, dir }
    }

    /// A node.
    ///
    /// # Panics
    /// If there is none of this number.
    #[must_use]
    pub fn node(&self, node: u32) -> &Arc<NodeFabric> {
        self.nodes.get(node as usize).expect("no such node")
    }

    /// Where the copies lie, for nodes in other processes.
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

    /// Lets the demons of all nodes act so often.
    pub fn disturb(&self, acts: u32) {
        for node in &self.nodes {
            node.caches.disturb(acts);
        }
    }

    /// Calls `watch` before each publish and refresh of every node, from now on.
    ///
    /// # Panics
    /// If there is one already.
    pub fn watch(&self, watch: &Watch) {
        for node in &self.nodes {
            node.caches.watch(Arc::clone(watch));
        }
    }

    /// What memory holds.
    #[must_use]
    pub fn memory(&self, span: Span) -> Vec<u64> {
        self.node(0).caches.memory(span)
    }
}
