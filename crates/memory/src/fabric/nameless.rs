//! Regions in files without a path. The kernel frees the memory when the last process that holds or
//! maps it has exited, even if it was killed.
//!
//! If the process may mount, the files are in a separate tmpfs with huge pages that is never
//! attached to the directory tree. Otherwise they are unlinked files in an existing tmpfs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::RegionSize;
use super::files::{self, Contents, PageSource, system};
use super::mount;
use super::shm::{SectionFile, ShmFabric};
use crate::error::FabricError;
use crate::system::mounts::MOUNT_SOURCE;
use crate::units::{Geometry, Length};

impl ShmFabric {
    /// Creates a region in a separate, detached tmpfs with huge pages.
    ///
    /// # Errors
    /// [`FabricError::NoSpace`] with the numbers, and errors of system calls, usually missing
    /// permission to mount. After an error nothing remains.
    pub fn nameless_in_mount(size: impl Into<RegionSize>) -> Result<Self, FabricError> {
        let size = size.into();
        let geometry = size.geometry;
        files::check_geometry(geometry, 0)?;
        let root = match open_detached(geometry) {
            Err(FabricError::System { source, .. })
                if source.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) =>
            {
                mount_and_detach(geometry)?
            }
            opened => opened?,
        };
        let place = "a detached tmpfs with huge pages";
        make(root.as_fd(), Path::new(place), size)
    }

    /// Creates a region in the tmpfs at `dir`, in files without names.
    ///
    /// # Errors
    /// As [`ShmFabric::create`].
    pub fn nameless_in(dir: &Path, size: impl Into<RegionSize>) -> Result<Self, FabricError> {
        let size = size.into();
        files::check_geometry(size.geometry, 0)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty())
            .map_err(|errno| system("open", dir, errno))?;
        make(root.as_fd(), dir, size)
    }
}

fn make(root: BorrowedFd<'_>, dir: &Path, size: RegionSize) -> Result<ShmFabric, FabricError> {
    let geometry = size.geometry;
    let section = |length: Length, committed: Length| -> Result<SectionFile, FabricError> {
        let writer = unlinked_file(root, dir)?;
        let room = PageSource::of(dir, writer.as_fd());
        files::check_room(committed, &room)?;
        rustix::fs::ftruncate(&writer, length.0)
            .map_err(|errno| system("ftruncate", dir, errno))?;
        files::commit_pages(writer.as_fd(), 0, committed, &room, Contents::New)?;
        let reader = files::reopen_read_only(writer.as_fd(), dir)?;
        Ok(SectionFile { writer, reader })
    };
    // Data first: it is the larger one, so a region that is too large fails before anything is
    // committed.
    let data = section(geometry.data, size.committed_data())?;
    let control = section(geometry.control, geometry.control)?;
    files::lock_range(control.writer.as_fd(), 0, geometry.control, dir)?;
    let place = format!("{}, without a name", dir.display());
    Ok(ShmFabric::of_sections(control, data, geometry, place))
}

/// Creates a private file without a name. If the file system does not support that, the file is
/// unlinked immediately after its creation.
fn unlinked_file(root: BorrowedFd<'_>, dir: &Path) -> Result<OwnedFd, FabricError> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::openat(root, ".", flags, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {}
        made => return made.map_err(|errno| system("make a file", dir, errno)),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let name = format!(".farrow-{}", std::process::id());
    let made = rustix::fs::openat(root, &name, flags, mode)
        .map_err(|errno| system("make a file", dir, errno))?;
    rustix::fs::unlinkat(root, &name, AtFlags::empty())
        .map_err(|errno| system("unlink", dir, errno))?;
    Ok(made)
}

/// Creates a detached tmpfs and returns its root. The kernel frees the tmpfs with its last open
/// file.
fn open_detached(geometry: Geometry) -> Result<OwnedFd, FabricError> {
    let at = |call| move |errno| system(call, Path::new("tmpfs"), errno);
    let context =
        rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(at("fsopen"))?;
    rustix::mount::fsconfig_set_string(&context, "source", MOUNT_SOURCE)
        .map_err(at("name the source of"))?;
    for (key, value) in mount::options(geometry) {
        rustix::mount::fsconfig_set_string(&context, key, value.as_str())
            .map_err(at("set an option of"))?;
    }
    rustix::mount::fsconfig_create(&context).map_err(at("create"))?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(at("fsmount"))
}

/// The same for kernels before 5.2: mounts the tmpfs briefly and detaches it.
fn mount_and_detach(geometry: Geometry) -> Result<OwnedFd, FabricError> {
    let dir: PathBuf = std::env::temp_dir().join(format!("farrow-mount-{}", std::process::id()));
    mount::mount_huge(&dir, geometry)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root =
        rustix::fs::open(&dir, flags, Mode::empty()).map_err(|errno| system("open", &dir, errno));
    mount::unmount(&dir)?;
    root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::Fabric;
    use crate::units::Section;

    const GEOMETRY: Geometry = Geometry { control: Length(1 << 20), data: Length(16 << 20) };

    #[test]
    fn memory_without_a_name_can_be_opened_again_in_each_role() {
        let made = |root: Result<OwnedFd, FabricError>| {
            make(root.unwrap().as_fd(), Path::new("test"), GEOMETRY.into()).unwrap()
        };
        let mut all = vec![ShmFabric::nameless_in(Path::new("/dev/shm"), GEOMETRY).unwrap()];
        if mount::can_mount_huge() {
            all.push(ShmFabric::nameless_in_mount(GEOMETRY).unwrap());
            match open_detached(GEOMETRY) {
                // Linux before 5.2, or an emulator without this system call.
                Err(FabricError::System { source, .. })
                    if source.raw_os_error() == Some(libc::ENOSYS) => {}
                root => all.push(made(root)),
            }
            all.push(made(mount_and_detach(GEOMETRY)));
            assert!(all.iter().skip(1).all(|one| one.huge_page_bytes().is_some()));
        }
        for fabric in &all {
            let held = fabric.hold().unwrap();
            assert!(held.is_nameless(), "{}", fabric.describe());
            let joined = held.join().unwrap();
            assert_eq!(joined.huge_page_bytes(), fabric.huge_page_bytes());
            let (writer, _) = joined.write_fd(Section::Data).unwrap();
            rustix::io::pwrite(writer, b"x", 4096).unwrap();
            let mut byte = [0; 1];
            rustix::io::pread(fabric.read_fd(Section::Data).0, &mut byte, 4096).unwrap();
            assert_eq!(&byte, b"x");
            let (reader, _) = fabric.read_fd(Section::Data);
            assert!(rustix::io::pwrite(reader, b"x", 0).is_err(), "read-only");
        }
    }

    #[test]
    fn too_much_is_refused_with_both_numbers() {
        let geometry = Geometry { control: Length(1 << 20), data: Length(1 << 50) };
        match ShmFabric::nameless_in(Path::new("/dev/shm"), geometry) {
            Err(FabricError::NoSpace { requested, free, .. }) => {
                assert!(requested.0 >= 1 << 50 && free < requested);
            }
            other => panic!("{other:?}"),
        }
    }
}
