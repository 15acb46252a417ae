//! The kernel's interface for serving page faults of this process: userfaultfd, by its ioctls.
//!
//! Numbers and structures are those of linux/userfaultfd.h.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Ioctl, IoctlOutput, Opcode, Updater, opcode};
use rustix::mm::UserfaultfdFlags;

use crate::units::{Offset, Span, page_bytes};

/// The device whose open descriptor gives the right to serve faults also inside system calls.
pub const DEVICE: &str = "/dev/userfaultfd";

const GROUP: u8 = 0xaa;
const API: u64 = 0xaa;

/// Missing and minor faults in shared memory files (Linux 4.11, 5.14), and poison (6.6).
const FEATURES: u64 = 1 << 5 | 1 << 10 | 1 << 14;

const MODE_MISSING: u64 = 1;
const MODE_MINOR: u64 = 1 << 2;
const EVENT_PAGE_FAULT: u8 = 0x12;

/// Faults that one read takes at most.
const EVENTS_MAX: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct ApiCall {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct UffdRange {
    start: u64,
    length: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RegisterCall {
    range: UffdRange,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CopyCall {
    target: u64,
    from: u64,
    length: u64,
    mode: u64,
    done: i64,
}

/// That of `UFFDIO_CONTINUE` and of `UFFDIO_POISON`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RangeCall {
    range: UffdRange,
    mode: u64,
    done: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct UffdMessage {
    kind: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const CALL_API: Opcode = opcode::read_write::<ApiCall>(GROUP, 0x3f);
const CALL_REGISTER: Opcode = opcode::read_write::<RegisterCall>(GROUP, 0);
const CALL_WAKE: Opcode = opcode::read::<UffdRange>(GROUP, 2);
const CALL_COPY: Opcode = opcode::read_write::<CopyCall>(GROUP, 3);
const CALL_CONTINUE: Opcode = opcode::read_write::<RangeCall>(GROUP, 7);
const CALL_POISON: Opcode = opcode::read_write::<RangeCall>(GROUP, 8);

/// Makes a descriptor like that of the system call, by the right of the open device.
struct NewByDevice;

// SAFETY: the call takes flags instead of a pointer, and returns a new descriptor.
unsafe impl Ioctl for NewByDevice {
    type Output = OwnedFd;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::none(GROUP, 0)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        let flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
        std::ptr::without_provenance_mut(flags.bits() as usize)
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<OwnedFd> {
        // SAFETY: on success the kernel returns a descriptor that has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(out as RawFd) })
    }
}

/// Why a process cannot serve its page faults.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageFaultsError {
    /// Faults inside system calls need a right that neither the process nor its node has.
    #[error(
        "no right to serve page faults inside system calls: start the node as root or let its \
         user open {DEVICE} (so it hands the right to its clients), or set \
         vm.unprivileged_userfaultfd=1 ({source})"
    )]
    NoRight {
        /// The error of the system call.
        source: io::Error,
    },
    /// The kernel is too old.
    #[error(
        "the kernel cannot serve page faults of shared memory with poisoned pages (Linux 6.6 or \
         later; missing and minor faults of shared memory): {source}"
    )]
    Unsupported {
        /// The error of the system call.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Its error.
        source: io::Error,
    },
}

/// A fault: the address of the page that a thread waits for.
type FaultAddress = usize;

/// The faults of the ranges of this process that are registered here.
///
/// When the last descriptor is closed the kernel resolves faults itself, with zeros. So its owner
/// unmaps the registered ranges first.
#[derive(Debug)]
pub struct PageFaults {
    queue: OwnedFd,
}

