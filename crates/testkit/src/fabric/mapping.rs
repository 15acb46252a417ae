//! Contracts of mapping: the addresses of a region, and the memory behind them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use farrow_memory::sync::Ordering;
use farrow_memory::{
    Access, Address, Length, MapError, Offset, Populate, Region, Section, Span, WINDOW_BASE,
    page_bytes, survey,
};
use rustix::fs::OFlags;

use super::world::ConformanceRegion;
use super::world::Role::{Client, Home};
use super::{data_pages, geometry};
use crate::probe::{End, load_in_child};

/// Read descriptors are open read-only and write descriptors for both; a client has no write
/// descriptor of control unless the back end has only one file.
pub fn descriptors_have_their_modes(world: &ConformanceRegion) {
    let mode = |fd: BorrowedFd<'_>| rustix::fs::fcntl_getfl(fd).unwrap() & OFlags::RWMODE;
    let [home, client] = world.parties([Home, Client]);
    for party in [&home, &client] {
        party.act(|region| {
            let fabric = region.fabric();
            assert_eq!(fabric.geometry(), geometry());
            assert!(!fabric.describe().is_empty());
            for section in [Section::Control, Section::Data] {
                let (fd, file_offset) = fabric.read_fd(section);
                assert_eq!(mode(fd), OFlags::RDONLY, "{section}");
                let Some((fd, write_offset)) = fabric.write_fd(section) else {
                    continue;
                };
                assert_eq!(mode(fd), OFlags::RDWR, "{section}");
                assert_eq!(write_offset, file_offset, "{section}");
            }
        });
    }
    assert!(home.act(|region| region.fabric().write_fd(Section::Control).is_some()));
}

/// The same region mapped at several addresses, in one process or several, has the same bytes.
pub fn two_maps_show_the_same_bytes(world: &ConformanceRegion) {
    let [home, client, other] = world.parties([Home, Client, Client]);
    let bases = [&home, &client, &other].map(|party| party.act(|region| region.base().0 as u64));
    if world.is_one_process() {
        assert!(bases[0] != bases[1] && bases[1] != bases[2] && bases[0] != bases[2]);
    }
    home.act(|region| region.write(Offset(11), b"control").unwrap());
    let span = data_pages(7, 1);
    client.act(|region| region.alias(span).unwrap().write(span.offset, b"data").unwrap());
    for party in [&home, &client, &other] {
        party.act(|region| {
            let mut control = [0; 7];
            region.copy_out(Offset(11), &mut control).unwrap();
            assert_eq!(&control, b"control");
            let data = region.sealed(Span::new(span.offset, Length(4))).unwrap();
            assert_eq!(&data[..], b"data");
        });
    }
    let word = Span::new(Offset(4096 - 8), Length(8));
    home.act(|region| {
        assert!(region.words_mut(word).unwrap().store(0, u64::MAX, Ordering::Release));
    });
    other.act(|region| {
        assert_eq!(region.words(word).unwrap().load(0, Ordering::Acquire), Some(u64::MAX));
    });
}

/// A requested address that is in use is not an error: the region is mapped elsewhere and works.
pub fn a_taken_address_falls_back(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    home.act(|region| region.write(Offset(0), b"the same").unwrap());
    client.act(|first| {
        let second = again(first, Some(first.base())).unwrap();
        assert!(!second.is_at_wish());
        assert_ne!(second.base(), first.base());
        let mut bytes = [0; 8];
        second.copy_out(Offset(0), &mut bytes).unwrap();
        assert_eq!(&bytes, b"the same");
    });
}

/// A requested address that is free is used.
pub fn a_free_address_is_taken(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|first| {
        // Other tests run in parallel, so any one address may be in use: try several.
        let step = 1usize << 32;
        let granted = (1..=64).map(|index| Address(WINDOW_BASE.0 + index * step)).any(|wish| {
            let region = again(first, Some(wish)).unwrap();
            assert_eq!(region.is_at_wish(), region.base() == wish);
            region.is_at_wish()
        });
        let is_free = |index: usize| {
            survey::is_window_free(Address(WINDOW_BASE.0 + index * step), geometry().total())
        };
        assert!(granted || !(1..=64).any(is_free), "free addresses, but none was granted");
    });
}

