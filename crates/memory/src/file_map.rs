//! A file mapped shared. Bytes move between the file and sockets without a copy in this process.
//!
//! The network fabric uses it at both ends of a transfer: for the data section of the home, and for
//! its mirror on another node. Unlike a [`crate::Region`] it is mapped at any address, has one
//! section, and is never exposed to users. It is written by system calls, so a full file system is
//! an error and not a signal.

use std::borrow::Cow;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::pipe::SpliceFlags;

use crate::error::{AccessError, BoundsError, MapError};
use crate::mapping::{self, Mapping};
use crate::region::by_call::read_at;
use crate::units::{HUGE_PAGE_BYTES_USUAL, Length, Offset, Span, page_bytes};

/// Pages that one `mincore` call of [`FileMap::is_allocated`] covers: 256 KiB of 4 KiB pages.
const MINCORE_PAGES: usize = 64;

/// A mapped file. Spans are offsets from its first mapped byte.
#[derive(Debug)]
pub struct FileMap {
    mapping: Mapping,
    file: OwnedFd,
    /// Where in the file the map starts.
    file_offset: u64,
    is_writable: bool,
    has_huge_pages: bool,
}

impl FileMap {
    /// Maps `length` bytes of a file, starting at `file_offset`. Both must be multiples of the page
    /// size. If the file is truncated later, loads beyond its end raise SIGBUS, or find zeros after
    /// [`crate::survive_lost_pages`]: use [`FileMap::read`] then.
    ///
    /// # Errors
    /// [`MapError::NotPages`], or the error of the system call.
    pub fn new(
        file: OwnedFd,
        file_offset: u64,
        length: Length,
        is_writable: bool,
    ) -> Result<Self, MapError> {
        let span = Span::new(Offset(file_offset), length);
        if length.is_zero() || !span.is_aligned(page_bytes()) {
            let (offset, page) = (span.offset, page_bytes());
            return Err(MapError::NotPages { offset, length, page });
        }
        let mapping = Mapping::of_file(file.as_fd(), file_offset, length, is_writable)
            .map_err(|errno| refused("mmap", span, errno))?;
        // A tmpfs with huge pages reports their size as its block size.
        let has_huge_pages = rustix::fs::fstat(&file)
            .is_ok_and(|stat| stat.st_blksize as u64 >= HUGE_PAGE_BYTES_USUAL.0);
        Ok(Self { mapping, file, file_offset, is_writable, has_huge_pages })
    }

    /// Number of mapped bytes.
    #[must_use]
    pub fn length(&self) -> Length {
        self.mapping.length()
    }

    /// The file, so that its descriptor can be passed on.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Bytes allocated for the whole file, not only for the mapped part.
    ///
    /// # Errors
    /// The error of `fstat`.
    pub fn committed(&self) -> io::Result<Length> {
        // POSIX does not define the unit of `st_blocks`; on Linux it is 512 bytes.
        Ok(Length(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512))
    }

    /// Checks that the span is inside the map.
    ///
    /// # Errors
    /// [`BoundsError`] with the numbers if it is not.
    pub fn check(&self, span: Span) -> Result<(), BoundsError> {
        let whole = Span::new(Offset(0), self.length());
        if whole.contains(span) {
            return Ok(());
        }
        Err(BoundsError { offset: span.offset, length: span.length, region: whole.length })
    }

    /// Receives up to the length of a span from a socket, directly into the file. Returns the
    /// number of bytes; zero means that the peer has closed its side.
    ///
    /// # Errors
    /// The span is outside the map, the map is not writable or has lost pages, or the system call
    /// failed. Timeouts and interrupts are errors too.
    pub fn receive(&self, socket: BorrowedFd<'_>, span: Span) -> Result<usize, AccessError> {
        self.check_writable(span)?;
        self.check_whole("recv", span)?;
        let (start, bytes) = (self.mapping.pointer(span.offset.0), span.length.as_usize());
        // SAFETY: the span is inside our mapping, which lives as long as self. The kernel stores
        // there like any other writer of shared memory, and no reference into the span exists.
        let count = unsafe { libc::recv(socket.as_raw_fd(), start.cast(), bytes, 0) };
        usize::try_from(count).map_err(|_| system("recv", span, io::Error::last_os_error()))
    }

