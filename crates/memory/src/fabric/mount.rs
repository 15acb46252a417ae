//! A private tmpfs per node, which gives its region huge pages.
//!
//! A copy into 4 KiB pages reaches a third to a half of the memory bandwidth, since each page is
//! mapped and unmapped separately. `/dev/shm` seldom offers huge pages, but a process with the
//! permission to mount can create a tmpfs that does. Like a file, such a mount outlives the
//! process. Only its node needs to see it: clients receive descriptors.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::files::system;
use crate::error::FabricError;
use crate::system::huge_pages;
use crate::system::mounts::{self, MOUNT_SOURCE};
use crate::units::{Geometry, Length};

/// Space in addition to the sections: pages of the file system itself, and partial pages at the
/// ends of files.
const SLACK_BYTES: u64 = 1 << 20;

/// Two sections and the root; the kernel reserves some more.
const INODES: u32 = 16;

/// Whether this process may mount a tmpfs, and the kernel has huge pages for it. The mount itself
/// may still fail.
#[must_use]
pub fn can_mount_huge() -> bool {
    let may_mount = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    may_mount && huge_pages::tmpfs_can_have_huge_pages()
}

/// The huge page size of the files in `dir`, if it is on a tmpfs with huge pages.
#[must_use]
pub fn huge_page_bytes_in(dir: &Path) -> Option<Length> {
    huge_pages::tmpfs_huge_page_bytes(dir)
}

/// Creates `dir` and mounts a tmpfs with huge pages there. It is large enough for a region of this
/// geometry and closed to other users. If the machine runs out of huge pages, the rest uses small
/// pages.
///
/// # Errors
/// [`FabricError::AlreadyExists`] if `dir` exists and is not an empty directory,
/// [`FabricError::NotPrivate`] if other users could replace it, and errors of system calls. After
/// an error nothing remains.
pub fn mount_huge(dir: &Path, geometry: Geometry) -> Result<(), FabricError> {
    let io = |call| move |source| FabricError::System { call, path: dir.to_owned(), source };
    check_parent(dir)?;
    // A node killed between mkdir and mount, or between umount and rmdir, leaves an empty
    // directory.
    let _ = fs::remove_dir(dir);
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            return Err(FabricError::AlreadyExists { path: dir.to_owned() });
        }
        Err(error) => return Err(io("mkdir")(error)),
    }
    let options = options(geometry).map(|(key, value)| format!("{key}={value}")).join(",");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = CString::new(options).map_err(|_| Errno::INVAL).and_then(|options| {
        rustix::mount::mount(MOUNT_SOURCE, dir, "tmpfs", flags, options.as_c_str())
    });
    if let Err(errno) = mounted {
        let _ = fs::remove_dir(dir);
        return Err(system("mount", dir, errno));
    }
    Ok(())
}

/// Mount options of a tmpfs for one region of this geometry.
pub(super) fn options(geometry: Geometry) -> [(&'static str, String); 4] {
    let size = geometry.total().0.saturating_add(SLACK_BYTES);
    [
        // Huge pages only where they fit inside the file, so that its end takes no extra memory.
        ("huge", "within_size".to_owned()),
        ("size", size.to_string()),
        ("nr_inodes", INODES.to_string()),
        ("mode", "700".to_owned()),
    ]
}

/// Whether `dir` is the root of a tmpfs that [`mount_huge`] created for this user.
#[must_use]
pub fn is_own_mount(dir: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(dir) else {
        return false;
    };
    let is_private =
        found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    let above = dir.parent().and_then(|parent| fs::metadata(parent).ok());
    let is_root = above.is_some_and(|above| above.dev() != found.dev());
    found.is_dir() && is_private && is_root && mounts::is_mount_of_ours(found.dev())
}

/// Unmounts the tmpfs and removes `dir`. The memory is freed when no process has a file of it open
/// or mapped any more.
///
/// # Errors
/// Errors of system calls, usually missing permission.
pub fn unmount(dir: &Path) -> Result<(), FabricError> {
    // Clients may still map its files; without MNT_DETACH the umount would fail.
    rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|errno| system("umount", dir, errno))?;
    fs::remove_dir(dir).map_err(|source| FabricError::System {
        call: "rmdir",
        path: dir.to_owned(),
        source,
    })
}

/// Rejects a `dir` whose parent lets another user put a link in place of `dir`.
fn check_parent(dir: &Path) -> Result<(), FabricError> {
    let parent = dir.parent().unwrap_or(Path::new("/"));
    let found = fs::metadata(parent).map_err(|source| FabricError::System {
        call: "stat",
        path: parent.to_owned(),
        source,
    })?;
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    let is_closed = found.mode() & 0o022 == 0 || found.mode() & 0o1000 != 0;
    if is_ours && is_closed {
        return Ok(());
    }
    let mode = found.mode() & 0o7777;
    Err(FabricError::NotPrivate { path: parent.to_owned(), owner: found.uid(), mode })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::fabric::Fabric;
    use crate::fabric::shm::ShmFabric;

    const GEOMETRY: Geometry = Geometry { control: Length(1 << 20), data: Length(16 << 20) };

    /// Unmounts what the test has left mounted.
    struct UnmountGuard(tempfile::TempDir);

    impl Drop for UnmountGuard {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(self.0.path().join("memory"), UnmountFlags::DETACH);
        }
    }

    #[test]
    fn a_mount_gives_huge_pages_is_known_again_and_goes() {
        let place = UnmountGuard(tempfile::tempdir().unwrap());
        let dir = place.0.path().join("memory");
        assert!(!is_own_mount(&dir));
        if !can_mount_huge() {
            eprintln!("skipped: this process may not mount, or the kernel has no huge pages");
            return;
        }
        fs::create_dir(&dir).unwrap();
        assert!(!is_own_mount(&dir), "a plain folder");
        mount_huge(&dir, GEOMETRY).expect("an empty folder is no hindrance");
        assert!(is_own_mount(&dir));
        assert!(matches!(mount_huge(&dir, GEOMETRY), Err(FabricError::AlreadyExists { .. })));
        let fabric = ShmFabric::create(&dir, "region", GEOMETRY).expect("it has room for this");
        assert_eq!(fabric.huge_page_bytes(), huge_page_bytes_in(&dir));
        assert!(fabric.huge_page_bytes().is_some());
        unmount(&dir).expect("open files are no hindrance");
        assert!(!dir.exists());
        assert!(unmount(&dir).is_err());
    }

    #[test]
    fn no_mount_where_others_could_interfere_or_something_lies() {
        let place = UnmountGuard(tempfile::tempdir().unwrap());
        let dir = place.0.path().join("memory");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), b"somebody's").unwrap();
        assert!(matches!(mount_huge(&dir, GEOMETRY), Err(FabricError::AlreadyExists { .. })));
        fs::remove_dir_all(&dir).unwrap();
        fs::set_permissions(place.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
        match mount_huge(&dir, GEOMETRY) {
            Err(FabricError::NotPrivate { mode, .. }) => assert_eq!(mode, 0o777),
            other => panic!("{other:?}"),
        }
        assert!(!dir.exists());
    }
}
