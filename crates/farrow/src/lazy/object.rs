//! An object whose pages are brought one by one, mapped in this process.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use farrow_memory::lazy::{LazyMap, ShownChunks};
use farrow_memory::{Length, Offset, Span, fork, page_bytes, process_number};
use farrow_store::ObjectId;
use farrow_wire::{LazyBlock, WireTarget};

use super::CHUNK_BYTES;
use super::source::{OpenOutcome, OpenedPages, PagesConnection, Requester};
use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;
use crate::lock::lock;

/// Largest part of an explicit fetch that the node is asked for at a time.
const PART_BYTES: u64 = 8 << 20;

/// Pause before a node is asked again.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// All of these objects, by the addresses of their maps; in a forked child also those of its parent.
/// Locked without a fork, since no thread would unlock the child's copy.
static OBJECTS: RwLock<BTreeMap<usize, Weak<PagedObject>>> = RwLock::new(BTreeMap::new());

/// A mapped object. Offsets are those of the first file.
#[derive(Debug)]
pub(super) struct PagedObject {
    pub(super) map: Arc<LazyMap>,
    id: ObjectId,
    blocks: Vec<LazyBlock>,
    /// The pages of all blocks, in order and disjoint.
    pages: Vec<Span>,
    requester: Requester,
    source: Mutex<CurrentPages>,
    /// The chunks of the mapped file that were shown whole: a bit for each.
    shown: Mutex<Vec<u64>>,
    /// Those that the node has shown.
    shown_by_node: OnceLock<ShownChunks>,
    /// The process that has it mapped.
    process: u64,
}

#[derive(Debug, Clone)]
struct CurrentPages {
    source: Arc<PagesConnection>,
    /// Its file is the mapped one.
    is_first: bool,
}

/// Where an object lies in its file: its blocks, and the whole pages that have them.
pub(super) struct BlockRanges {
    pub(super) blocks: Vec<LazyBlock>,
    pub(super) pages: Vec<Span>,
}

impl PagedObject {
    pub(super) fn new(
        map: Arc<LazyMap>,
        source: PagesConnection,
        id: ObjectId,
        ranges: BlockRanges,
        requester: Requester,
    ) -> Arc<Self> {
        let BlockRanges { blocks, pages } = ranges;
        let source = CurrentPages { source: Arc::new(source), is_first: true };
        let address = map.address();
        let source = Mutex::new(source);
        let words = map.span().length.0.div_ceil(CHUNK_BYTES * 64) + 1;
        let shown = Mutex::new(vec![0; words as usize]);
        let process = process_number();
        let object = Self {
            map,
            id,
            blocks,
            pages,
            requester,
            source,
            shown,
            shown_by_node: OnceLock::new(),
            process,
        };
        let object = Arc::new(object);
        let _steady = fork::without_fork();
        let mut all = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(address, Arc::downgrade(&object));
        object
    }

    /// The range of the file for an offset at the seal; `None` if it is in no block.
    pub(super) fn span_of(&self, origin: u64, length: u64) -> Option<Span> {
        let wanted = Span::new(Offset(origin), Length(length));
        let block = self
            .blocks
            .iter()
            .find(|block| Span::new(Offset(block.origin), Length(block.length)).contains(wanted))?;
        Some(Span::new(Offset(block.offset + (origin - block.origin)), Length(length)))
    }

    /// Brings bytes of the map, so that a read of them neither waits nor fails.
    pub(super) fn bring_for(&self, bytes: &[u8]) -> Result<(), Error> {
        let map = self.map.span();
        let Some(distance) = bytes.as_ptr().addr().checked_sub(self.map.address()) else {
            return Ok(());
        };
        let Some(start) = map.offset.0.checked_add(distance as u64) else { return Ok(()) };
        let first = start - start % CHUNK_BYTES;
        let end = start.saturating_add(bytes.len() as u64);
        for chunk in (first..end).step_by(CHUNK_BYTES as usize) {
            let chunk = Span::new(Offset(chunk), Length(CHUNK_BYTES.max(page_bytes())));
            let Some(part) = chunk.intersection(map) else { continue };
            if !self.is_shown(part.offset) {
                self.bring(part)?;
            }
        }
        Ok(())
    }

    /// Brings and shows whole pages. If the node or the home of the object restarts meanwhile, waits
    /// for it for a while.
    pub(super) fn bring(&self, span: Span) -> Result<(), Error> {
        let mut until = None;
        loop {
            let current = lock(&self.source).clone();
            let error = match self.bring_by(&current, span) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let until = *until.get_or_insert_with(|| deadline_after(self.requester.timeout));
            tracing::debug!(object = %self.id, %error, "pages that were not brought");
            // A lost node is no member any more, so no node knows its objects.
            let is_lost = matches!(error, Error::NodeLost { .. });
            match self.open_again(&current, (is_lost, until)) {
                Ok(()) if Instant::now() < until => {}
                Err(Error::NotFound { .. }) if is_lost => return Err(error),
                Err(error) => return Err(error),
                Ok(()) => return Err(error),
            }
        }
    }