    /// Moves up to the length of a span from a pipe into the file. For pages that do not exist yet
    /// this takes half the CPU time of [`FileMap::receive`]: they need not be cleared or mapped.
    ///
    /// # Errors
    /// The span is outside the map, the map is not writable, or the system call failed, for example
    /// because the file system is full.
    pub fn write_from_pipe(&self, pipe: BorrowedFd<'_>, span: Span) -> Result<usize, AccessError> {
        self.check_writable(span)?;
        let mut at = self.file_offset + span.offset.0;
        let (length, flags) = (span.length.as_usize(), SpliceFlags::MOVE);
        rustix::pipe::splice(pipe, None, &self.file, Some(&mut at), length, flags)
            .map_err(|errno| system("splice", span, errno.into()))
    }

    /// Whether a pipe takes less CPU time than a direct receive for this span: the pages are small
    /// and some of them do not exist yet. Also if the map has lost pages, since a pipe writes into the
    /// file.
    #[must_use]
    pub fn is_for_pipe(&self, span: Span) -> bool {
        self.mapping.has_lost_pages() || (!self.has_huge_pages && !self.is_allocated(span))
    }

    /// Whether all pages of a span are allocated in the file. True if the system cannot tell.
    #[must_use]
    pub fn is_allocated(&self, span: Span) -> bool {
        let Some(pages) = self.pages(span) else {
            return true;
        };
        // SEEK_HOLE would be slower: it searches beyond the end of the span.
        let mut is_there = [0; MINCORE_PAGES];
        let piece_bytes = MINCORE_PAGES as u64 * page_bytes();
        (0..pages.length.0).step_by(piece_bytes as usize).all(|at| {
            let length = piece_bytes.min(pages.length.0 - at);
            let start = self.mapping.pointer(pages.offset.0 + at).cast();
            let count = (length / page_bytes()) as usize;
            // SAFETY: whole pages of our own mapping, and one byte of output for each page.
            let status = unsafe { libc::mincore(start, length as usize, is_there.as_mut_ptr()) };
            status != 0 || is_there.iter().take(count).all(|byte| byte & 1 == 1)
        })
    }

