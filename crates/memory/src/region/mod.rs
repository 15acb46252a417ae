//! A region mapped into this process: bounds, protection, publish and refresh.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::mm::Advice;

use crate::cache::{self, Method};
use crate::copy;
use crate::error::{AccessError, BoundsError, MapError};
use crate::fabric::{CoherenceClass, Fabric, FabricKind, Proximity};
use crate::mapping::{self, Mapping};
use crate::process::process_number;
use crate::profile::all_caches::{ALL_CACHES_BYTES_MIN, AllCaches};
use crate::profile::{Profile, Upkeep};
use crate::survey;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};
use crate::units::{Address, Geometry, Length, Offset, Section, Span, page_bytes};

pub(crate) mod alias;
mod by_call;
mod ranges;
pub(crate) mod sealed;
pub(crate) mod words;
pub(crate) mod writable;

#[cfg(test)]
mod tests;

use ranges::WritableRanges;
use words::{WORD_BYTES, Words, WordsMut};

/// Writes into data from this size on use [`copy`]'s plan, below it single words.
const BULK_WRITE_BYTES_MIN: u64 = 256;

/// Who maps the region, and so what is writable from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The daemon that lends it: control writable, data read-only.
    Home,
    /// Everybody else: all read-only.
    Client,
}

/// What [`Region::populate`] makes ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Populate {
    /// Page table entries for reading.
    Read,
    /// Pages and entries for writing; only where the span is mapped writable.
    Write,
}

/// What a region did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Cache lines written back by publish. 0 on a coherent fabric.
    pub published_lines: u64,
    /// Cache lines forgotten by refresh. 0 on a coherent fabric.
    pub refreshed_lines: u64,
    /// Calls of publish.
    pub publish_calls: u64,
    /// Calls of refresh.
    pub refresh_calls: u64,
    /// Time that publish took, in nanoseconds. 0 on a coherent fabric.
    pub publish_ns: u64,
    /// Time that refresh took, in nanoseconds. 0 on a coherent fabric.
    pub refresh_ns: u64,
    /// How often all caches of the machine were written back, in place of that many single lines.
    pub all_caches_calls: u64,
    /// Bytes mapped writable now, over the window and by aliases.
    pub mapped_writable_bytes: u64,
}

#[derive(Debug, Default)]
struct CounterCells {
    published_lines: AtomicU64,
    refreshed_lines: AtomicU64,
    publish_calls: AtomicU64,
    refresh_calls: AtomicU64,
    publish_ns: AtomicU64,
    refresh_ns: AtomicU64,
    all_caches_calls: AtomicU64,
    alias_bytes: AtomicU64,
}

/// A region, mapped. Unmapped when the last owner drops it; borrowed words keep a borrow, sealed
/// bytes and aliases keep an `Arc`.
pub struct Region {
    window: Mapping,
    fabric: Arc<dyn Fabric>,
    access: Access,
    geometry: Geometry,
    is_at_wish: bool,
    is_node_local: bool,
    /// Node-local, and its home is on another node.
    is_remote: bool,
    is_huge_advised: AtomicBool,
    writable: Mutex<WritableRanges>,
    counters: CounterCells,
    profile: Arc<Profile>,
    /// Looked for when the first range comes that is large enough.
    all_caches: OnceLock<Option<Arc<AllCaches>>>,
    /// Which process mapped it.
    process: u64,
}

impl Region {
    /// Maps all of `fabric`: at `wish` if that is free, else anywhere; see [`Region::is_at_wish`].
    ///
    /// # Errors
    /// [`MapError::BadAddress`] for a wish that is not a page or has no room,
    /// [`MapError::NoWriter`] for [`Access::Home`] without a writable control descriptor,
    /// [`MapError::NoRoom`] if address space or maps are used up.
    pub fn map(
        fabric: Arc<dyn Fabric>,
        access: Access,
        wish: Option<Address>,
    ) -> Result<Self, MapError> {
        Self::map_from(fabric, access, wish, Proximity::Local)
    }