    fn bring_by(&self, current: &CurrentPages, span: Span) -> Result<(), Error> {
        let CurrentPages { source, is_first } = current;
        if *is_first {
            let end = span.offset.0.saturating_add(span.length.0);
            source.bring(span.offset.0, end, self.requester.timeout)?;
        }
        for part in self.pages.iter().filter_map(|pages| pages.intersection(span)) {
            if *is_first {
                self.map.show(part)?;
                self.note_shown(part, span);
            } else {
                self.map.show_copy(part.offset, &self.read(source, part)?)?;
            }
        }
        Ok(())
    }

    /// The bit of a chunk: the number of its word, and the bit in it.
    fn bit_of(&self, at: u64) -> (usize, u64) {
        let chunk = (at / CHUNK_BYTES).saturating_sub(self.map.span().offset.0 / CHUNK_BYTES);
        ((chunk / 64) as usize, 1 << (chunk % 64))
    }

    /// Notes the chunks of which all pages were shown as part of `span`.
    fn note_shown(&self, part: Span, span: Span) {
        let end = span.offset.0 + span.length.0;
        let Span { offset: Offset(start), length } = self.map.span();
        let is_all = |chunk: u64| {
            let last = (chunk + CHUNK_BYTES).min(start + length.0);
            span.offset.0 <= chunk.max(start) && last <= end
        };
        let mut shown = lock(&self.shown);
        let first = part.offset.0 - part.offset.0 % CHUNK_BYTES;
        for chunk in (first..part.offset.0 + part.length.0).step_by(CHUNK_BYTES as usize) {
            let (word, bit) = self.bit_of(chunk);
            if let Some(word) = shown.get_mut(word).filter(|_| is_all(chunk)) {
                *word |= bit;
            }
        }
    }

    /// Shows a page again that was shown before, without asking anybody: the system may have taken
    /// it out of the page table. False if it was not, or is not in the file.
    pub(super) fn show_again(&self, page: Span) -> bool {
        self.is_shown(page.offset) && self.map.show(page).is_ok()
    }

    /// Whether all pages of a chunk were shown.
    fn is_shown(&self, at: Offset) -> bool {
        let (word, bit) = self.bit_of(at.0);
        lock(&self.shown).get(word).is_some_and(|word| word & bit != 0)
            || self.shown_by_node.get().is_some_and(|chunks| chunks.has(at))
    }

    /// Where the node notes what it has shown.
    pub(super) fn shown_by_node(&self) -> std::io::Result<&ShownChunks> {
        match self.shown_by_node.get() {
            Some(chunks) => Ok(chunks),
            None => {
                let chunks = ShownChunks::new(self.map.span())?;
                Ok(self.shown_by_node.get_or_init(|| chunks))
            }
        }
    }

    /// A new socket by which the node serves faults, if it still fills the mapped file.
    pub(super) fn faults_socket(&self) -> Option<UnixStream> {
        let current = lock(&self.source).clone();
        let target = WireTarget::Id(self.id.into());
        let opened = current.is_first.then(|| self.requester.open(target, true))?;
        let Ok(OpenOutcome::Lazy(opened)) = opened else { return None };
        let OpenedPages { source, faults, .. } = *opened;
        let is_same = source.is_of(&self.blocks) && source.has_file_of(&current.source);
        let mut own = lock(&self.source);
        if !is_same || !Arc::ptr_eq(&own.source, &current.source) {
            return None;
        }
        own.source = Arc::new(source);
        faults
    }