    /// Sends `head` followed by a span in one call. Returns how many bytes of both the socket
    /// accepted. The kernel copies the data: later stores to the span do not change what was sent.
    ///
    /// # Errors
    /// The span is outside the map, the map has lost pages, or the system call failed. Timeouts and
    /// interrupts are errors too.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        span: Span,
    ) -> Result<usize, AccessError> {
        self.check(span)?;
        self.check_whole("map", span)?;
        let mut parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec {
                iov_base: self.mapping.pointer(span.offset.0).cast(),
                iov_len: span.length.as_usize(),
            },
        ];
        // SAFETY: all zeros are a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        // SAFETY: both parts are readable: `head` is a borrow, the span is inside our mapping.
        // Sending writes to neither.
        let count =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        usize::try_from(count).map_err(|_| system("sendmsg", span, io::Error::last_os_error()))
    }

    /// Borrows bytes that have no writer.
    ///
    /// As with [`crate::Region::sealed`], the caller guarantees that nothing writes to the span: it
    /// belongs to a sealed object that the caller holds, or the caller has received the bytes and
    /// has not shared them yet.
    ///
    /// # Errors
    /// [`BoundsError`] if the span is not inside the map.
    pub fn sealed(&self, span: Span) -> Result<&[u8], BoundsError> {
        self.check(span)?;
        let (start, bytes) = (self.mapping.pointer(span.offset.0), span.length.as_usize());
        // SAFETY: the span is inside our mapping, which lives as long as the borrow. The caller
        // guarantees that it is sealed, so it has no writer.
        Ok(unsafe { std::slice::from_raw_parts(start.cast_const(), bytes) })
    }

    /// Bytes without a writer, as for [`FileMap::sealed`], of a file that another process may truncate.
    /// They are borrowed until a page was found missing, and read by a system call from then on. Call
    /// [`FileBytes::check`] after their use, and before anything that was made of them leaves the
    /// process.
    ///
    /// # Errors
    /// The span is outside the map, or the file is too short for a system call.
    pub fn read(&self, span: Span) -> Result<FileBytes<'_>, AccessError> {
        let bytes = match self.mapping.has_lost_pages() {
            false => Cow::Borrowed(self.sealed(span)?),
            true => Cow::Owned(self.read_by_call(span)?),
        };
        Ok(FileBytes { bytes, map: self, span })
    }

    fn read_by_call(&self, span: Span) -> Result<Vec<u8>, AccessError> {
        self.check(span)?;
        let mut bytes = vec![0; span.length.as_usize()];
        read_at(self.file.as_fd(), self.file_offset + span.offset.0, span, &mut bytes)?;
        Ok(bytes)
    }

    /// Where a span begins in memory, for a device that reads or writes there by itself.
    /// The caller keeps the map as long as the device may.
    ///
    /// # Errors
    /// The span is outside the map, the map has lost pages, or it is not writable and the device shall
    /// write.
    pub fn start_of(&self, span: Span, is_written: bool) -> Result<*mut u8, AccessError> {
        if is_written {
            self.check_writable(span)?;
        }
        self.check(span)?;
        self.check_whole("map", span)?;
        Ok(self.mapping.pointer(span.offset.0))
    }

    /// Copies bytes into the file.
    ///
    /// # Errors
    /// The span is outside the map, the map is not writable, or the system call failed, for example
    /// because the file system is full.
    pub fn write(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        let span = Span::new(offset, Length::from(from.len()));
        self.check_writable(span)?;
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            let at = self.file_offset + offset.0 + done as u64;
            match rustix::io::pwrite(&self.file, rest, at) {
                Ok(0) => return Err(system("pwrite", span, io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(system("pwrite", span, errno.into())),
            }
        }
        Ok(())
    }

    /// Allocates the pages that a span touches and populates their page table entries, so that
    /// later stores cause no page faults. The contents do not change.
    ///
    /// # Errors
    /// The span is outside the map, the map is not writable, or there is no memory for the pages.
    pub fn commit(&self, span: Span) -> Result<(), AccessError> {
        self.check_writable(span)?;
        let Some(pages) = self.pages(span) else {
            return Ok(());
        };
        let start = self.mapping.pointer(pages.offset.0);
        // SAFETY: whole pages of our own mapping; populating does not change the contents.
        match unsafe { mapping::advise(start, pages.length, Advice::LinuxPopulateWrite) } {
            Ok(()) => Ok(()),
            // Before Linux 5.14: allocate the pages without their page table entries.
            Err(Errno::INVAL | Errno::NOSYS) => {
                let at = self.file_offset + pages.offset.0;
                rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, at, pages.length.0)
                    .map_err(|errno| system("fallocate", pages, errno.into()))
            }
            Err(errno) => Err(system("populate", pages, errno.into())),
        }
    }

    /// Returns the memory of a span to the system: whole pages become holes, partial pages at the
    /// ends are set to zero. Bytes outside the span do not change.
    ///
    /// # Errors
    /// The span is outside the map, the map is not writable, or the file does not support holes.
    pub fn punch(&self, span: Span) -> Result<(), AccessError> {
        self.check_writable(span)?;
        if span.is_empty() {
            return Ok(());
        }
        let at = self.file_offset + span.offset.0;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, at, span.length.0)
            .map_err(|errno| system("punch", span, errno.into()))
    }

    fn pages(&self, span: Span) -> Option<Span> {
        let whole = Span::new(Offset(0), self.length());
        span.outward(page_bytes())?.intersection(whole)
    }

    /// Fails if a private page may be in the place of one of the file.
    fn check_whole(&self, call: &'static str, span: Span) -> Result<(), AccessError> {
        match self.mapping.has_lost_pages() {
            true => Err(system(call, span, io::ErrorKind::UnexpectedEof.into())),
            false => Ok(()),
        }
    }

    fn check_writable(&self, span: Span) -> Result<(), AccessError> {
        self.check(span)?;
        if self.is_writable {
            return Ok(());
        }
        Err(AccessError::ReadOnly { offset: span.offset, length: span.length })
    }
}

/// Bytes of a [`FileMap`], from [`FileMap::read`].
#[derive(Debug)]
pub struct FileBytes<'a> {
    bytes: Cow<'a, [u8]>,
    map: &'a FileMap,
    span: Span,
}

impl FileBytes<'_> {
    /// Whether they are bytes of the map, not a copy by a system call.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        matches!(self.bytes, Cow::Borrowed(_))
    }

    /// Whether what was loaded here are bytes of the file, not zeros in place of a lost page.
    ///
    /// # Errors
    /// A page of the map was missing.
    pub fn check(&self) -> Result<(), AccessError> {
        match self.bytes {
            Cow::Borrowed(_) => self.map.check_whole("load", self.span),
            Cow::Owned(_) => Ok(()),
        }
    }
}

impl Deref for FileBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

