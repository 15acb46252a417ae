//! The `shm` back end: two tmpfs files, or two memory files (memfd), one per section.
//!
//! There are two files because the sections have different writers: a client gets no writable
//! descriptor of control and so cannot change the structure of the region. Each file is opened
//! twice, once for writing and once read-only.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::fd_passing::{PassedFabric, PassedParts};
use super::files::{self, Contents, FileShape, PageSource, system};
use super::held::HeldMemory;
use super::{CoherenceClass, Fabric, FabricKind, RegionSize};
use crate::error::FabricError;
use crate::system::huge_pages;
use crate::units::{Geometry, Length, Section, page_bytes};

/// One section: the same file opened for both roles.
#[derive(Debug)]
pub(super) struct SectionFile {
    pub(super) writer: OwnedFd,
    pub(super) reader: OwnedFd,
}

/// A region in the memory of this host.
#[derive(Debug)]
pub struct ShmFabric {
    control: SectionFile,
    data: SectionFile,
    geometry: Geometry,
    place: String,
    huge_page: Option<Length>,
}

impl ShmFabric {
    /// Creates `<dir>/<name>.control` and `<dir>/<name>.data`, mode 0600. The pages are committed
    /// as far as `size` says.
    ///
    /// # Errors
    /// [`FabricError::NoSpace`] with the numbers if the file system or the memory is too small;
    /// [`FabricError::AlreadyExists`] if such a region exists. After an error nothing remains.
    pub fn create(
        dir: &Path,
        name: &str,
        size: impl Into<RegionSize>,
    ) -> Result<Self, FabricError> {
        let size = size.into();
        let geometry = size.geometry;
        files::check_name(name)?;
        files::check_geometry(geometry, 0)?;
        let control = NewFile::new(section_path(dir, name, Section::Control))?;
        files::lock_range(control.fd.as_fd(), 0, geometry.control, &control.path)?;
        let data = NewFile::new(section_path(dir, name, Section::Data))?;
        let room = PageSource::of(dir, control.fd.as_fd());
        files::check_room(size.allocated(), &room)?;
        let committed = size.committed_data();
        for (made, length, committed) in
            [(&control, geometry.control, geometry.control), (&data, geometry.data, committed)]
        {
            rustix::fs::ftruncate(&made.fd, length.0)
                .map_err(|errno| system("ftruncate", &made.path, errno))?;
            files::commit_pages(made.fd.as_fd(), 0, committed, &room, Contents::New)?;
        }
        Self::assemble(control.keep()?, data.keep()?, geometry, dir, name)
    }

    /// Adopts a region that [`ShmFabric::create`] created. The lengths are those of the files. The
    /// caller commits the pages of data that it uses ([`crate::Region::commit`]).
    ///
    /// # Errors
    /// [`FabricError::NotFound`], [`FabricError::Unfinished`] if the region is incomplete,
    /// [`FabricError::Locked`] if another home has it open, [`FabricError::NotPrivate`] if it is
    /// not private to this user, and the errors of committing pages.
    pub fn open(dir: &Path, name: &str) -> Result<Self, FabricError> {
        files::check_name(name)?;
        let path = section_path(dir, name, Section::Control);
        let control = unless_missing(open_section(&path))?;
        let data = unless_missing(open_section(&section_path(dir, name, Section::Data)))?;
        let ((control, control_length), (data, data_length)) = match (control, data) {
            (None, None) => return Err(FabricError::NotFound { path }),
            (Some(control), Some(data)) if !control.1.is_zero() && !data.1.is_zero() => {
                (control, data)
            }
            (control, _) => {
                // A process that is still creating the region has the lock; this waits for it.
                if let Some((control, _)) = control {
                    files::lock_range(control.writer.as_fd(), 0, Length(0), &path)?;
                }
                return Err(FabricError::Unfinished { path });
            }
        };
        let geometry = Geometry { control: control_length, data: data_length };
        files::check_geometry(geometry, 0)?;
        files::lock_range(control.writer.as_fd(), 0, geometry.control, &path)?;
        commit_control(&control, geometry, dir)?;
        Self::assemble(control, data, geometry, dir, name)
    }

    /// Opens a region read-only, whether or not it has a home. Takes no lock.
    ///
    /// # Errors
    /// As [`ShmFabric::open`], but never [`FabricError::Locked`].
    pub fn inspect(dir: &Path, name: &str) -> Result<PassedFabric, FabricError> {
        Self::of_another(dir, name, false)
    }