    /// The contents of whole pages, from another file than the mapped one.
    fn read(&self, source: &PagesConnection, span: Span) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; span.length.as_usize()];
        for (number, block) in self.blocks.iter().enumerate() {
            let of_block = Span::new(Offset(block.offset), Length(block.length));
            let Some(part) = of_block.intersection(span) else { continue };
            let at = (part.offset.0 - span.offset.0) as usize;
            let into = bytes.get_mut(at..at + part.length.as_usize()).unwrap_or_default();
            source.read(number, part.offset.0 - block.offset, into, self.requester.timeout)?;
        }
        Ok(bytes)
    }

    /// Opens the object again, unless another thread has. A node that has just started knows neither
    /// its clients nor other nodes at first, so errors pass, unless the home `is_lost`. An error: it
    /// cannot be opened any more.
    fn open_again(
        &self,
        failed: &CurrentPages,
        (is_lost, until): (bool, Instant),
    ) -> Result<(), Error> {
        loop {
            if !Arc::ptr_eq(&lock(&self.source).source, &failed.source) {
                return Ok(());
            }
            let target = WireTarget::Id(self.id.into());
            let (error, is_passing) = match self.requester.open(target, true) {
                // The faults are served here from now on.
                Ok(OpenOutcome::Lazy(opened)) if opened.source.is_of(&self.blocks) => {
                    let source = opened.source;
                    let is_first = failed.is_first && source.has_file_of(&failed.source);
                    let source = Arc::new(source);
                    *lock(&self.source) = CurrentPages { source, is_first };
                    return Ok(());
                }
                Ok(OpenOutcome::Lazy(..) | OpenOutcome::Replica) => {
                    let text = format!("object {} has other blocks than before", self.id);
                    (Error::InvalidDescriptor(text), false)
                }
                Ok(OpenOutcome::Nothing) => (Error::no_object(self.id), !is_lost),
                Ok(OpenOutcome::Later) => {
                    let waited_ms = crate::clock::millis(self.requester.timeout);
                    let what = format!("object {} to be opened again", self.id);
                    (Error::Timeout { what, waited_ms }, true)
                }
                Err(error) => {
                    let is_final =
                        matches!(error, Error::NodeLost { .. } | Error::PermissionDenied { .. });
                    (error, !is_final)
                }
            };
            if !is_passing || Instant::now() >= until {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Gives up the pages of a range, as far as they were not shown: their readers get SIGBUS.
    pub(super) fn give_up(&self, span: Span) {
        for part in self.pages.iter().filter_map(|pages| pages.intersection(span)) {
            if let Err(error) = self.map.give_up(part) {
                tracing::error!(object = %self.id, %error, "readers of its pages wait without end");
            }
        }
    }

    pub(super) fn id(&self) -> ObjectId {
        self.id
    }
}

impl Drop for PagedObject {
    fn drop(&mut self) {
        let _steady = fork::without_fork();
        let mut all = OBJECTS.write().unwrap_or_else(PoisonError::into_inner);
        let address = self.map.address();
        if all.get(&address).is_some_and(|one| one.strong_count() == 0) {
            all.remove(&address);
        }
    }
}

/// Ends the thread of an object with the last buffer over it.
#[derive(Debug)]
pub(super) struct Users {
    pub(super) stop: OwnedFd,
    /// Its place at the node is needed to open the object again.
    pub(super) _session: Arc<Session>,
    pub(super) process: u64,
}

impl Drop for Users {
    fn drop(&mut self) {
        // A forked child has no thread, and shares the counter of its parent's.
        if self.process != process_number() {
            return;
        }
        // A full counter stops the thread as well.
        let _ = rustix::io::write(self.stop.as_fd(), &1u64.to_ne_bytes());
    }
}

/// Brings the bytes at these addresses (address, length), as far as they are of objects whose pages
/// are brought one by one, and returns how many those are. After it no access to them waits or
/// fails, whatever happens to other nodes. Other addresses are ignored.
///
/// # Errors
///
/// [`Error::NodeLost`], [`Error::NotFound`] and the like: some of the bytes can no longer be
/// brought. [`Error::Disconnected`] also in a forked child. [`Error::Interrupted`].
pub fn fetch(ranges: &[(usize, usize)]) -> Result<u64, Error> {
    let mut bytes = 0;
    for (address, length) in ranges.iter().copied() {
        let Some((object, span)) = find(address, length) else { continue };
        if object.process != process_number() {
            let (socket, reason) =
                (object.requester.socket.clone(), "its parent has it".to_owned());
            return Err(Error::Disconnected { socket, reason });
        }
        bytes += span.length.0;
        let end = span.offset.0 + span.length.0;
        let first = span.offset.0 - span.offset.0 % CHUNK_BYTES.max(page_bytes());
        let mut at = first;
        while at < end {
            let part = Span::new(Offset(at), Length(PART_BYTES.min(end - at)));
            let pages = part.outward(page_bytes()).unwrap_or(part);
            object.bring(pages)?;
            at += part.length.0;
            crate::interrupt::pause(Duration::ZERO)?;
        }
    }
    Ok(bytes)
}

/// The object at an address, and the range of its file.
fn find(address: usize, length: usize) -> Option<(Arc<PagedObject>, Span)> {
    let object = {
        let _steady = fork::without_fork();
        let all = OBJECTS.read().unwrap_or_else(PoisonError::into_inner);
        all.range(..=address).next_back()?.1.upgrade()?
    };
    let distance = (address - object.map.address()) as u64;
    let map = object.map.span();
    let wanted = Span::new(Offset(map.offset.0.checked_add(distance)?), Length(length as u64));
    let span = wanted.intersection(map)?;
    Some((object, span))
}
