//! A tmpfs of a node's own, which gives its region huge pages.
//!
//! A copy into 4 KiB pages reaches a third to a half of what the memory can do, since each page is
//! mapped and unmapped for itself. `/dev/shm` seldom offers huge pages, but a process that may
//! mount can have a tmpfs that does. Such a mount outlives the process, like a file, and nobody
//! but its node needs to see it: clients get descriptors.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::files::system;
use crate::error::FabricError;
use crate::survey;
use crate::units::{Geometry, Length};

/// The source that a mount of ours names, by which it is known again.
pub(crate) const MOUNT_SOURCE: &str = "farrow";

/// Beside the sections: the file system's own few pages, and the ends of its files.
const SLACK_BYTES: u64 = 1 << 20;

/// Two sections and the root; the kernel keeps some back.
const INODES: u32 = 16;

/// Would a mount of our own be allowed and offer huge pages? The mount itself may still fail.
#[must_use]
pub fn can_mount_huge() -> bool {
    let may_mount = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    may_mount && survey::tmpfs_can_have_huge_pages()
}

/// The huge page that a tmpfs gives to the files in a folder, if it is a tmpfs and gives one.
#[must_use]
pub fn huge_page_bytes_in(dir: &Path) -> Option<Length> {
    survey::tmpfs_huge_page_bytes(dir)
}

/// Makes `dir` and mounts a tmpfs with huge pages there, as large as a region of this geometry
/// needs and closed to other users. What the machine cannot give in huge pages comes in small
/// ones.
///
/// # Errors
/// [`FabricError::AlreadyExists`] if there is something at `dir` other than an empty folder,
/// [`FabricError::NotPrivate`] if others could replace it, and the system's answers. After an
/// error nothing is left.
pub fn mount_huge(dir: &Path, geometry: Geometry) -> Result<(), FabricError> {
    let io = |call| move |source| FabricError::System { call, path: dir.to_owned(), source };
    check_parent(dir)?;
    // Left by a node that was killed between its mkdir and its mount, or its umount and its rmdir.
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

/// Of a tmpfs for one region of this geometry.
pub(super) fn options(geometry: Geometry) -> [(&'static str, String); 4] {
    let size = geometry.total().0.saturating_add(SLACK_BYTES);
    [
        // Up to the last whole one inside a file, so that its end takes no more than it has.
        ("huge", "within_size".to_owned()),
        ("size", size.to_string()),
        ("nr_inodes", INODES.to_string()),
        ("mode", "700".to_owned()),
    ]
}

/// Is `dir` the root of a tmpfs that [`mount_huge`] made for this user?
#[must_use]
pub fn is_own_mount(dir: &Path) -> bool {
    let Ok(found) = fs::symlink_metadata(dir) else {
        return false;
    };
    let is_private =
        found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    let above = dir.parent().and_then(|parent| fs::metadata(parent).ok());
    let is_root = above.is_some_and(|above| above.dev() != found.dev());
    found.is_dir() && is_private && is_root && survey::is_mount_of_ours(found.dev())
}

/// Takes the mount out of the file system and removes `dir`. Its memory is free again when nobody
/// has a file of it open or mapped.
///
/// # Errors
/// The system's answer, mostly that this process may not.
pub fn unmount(dir: &Path) -> Result<(), FabricError> {
    // Clients may have its files mapped still, which a plain umount waits for.
    rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|errno| system("umount", dir, errno))?;
    fs::remove_dir(dir).map_err(|source| FabricError::System {
        call: "rmdir",
        path: dir.to_owned(),
        source,
    })
}

/// Refuses a place in a folder where another user could put a link in the way of the mount.
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

    /// Unmounts whatever the test leaves.
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