    /// Opens a region that another node lends, to pass it to clients. The clients write only to
    /// memory that the lending node grants them. Takes no lock.
    ///
    /// # Errors
    /// As [`ShmFabric::inspect`].
    pub fn join(dir: &Path, name: &str) -> Result<PassedFabric, FabricError> {
        Self::of_another(dir, name, true)
    }

    fn of_another(dir: &Path, name: &str, is_writing: bool) -> Result<PassedFabric, FabricError> {
        files::check_name(name)?;
        let (control, control_length) = open_section(&section_path(dir, name, Section::Control))?;
        let (data, data_length) = open_section(&section_path(dir, name, Section::Data))?;
        PassedFabric::new(PassedParts {
            kind: FabricKind::Shm,
            coherence: CoherenceClass::Coherent,
            geometry: Geometry { control: control_length, data: data_length },
            control_read: control.reader,
            control_file_offset: 0,
            data_read: data.reader,
            data_write: is_writing.then_some(data.writer),
            data_file_offset: 0,
        })
    }

    /// Creates two memory files (memfd) without a path; they are freed with the last descriptor.
    /// They are sealed against shrinking, so no receiver of a descriptor can cause a SIGBUS in
    /// others.
    ///
    /// # Errors
    /// As [`ShmFabric::create`]; `name` is for `/proc` only.
    pub fn memfd(name: &str, size: impl Into<RegionSize>) -> Result<Self, FabricError> {
        let size = size.into();
        let geometry = size.geometry;
        files::check_name(name)?;
        files::check_geometry(geometry, 0)?;
        let place = PathBuf::from(format!("memfd:{name}"));
        let make = |section: Section, committed: Length| -> Result<SectionFile, FabricError> {
            let length = geometry.span_of(section).length;
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let writer = rustix::fs::memfd_create(format!("{name}.{section}"), flags)
                .map_err(|errno| system("memfd_create", &place, errno))?;
            let room = PageSource::memory(&place, writer.as_fd());
            files::check_room(committed, &room)?;
            // The kernel's default mode would let every user reopen it through a passed descriptor.
            rustix::fs::fchmod(&writer, Mode::RUSR | Mode::WUSR)
                .map_err(|errno| system("fchmod", &place, errno))?;
            rustix::fs::ftruncate(&writer, length.0)
                .map_err(|errno| system("ftruncate", &place, errno))?;
            files::commit_pages(writer.as_fd(), 0, committed, &room, Contents::New)?;
            let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&writer, seals)
                .map_err(|errno| system("seal", &place, errno))?;
            let reader = files::reopen_read_only(writer.as_fd(), &place)?;
            Ok(SectionFile { writer, reader })
        };
        let control = make(Section::Control, geometry.control)?;
        files::lock_range(control.writer.as_fd(), 0, geometry.control, &place)?;
        let data = make(Section::Data, size.committed_data())?;
        Ok(Self::of_sections(control, data, geometry, place.display().to_string()))
    }

    /// Becomes the home of memory that another process created or served before. The caller commits
    /// the pages of data that it uses ([`crate::Region::commit`]).
    ///
    /// # Errors
    /// As [`ShmFabric::open`].
    pub fn adopt(held: &HeldMemory) -> Result<Self, FabricError> {
        let path = Path::new("held memory");
        let geometry = held.geometry()?;
        let [control, data] = held.fds();
        // New open file descriptions: the lock is tied to this home, not to the holder of the
        // memory.
        let again = |fd: BorrowedFd<'_>| -> Result<SectionFile, FabricError> {
            let writer = files::reopen(fd, path, OFlags::RDWR)?;
            Ok(SectionFile { reader: files::reopen_read_only(fd, path)?, writer })
        };
        let (control, data) = (again(control)?, again(data)?);
        files::lock_range(control.writer.as_fd(), 0, geometry.control, path)?;
        commit_control(&control, geometry, path)?;
        let place = "memory without a name".to_owned();
        Ok(Self::of_sections(control, data, geometry, place))
    }

    /// Descriptors that keep the memory alive. A lock on them shows other processes that the memory
    /// has an owner.
    ///
    /// # Errors
    /// A descriptor could not be opened or locked.
    pub fn hold(&self) -> Result<HeldMemory, FabricError> {
        HeldMemory::reopen(self.control.writer.as_fd(), self.data.writer.as_fd())
    }

    pub(super) fn of_sections(
        control: SectionFile,
        data: SectionFile,
        geometry: Geometry,
        place: String,
    ) -> Self {
        let huge_page = huge_pages::huge_page_bytes_of(data.reader.as_fd());
        Self { control, data, geometry, place, huge_page }
    }

    /// Removes the files of a region. Existing mappings stay valid; the memory is freed with the
    /// last one.
    ///
    /// # Errors
    /// [`FabricError::NotFound`] if neither file exists.
    pub fn unlink(dir: &Path, name: &str) -> Result<(), FabricError> {
        files::check_name(name)?;
        let mut removed = 0;
        let path = section_path(dir, name, Section::Control);
        for path in [&path, &section_path(dir, name, Section::Data)] {
            match rustix::fs::unlink(path) {
                Ok(()) => removed += 1,
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(system("unlink", path, errno)),
            }
        }
        if removed == 0 {
            return Err(FabricError::NotFound { path });
        }
        Ok(())
    }

    fn assemble(
        control: SectionFile,
        data: SectionFile,
        geometry: Geometry,
        dir: &Path,
        name: &str,
    ) -> Result<Self, FabricError> {
        let huge_page = huge_pages::tmpfs_huge_page_bytes(dir);
        let place = dir.join(name).display().to_string();
        Ok(Self { control, data, geometry, place, huge_page })
    }

    fn section(&self, section: Section) -> &SectionFile {
        match section {
            Section::Control => &self.control,
            Section::Data => &self.data,
        }
    }
}