/// A requested address that can never be used is an error, not a fallback: it is a mistake.
pub fn a_bad_wish_is_refused(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|region| {
        for wish in [Address(0), Address(WINDOW_BASE.0 + 1), Address(usize::MAX - 4095)] {
            let answer = again(region, Some(wish));
            let Err(MapError::BadAddress { address, length }) = answer else {
                panic!("{wish}: {answer:?}");
            };
            assert_eq!((address, length), (wish, geometry().total()));
        }
    });
}

/// Offsets and addresses name the same bytes.
pub fn addresses_and_offsets_agree(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|region| {
        let total = region.length().0;
        assert_eq!(region.length(), geometry().total());
        for at in [0, 1, total / 2, total - 1] {
            let address = region.address_of(Span::new(Offset(at), Length(1))).unwrap();
            assert_eq!(address.0, region.base().0 + at as usize);
            assert_eq!(region.offset_of(address), Some(Offset(at)));
        }
        assert_eq!(region.offset_of(Address(region.base().0 + total as usize)), None);
        assert_eq!(region.offset_of(Address(region.base().0 - 1)), None);
        assert_eq!(region.offset_of(Address(0)), None);
        assert_eq!(region.offset_of(Address(usize::MAX)), None);
    });
}

/// Sealed bytes and aliases retain the map; without any of them it is removed.
pub fn the_map_goes_with_its_last_owner(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|mapped| {
        let region = Arc::new(again(mapped, None).unwrap());
        let span = data_pages(0, 1);
        let sealed = region.sealed(span).unwrap();
        let alias = region.alias(span).unwrap();
        let weak = Arc::downgrade(&region);
        drop(region);
        alias.write(span.offset, b"still here").unwrap();
        assert_eq!(&sealed[..10], b"still here");
        drop(alias);
        let copy = sealed.clone();
        drop(sealed);
        assert_eq!(&copy[..10], b"still here");
        let address = Address::from(copy.as_ptr());
        assert_eq!(load_in_child(address).unwrap(), End::Exit(0));
        drop(copy);
        assert!(weak.upgrade().is_none());
    });
}

/// Every page is allocated in the file system before the first store to it.
pub fn pages_are_committed(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    for party in [&home, &client] {
        party.act(|region| {
            for section in [Section::Control, Section::Data] {
                let (fd, file_offset) = region.fabric().read_fd(section);
                let stat = rustix::fs::fstat(fd).unwrap();
                let length = geometry().span_of(section).length.0;
                assert!(stat.st_size as u64 >= file_offset + length);
                // st_blocks is in units of 512 bytes on every Linux file system.
                let blocks = stat.st_blocks as u64;
                assert!(blocks * 512 >= length, "{section}: {blocks} blocks");
            }
        });
    }
}

/// Populating and preparing fault pages in and change no bytes.
pub fn populating_changes_nothing(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|region| {
        let span = data_pages(0, 64);
        region.alias(span).unwrap().write(Offset(span.offset.0 + 4095), b"across").unwrap();
        assert_eq!(region.prepare(span, &|| false).unwrap(), span.length);
        assert_eq!(region.prepare(span, &|| true).unwrap(), Length(0));
        region.populate(Span::new(Offset(3), Length(page_bytes())), Populate::Read).unwrap();
        region.populate(Span::new(Offset(3), Length(0)), Populate::Read).unwrap();
        assert!(region.populate(span, Populate::Write).is_err(), "it is read-only");
        region.make_writable(span).unwrap();
        region.populate(span, Populate::Write).unwrap();
        region.make_read_only(span).unwrap();
        let mut back = [0; 6];
        region.copy_out(Offset(span.offset.0 + 4095), &mut back).unwrap();
        assert_eq!(&back, b"across");
        region.advise_huge();
    });
}

/// The same memory, mapped once more by the same process.
fn again(region: &Region, wish: Option<Address>) -> Result<Region, MapError> {
    Region::map(Arc::clone(region.fabric()), Access::Client, wish)
}