impl PageFaults {
    /// Serves also the faults inside system calls. `device`: the device opened by another process,
    /// such as the node.
    ///
    /// # Errors
    /// See [`PageFaultsError`].
    pub fn open(device: Option<BorrowedFd<'_>>) -> Result<Self, PageFaultsError> {
        let by_device = |device: BorrowedFd<'_>| {
            // SAFETY: the call creates a descriptor and changes nothing else; on a file that is not
            // the device it fails.
            unsafe { ioctl::ioctl(device, NewByDevice) }
        };
        let opened = match device.map(by_device) {
            Some(Ok(queue)) => Ok(queue),
            _ => match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
                Ok(device) => by_device(device.as_fd()),
                Err(_) => open_by_call(),
            },
        };
        let queue = opened.map_err(|errno| match errno {
            Errno::NOSYS => PageFaultsError::Unsupported { source: errno.into() },
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => failed("userfaultfd", errno),
            errno => PageFaultsError::NoRight { source: errno.into() },
        })?;
        let faults = Self { queue };
        let mut call = ApiCall { api: API, features: FEATURES, ioctls: 0 };
        match faults.call::<CALL_API, _>(&mut call) {
            Ok(()) => Ok(faults),
            Err(errno) => Err(PageFaultsError::Unsupported { source: errno.into() }),
        }
    }

    /// The faults of another process, which it has passed on.
    ///
    /// # Errors
    /// [`PageFaultsError::System`] for a descriptor of another kind.
    pub(super) fn passed(queue: OwnedFd) -> Result<Self, PageFaultsError> {
        // A read of another descriptor might block.
        let path = format!("/proc/self/fd/{}", queue.as_raw_fd());
        let kind = rustix::fs::readlink(path, Vec::new());
        let kind = kind.map_err(|errno| failed("readlink", errno))?;
        if kind.to_bytes() != b"anon_inode:[userfaultfd]" {
            return Err(failed("a descriptor that is no userfaultfd", Errno::INVAL));
        }
        // Another thread may take the fault between a poll and the read.
        rustix::io::ioctl_fionbio(&queue, true).map_err(|errno| failed("FIONBIO", errno))?;
        Ok(Self { queue })
    }

    fn call<const OPCODE: Opcode, T>(&self, call: &mut T) -> Result<(), Errno> {
        // SAFETY: each opcode is used with its structure, which the kernel reads and writes. The
        // ranges in it are checked by the callers.
        unsafe { ioctl::ioctl(&self.queue, Updater::<OPCODE, T>::new(call)) }
    }

    /// From now on the faults in a range of this process are served here. Pages that are mapped
    /// already do not fault.
    pub(super) fn register(&self, start: usize, bytes: usize) -> Result<(), PageFaultsError> {
        let mode = MODE_MISSING | MODE_MINOR;
        let mut call = RegisterCall { range: range(start, bytes), mode, ioctls: 0 };
        self.call::<CALL_REGISTER, _>(&mut call).map_err(|errno| failed("UFFDIO_REGISTER", errno))
    }

    /// Maps the pages of the file and lets threads that wait for them run on. Pages that are mapped
    /// already stay. Every page must be in the file.
    pub(super) fn resume(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        let done = self.for_all_pages(start, bytes, |start, bytes| {
            let mut call = RangeCall { range: range(start, bytes), mode: 0, done: 0 };
            (self.call::<CALL_CONTINUE, _>(&mut call), call.done)
        });
        self.wake(start, bytes)?;
        done
    }

    /// Maps copies of bytes, as private pages of this process; otherwise as [`Self::resume`]. The
    /// length is that of whole pages.
    pub(super) fn copy(&self, start: usize, from: &[u8]) -> Result<(), Errno> {
        let source = from.as_ptr().expose_provenance();
        let done = self.for_all_pages(start, from.len(), |at, bytes| {
            let from = (source + (at - start)) as u64;
            let (target, length) = (at as u64, bytes as u64);
            let mut call = CopyCall { target, from, length, mode: 0, done: 0 };
            (self.call::<CALL_COPY, _>(&mut call), call.done)
        });
        self.wake(start, from.len())?;
        done
    }

    /// Lets each access to these pages fail with SIGBUS, or with `EFAULT` inside system calls. Pages
    /// that are mapped already stay.
    pub(super) fn poison(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        let done = self.for_all_pages(start, bytes, |start, bytes| {
            let mut call = RangeCall { range: range(start, bytes), mode: 0, done: 0 };
            (self.call::<CALL_POISON, _>(&mut call), call.done)
        });
        self.wake(start, bytes)?;
        done
    }

    /// Repeats a call for the rest of a range until all of its pages are mapped.
    fn for_all_pages(
        &self,
        start: usize,
        bytes: usize,
        call: impl Fn(usize, usize) -> (Result<(), Errno>, i64),
    ) -> Result<(), Errno> {
        let page = page_bytes() as usize;
        let mut done = 0;
        while done < bytes {
            let (result, progress) = call(start + done, bytes - done);
            done += match (result, usize::try_from(progress)) {
                (Ok(()), _) => bytes - done,
                // Part of the range; or the address space is changing, and it must be tried again.
                (Err(Errno::AGAIN), Ok(progress)) => progress,
                (Err(Errno::AGAIN), Err(_)) => 0,
                // The first page is mapped.
                (Err(Errno::EXIST), _) => page,
                (Err(errno), _) => return Err(errno),
            };
        }
        Ok(())
    }

    /// Lets threads that wait for pages of a range try again.
    pub(super) fn wake(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        self.call::<CALL_WAKE, _>(&mut range(start, bytes))
    }

    /// The offsets of the pages that are waited for, in a map of `span` at `start`.
    pub(super) fn take_in(&self, start: usize, span: Span) -> Result<Vec<Offset>, Errno> {
        let offset = |at: usize| {
            let distance = at.checked_sub(start)? as u64;
            let page = distance - distance % page_bytes();
            (page < span.length.0).then(|| Offset(span.offset.0 + page))
        };
        Ok(self.take()?.into_iter().filter_map(offset).collect())
    }

    /// The faults that wait, without waiting for one.
    fn take(&self) -> Result<Vec<FaultAddress>, Errno> {
        let mut bytes = [MaybeUninit::<u8>::uninit(); EVENTS_MAX * size_of::<UffdMessage>()];
        let bytes = match rustix::io::read(&self.queue, &mut bytes) {
            Ok((read, _)) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        };
        let word = |event: &[u8], at: usize| {
            let word = event.get(at..at + 8).and_then(|word| word.try_into().ok());
            u64::from_ne_bytes(word.unwrap_or_default())
        };
        let events = bytes.chunks_exact(size_of::<UffdMessage>());
        let faults = events.filter(|event| event.first() == Some(&EVENT_PAGE_FAULT));
        let at = std::mem::offset_of!(UffdMessage, address);
        Ok(faults.map(|event| word(event, at) as usize).collect())
    }
}

impl AsFd for PageFaults {
    /// Readable while a fault waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

fn open_by_call() -> Result<OwnedFd, Errno> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: the descriptor is used for mappings of this crate only.
    unsafe { rustix::mm::userfaultfd(flags) }
}

fn range(start: usize, bytes: usize) -> UffdRange {
    UffdRange { start: start as u64, length: bytes as u64 }
}

pub(super) fn failed(call: &'static str, errno: Errno) -> PageFaultsError {
    PageFaultsError::System { call, source: errno.into() }
}