impl Fabric for ShmFabric {
    fn kind(&self) -> FabricKind {
        FabricKind::Shm
    }

    fn coherence_class(&self) -> CoherenceClass {
        CoherenceClass::Coherent
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_fd(&self, section: Section) -> (BorrowedFd<'_>, u64) {
        (self.section(section).reader.as_fd(), 0)
    }

    fn write_fd(&self, section: Section) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.section(section).writer.as_fd(), 0))
    }

    fn describe(&self) -> String {
        self.place.clone()
    }

    fn huge_page_bytes(&self) -> Option<Length> {
        self.huge_page
    }
}

/// Commits the pages of an existing control section.
fn commit_control(
    control: &SectionFile,
    geometry: Geometry,
    path: &Path,
) -> Result<(), FabricError> {
    let room = PageSource::of(path, control.writer.as_fd());
    let (fd, length) = (control.writer.as_fd(), geometry.control);
    files::commit_pages(fd, 0, length, &room, Contents::Retained)
}

/// Path of a section's file.
fn section_path(dir: &Path, name: &str, section: Section) -> PathBuf {
    dir.join(format!("{name}.{section}"))
}

/// A new file, which is removed on drop unless it is retained.
struct NewFile {
    fd: OwnedFd,
    path: PathBuf,
    is_retained: bool,
}

impl NewFile {
    fn new(path: PathBuf) -> Result<Self, FabricError> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => Ok(Self { fd, path, is_retained: false }),
            Err(Errno::EXIST) => Err(FabricError::AlreadyExists { path }),
            Err(errno) => Err(system("create", &path, errno)),
        }
    }

    fn keep(mut self) -> Result<SectionFile, FabricError> {
        let reader = files::reopen_read_only(self.fd.as_fd(), &self.path)?;
        let writer = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
            .map_err(|errno| system("dup", &self.path, errno))?;
        self.is_retained = true;
        Ok(SectionFile { writer, reader })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_retained
            && let Err(errno) = rustix::fs::unlink(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %errno, "could not remove");
        }
    }
}

fn unless_missing<T>(opened: Result<T, FabricError>) -> Result<Option<T>, FabricError> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(FabricError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens one file of a region. It must be regular, owned by this user and closed to others.
fn open_section(path: &Path) -> Result<(SectionFile, Length), FabricError> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let writer = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => {
            return Err(FabricError::NotFound { path: path.to_owned() });
        }
        Err(errno) => return Err(system("open", path, errno)),
    };
    let FileShape::Regular(length) = files::shape_of(writer.as_fd(), path)? else {
        return Err(FabricError::NotMappable {
            path: path.to_owned(),
            reason: "it is a device; open it by the device back end".to_owned(),
        });
    };
    files::check_private(writer.as_fd(), path)?;
    let reader = files::reopen_read_only(writer.as_fd(), path)?;
    // A region created with larger pages can be used here, but not the reverse.
    if !length.0.is_multiple_of(page_bytes()) {
        let page = page_bytes();
        return Err(FabricError::BadGeometry { what: "file length", bytes: length.0, page });
    }
    Ok((SectionFile { writer, reader }, length))
}