    /// As [`Region::map`], by a process that may be on another node than the home.
    ///
    /// # Errors
    /// As [`Region::map`].
    pub fn map_from(
        fabric: Arc<dyn Fabric>,
        access: Access,
        wish: Option<Address>,
        proximity: Proximity,
    ) -> Result<Self, MapError> {
        let geometry = fabric.geometry();
        let length = geometry.total();
        if let Some(address) = wish.filter(|wish| !is_possible(*wish, length)) {
            return Err(MapError::BadAddress { address, length });
        }
        let window = Mapping::reserve(length, wish)
            .map_err(|errno| failure("reserve", geometry.span(), errno))?;
        let is_at_wish = wish == Some(window.address());
        let control = match access {
            Access::Home => fabric
                .write_fd(Section::Control)
                .ok_or(MapError::NoWriter { section: Section::Control })?,
            Access::Client => fabric.read_fd(Section::Control),
        };
        let data = fabric.read_fd(Section::Data);
        for (section, (fd, file_offset), is_writable) in
            [(Section::Control, control, access == Access::Home), (Section::Data, data, false)]
        {
            let span = geometry.span_of(section);
            // SAFETY: the span lies in the window, which nobody else has seen yet.
            unsafe { window.put_file(span.offset.0, fd, file_offset, span.length, is_writable) }
                .map_err(|errno| failure("mmap", span, errno))?;
        }
        // What a home writes to is never inherited.
        let window = match access {
            Access::Client => window.let_children_inherit(),
            Access::Home => window,
        };
        let is_node_local = fabric.coherence_class() == CoherenceClass::NodeLocal;
        // A home has the time, and clients find what it measured. Simulated caches cost nothing.
        let has_time = access == Access::Home || is_node_local;
        let profile = match has_time && fabric.maintenance().is_none() {
            true => Profile::of_machine(),
            false => Profile::known(),
        };
        Ok(Self {
            window,
            fabric,
            access,
            geometry,
            is_at_wish,
            is_node_local,
            is_remote: is_node_local && proximity == Proximity::Remote,
            is_huge_advised: AtomicBool::new(false),
            writable: Mutex::new(WritableRanges::default()),
            counters: CounterCells::default(),
            profile,
            all_caches: OnceLock::new(),
            process: process_number(),
        })
    }

