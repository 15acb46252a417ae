//! System calls that change the address space. The other modules use them through [`Mapping`].

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::error::MapError;
use crate::fork;
use crate::lost_pages::WatchedMapping;
use crate::process::process_number;
use crate::sync::{AtomicU8, Ordering};
use crate::system::kernel;
use crate::units::{Address, HUGE_PAGE_BYTES_USUAL, Length, Span, page_bytes};

/// `MREMAP_DONTUNMAP` of the kernel's linux/mman.h, the same for every CPU. rustix defines it only
/// in its back end with direct system calls.
const MREMAP_DONTUNMAP: u32 = 4;

/// Most address ranges that failed moves of page tables from one mapping may leave behind: far fewer
/// than a process can have maps.
const LEFT_BEHIND_MAX: u8 = 16;

/// An owned address range; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    owner: MappingOwner,
    /// Address ranges that failed moves have left behind. From [`LEFT_BEHIND_MAX`] on page tables are
    /// not moved.
    left_behind: AtomicU8,
    /// `None`: an access to a page that the file has lost ends the process.
    watched: Option<WatchedMapping>,
}

/// The processes in which an address range is valid. In a forked child the same addresses may
/// belong to another mapping by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappingOwner {
    /// Every process that has the mapping: children get a copy.
    Everybody,
    /// This process only; children do not inherit it.
    Process(u64),
    /// This process, and children set up by the fork handlers.
    Window(u64),
    /// This process only; in children set up by the fork handlers the addresses are inaccessible.
    Hidden(u64),
}

