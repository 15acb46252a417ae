//! Access to the bytes of a region by system calls instead of loads and stores.
//!
//! Every client can truncate the data section in a tmpfs. A load from the mapping then raises SIGBUS.
//! A daemon must outlive its clients, so it reads what they write by a system call, which returns an
//! error instead. Both kinds of access see the same page cache. Where it has to load and store, it
//! survives the signal: see [`crate::survive_lost_pages`].

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::Region;
use crate::error::AccessError;
use crate::units::{Length, Offset, Section, Span};

impl Region {
    /// Reads bytes by a system call.
    ///
    /// # Errors
    /// The range is outside the region or crosses its sections, or [`AccessError::System`] if the
    /// file is too short or is a device that can only be mapped.
    pub fn read_by_call(&self, offset: Offset, into: &mut [u8]) -> Result<(), AccessError> {
        let span = Span::new(offset, Length::from(into.len()));
        let (fd, start) = self.by_call(span, |section| Some(self.fabric.read_fd(section)))?;
        read_at(fd, start, span, into)
    }

    /// As [`Region::copy_out`], for bytes of a file that a client can truncate: by a system call, so
    /// that a file that is too short is an error. A device that can only be mapped is read by loads.
    ///
    /// # Errors
    /// As [`Region::read_by_call`], except for such a device.
    pub fn copy_out_by_call(&self, offset: Offset, into: &mut [u8]) -> Result<(), AccessError> {
        match self.read_by_call(offset, into) {
            Err(AccessError::System { call: "pread", source, .. })
                if source.kind() != io::ErrorKind::UnexpectedEof =>
            {
                Ok(self.copy_out(offset, into)?)
            }
            read => read,
        }
    }

    /// Writes bytes by a system call; needs no writable mapping.
    ///
    /// # Errors
    /// As [`Region::read_by_call`], and [`AccessError::ReadOnly`] without a writable descriptor.
    pub fn write_by_call(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        let span = Span::new(offset, Length::from(from.len()));
        let (fd, start) = self.by_call(span, |section| self.fabric.write_fd(section))?;
        let mut done = 0;
        while let Some(rest) = from.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(fd, rest, start + done as u64) {
                Ok(0) => return Err(refused("pwrite", span, io::ErrorKind::WriteZero.into())),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(refused("pwrite", span, errno.into())),
            }
        }
        Ok(())
    }

    /// The file of a span, and the offset of the span in it.
    fn by_call<'a>(
        &'a self,
        span: Span,
        file_of: impl Fn(Section) -> Option<(BorrowedFd<'a>, u64)>,
    ) -> Result<(BorrowedFd<'a>, u64), AccessError> {
        self.check(span)?;
        let section = self
            .geometry
            .section_of(span)
            .ok_or_else(|| refused("sections", span, io::ErrorKind::InvalidInput.into()))?;
        let (fd, start) = file_of(section)
            .ok_or(AccessError::ReadOnly { offset: span.offset, length: span.length })?;
        Ok((fd, start + (span.offset.0 - self.geometry.span_of(section).offset.0)))
    }
}

/// Reads a span from its place in a file, whole.
///
/// # Errors
/// The file is too short, or cannot be read.
pub(crate) fn read_at(
    fd: BorrowedFd<'_>,
    start: u64,
    span: Span,
    into: &mut [u8],
) -> Result<(), AccessError> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, rest, start + done as u64) {
            Ok(0) => return Err(refused("pread", span, io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(refused("pread", span, errno.into())),
        }
    }
    Ok(())
}

fn refused(call: &'static str, span: Span, source: io::Error) -> AccessError {
    AccessError::System { call, offset: span.offset, length: span.length, source }
}
