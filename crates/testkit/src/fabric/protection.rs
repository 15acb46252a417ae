//! Contracts of protection: read-only memory is so by construction, and a store faults.

use std::io::ErrorKind;
use std::sync::Arc;

use farrow_memory::{
    Access, AccessError, Address, Length, MapError, Offset, Populate, Region, Section, Span,
    page_bytes,
};

use super::world::ConformanceRegion;
use super::world::Role::{Client, Home};
use super::{data_pages, geometry};
use crate::probe::{End, store_in_child, try_make_writable};

/// Neither a store nor `mprotect` succeeds.
fn assert_read_only(region: &Region, span: Span) {
    let address = region.address_of(span).unwrap();
    let refused = try_make_writable(address, span.length).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{span}: {refused}");
    let end = store_in_child(address).unwrap();
    assert_eq!(end, End::Signal(libc::SIGSEGV), "{span}");
}

/// The whole map of a client, control and data.
pub fn a_client_cannot_write_by_construction(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|client| {
        for section in [Section::Control, Section::Data] {
            assert_read_only(client, geometry().span_of(section));
        }
        assert_eq!(client.counters().mapped_writable_bytes, 0);
    });
}

/// The home writes control, but only reads the data that clients own.
pub fn a_home_cannot_write_data(world: &ConformanceRegion) {
    let [home] = world.parties([Home]);
    home.act(|home| {
        assert_read_only(home, geometry().span_of(Section::Data));
        // The canary: the probe does report a store that is allowed.
        let control = home.address_of(geometry().span_of(Section::Control)).unwrap();
        assert_eq!(store_in_child(control).unwrap(), End::Exit(0));
        assert_eq!(home.counters().mapped_writable_bytes, geometry().control.0);
    });
}

/// A range retains its address and bytes when made writable and read-only, and is then protected.
pub fn a_sealed_range_is_read_only_by_construction(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    let span = data_pages(5, 6);
    client.act(|client| {
        let address = client.address_of(span).unwrap();
        client.make_writable(span).unwrap();
        assert_eq!(client.address_of(span).unwrap(), address);
        assert_eq!(store_in_child(address).unwrap(), End::Exit(0), "writable before the seal");
        client.populate(span, Populate::Write).unwrap();
        client.write(Offset(span.offset.0 + 1), b"sealed").unwrap();
        assert_eq!(client.counters().mapped_writable_bytes, span.length.0);
        // The middle first, so that the range is split.
        let middle = data_pages(7, 2);
        client.make_read_only(middle).unwrap();
        assert_read_only(client, middle);
        assert_eq!(store_in_child(address).unwrap(), End::Exit(0), "the rest still is");
        client.make_read_only(span).unwrap();
        assert_read_only(client, span);
        assert_eq!(client.counters().mapped_writable_bytes, 0);
    });
    for party in [&client, &home] {
        party.act(|region| {
            let sealed = region.sealed(Span::new(Offset(span.offset.0 + 1), Length(6))).unwrap();
            assert_eq!(&sealed[..], b"sealed");
        });
    }
    // Repeating it is not an error, and neither is a range that was never writable.
    client.act(|client| {
        client.make_read_only(span).unwrap();
        client.make_read_only(data_pages(0, 64)).unwrap();
    });
}

/// The fast variant: the range is read-only before the old page tables are freed.
pub fn a_retired_range_is_read_only_at_once(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|client| {
        let span = data_pages(1, 40);
        client.make_writable(span).unwrap();
        let bytes: Vec<u8> = (0..span.length.0).map(|index| (index % 241) as u8).collect();
        client.write(span.offset, &bytes).unwrap();
        let retired = client.retire_writable(span).unwrap();
        assert_read_only(client, span);
        assert!(client.sealed(span).unwrap()[..] == bytes[..]);
        assert_eq!(client.counters().mapped_writable_bytes, 0);
        drop(retired);
        assert_read_only(client, span);
        assert!(client.sealed(span).unwrap()[..] == bytes[..]);
        assert!(client.retire_writable(span).unwrap().is_empty());
    });
}

/// A range with live writable bytes or words stays writable.
pub fn a_writer_keeps_its_range_writable(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|client| {
        let span = data_pages(0, 2);
        assert!(matches!(client.writable_slice(span), Err(AccessError::ReadOnly { .. })));
        client.make_writable(span).unwrap();
        let over = data_pages(0, 3);
        assert!(matches!(client.writable_slice(over), Err(AccessError::ReadOnly { .. })));
        let bytes = client.writable_slice(span).unwrap();
        assert_eq!((bytes.span(), bytes.len()), (span, span.length.as_usize()));
        assert_eq!(bytes.as_mut_ptr().addr(), client.address_of(span).unwrap().0);
        bytes.write_at(Offset(span.offset.0 + 3), b"held").unwrap();
        let outside = bytes.write_at(Offset(span.end().unwrap().0 - 2), b"held");
        assert!(matches!(outside, Err(AccessError::OutsideHeld { .. })));
        let refused = client.make_read_only(over);
        assert!(matches!(refused, Err(MapError::InUse { writers: 1, .. })), "{refused:?}");
        assert!(matches!(client.retire_writable(over), Err(MapError::InUse { .. })));
        drop(bytes);
        let words = client.words_mut(Span::new(span.offset, Length(8))).unwrap();
        assert!(matches!(client.make_read_only(span), Err(MapError::InUse { .. })));
        drop(words);
        client.make_read_only(span).unwrap();
    });
}

/// Repeated changes leave no more maps than before: their number is limited.
pub fn maps_merge_again(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|first| {
        for is_advised in [false, true] {
            let client = Region::map(Arc::clone(first.fabric()), Access::Client, None).unwrap();
            if is_advised {
                client.advise_huge();
            }
            let before = maps_in(&client);
            for first in (0..60).step_by(4) {
                client.make_writable(data_pages(first, 2)).unwrap();
            }
            assert!(maps_in(&client) > before);
            for first in (0..60).step_by(4) {
                client.make_read_only(data_pages(first, 2)).unwrap();
            }
            assert_eq!(maps_in(&client), before, "advised: {is_advised}");
        }
    });
}

/// Only whole pages of data change.
pub fn protection_wants_data_pages(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|client| {
        let page = page_bytes();
        let start = geometry().control.0;
        for (offset, length) in [(start + 8, page), (start, page - 8), (start + page / 2, page)] {
            let span = Span::new(Offset(offset), Length(length));
            let answer = client.make_writable(span);
            assert!(matches!(answer, Err(MapError::NotPages { .. })), "{answer:?}");
            assert!(matches!(client.make_read_only(span), Err(MapError::NotPages { .. })));
        }
        for (offset, length) in [(0, page), (start - page, 2 * page)] {
            let span = Span::new(Offset(offset), Length(length));
            let answer = client.make_writable(span);
            assert!(matches!(answer, Err(MapError::NotData { .. })), "{answer:?}");
            assert!(matches!(client.prepare(span, &|| false), Err(MapError::NotData { .. })));
        }
        client.make_writable(Span::new(Offset(start), Length(0))).unwrap();
    });
}

/// Number of maps of this process in the region.
fn maps_in(region: &Region) -> usize {
    let first = region.base();
    let last = Address(first.0 + region.length().as_usize() - 1);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| line.split_once('-'))
        .filter_map(|(start, _)| usize::from_str_radix(start, 16).ok())
        .filter(|start| (first.0..=last.0).contains(start))
        .count()
}