// SAFETY: a mapping is an address range, which is the same for every thread. Code that makes
// pointers from it must ensure that its reads and writes are sound.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves `length` bytes of address space without memory: at `wish` if that range is free,
    /// else at an address chosen by the system, aligned to the usual huge page size if it is at
    /// least that long.
    pub(crate) fn reserve(length: Length, wish: Option<Address>) -> Result<Self, Errno> {
        if let Some(wish) = wish {
            match Self::reserve_at(length, wish) {
                Ok(mapping) => return Ok(mapping),
                Err(errno) => tracing::debug!(%wish, %length, %errno, "wished address not free"),
            }
        }
        let huge = HUGE_PAGE_BYTES_USUAL.as_usize();
        let wanted = length.as_usize();
        let padded = wanted.checked_add(huge).ok_or(Errno::NOMEM)?;
        // Small regions are not worth the alignment.
        let requested = if wanted >= huge { padded } else { wanted };
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: no address is given, so no existing mapping is touched.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), requested, ProtFlags::empty(), flags)
        }?;
        let mut whole = Self::own(start.cast(), requested)?;
        whole.trim_to_alignment(wanted, huge);
        Ok(whole)
    }

    /// Lets children inherit the whole mapping, read-only, as long as it exists.
    pub(crate) fn let_children_inherit(mut self) -> Self {
        self.owner = MappingOwner::Window(process_number());
        fork::watch_window(self.start.as_ptr().expose_provenance(), self.length);
        self
    }

    /// Whether the range is valid in this process. In a forked child it may be unmapped, or belong
    /// to another mapping.
    pub(crate) fn is_ours(&self) -> bool {
        match self.owner {
            MappingOwner::Everybody => true,
            MappingOwner::Process(number) | MappingOwner::Hidden(number) => {
                number == process_number()
            }
            MappingOwner::Window(number) => number == process_number() || fork::has_inherited(),
        }
    }

    /// Maps private memory of this process, initially zero.
    pub(crate) fn private(length: Length) -> Result<Self, Errno> {
        let bytes = length.as_usize();
        // SAFETY: no address is given, so no existing mapping is touched.
        let start = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection(true), MapFlags::PRIVATE)
        }?;
        Self::own(start.cast(), bytes)
    }

    /// As [`Self::private`], aligned to the usual huge page size.
    pub(crate) fn private_aligned(length: Length) -> Result<Self, Errno> {
        let huge = HUGE_PAGE_BYTES_USUAL;
        let mut mapping = Self::private(length.checked_add(huge).ok_or(Errno::NOMEM)?)?;
        mapping.trim_to_alignment(length.as_usize(), huge.as_usize());
        Ok(mapping)
    }

    fn reserve_at(length: Length, wish: Address) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        let at = ptr::without_provenance_mut(wish.0);
        let requested = length.as_usize();
        // SAFETY: FIXED_NOREPLACE never replaces a mapping, and a kernel without support for it
        // takes the address as a hint.
        let start =
            unsafe { rustix::mm::mmap_anonymous(at, requested, ProtFlags::empty(), flags) }?;
        let mapping = Self::own(start.cast(), requested)?;
        if mapping.address() == wish {
            return Ok(mapping);
        }
        // Linux before 4.17 chose another address; the drop unmaps it.
        Err(Errno::EXIST)
    }

    /// Maps part of a file, shared, at any address. Children do not inherit it.
    pub(crate) fn of_file(
        fd: BorrowedFd<'_>,
        file_offset: u64,
        length: Length,
        is_writable: bool,
    ) -> Result<Self, Errno> {
        let requested = length.as_usize();
        let protection = protection(is_writable);
        let _steady = fork::without_fork();
        // SAFETY: no address is given, so no existing mapping is touched.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                requested,
                protection,
                MapFlags::SHARED,
                fd,
                file_offset,
            )
        }?;
        let mut mapping = Self::own(start.cast(), requested)?;
        mapping.owner = MappingOwner::Process(process_number());
        // SAFETY: just mapped, and the advice does not change the contents.
        unsafe { advise(start.cast(), length, Advice::LinuxDontFork) }?;
        mapping.watched = WatchedMapping::new(start.expose_provenance(), mapping.length);
        Ok(mapping)
    }

    /// Maps part of a file, private and inaccessible, at any address. In children its addresses are
    /// inaccessible too.
    pub(crate) fn private_of_file(
        fd: BorrowedFd<'_>,
        file_offset: u64,
        length: Length,
    ) -> Result<Self, Errno> {
        let (requested, flags) = (length.as_usize(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        let steady = fork::without_fork();
        // SAFETY: no address is given, so no existing mapping is touched.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), requested, ProtFlags::empty(), flags, fd, file_offset)
        }?;
        let mut mapping = Self::own(start.cast(), requested)?;
        mapping.owner = MappingOwner::Process(process_number());
        // SAFETY: just mapped, and the advice does not change the contents.
        unsafe { advise(start.cast(), length, Advice::LinuxDontFork) }?;
        drop(steady);
        fork::hide(start.expose_provenance(), requested);
        mapping.owner = MappingOwner::Hidden(process_number());
        Ok(mapping)
    }

    /// Maps the beginning of a file read-only, at any address, so that children inherit it. Used by
    /// the handler before a fork.
    pub(crate) fn of_file_for_children(fd: BorrowedFd<'_>, length: Length) -> Result<Self, Errno> {
        let (requested, protection) = (length.as_usize(), protection(false));
        // SAFETY: no address is given, so no existing mapping is touched.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), requested, protection, MapFlags::SHARED, fd, 0)
        }?;
        Self::own(start.cast(), requested)
    }

    /// Maps part of a file over part of this mapping and replaces what was mapped there. Children
    /// inherit it only through [`Self::let_children_inherit`].
    ///
    /// # Safety
    /// `[at, at + length)` is inside this mapping. No reference into it exists that the new
    /// protection would invalidate, that is, no unique reference if it becomes read-only.
    pub(crate) unsafe fn put_file(
        &self,
        at: u64,
        fd: BorrowedFd<'_>,
        file_offset: u64,
        length: Length,
        is_writable: bool,
    ) -> Result<(), Errno> {
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let target = self.pointer(at);
        let requested = length.as_usize();
        debug_assert!(at.checked_add(length.0).is_some_and(|end| end <= self.length as u64));
        let _steady = fork::without_fork();
        // SAFETY: the caller guarantees that the range is inside this mapping, which we own.
        let start = unsafe {
            rustix::mm::mmap(
                target.cast(),
                requested,
                protection(is_writable),
                flags,
                fd,
                file_offset,
            )
        }?;
        debug_assert_eq!(start.cast(), target);
        // SAFETY: just mapped, and the advice does not change the contents.
        unsafe { advise(target, length, Advice::LinuxDontFork) }
    }

    /// Moves the page tables of part of this mapping to another address. A mapping of the same file
    /// with the same protection but without page table entries stays behind, so concurrent accesses
    /// never fail. Much faster than unmapping, because whole tables move. `Err` if the kernel does
    /// not support it.
    ///
    /// # Safety
    /// `[at, at + length)` is inside this mapping and inside one range mapped by a single
    /// `put_file`.
    pub(crate) unsafe fn move_pages_away(&self, at: u64, length: Length) -> Result<Self, Errno> {
        // Whole page tables move only if source and target are equal modulo the size one table
        // maps.
        let huge = HUGE_PAGE_BYTES_USUAL.as_usize();
        let source = self.pointer(at);
        let phase = source.addr() % huge;
        if self.left_behind.load(Ordering::Relaxed) >= LEFT_BEHIND_MAX {
            return Err(Errno::INVAL);
        }
        let room = length.as_usize().checked_add(phase).ok_or(Errno::NOMEM)?;
        let mut target = Self::reserve(Length::from(room.max(huge)), None)?;
        target.owner = MappingOwner::Process(process_number());
        let flags = MremapFlags::MAYMOVE | MremapFlags::from_bits_retain(MREMAP_DONTUNMAP);
        // A fork in between could let children inherit the moved pages, which they must not.
        let _steady = fork::without_fork();
        let requested = length.as_usize();
        // SAFETY: the caller guarantees the source; the destination is inside `target`, which we
        // own.
        let moved = unsafe {
            rustix::mm::mremap_fixed(
                source.cast(),
                requested,
                requested,
                flags,
                target.start.as_ptr().add(phase).cast(),
            )
        };
        let Err(errno) = moved else {
            return Ok(target);
        };
        if !target.unmap_around(phase, length.as_usize()) {
            self.left_behind.fetch_add(1, Ordering::Relaxed);
        }
        if errno == Errno::INVAL {
            // The kernel cannot do it for such a file, now or later.
            self.left_behind.store(LEFT_BEHIND_MAX, Ordering::Relaxed);
        }
        Err(errno)
    }

    /// Unmaps a reservation of this process. A failed `mremap` may have unmapped `length` bytes behind
    /// byte `at` of it (Linux before 6.17 does so before its checks), and another thread may have
    /// mapped memory there since: that part is unmapped only if it is free. False: it is left, either
    /// the reservation as it was or another thread's memory.
    fn unmap_around(self, at: usize, length: usize) -> bool {
        let (first, end) = (self.start.as_ptr(), self.length);
        // Its drop would unmap all of it.
        std::mem::forget(self);
        unmap(first, at);
        unmap(first.wrapping_add(at + length), end - at - length);
        let middle = Address(first.wrapping_add(at).expose_provenance());
        Self::reserve_at(Length::from(length), middle).is_ok()
    }

    /// Survives lost pages in a part of this mapping, if the process does.
    pub(crate) fn watch(&mut self, at: u64, length: Length) {
        self.watched = WatchedMapping::new(self.pointer(at).expose_provenance(), length.as_usize());
    }

    /// Whether an access met a page that the file has lost.
    pub(crate) fn has_lost_pages(&self) -> bool {
        self.watched.as_ref().is_some_and(WatchedMapping::has_lost)
    }

    /// The first address.
    pub(crate) fn address(&self) -> Address {
        Address(self.start.as_ptr().expose_provenance())
    }

    /// The length in bytes.
    pub(crate) fn length(&self) -> Length {
        Length::from(self.length)
    }

    /// A pointer to byte `at`. The caller ensures that `at` is inside the mapping.
    pub(crate) fn pointer(&self, at: u64) -> *mut u8 {
        self.start.as_ptr().wrapping_add(Length(at).as_usize())
    }

    fn own(start: *mut u8, length: usize) -> Result<Self, Errno> {
        let owner = MappingOwner::Everybody;
        let left_behind = AtomicU8::new(0);
        let own = |start| Self { start, length, owner, left_behind, watched: None };
        NonNull::new(start).map(own).ok_or(Errno::NOMEM)
    }

    /// Trims a mapping that is `alignment` bytes too long so that it starts at a multiple of
    /// `alignment`.
    fn trim_to_alignment(&mut self, wanted: usize, alignment: usize) {
        if self.length == wanted {
            return;
        }
        let head =
            self.start.as_ptr().addr().next_multiple_of(alignment) - self.start.as_ptr().addr();
        let tail = self.length - wanted - head;
        let first = self.start.as_ptr();
        unmap(first, head);
        unmap(first.wrapping_add(head + wanted), tail);
        if let Some(start) = NonNull::new(first.wrapping_add(head)) {
            self.start = start;
            self.length = wanted;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Another thread may map something else here after this is unmapped.
        self.watched = None;
        if !self.is_ours() {
            return;
        }
        match self.owner {
            MappingOwner::Window(_) => fork::forget_window(self.start.as_ptr().addr()),
            MappingOwner::Hidden(_) => fork::forget_hidden(self.start.as_ptr().addr()),
            MappingOwner::Everybody | MappingOwner::Process(_) => {}
        }
        unmap(self.start.as_ptr(), self.length);
    }
}

