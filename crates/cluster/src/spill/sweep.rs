//! Removal of files whose objects do not exist any more: in small steps between other jobs, or of
//! all files of a region.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, ReadDir};
use std::io;

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, ObjectMeta};

use super::SpillStore;
use super::worker::{Stop, fault};
use crate::protocol::WriteFault;

/// Files of a folder that one step looks at: some milliseconds.
const FILES_PER_STEP: usize = 64;

enum Files {
    /// Of a bucket: each step waits for one answer. With the file that the next step looks at.
    Listed(BoxStream<'static, object_store::Result<ObjectMeta>>, Option<Path>),
    /// Of a folder, also partly written ones.
    Folder(ReadDir),
}

/// A removal that is not complete.
pub(super) struct Sweep {
    files: Files,
}

impl Sweep {
    /// Removes every file of this region except the retained ones.
    pub(super) fn new(store: &SpillStore) -> io::Result<Self> {
        let files = match &store.folder {
            Some(folder) => Files::Folder(fs::read_dir(folder)?),
            None => Files::Listed(store.store.list(Some(&store.prefix)), None),
        };
        Ok(Self { files })
    }

    /// Removes some files. Returns whether files are left to look at. After a step that was dropped
    /// the next one can follow.
    pub(super) async fn step(
        &mut self,
        store: &SpillStore,
        retained: &BTreeSet<String>,
        stop: &Stop,
    ) -> Result<bool, WriteFault> {
        match &mut self.files {
            Files::Listed(files, old) => {
                let Some(path) = old.take() else {
                    let next = async { files.next().await.transpose() };
                    let Some(file) = stop.step(next).await? else { return Ok(false) };
                    *old = Some(file.location);
                    return Ok(true);
                };
                // Not earlier: its object may have been written since the last step.
                let is_old = |name: &str| !store.names.is_of(name, retained);
                if path.filename().is_some_and(is_old) {
                    store.remove_old(path, stop).await?;
                }
                Ok(true)
            }
            Files::Folder(files) => {
                for _ in 0..FILES_PER_STEP {
                    let Some(file) = files.next() else { return Ok(false) };
                    remove(&file, store, retained).map_err(|error| fault(error.to_string()))?;
                }
                Ok(true)
            }
        }
    }
}

impl SpillStore {
    /// Removes all files of the region. `removed` counts those of a bucket.
    pub(super) async fn remove_all(&self, removed: &Cell<u64>) -> Result<(), WriteFault> {
        let Some(folder) = &self.folder else {
            return self.empty_bucket(removed).await;
        };
        let mut sweep = Sweep::new(self).map_err(|error| fault(error.to_string()))?;
        while sweep.step(self, &BTreeSet::new(), &Stop::default()).await? {}
        // Fails if it contains other files.
        let _ = fs::remove_dir(folder);
        Ok(())
    }

    /// A bucket removes many files by one request. What cannot be removed leaves no other one.
    async fn empty_bucket(&self, removed: &Cell<u64>) -> Result<(), WriteFault> {
        let files = self.store.list(Some(&self.prefix)).map_ok(|file| file.location);
        let mut deleted = self.store.delete_stream(files.boxed());
        let (mut left, mut reason) = (0_u64, String::new());
        while let Some(result) = deleted.next().await {
            match result {
                Ok(_) | Err(Error::NotFound { .. }) => removed.set(removed.get() + 1),
                Err(error) => (left, reason) = (left + 1, error.to_string()),
            }
        }
        match left {
            0 => Ok(()),
            left => Err(fault(format!("{left} requests or files failed, the last one: {reason}"))),
        }
    }
}

fn remove(
    file: &io::Result<fs::DirEntry>,
    store: &SpillStore,
    retained: &BTreeSet<String>,
) -> io::Result<()> {
    let file = file.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
    let name = file.file_name();
    let is_retained = name.to_str().is_some_and(|name| store.names.is_of(name, retained));
    if !is_retained && file.file_type()?.is_file() {
        fs::remove_file(file.path())?;
    }
    Ok(())
}
