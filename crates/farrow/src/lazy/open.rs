//! Opens an object whose pages are brought one by one, and rebuilds its value over it.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_buffer::Buffer;
use bytes::Bytes;
use farrow_arrow::{Decoded, Limits, Rebuilt};
use farrow_memory::lazy::{
    LazyBytes, LazyMap, LazyMapError, PageFaults, PageFaultsError, pages_of,
};
use farrow_memory::{Length, Offset, Span, process_number};
use farrow_store::{ObjectId, ObjectKind};
use farrow_wire::{LazyBlock, LazyObject};
use rustix::event::EventfdFlags;

use super::faults;
use super::object::{BlockRanges, PAUSE, PagedObject, Users};
use super::source::{OpenOutcome, OpenedPages, Requester};
use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;

/// The result of [`open`].
pub(crate) enum FoundLazy {
    /// There is no such object.
    Nothing,
    /// The client's node has all of it.
    Replica,
    /// Its value.
    Value(Rebuilt),
}

/// A buffer over the object, which keeps its thread.
struct OwnedBytes {
    bytes: LazyBytes,
    _users: Arc<Users>,
}

impl AsRef<[u8]> for OwnedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Opens an object of a node whose memory is not mapped.
pub(crate) fn open(session: &Arc<Session>, target: &ObjectKey) -> Result<FoundLazy, Error> {
    let requester = Requester::of(session);
    let until = deadline_after(requester.timeout);
    loop {
        match requester.open(target.wire(), false) {
            Ok(OpenOutcome::Nothing) => return Ok(FoundLazy::Nothing),
            Ok(OpenOutcome::Replica) => return Ok(FoundLazy::Replica),
            Ok(OpenOutcome::Later) => crate::interrupt::pause(Duration::ZERO)?,
            Ok(OpenOutcome::Lazy(opened)) => {
                return value(*opened, requester, session).map(FoundLazy::Value);
            }
            // The daemon restarts.
            Err(Error::Disconnected { .. }) if Instant::now() < until => {
                crate::interrupt::pause(PAUSE)?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn value(
    opened: OpenedPages,
    requester: Requester,
    session: &Arc<Session>,
) -> Result<Rebuilt, Error> {
    let OpenedPages { object: opened, source, faults: socket, device } = opened;
    let id = ObjectId::from(opened.id);
    let decoded = decode(&opened, id)?;
    let invalid = || Error::InvalidDescriptor(format!("object {id} has no pages"));
    let of_file = |block: &LazyBlock| Span::new(Offset(block.offset), Length(block.length));
    let pages = pages_of(opened.blocks.iter().map(of_file)).ok_or_else(invalid)?;
    let (first, last) = pages.first().zip(pages.last()).ok_or_else(invalid)?;
    let end = last.offset.0 + last.length.0;
    let hull = Span::new(Offset(first.offset.0), Length(end - first.offset.0));
    let faults = PageFaults::open(device.as_ref().map(AsFd::as_fd))?;
    let ranges = BlockRanges { blocks: opened.blocks, pages };
    let map = Arc::new(LazyMap::new(source.file.as_fd(), hull, faults)?);
    let object = PagedObject::new(map, source, id, ranges, requester);
    let system = |error: std::io::Error| Error::System {
        what: "serve page faults",
        reason: error.to_string(),
    };
    let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let stop = stop.map_err(|errno| system(errno.into()))?;
    let users = Arc::new(Users {
        stop: stop.try_clone().map_err(system)?,
        _session: Arc::clone(session),
        process: process_number(),
    });
    let spans = decoded.ranges().filter_map(|(origin, length)| object.span_of(origin, length));
    let ends: Vec<u64> = spans.map(|span| span.offset.0 + span.length.0).collect();
    faults::start(Arc::clone(&object), ends, stop, socket).map_err(system)?;
    let resolve = |origin, length| {
        let bytes = object.map.bytes(object.span_of(origin, length)?)?;
        let bytes = OwnedBytes { bytes, _users: Arc::clone(&users) };
        Some(Buffer::from(Bytes::from_owner(bytes)))
    };
    // It reads small bitmaps, and some offsets of variable-width columns. A home that ends is an
    // error of this call, and no signal.
    let failed = RefCell::new(None);
    let rebuilt = decoded.rebuild_with(&resolve, &|bytes| {
        let brought = object.bring_for(bytes);
        brought.map_err(|error| failed.replace(Some(error))).is_ok()
    });
    match failed.into_inner() {
        Some(error) => Err(error),
        None => Ok(rebuilt?),
    }
}

fn decode(opened: &LazyObject, id: ObjectId) -> Result<Decoded, Error> {
    let decoded = Decoded::parse(&opened.descriptor, &Limits::default())?;
    let theirs = decoded.stamp().region;
    if theirs != id.hi {
        let ours = id.hi;
        let reason = format!("offsets in region {theirs:#018x}, it lies in {ours:#018x}");
        return Err(Error::InvalidDescriptor(reason));
    }
    let kind = decoded.kind() as u8;
    if kind != opened.kind {
        let word = |kind| ObjectKind::from_u8(kind).map_or("of no kind", ObjectKind::as_str);
        let (theirs, ours) = (word(kind), word(opened.kind));
        let reason = format!("it is {theirs} by its descriptor, {ours} by its entry");
        return Err(Error::InvalidDescriptor(reason));
    }
    Ok(decoded)
}

impl From<PageFaultsError> for Error {
    fn from(error: PageFaultsError) -> Self {
        match error {
            PageFaultsError::NoRight { .. } => Self::PermissionDenied(error.to_string()),
            error => Self::System { what: "lazy=True", reason: error.to_string() },
        }
    }
}

impl From<LazyMapError> for Error {
    fn from(error: LazyMapError) -> Self {
        match error {
            LazyMapError::File(error) => error.into(),
            LazyMapError::Map(error) => error.into(),
            LazyMapError::Faults(error) => error.into(),
            error => Self::System { what: "lazy=True", reason: error.to_string() },
        }
    }
}