    /// False in a child that was forked off: it may read what it inherited, and change nothing.
    #[inline]
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.process == process_number()
    }

    /// The same region, using a profile of the caller's: for tests, which go through all ways, and
    /// for measurements.
    #[must_use]
    pub fn with_profile(self, profile: Arc<Profile>) -> Self {
        Self { profile, ..self }
    }

    /// The same region, using this way to write back all caches, or none: for tests.
    #[cfg(test)]
    pub(crate) fn with_all_caches(self, all_caches: Option<Arc<AllCaches>>) -> Self {
        Self { all_caches: OnceLock::from(all_caches), ..self }
    }

    /// What it publishes, refreshes and writes by.
    #[must_use]
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// The memory it maps.
    #[must_use]
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// How it was mapped.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// How long its sections are.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Its first address in this process.
    #[must_use]
    pub fn base(&self) -> Address {
        self.window.address()
    }

    /// Bytes of both sections.
    #[must_use]
    pub fn length(&self) -> Length {
        self.geometry.total()
    }

    /// Does it lie at the address that was wished for? Raw addresses mean the same in another
    /// process only if it does in both.
    #[must_use]
    pub fn is_at_wish(&self) -> bool {
        self.is_at_wish
    }

    /// Must stores be published to be seen by other nodes?
    #[inline]
    #[must_use]
    pub fn is_node_local(&self) -> bool {
        self.is_node_local
    }

    /// Must this process refresh what the home writes, and publish what the home reads?
    #[inline]
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Bytes of the cache lines that publish and refresh act on.
    #[must_use]
    pub fn line_bytes(&self) -> u32 {
        self.fabric.maintenance().map_or_else(cache::line_bytes, |caches| caches.line_bytes())
    }

    /// Does the span lie in the region?
    ///
    /// # Errors
    /// [`BoundsError`] with the numbers if not.
    #[inline]
    pub fn check(&self, span: Span) -> Result<(), BoundsError> {
        let region = self.length();
        match span.end() {
            Some(end) if end.0 <= region.0 => Ok(()),
            _ => Err(BoundsError { offset: span.offset, length: span.length, region }),
        }
    }

    /// Where in the region an address lies, or `None` if it lies outside.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, address: Address) -> Option<Offset> {
        let distance = address.0.checked_sub(self.base().0)? as u64;
        (distance < self.length().0).then_some(Offset(distance))
    }

    /// Where in this process a span lies.
    ///
    /// # Errors
    /// [`BoundsError`] if it does not lie in the region.
    #[inline]
    pub fn address_of(&self, span: Span) -> Result<Address, BoundsError> {
        self.check(span)?;
        Ok(Address(self.window.pointer(span.offset.0).addr()))
    }

    /// A pointer to the first byte of a span, by which it may be read as long as the region is
    /// mapped.
    ///
    /// # Errors
    /// [`BoundsError`] if it does not lie in the region.
    #[inline]
    pub fn pointer_of(&self, span: Span) -> Result<*const u8, BoundsError> {
        self.check(span)?;
        Ok(self.window.pointer(span.offset.0))
    }

    /// Words to read, which another process may be writing.
    ///
    /// # Errors
    /// Outside of the region, or not whole words.
    #[inline]
    pub fn words(&self, span: Span) -> Result<Words<'_>, AccessError> {
        let start = self.whole_words(span)?;
        // SAFETY: the span was checked; all of the region is readable for as long as it lives.
        Ok(unsafe { Words::new(start, (span.length.0 / WORD_BYTES) as usize) })
    }

    /// Words to read and write, where this process maps the span writable over the window.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`], and what [`Region::words`] answers.
    pub fn words_mut(&self, span: Span) -> Result<WordsMut<'_>, AccessError> {
        let start = self.whole_words(span)?;
        let pin = self.pin_if_needed(span)?;
        // SAFETY: the span was checked, and is writable for as long as the pin lives or, in
        // control mapped by the home, as the region lives.
        Ok(unsafe { WordsMut::new(start, (span.length.0 / WORD_BYTES) as usize, pin) })
    }

    /// Copies bytes out that another process may be writing: aligned words are never torn, their
    /// order is not kept. Check what you copied, then use the copy.
    ///
    /// # Errors
    /// [`BoundsError`] if the bytes do not lie in the region.
    pub fn copy_out(&self, offset: Offset, into: &mut [u8]) -> Result<(), BoundsError> {
        self.check(Span::new(offset, Length::from(into.len())))?;
        // SAFETY: the span was checked and all of the region is readable.
        unsafe { words::load_bytes(self.window.pointer(offset.0), into) };
        Ok(())
    }

    /// Writes bytes where this process maps them writable over the window. In control, and for
    /// short writes, by relaxed word stores, so that others may read meanwhile.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`] if part of them is not writable here; outside of the region.
    pub fn write(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        let span = Span::new(offset, Length::from(from.len()));
        self.check(span)?;
        let pin = self.pin_if_needed(span)?;
        let target = self.window.pointer(offset.0);
        if pin.is_some() && span.length.0 >= BULK_WRITE_BYTES_MIN {
            // SAFETY: checked and pinned writable. One client alone writes and uses a range
            // until it is sealed, and `from` is a borrow, so it is not part of that range.
            unsafe { copy::copy_into(target, from, self.profile.copy_plan()) };
        } else {
            // SAFETY: checked and writable.
            unsafe { words::store_bytes(target, from) };
        }
        Ok(())
    }

    /// Makes page table entries ready, so that first accesses do not fault one by one. Does
    /// nothing where the kernel knows no such thing (before Linux 5.14).
    ///
    /// # Errors
    /// Outside of the region, or the system's answer: no memory, or [`Populate::Write`] over a
    /// part mapped read-only, which the kernel refuses.
    pub fn populate(&self, span: Span, what: Populate) -> Result<(), MapError> {
        self.check(span)?;
        let Some(pages) = span.outward(page_bytes()).filter(|pages| !pages.is_empty()) else {
            return Ok(());
        };
        if what == Populate::Write && !self.is_writable(span) {
            let (offset, length) = (span.offset, span.length);
            let source = std::io::Error::from(Errno::ACCESS);
            return Err(MapError::System { call: "populate", offset, length, source });
        }
        self.populate_range(self.window.pointer(pages.offset.0), pages, what)
    }

    /// Publishes: makes this node's stores to the span visible in memory. Ends with a fence, which
    /// is all that a coherent fabric needs.
    ///
    /// # Errors
    /// [`BoundsError`] if the span does not lie in the region.
    pub fn publish(&self, span: Span) -> Result<(), BoundsError> {
        self.check(span)?;
        self.counters.publish_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(&[span], Upkeep::Publish);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Region::publish`] on a node-local region, by an instruction of the caller's.
    pub(crate) fn publish_by(&self, method: Method, span: Span) -> Result<(), BoundsError> {
        self.check(span)?;
        self.counters.publish_calls.fetch_add(1, Ordering::Relaxed);
        self.maintain(&[span], Upkeep::Publish, method);
        Ok(())
    }

    /// As [`Region::publish`] for each of some small spans, with the fences of one.
    ///
    /// # Errors
    /// [`BoundsError`] if one does not lie in the region; nothing is published then.
    pub fn publish_all(&self, spans: &[Span]) -> Result<(), BoundsError> {
        spans.iter().try_for_each(|span| self.check(*span))?;
        self.counters.publish_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(spans, Upkeep::Publish);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Refreshes: forgets this node's cached view of the span, so that the loads that follow see
    /// memory. On a coherent fabric a fence.
    ///
    /// # Errors
    /// [`BoundsError`] if the span does not lie in the region.
    pub fn refresh(&self, span: Span) -> Result<(), BoundsError> {
        self.check(span)?;
        self.counters.refresh_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(&[span], Upkeep::Refresh);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Region::refresh`] for each of some small spans, with the fences of one: the loads that
    /// follow wait for memory together.
    ///
    /// # Errors
    /// [`BoundsError`] if one does not lie in the region; nothing is refreshed then.
    pub fn refresh_all(&self, spans: &[Span]) -> Result<(), BoundsError> {
        spans.iter().try_for_each(|span| self.check(*span))?;
        self.counters.refresh_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(spans, Upkeep::Refresh);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Publishes what the home reads, where the home is on another node of a node-local region.
    /// Elsewhere nothing, not even a fence.
    ///
    /// # Errors
    /// As [`Region::publish`].
    #[inline]
    pub fn publish_if_remote(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_remote { self.publish(span) } else { Ok(()) }
    }

    /// Publishes what other nodes read, on a node-local region. Elsewhere nothing, not even a fence:
    /// for stores that a release store, or a message, follows.
    ///
    /// # Errors
    /// As [`Region::publish`].
    #[inline]
    pub fn publish_if_node_local(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_node_local { self.publish(span) } else { Ok(()) }
    }

    /// Refreshes what the home writes, where the home is on another node of a node-local region.
    /// Elsewhere nothing, not even a fence.
    ///
    /// # Errors
    /// As [`Region::refresh`].
    #[inline]
    pub fn refresh_if_remote(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_remote { self.refresh(span) } else { Ok(()) }
    }

    /// Refreshes what clients write, who may be on any node: on every node of a node-local region.
    /// Elsewhere nothing, not even a fence.
    ///
    /// # Errors
    /// As [`Region::refresh`].
    #[inline]
    pub fn refresh_if_node_local(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_node_local { self.refresh(span) } else { Ok(()) }
    }

    /// Acts on the lines of spans that were checked, in the cheapest way.
    #[cold]
    fn keep_up(&self, spans: &[Span], what: Upkeep) {
        let longest = longest(spans);
        if longest >= ALL_CACHES_BYTES_MIN && self.write_back_all(spans, what, longest) {
            return;
        }
        let step = self.profile.step(longest);
        let method = match what {
            Upkeep::Publish => step.publish.0,
            Upkeep::Refresh => step.refresh.0,
        };
        self.maintain(spans, what, method);
    }

    /// Writes back all caches of the machine, if that is possible and cheaper; whether it was done.
    /// It empties them as well.
    fn write_back_all(&self, spans: &[Span], what: Upkeep, longest: Length) -> bool {
        if self.fabric.maintenance().is_some() {
            return false;
        }
        let find = || match AllCaches::of_machine() {
            Ok(caches) => Some(Arc::clone(caches)),
            Err(error) => {
                tracing::debug!(%error, "all caches are not written back at once");
                None
            }
        };
        let Some(caches) = self.all_caches.get_or_init(find) else {
            return false;
        };
        let lines = self.profile.estimate(what, longest);
        if !lines.is_some_and(|lines| caches.is_cheaper(lines)) {
            return false;
        }
        let begin = Instant::now();
        if let Err(error) = caches.write_back() {
            tracing::debug!(%error, "all caches are not written back any more");
            return false;
        }
        let lines_of = |span: &Span| {
            cache::lines_around(self.window.pointer(span.offset.0), span.length.as_usize())
        };
        self.counters.all_caches_calls.fetch_add(1, Ordering::Relaxed);
        self.count(what, spans.iter().map(lines_of).sum(), begin);
        true
    }

    /// Acts on the lines of spans that were checked, by an instruction where they are of this CPU.
    fn maintain(&self, spans: &[Span], what: Upkeep, by: Method) {
        let begin = Instant::now();
        let ranges = spans
            .iter()
            .map(|span| (self.window.pointer(span.offset.0).cast_const(), span.length.as_usize()));
        let lines = match (self.fabric.maintenance(), what) {
            (Some(caches), Upkeep::Publish) => spans.iter().map(|span| caches.publish(*span)).sum(),
            (Some(caches), Upkeep::Refresh) => spans.iter().map(|span| caches.refresh(*span)).sum(),
            // SAFETY: the spans were checked, and all of the region is mapped.
            (None, Upkeep::Publish) => unsafe { cache::publish_ranges_by(by, ranges) },
            // SAFETY: as above.
            (None, Upkeep::Refresh) => unsafe { cache::refresh_ranges_by(by, ranges) },
        };
        self.count(what, lines, begin);
    }

    fn count(&self, what: Upkeep, count: u64, begin: Instant) {
        let (lines, ns) = match what {
            Upkeep::Publish => (&self.counters.published_lines, &self.counters.publish_ns),
            Upkeep::Refresh => (&self.counters.refreshed_lines, &self.counters.refresh_ns),
        };
        lines.fetch_add(count, Ordering::Relaxed);
        ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// What it did so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let window = self.writable().bytes().0;
        let control = match self.access {
            Access::Home => self.geometry.control.0,
            Access::Client => 0,
        };
        Counters {
            published_lines: load(&self.counters.published_lines),
            refreshed_lines: load(&self.counters.refreshed_lines),
            publish_calls: load(&self.counters.publish_calls),
            refresh_calls: load(&self.counters.refresh_calls),
            publish_ns: load(&self.counters.publish_ns),
            refresh_ns: load(&self.counters.refresh_ns),
            all_caches_calls: load(&self.counters.all_caches_calls),
            mapped_writable_bytes: window + control + load(&self.counters.alias_bytes),
        }
    }

    /// Asks for huge pages in the data section, where the fabric has them to give (a tmpfs mounted
    /// `huge=advise`). Where not, nothing happens.
    pub fn advise_huge(&self) {
        self.is_huge_advised.store(true, Ordering::Relaxed);
        self.advise_huge_over(self.geometry.span_of(Section::Data));
    }

    /// New maps over the window get the same advice as the rest: else they would never merge with
    /// it again, and maps are limited.
    fn advise_huge_over(&self, span: Span) {
        if !self.is_huge_advised.load(Ordering::Relaxed) || span.is_empty() {
            return;
        }
        let start = self.window.pointer(span.offset.0);
        // SAFETY: the span lies in our mapping, and the advice changes no contents.
        let answer = unsafe { mapping::advise(start, span.length, Advice::LinuxHugepage) };
        if let Err(errno) = answer {
            tracing::debug!(%span, %errno, "no huge pages");
        }
    }

    /// Populates a mapped, page-aligned range, of which `span` is the place in the region.
    fn populate_range(&self, start: *mut u8, span: Span, what: Populate) -> Result<(), MapError> {
        match self.try_populate(start, span, what) {
            Ok(()) => Ok(()),
            // The kernel is older than the advice. Faults do the same, later.
            Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(failure("populate", span, errno)),
        }
    }

    fn try_populate(&self, start: *mut u8, span: Span, what: Populate) -> Result<(), Errno> {
        let advice = match (what, self.fabric.kind()) {
            (Populate::Read, _) => Advice::LinuxPopulateRead,
            // tmpfs wants no notice of a first store, so in a writable map a read fault makes an
            // entry that can be written, sixteen pages at a time: 50 ms for 1.5 GiB, not 120.
            (Populate::Write, FabricKind::Shm) => Advice::LinuxPopulateRead,
            (Populate::Write, FabricKind::Device) => Advice::LinuxPopulateWrite,
        };
        loop {
            // SAFETY: the caller maps the range; populating changes no contents.
            match unsafe { mapping::advise(start, span.length, advice) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                answer => return answer,
            }
        }
    }

    fn writable(&self) -> MutexGuard<'_, WritableRanges> {
        // Nothing in there is left half done by a panic: each change is one call.
        self.writable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does this process map all of the span writable over the window?
    fn is_writable(&self, span: Span) -> bool {
        self.is_always_writable(span) || self.writable().covers(span)
    }

    fn is_always_writable(&self, span: Span) -> bool {
        self.access == Access::Home && self.geometry.section_of(span) == Some(Section::Control)
    }

    fn whole_words(&self, span: Span) -> Result<*mut u8, AccessError> {
        self.check(span)?;
        if !words::is_words(span) {
            let (offset, length) = (span.offset, span.length);
            return Err(AccessError::NotAligned { offset, length, alignment: WORD_BYTES });
        }
        Ok(self.window.pointer(span.offset.0))
    }

    /// The span must be one of whole pages in the data section.
    fn check_data_pages(&self, span: Span) -> Result<(), MapError> {
        self.check(span)?;
        let (offset, length, page) = (span.offset, span.length, page_bytes());
        if !span.is_aligned(page) {
            return Err(MapError::NotPages { offset, length, page });
        }
        if self.geometry.section_of(span) != Some(Section::Data) {
            return Err(MapError::NotData { offset, length });
        }
        Ok(())
    }

    /// The writable descriptor of data, and where in its file a span of data starts.
    fn data_writer(&self, span: Span) -> Result<(BorrowedFd<'_>, u64), MapError> {
        let section = Section::Data;
        let (fd, start) = self.fabric.write_fd(section).ok_or(MapError::NoWriter { section })?;
        Ok((fd, start + (span.offset.0 - self.geometry.control.0)))
    }

    fn data_reader(&self, span: Span) -> (BorrowedFd<'_>, u64) {
        let (fd, start) = self.fabric.read_fd(Section::Data);
        (fd, start + (span.offset.0 - self.geometry.control.0))
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base())
            .field("length", &self.length())
            .field("access", &self.access)
            .field("fabric", &self.fabric.describe())
            .finish_non_exhaustive()
    }
}

fn longest(spans: &[Span]) -> Length {
    spans.iter().map(|span| span.length).max().unwrap_or_default()
}

/// Can a region of this length start there?
fn is_possible(wish: Address, length: Length) -> bool {
    let is_page = (wish.0 as u64).is_multiple_of(page_bytes());
    wish.0 != 0 && is_page && wish.0.checked_add(length.as_usize()).is_some()
}

/// The error of a call that maps.
pub(crate) fn failure(call: &'static str, span: Span, errno: Errno) -> MapError {
    let source = std::io::Error::from(errno);
    if errno == Errno::NOMEM {
        let limit_as = survey::address_space_limit();
        let maps_max = survey::maps_max();
        return MapError::NoRoom { asked: span.length, limit_as, maps_max, source };
    }
    MapError::System { call, offset: span.offset, length: span.length, source }
}
