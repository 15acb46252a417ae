//! Storage for objects that are moved out of memory: a folder or a bucket, and the thread that
//! writes and reads there. The event loop never waits for it.

mod change;
mod file;
mod names;
mod owner;
mod sweep;
#[cfg(test)]
mod tests;
mod worker;

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farrow_store::RegionUid;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreScheme, RetryConfig};
use url::Url;

use names::FileNames;
pub(crate) use owner::{Orphans, SpillOwner};
pub(crate) use worker::Worker;

/// Limits on retries of a failed bucket request. They end before a step of a job times out, so the
/// cause is reported.
const RETRIES_MAX: usize = 4;
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Where to spill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpillTarget {
    /// A folder of a file system, created if it does not exist.
    Folder(PathBuf),
    /// A URL that the crate `object_store` supports, with the features compiled in: `s3:`, `memory:`.
    Url(Url),
}

impl SpillTarget {
    /// Parses a URL if the text contains `://`, else a folder. A URL `file:` is its folder.
    ///
    /// # Errors
    ///
    /// A message for the user.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a folder or a URL is needed".to_owned());
        }
        if !text.contains("://") {
            return Ok(Self::Folder(PathBuf::from(text)));
        }
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        if url.scheme() == "file" {
            let folder = url.to_file_path().map(Self::Folder);
            return folder.map_err(|()| format!("{text} is no folder of this machine"));
        }
        open_url(&url).map_err(|error| error.to_string())?;
        Ok(Self::Url(url))
    }
}

impl fmt::Display for SpillTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(dir) => dir.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

/// The files of one region.
#[derive(Debug, Clone)]
pub(crate) struct SpillStore {
    store: Arc<dyn ObjectStore>,
    prefix: object_store::path::Path,
    /// The folder of this region's files, if they are in a file system.
    folder: Option<PathBuf>,
    uid: RegionUid,
    /// Prefix of each file's name, for messages.
    label: String,
    names: FileNames,
}

impl SpillStore {
    pub(crate) fn open(target: &SpillTarget, uid: RegionUid) -> io::Result<Self> {
        let (region, names) = (format!("{:016x}", uid.0), FileNames::default());
        match target {
            SpillTarget::Folder(dir) => {
                make_folder(dir)?;
                let dir = dir.canonicalize()?;
                let store = LocalFileSystem::new_with_prefix(&dir).map_err(io::Error::other)?;
                let folder = dir.join(&region);
                make_folder(&folder)?;
                close_folder(&folder);
                let label = folder.display().to_string();
                let prefix = object_store::path::Path::from(region);
                Ok(Self { store: Arc::new(store), prefix, folder: Some(folder), uid, label, names })
            }
            SpillTarget::Url(url) => {
                let (store, path) = open_url(url).map_err(io::Error::other)?;
                let label = format!("{}/{region}", url.as_str().trim_end_matches('/'));
                let prefix = path.join(region);
                Ok(Self { store, prefix, folder: None, uid, label, names })
            }
        }
    }

    /// The files of a region whose folder can be neither found nor created now. Each job fails until
    /// it is back.
    pub(crate) fn without_folder(dir: &Path, uid: RegionUid) -> io::Result<Self> {
        let folder = std::path::absolute(dir)?.join(format!("{:016x}", uid.0));
        let prefix = object_store::path::Path::from_absolute_path(&folder);
        let prefix = prefix.map_err(io::Error::other)?;
        let label = folder.display().to_string();
        let (store, names) = (Arc::new(LocalFileSystem::new()), FileNames::default());
        Ok(Self { store, prefix, folder: Some(folder), uid, label, names })
    }

    /// Ties these files to the node, since the memory of this region ends with it. They are removed
    /// at the latest when the next node with the same lock starts. Files of earlier nodes are
    /// removed now.
    pub(crate) fn belongs_to(&self, owner: &SpillOwner) -> io::Result<()> {
        let Some(dir) = self.folder.as_ref().and_then(|folder| folder.parent()) else {
            return Ok(());
        };
        for left in Orphans::of_earlier(dir, owner, self.uid) {
            tracing::info!(
                folder = %left.folder.display(),
                "spilled objects of a killed node are removed"
            );
            left.remove()?;
        }
        owner.write(dir, self.uid)
    }

    fn forget_owner(&self) -> io::Result<()> {
        let dir = self.folder.as_ref().and_then(|folder| folder.parent());
        dir.map_or(Ok(()), |dir| owner::forget(dir, self.uid))
    }

    /// Prefix of each file's name, for messages.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }
}

/// Makes a folder that only its owner can read, as the memory of the node, unless it exists.
fn make_folder(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Closes a folder of a region to other users: earlier versions could leave it open.
fn close_folder(dir: &Path) {
    let is_open = fs::metadata(dir).is_ok_and(|found| found.mode() & 0o077 != 0);
    if is_open && let Err(error) = fs::set_permissions(dir, fs::Permissions::from_mode(0o700)) {
        tracing::warn!(folder = %dir.display(), %error, "other users can read spilled objects");
    }
}

/// Opens a store. A bucket takes its credentials, region and endpoint from the environment
/// (`AWS_ACCESS_KEY_ID` and so on).
fn open_url(url: &Url) -> object_store::Result<(Arc<dyn ObjectStore>, object_store::path::Path)> {
    let (scheme, path) = ObjectStoreScheme::parse(url)?;
    if scheme != ObjectStoreScheme::AmazonS3 {
        let (store, path) = object_store::parse_url(url)?;
        return Ok((Arc::from(store), path));
    }
    // An error shows that a provider is already installed, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        max_retries: RETRIES_MAX,
        retry_timeout: RETRY_MAX,
        ..RetryConfig::default()
    };
    let bucket = AmazonS3Builder::from_env().with_url(url.as_str()).with_retry(retry).build()?;
    Ok((Arc::new(bucket), path))
}