fn protection(is_writable: bool) -> ProtFlags {
    if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
}

/// Unmaps a range on behalf of its only owner.
fn unmap(start: *mut u8, length: usize) {
    if length == 0 {
        return;
    }
    // SAFETY: called only by the owner of the range, for a part that is not used again.
    if let Err(errno) = unsafe { rustix::mm::munmap(start.cast(), length) } {
        tracing::warn!(?start, length, %errno, "munmap");
    }
}

/// Calls `madvise` on a range; `EINVAL` means that the kernel does not support the advice.
///
/// # Safety
/// The range is mapped by the caller, and `advice` does not change its contents.
pub(crate) unsafe fn advise(start: *mut u8, length: Length, advice: Advice) -> Result<(), Errno> {
    // SAFETY: by the caller's contract.
    unsafe { rustix::mm::madvise(start.cast(), length.as_usize(), advice) }
}

/// Touches each page of a writable range so that it is allocated, without changing a byte. Other
/// threads and processes may use the range at the same time.
///
/// # Safety
/// The range is mapped writable.
pub(crate) unsafe fn touch_for_writing(start: *mut u8, length: Length) {
    let page = page_bytes();
    let mut at = 0;
    while at < length.0 {
        // SAFETY: inside the range, which the caller keeps mapped writable. An atomic addition of
        // zero changes nothing and loses no concurrent store.
        unsafe { touch(start.add(Length(at).as_usize())) };
        at += page;
    }
}

