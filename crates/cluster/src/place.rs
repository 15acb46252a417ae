//! The location of a node's memory: a folder of an existing tmpfs, or a tmpfs of its own.

use std::path::{Path, PathBuf};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{FabricError, mount};
use farrow_wire::paths;

use crate::node::NodeError;

/// A folder with the region's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegionFolder {
    pub(crate) dir: PathBuf,
    /// Mounted by a node for this region alone.
    is_own_mount: bool,
}

impl RegionFolder {
    /// A folder in a tmpfs with other users.
    pub(crate) fn shared(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), is_own_mount: false }
    }

    /// The folder where a node at this socket mounts a tmpfs of its own.
    pub(crate) fn own(socket: &Path) -> Self {
        Self { dir: paths::memory_mount_of(socket), is_own_mount: true }
    }

    /// The folder of the region of a node without a configured location, if it has a region.
    pub(crate) fn of_existing(socket: &Path, name: &str) -> Self {
        let own = Self::own(socket);
        let is_there = own.is_mounted() && ShmFabric::inspect(&own.dir, name).is_ok();
        if is_there { own } else { Self::shared(paths::SHM_DIR) }
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.is_own_mount && mount::is_own_mount(&self.dir)
    }

    /// Removes the memory. Not an error if there is none.
    pub(crate) fn clear(&self, name: &str) -> Result<(), NodeError> {
        match ShmFabric::unlink(&self.dir, name) {
            Ok(()) | Err(FabricError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        // Unlinked first, so that each file is freed with its last user. In a mount without this,
        // all files stay until the last user of any ends.
        if self.is_own_mount {
            self.unmount();
        }
        Ok(())
    }

    /// Unmounts an empty tmpfs.
    pub(crate) fn unmount(&self) {
        if let Err(error) = mount::unmount(&self.dir) {
            tracing::warn!(%error, "an empty tmpfs is left");
        }
    }
}

/// The memory that a node without a configured location would use, for `farrow doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryChoice {
    /// The folder; `None`: a detached tmpfs of its own.
    pub dir: Option<PathBuf>,
    /// Whether it has huge pages.
    pub has_huge_pages: bool,
}

/// Determines where a new node without `--memory-dir` and `--device` would put its memory.
pub fn memory_choice() -> MemoryChoice {
    let named = paths::named_memory_dir();
    if named.is_none() && should_mount() {
        return MemoryChoice { dir: None, has_huge_pages: true };
    }
    let dir = named.unwrap_or_else(|| PathBuf::from(paths::SHM_DIR));
    let has_huge_pages = mount::huge_page_bytes_in(&dir).is_some();
    MemoryChoice { dir: Some(dir), has_huge_pages }
}

/// Whether a mount of its own gains a node huge pages, and the node may create one.
pub(crate) fn should_mount() -> bool {
    mount::huge_page_bytes_in(Path::new(paths::SHM_DIR)).is_none() && mount::can_mount_huge()
}
