//! Files for objects whose pages are brought as clients read them.
//!
//! Each object has a sparse file of its own, with the offsets of the home's data section, so its
//! memory is used for nothing else. The daemon fills it ([`farrow_net::cache`]); clients map it
//! read-only, and keep it when the daemon ends.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use farrow_memory::{FileMap, Length, Span, lazy, page_bytes};
use farrow_net::CHUNK_BYTES;
use farrow_net::cache::{Cache, MirrorHold};

/// One file.
struct LazyFile {
    object: MirrorHold,
    source: LazySource,
    /// Opened read-only.
    readable: OwnedFd,
}

/// Where the bytes of a file come from.
#[derive(Clone)]
pub(super) struct LazySource {
    pub(super) node: String,
    pub(super) hold: u64,
    pub(super) blocks: Vec<Span>,
}

/// The files, by the numbers that the state gives them.
pub(super) struct LazyFiles {
    cache: Arc<Cache>,
    files: BTreeMap<u64, Result<LazyFile, String>>,
    /// The device that gives clients the right to serve page faults; `None` until it is needed, or
    /// if this process may not open it.
    device: Option<OwnedFd>,
}

impl Default for LazyFiles {
    fn default() -> Self {
        // The state limits the objects.
        let cache = Cache::new(Length(u64::MAX));
        Self { cache, files: BTreeMap::new(), device: None }
    }
}

impl LazyFiles {
    /// Creates the file of an object.
    pub(super) fn open(&mut self, file: u64, key: u64, source: LazySource) {
        self.files.insert(file, create(&self.cache, key, source));
    }

    /// Ends the use of a file here. Clients keep it.
    pub(super) fn close(&mut self, file: u64) {
        self.files.remove(&file);
    }

    /// The object of a file, to bring its bytes.
    pub(super) fn object(&self, file: u64) -> Result<MirrorHold, String> {
        self.get(file).map(|one| one.object.clone())
    }

    /// The object of a file, and where its bytes come from.
    pub(super) fn source(&self, file: u64) -> Result<(MirrorHold, LazySource), String> {
        self.get(file).map(|one| (one.object.clone(), one.source.clone()))
    }

    fn get(&self, file: u64) -> Result<&LazyFile, String> {
        let file = self.files.get(&file).ok_or("the file was closed")?;
        file.as_ref().map_err(|error| format!("no file for its pages: {error}"))
    }

    /// What a client needs: the file, and the device if there is one.
    pub(super) fn descriptors(&mut self, file: u64) -> Result<Vec<OwnedFd>, String> {
        if self.device.is_none() {
            match lazy::open_device() {
                Ok(device) => self.device = Some(device),
                Err(error) => tracing::debug!(%error, "clients serve their page faults themselves"),
            }
        }
        let readable = self.get(file)?.readable.as_fd();
        let all = [Some(readable), self.device.as_ref().map(AsFd::as_fd)];
        all.into_iter().flatten().map(|fd| fd.try_clone_to_owned().map_err(text)).collect()
    }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn create(cache: &Arc<Cache>, key: u64, source: LazySource) -> Result<LazyFile, String> {
    let blocks = &source.blocks;
    let ends = blocks.iter().map(|block| block.offset.0.saturating_add(block.length.0));
    let end = Length(ends.max().unwrap_or_default());
    let length = end.round_up(page_bytes()).ok_or("blocks beyond the address space")?;
    let (file, readable) = lazy::lazy_file("farrow-lazy", length).map_err(text)?;
    let map = FileMap::new(file, 0, length, true).map_err(text)?;
    let mirror = cache.mirror(Arc::new(map), Length(CHUNK_BYTES)).map_err(text)?;
    mirror.keep_file();
    let object = mirror.insert(key, blocks, std::time::Duration::ZERO).map_err(text)?;
    Ok(LazyFile { object, source, readable })
}
