//! Removal of files whose objects do not exist any more, in small steps between other jobs.

use std::collections::BTreeSet;
use std::fs::{self, ReadDir};
use std::io;
use std::path::PathBuf;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::SpillStore;
use super::worker::{Stop, fault};
use crate::protocol::WriteFault;

/// Files of a folder that one step looks at: some milliseconds.
const FILES_PER_STEP: usize = 64;

enum Files {
    /// Of a bucket: each step waits for one answer. With the file to remove next.
    Listed(BoxStream<'static, object_store::Result<ObjectMeta>>, Option<Path>),
    /// Of a folder, also partly written ones.
    Folder(PathBuf, ReadDir),
}

/// A removal that is not complete.
pub(super) struct Sweep {
    files: Files,
}

impl Sweep {
    /// Removes every file of this region except the retained ones.
    pub(super) fn new(store: &SpillStore) -> io::Result<Self> {
        let files = match &store.folder {
            Some(folder) => Files::Folder(folder.clone(), fs::read_dir(folder)?),
            None => Files::Listed(store.store.list(Some(&store.prefix)), None),
        };
        Ok(Self { files })
    }

    /// Removes some files. Returns whether files are left to look at. A step that is dropped can be
    /// repeated.
    pub(super) async fn step(
        &mut self,
        store: &SpillStore,
        retained: &BTreeSet<String>,
        stop: &Stop,
    ) -> Result<bool, WriteFault> {
        match &mut self.files {
            Files::Listed(files, old) => {
                if let Some(path) = old {
                    stop.step(store.store.delete(path)).await?;
                    *old = None;
                    return Ok(true);
                }
                let next = async { files.next().await.transpose() };
                let Some(file) = stop.step(next).await? else { return Ok(false) };
                let is_old = |name: &str| !store.names.is_of(name, retained);
                *old = Some(file.location).filter(|path| path.filename().is_some_and(is_old));
                Ok(true)
            }
            Files::Folder(folder, files) => {
                for _ in 0..FILES_PER_STEP {
                    let Some(file) = files.next() else {
                        if retained.is_empty() {
                            // The first file creates it again. Fails if it contains other files.
                            let _ = fs::remove_dir(folder);
                        }
                        return Ok(false);
                    };
                    remove(&file, store, retained).map_err(|error| fault(error.to_string()))?;
                }
                Ok(true)
            }
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