fn system(call: &'static str, span: Span, source: io::Error) -> AccessError {
    AccessError::System { call, offset: span.offset, length: span.length, source }
}

fn refused(call: &'static str, span: Span, errno: Errno) -> MapError {
    MapError::System { call, offset: span.offset, length: span.length, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::fs::MemfdFlags;

    use super::*;

    fn memfd(length: Length) -> OwnedFd {
        let file = rustix::fs::memfd_create("file-map", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, length.0).unwrap();
        file
    }

    fn map(pages: u64) -> FileMap {
        let length = Length(pages * page_bytes());
        FileMap::new(memfd(length), 0, length, true).unwrap()
    }

    fn span(offset: u64, length: u64) -> Span {
        Span::new(Offset(offset), Length(length))
    }

    #[test]
    fn bytes_travel_from_file_to_file() {
        let (from, to) = (map(4), map(4));
        let (left, right) = UnixStream::pair().unwrap();
        from.write(Offset(100), b"far memory").unwrap();
        assert_eq!(from.send(left.as_fd(), b"head", span(100, 10)).unwrap(), 14);
        let mut head = [0; 4];
        io::Read::read_exact(&mut &right, &mut head).unwrap();
        assert_eq!(&head, b"head");
        assert_eq!(to.receive(right.as_fd(), span(5000, 99)).unwrap(), 10);
        assert_eq!(to.sealed(span(5000, 10)).unwrap(), b"far memory");
        drop(left);
        assert_eq!(to.receive(right.as_fd(), span(0, 1)).unwrap(), 0, "closed");
    }

    #[test]
    fn a_punch_leaves_the_bytes_beside_it() {
        let page = page_bytes();
        let map = map(8);
        map.write(Offset(0), &vec![7; 8 * page as usize]).unwrap();
        let before = map.committed().unwrap();
        map.punch(span(page - 1, 3 * page + 2)).unwrap();
        assert_eq!(before.0 - map.committed().unwrap().0, 3 * page);
        let bytes = map.sealed(span(0, 8 * page)).unwrap();
        let zeros = page as usize - 1..4 * page as usize + 1;
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(*byte == 0, zeros.contains(&at), "byte {at}");
        }
    }

    #[test]
    fn a_pipe_ends_in_the_file() {
        let page = page_bytes();
        let map = map(4);
        map.write(Offset(0), b"kept").unwrap();
        assert!(map.is_allocated(span(0, page)) && !map.is_allocated(span(0, page + 1)));
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writing, b"far memory").unwrap();
        assert_eq!(map.write_from_pipe(reading.as_fd(), span(page - 2, 10)).unwrap(), 10);
        assert_eq!(map.sealed(span(page - 2, 10)).unwrap(), b"far memory");
        assert_eq!(map.sealed(span(0, 5)).unwrap(), b"kept\0");
        assert!(map.is_allocated(span(0, 2 * page)));
        assert!(map.write_from_pipe(reading.as_fd(), span(4 * page, 1)).is_err());
    }

    #[test]
    fn commit_allocates_and_keeps() {
        let page = page_bytes();
        let map = map(8);
        map.write(Offset(page), b"kept").unwrap();
        map.commit(span(page + 1, page)).unwrap();
        assert_eq!(map.committed().unwrap(), Length(2 * page));
        assert_eq!(map.sealed(span(page, 4)).unwrap(), b"kept");
    }

    #[test]
    fn nothing_outside_is_touched() {
        let page = page_bytes();
        let map = map(2);
        let (socket, _other) = UnixStream::pair().unwrap();
        for wrong in [span(2 * page, 1), span(u64::MAX, 2), span(1, 2 * page)] {
            assert!(map.check(wrong).is_err(), "{wrong}");
            assert!(map.receive(socket.as_fd(), wrong).is_err());
            assert!(map.send(socket.as_fd(), b"", wrong).is_err());
            assert!(map.commit(wrong).is_err());
            assert!(map.punch(wrong).is_err());
            assert!(map.sealed(wrong).is_err());
        }
        assert!(map.write(Offset(2 * page - 1), b"xy").is_err());
        assert!(FileMap::new(memfd(Length(page)), 0, Length(page + 1), true).is_err());
        let reader = FileMap::new(memfd(Length(page)), 0, Length(page), false).unwrap();
        assert!(matches!(reader.write(Offset(0), b"x"), Err(AccessError::ReadOnly { .. })));
    }
}
