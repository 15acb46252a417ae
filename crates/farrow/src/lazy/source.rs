//! The connection by which the node brings an object's bytes, and the file into which.
//!
//! When the node or the home of the object restarts, the object is opened again: there is another
//! file, and the object may lie elsewhere at its home.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use farrow_wire::link::{Link, LinkError, confused};
use farrow_wire::{
    LAZY_BLOCKS_MAX, LazyBlock, LazyObject, Listen, OpenLazy, PROTOCOL_VERSION, ReplyBody,
    RequestBody, WireTarget,
};

use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;

/// Who asks, and where: all that the thread needs to find the next daemon without the session.
#[derive(Debug)]
pub(super) struct Requester {
    pub(super) socket: PathBuf,
    client: Listen,
    /// Limit of the wait for a daemon.
    pub(super) timeout: Duration,
}

impl Requester {
    pub(super) fn of(session: &Session) -> Self {
        let (region_uid, slot, nonce) = session.place();
        let (version, node) = (PROTOCOL_VERSION, String::new());
        let client = Listen { version, region_uid, slot, nonce, node };
        Self { socket: session.socket.clone(), client, timeout: session.timeout }
    }

    /// Asks the daemon once.
    pub(super) fn open(&self, target: WireTarget, is_again: bool) -> Result<OpenOutcome, Error> {
        let deadline = deadline_after(self.timeout);
        // A slow home is no timeout: the daemon answers at this interval.
        let wait_ms = u64::try_from(self.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let client = self.client.clone();
        let open = OpenLazy { client, target, is_again, wait_ms };
        let (link, reply, descriptors) = Link::open_lazy(&self.socket, open, deadline)?;
        match reply {
            ReplyBody::Fetched(None) => Ok(OpenOutcome::Nothing),
            ReplyBody::Fetched(Some(_)) => Ok(OpenOutcome::Replica),
            ReplyBody::Fetching => Ok(OpenOutcome::Later),
            ReplyBody::Lazy(object) => {
                let mut descriptors = descriptors.into_iter();
                let file = descriptors.next();
                let file = file.ok_or_else(|| Error::Protocol("pages without a file".into()))?;
                check(&object)?;
                let source =
                    PagesConnection { link, file: File::from(file), blocks: object.blocks.clone() };
                let faults = if object.is_served { descriptors.next() } else { None };
                let faults = faults.map(UnixStream::from);
                let (object, device) = (*object, descriptors.next());
                let opened = OpenedPages { object, source, faults, device };
                Ok(OpenOutcome::Lazy(Box::new(opened)))
            }
            other => Err(confused(&other).into()),
        }
    }
}

/// What the daemon says about an object to open.
pub(super) enum OpenOutcome {
    /// There is no such object.
    Nothing,
    /// This node has all of it.
    Replica,
    /// It is still being opened.
    Later,
    /// It is open.
    Lazy(Box<OpenedPages>),
}

/// An opened object.
pub(super) struct OpenedPages {
    pub(super) object: LazyObject,
    pub(super) source: PagesConnection,
    /// The socket by which page faults are passed on to the node, if it serves them.
    pub(super) faults: Option<UnixStream>,
    /// The device for page faults, if the node may open it.
    pub(super) device: Option<OwnedFd>,
}

/// Checks what must hold for any such object.
fn check(object: &LazyObject) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::InvalidDescriptor(text));
    let count = object.blocks.len();
    if count == 0 || count > LAZY_BLOCKS_MAX {
        return invalid(format!("{count} blocks with pages on demand"));
    }
    let end = |start: u64, length: u64| start.checked_add(length).filter(|end| *end < 1 << 62);
    let are_bounded = object.blocks.iter().all(|block| {
        end(block.offset, block.length).is_some() && end(block.origin, block.length).is_some()
    });
    let mut places: Vec<(u64, u64)> =
        object.blocks.iter().map(|block| (block.offset, block.length)).collect();
    places.sort_unstable();
    let mut pairs = places.iter().zip(places.iter().skip(1));
    let are_apart = are_bounded && pairs.all(|(one, next)| one.0 + one.1 <= next.0);
    if !are_apart {
        return invalid("blocks that overlap or lie beyond the address space".into());
    }
    let (found, stored) = (crc32c::crc32c(&object.descriptor), object.descriptor_crc);
    if found != stored {
        return invalid(format!("descriptor: checksum {found:#010x}, not {stored:#010x}"));
    }
    Ok(())
}

/// An open object at the node.
#[derive(Debug)]
pub(super) struct PagesConnection {
    link: Link,
    pub(super) file: File,
    blocks: Vec<LazyBlock>,
}

impl PagesConnection {
    /// Whether it is the same object as `first`, block by block.
    pub(super) fn is_of(&self, first: &[LazyBlock]) -> bool {
        let same = |(one, other): (&LazyBlock, &LazyBlock)| {
            (one.origin, one.length) == (other.origin, other.length)
        };
        self.blocks.len() == first.len() && self.blocks.iter().zip(first).all(same)
    }

    /// Whether both have the same file: only the connection was lost.
    pub(super) fn has_file_of(&self, other: &Self) -> bool {
        let identity = |file: &File| file.metadata().ok().map(|it| (it.dev(), it.ino()));
        identity(&self.file).is_some_and(|own| identity(&other.file) == Some(own))
    }

    /// Has the node bring all bytes of the object in a range of its file.
    pub(super) fn bring(&self, start: u64, end: u64, timeout: Duration) -> Result<(), LinkError> {
        let pages = RequestBody::Pages { start, end };
        match self.link.call_unless(None, pages, deadline_after(timeout))? {
            ReplyBody::Done => Ok(()),
            other => Err(confused(&other)),
        }
    }

    /// Has the node bring a part of a block, and reads it from the file.
    pub(super) fn read(
        &self,
        block: usize,
        start: u64,
        into: &mut [u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        let block = self.blocks.get(block);
        let block = block.ok_or_else(|| Error::Protocol("a block that is not there".into()))?;
        let at = block.offset.saturating_add(start);
        self.bring(at, at.saturating_add(into.len() as u64), timeout)?;
        let read = self.file.read_exact_at(into, at);
        read.map_err(|error| Error::System { what: "read pages", reason: error.to_string() })
    }
}
