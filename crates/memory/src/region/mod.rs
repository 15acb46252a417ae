//! A region mapped into this process: bounds checks, protection, publish and refresh.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::cache;
use crate::copy;
use crate::error::{AccessError, BoundsError, MapError};
use crate::fabric::{CoherenceClass, Fabric, Proximity};
use crate::mapping::{Mapping, failure};
use crate::process::process_number;
use crate::profile::Profile;
use crate::profile::all_caches::AllCaches;
use crate::sync::AtomicBool;
use crate::units::{Address, Geometry, Length, Offset, Section, Span, page_bytes};

pub(crate) mod alias;
pub(crate) mod by_call;
mod pages;
mod ranges;
pub(crate) mod sealed;
mod upkeep;
pub(crate) mod words;
pub(crate) mod writable;

#[cfg(test)]
mod tests;

pub use pages::Populate;
use ranges::WritableRanges;
use upkeep::CounterCells;
pub use upkeep::Counters;
use words::{WORD_BYTES, Words, WordsMut};

/// Writes to data of at least this size use the plan of [`copy`]; smaller ones store single words.
const BULK_WRITE_BYTES_MIN: u64 = 256;

/// Role of the process that maps the region. It decides what is initially writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The daemon that lends the region: control writable, data read-only.
    Home,
    /// Any other process: everything read-only.
    Client,
}

/// A mapped region. It is unmapped when the last owner drops it. [`Words`] borrow the region;
/// sealed bytes and aliases keep an `Arc` of it.
pub struct Region {
    window: Mapping,
    fabric: Arc<dyn Fabric>,
    access: Access,
    geometry: Geometry,
    is_at_wish: bool,
    is_node_local: bool,
    /// The region is node-local and its home is on another node.
    is_remote: bool,
    is_huge_advised: AtomicBool,
    writable: Mutex<WritableRanges>,
    counters: CounterCells,
    profile: Arc<Profile>,
    /// Opened when the first range is large enough.
    all_caches: OnceLock<Option<Arc<AllCaches>>>,
    /// The [`process_number`] of the process that mapped it.
    process: u64,
}

impl Region {
    /// Maps all of `fabric`: at address `wish` if that is free, else at any address. See
    /// [`Region::is_at_wish`].
    ///
    /// # Errors
    /// [`MapError::BadAddress`] if `wish` is not page-aligned or the region does not fit there,
    /// [`MapError::NoWriter`] for [`Access::Home`] without a writable control descriptor,
    /// [`MapError::NoRoom`] if the address space or the number of maps is exhausted.
    pub fn map(
        fabric: Arc<dyn Fabric>,
        access: Access,
        wish: Option<Address>,
    ) -> Result<Self, MapError> {
        Self::map_from(fabric, access, wish, Proximity::Local)
    }