/// Atomically stores a byte's current value back.
///
/// # Safety
/// `at` is mapped writable.
pub(crate) unsafe fn touch(at: *mut u8) {
    // Hidden from the compiler, which would turn an operation without effect into a load. A load
    // would map the shared zero page and allocate nothing.
    let nothing = std::hint::black_box(0);
    // SAFETY: by the contract above.
    unsafe { &*at.cast::<AtomicU8>() }.fetch_add(nothing, Ordering::Relaxed);
}

/// The error for a failed mapping call.
pub(crate) fn failure(call: &'static str, span: Span, errno: Errno) -> MapError {
    let source = std::io::Error::from(errno);
    if errno == Errno::NOMEM {
        let limit_as = kernel::address_space_limit();
        let maps_max = kernel::maps_max();
        return MapError::NoRoom { requested: span.length, limit_as, maps_max, source };
    }
    MapError::System { call, offset: span.offset, length: span.length, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: in optimised builds the touch became a load, so the kernel mapped the shared
    /// zero page. The measurements then measured the page faults of the first stores.
    // x86-64 only: an emulator of another instruction set shows the page table of its own process.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn touched_pages_are_there_to_be_written() {
        use std::io::{Read, Seek, SeekFrom};
        let length = Length(page_bytes() * 64);
        let mapping = Mapping::private(length).unwrap();
        // SAFETY: the whole range is mapped writable, and no other code uses it.
        unsafe { touch_for_writing(mapping.pointer(0), length) };
        let mut pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        let first = mapping.address().0 as u64 / page_bytes() * 8;
        let mut entries = vec![0u8; 64 * 8];
        pages.seek(SeekFrom::Start(first)).unwrap();
        pages.read_exact(&mut entries).unwrap();
        for entry in entries.chunks_exact(8) {
            let entry = u64::from_le_bytes(entry.try_into().unwrap());
            // Bit 63: present. Bit 56: mapped exclusively, which the zero page is not.
            assert!(entry >> 63 == 1 && entry >> 56 & 1 == 1, "{entry:#x}");
        }
    }

    #[test]
    fn a_taken_address_falls_back() {
        let length = Length(page_bytes() * 4);
        let first = Mapping::reserve(length, None).unwrap();
        let second = Mapping::reserve(length, Some(first.address())).unwrap();
        assert_ne!(first.address(), second.address());
    }

    /// Regression: the part of a reservation that a failed `mremap` had unmapped was unmapped again
    /// with the rest, and with it the memory that another thread had mapped there meanwhile.
    #[test]
    fn memory_that_another_thread_mapped_into_a_failed_move_stays() {
        let page = page_bytes() as usize;
        let reservation = Mapping::reserve(Length::from(8 * page), None).unwrap();
        let at = reservation.pointer(2 * page as u64);
        // In one step, so that no thread of another test maps memory there.
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: inside the reservation, which nothing uses.
        let stranger =
            unsafe { rustix::mm::mmap_anonymous(at.cast(), 4 * page, protection(true), flags) };
        let stranger = stranger.unwrap().cast::<u8>();
        // SAFETY: just mapped, writable.
        unsafe { stranger.write_volatile(7) };
        assert!(!reservation.unmap_around(2 * page, 4 * page));
        // SAFETY: mapped above. If it is unmapped, the process ends here.
        assert_eq!(unsafe { stranger.read_volatile() }, 7);
        unmap(stranger, 4 * page);
    }

    #[test]
    fn a_free_part_of_a_failed_move_is_left_free() {
        let page = page_bytes() as usize;
        // A thread of another test may take the part in between.
        let is_free = (0..100).any(|_| {
            let reservation = Mapping::reserve(Length::from(8 * page), None).unwrap();
            unmap(reservation.pointer(2 * page as u64), 4 * page);
            reservation.unmap_around(2 * page, 4 * page)
        });
        assert!(is_free);
    }

    #[test]
    fn page_tables_are_not_moved_after_moves_that_left_too_much_behind() {
        let mapping = Mapping::private(Length(4 * page_bytes())).unwrap();
        mapping.left_behind.store(LEFT_BEHIND_MAX, Ordering::Relaxed);
        // SAFETY: all of the mapping, which nothing uses.
        let moved = unsafe { mapping.move_pages_away(0, mapping.length()) };
        assert_eq!(moved.err(), Some(Errno::INVAL));
    }

    #[test]
    fn a_free_address_is_taken() {
        let length = Length(page_bytes() * 4);
        let address = Mapping::reserve(length, None).unwrap().address();
        // A thread of another test may take the address in between, so only the length is checked.
        let again = Mapping::reserve(length, Some(address)).unwrap();
        assert_eq!(again.length(), length);
    }

    #[test]
    fn large_reservations_are_aligned() {
        for pages in [513, 1024, 700] {
            let length = Length(page_bytes() * pages);
            let mapping = Mapping::reserve(length, None).unwrap();
            assert_eq!(mapping.length(), length);
            if length >= HUGE_PAGE_BYTES_USUAL {
                assert_eq!(mapping.address().0 % HUGE_PAGE_BYTES_USUAL.as_usize(), 0);
            }
        }
    }
}