    /// As [`Region::map`], in a process that may be on a different node than the home.
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
        let mut window = Mapping::reserve(length, wish)
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
            // SAFETY: the span is inside the window, which no other code uses yet.
            unsafe { window.put_file(span.offset.0, fd, file_offset, span.length, is_writable) }
                .map_err(|errno| failure("mmap", span, errno))?;
        }
        // Only the data section has other writers, but a region of another home may lose any page.
        match access {
            Access::Home => {
                let data = geometry.span_of(Section::Data);
                window.watch(data.offset.0, data.length);
            }
            Access::Client => window.watch(0, length),
        }
        // Children of a home must not inherit its writable control section.
        let window = match access {
            Access::Client => window.let_children_inherit(),
            Access::Home => window,
        };
        let is_node_local = fabric.coherence_class() == CoherenceClass::NodeLocal;
        // Only homes and node-local regions may take the time to measure; other clients load the
        // result. Simulated caches need no profile.
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

    /// False in a forked child, which may read inherited memory but must not change anything.
    #[inline]
    #[must_use]
    pub fn is_of_this_process(&self) -> bool {
        self.process == process_number()
    }

    /// The same region with another profile: for tests, which try all methods, and for
    /// measurements.
    #[must_use]
    pub fn with_profile(self, profile: Arc<Profile>) -> Self {
        Self { profile, ..self }
    }

    /// The same region with this operation to write back all caches, or with none: for tests.
    #[cfg(test)]
    pub(crate) fn with_all_caches(self, all_caches: Option<Arc<AllCaches>>) -> Self {
        Self { all_caches: OnceLock::from(all_caches), ..self }
    }

    /// The methods for publishing, refreshing and writing.
    #[must_use]
    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    /// The fabric that provides the memory.
    #[must_use]
    pub fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// The role of this process.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Lengths of the sections.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// First address of the region in this process.
    #[must_use]
    pub fn base(&self) -> Address {
        self.window.address()
    }

    /// Length of both sections together.
    #[must_use]
    pub fn length(&self) -> Length {
        self.geometry.total()
    }

    /// Whether the region is mapped at the requested address. Raw addresses are valid in another
    /// process only if this is true in both and both requested the same address.
    #[must_use]
    pub fn is_at_wish(&self) -> bool {
        self.is_at_wish
    }

    /// Whether stores must be published before other nodes can see them.
    #[inline]
    #[must_use]
    pub fn is_node_local(&self) -> bool {
        self.is_node_local
    }

    /// Whether this process must refresh memory that the home writes, and publish memory that the
    /// home reads.
    #[inline]
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Size in bytes of the cache lines that publish and refresh act on.
    #[must_use]
    pub fn line_bytes(&self) -> u32 {
        self.fabric.maintenance().map_or_else(cache::line_bytes, |caches| caches.line_bytes())
    }

    /// Checks that the span is inside the region.
    ///
    /// # Errors
    /// [`BoundsError`] with the numbers if it is not.
    #[inline]
    pub fn check(&self, span: Span) -> Result<(), BoundsError> {
        let region = self.length();
        match span.end() {
            Some(end) if end.0 <= region.0 => Ok(()),
            _ => Err(BoundsError { offset: span.offset, length: span.length, region }),
        }
    }

    /// The offset of an address in the region, or `None` if it is outside.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, address: Address) -> Option<Offset> {
        let distance = address.0.checked_sub(self.base().0)? as u64;
        (distance < self.length().0).then_some(Offset(distance))
    }

    /// The address of a span in this process.
    ///
    /// # Errors
    /// [`BoundsError`] if the span is not inside the region.
    #[inline]
    pub fn address_of(&self, span: Span) -> Result<Address, BoundsError> {
        self.check(span)?;
        Ok(Address(self.window.pointer(span.offset.0).addr()))
    }

    /// A pointer to the first byte of a span. The span may be read through it as long as the region
    /// is mapped.
    ///
    /// # Errors
    /// [`BoundsError`] if the span is not inside the region.
    #[inline]
    pub fn pointer_of(&self, span: Span) -> Result<*const u8, BoundsError> {
        self.check(span)?;
        Ok(self.window.pointer(span.offset.0))
    }

    /// Words for reading. Another process may be writing them at the same time.
    ///
    /// # Errors
    /// The span is outside the region, or does not consist of whole words.
    #[inline]
    pub fn words(&self, span: Span) -> Result<Words<'_>, AccessError> {
        let start = self.whole_words(span)?;
        // SAFETY: the span was checked; the whole region is readable as long as it lives.
        Ok(unsafe { Words::new(start, (span.length.0 / WORD_BYTES) as usize) })
    }

    /// Words for reading and writing. The span must be writable in the window of this process.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`], and the errors of [`Region::words`].
    pub fn words_mut(&self, span: Span) -> Result<WordsMut<'_>, AccessError> {
        let start = self.whole_words(span)?;
        let pin = self.pin_if_needed(span)?;
        // SAFETY: the span was checked. It is writable as long as the pin lives or, in the control
        // section of a home, as long as the region lives.
        Ok(unsafe { WordsMut::new(start, (span.length.0 / WORD_BYTES) as usize, pin) })
    }

    /// Copies bytes that another process may be writing at the same time. Aligned words are never
    /// torn, but their order is not guaranteed. Validate the copy before using it.
    ///
    /// # Errors
    /// [`BoundsError`] if the bytes are not inside the region.
    pub fn copy_out(&self, offset: Offset, into: &mut [u8]) -> Result<(), BoundsError> {
        self.check(Span::new(offset, Length::from(into.len())))?;
        // SAFETY: the span was checked and the whole region is readable.
        unsafe { words::load_bytes(self.window.pointer(offset.0), into) };
        Ok(())
    }

    /// Writes bytes to a range that is writable in the window of this process. Writes to control
    /// and short writes use relaxed word stores, so other processes may read at the same time.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`] if a part is not writable; [`AccessError::Bounds`] outside the
    /// region.
    pub fn write(&self, offset: Offset, from: &[u8]) -> Result<(), AccessError> {
        let span = Span::new(offset, Length::from(from.len()));
        self.check(span)?;
        let pin = self.pin_if_needed(span)?;
        let target = self.window.pointer(offset.0);
        if pin.is_some() && span.length.0 >= BULK_WRITE_BYTES_MIN {
            // SAFETY: checked and pinned writable. Only one client writes and uses a range until it
            // is sealed, and `from` is a borrow, so it is not part of that range.
            unsafe { copy::copy_into(target, from, self.profile.copy_plan()) };
        } else {
            // SAFETY: checked and writable.
            unsafe { words::store_bytes(target, from) };
        }
        Ok(())
    }

    fn writable(&self) -> MutexGuard<'_, WritableRanges> {
        // A poisoned lock is no problem: each change is a single call, which no panic interrupts.
        self.writable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of the span is writable in the window of this process.
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

    /// Checks that the span consists of whole pages in the data section.
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

    /// The writable descriptor of data, and the offset of a span of data in its file.
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

/// Whether a region of this length can start at this address.
fn is_possible(wish: Address, length: Length) -> bool {
    let is_page = (wish.0 as u64).is_multiple_of(page_bytes());
    wish.0 != 0 && is_page && wish.0.checked_add(length.as_usize()).is_some()
}
