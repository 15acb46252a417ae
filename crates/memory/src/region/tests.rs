//! End-to-end tests of a region, small enough to run under an emulator of another CPU. The contract
//! tests of every back end are in `farrow-testkit`.

use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::*;
use crate::copy::{CopyPlan, StreamMethod};
use crate::fabric::FabricKind;
use crate::fabric::fd_passing::{PassedFabric, PassedParts};
use crate::fabric::shm::ShmFabric;
use crate::mapping;
use crate::profile::all_caches::ALL_CACHES_BYTES_MIN;
use crate::profile::{Origin, Upkeep, WriteWay};
use crate::sync::Ordering;

fn geometry() -> Geometry {
    let page = page_bytes();
    Geometry { control: Length(2 * page), data: Length(16 * page) }
}

fn pages(first: u64, count: u64) -> Span {
    Span::new(Offset(first * page_bytes()), Length(count * page_bytes()))
}

fn home() -> Arc<Region> {
    let fabric = Arc::new(ShmFabric::memfd("unit", geometry()).unwrap());
    Arc::new(Region::map(fabric, Access::Home, None).unwrap())
}

/// The region as a client maps it, with the given coherence class.
fn client(home: &Region, coherence: CoherenceClass) -> Arc<Region> {
    let fabric = home.fabric();
    let own = |(fd, _): (BorrowedFd<'_>, u64)| -> OwnedFd { fd.try_clone_to_owned().unwrap() };
    let passed = PassedFabric::new(PassedParts {
        kind: FabricKind::Shm,
        coherence,
        geometry: fabric.geometry(),
        control_read: own(fabric.read_fd(Section::Control)),
        control_file_offset: 0,
        data_read: own(fabric.read_fd(Section::Data)),
        data_write: Some(own(fabric.write_fd(Section::Data).unwrap())),
        data_file_offset: 0,
    });
    Arc::new(Region::map(Arc::new(passed.unwrap()), Access::Client, None).unwrap())
}

#[test]
fn a_client_reads_what_the_home_writes() {
    let home = home();
    let client = client(&home, CoherenceClass::Coherent);
    home.write(Offset(3), b"written by the home").unwrap();
    let mut back = [0; 19];
    client.copy_out(Offset(3), &mut back).unwrap();
    assert_eq!(&back, b"written by the home");
    let words = Span::new(Offset(64), Length(16));
    assert!(home.words_mut(words).unwrap().store(1, 7, Ordering::Release));
    assert_eq!(client.words(words).unwrap().load(1, Ordering::Acquire), Some(7));
    assert!(matches!(client.words_mut(words), Err(AccessError::ReadOnly { .. })));
    assert!(matches!(client.write(Offset(0), b"x"), Err(AccessError::ReadOnly { .. })));
}

#[test]
fn a_buffer_keeps_its_address_when_sealed() {
    let home = home();
    let client = client(&home, CoherenceClass::Coherent);
    let span = pages(4, 3);
    client.make_writable(span).unwrap();
    let address = client.address_of(span).unwrap();
    let bytes = client.writable_slice(span).unwrap();
    bytes.fill(0xA7);
    bytes.write_at(Offset(span.offset.0 + 5), b"payload").unwrap();
    assert_eq!(Address(bytes.as_mut_ptr().addr()), address);
    assert!(matches!(client.make_read_only(span), Err(MapError::InUse { writers: 1, .. })));
    drop(bytes);
    client.make_read_only(span).unwrap();
    assert!(client.write(span.offset, b"x").is_err());
    let sealed = client.sealed(Span::new(Offset(span.offset.0 + 5), Length(7))).unwrap();
    assert_eq!(sealed.as_ptr().addr(), address.0 + 5);
    assert_eq!(&sealed[..], b"payload");
    let rest = client.sealed(Span::new(Offset(span.offset.0 + 12), Length(span.length.0 - 12)));
    assert!(rest.unwrap().iter().all(|byte| *byte == 0xA7));
    assert_eq!(client.counters().mapped_writable_bytes, 0);
}

#[test]
fn a_retired_range_is_read_only_at_once() {
    let home = home();
    let client = client(&home, CoherenceClass::Coherent);
    let span = pages(3, 8);
    client.make_writable(span).unwrap();
    client.write(span.offset, &[7; 5000]).unwrap();
    let retired = client.retire_writable(span).unwrap();
    assert!(client.write(span.offset, b"x").is_err());
    let sealed = client.sealed(Span::new(span.offset, Length(5000))).unwrap();
    assert!(sealed.iter().all(|byte| *byte == 7));
    drop(retired);
    assert!(sealed.iter().all(|byte| *byte == 7));
}

#[test]
fn an_alias_writes_what_the_window_shows() {
    let home = home();
    let client = client(&home, CoherenceClass::Coherent);
    let alias = client.alias(pages(2, 4)).unwrap();
    alias.populate().unwrap();
    let source: Vec<u8> = (0..9000u32).map(|index| (index % 251) as u8).collect();
    for method in copy::methods_available().into_iter().chain([StreamMethod::Memcpy]) {
        let plan = CopyPlan {
            stream_bytes_min: Length(0),
            parallel_bytes_min: Length(0),
            threads_max: NonZeroUsize::new(2).unwrap(),
            method,
        };
        let offset = Offset(alias.span().offset.0 + 33);
        alias.write(offset, &[0; 10_000]).unwrap();
        alias.write_as(offset, &source, plan).unwrap();
        let mut back = vec![0; source.len()];
        home.copy_out(offset, &mut back).unwrap();
        assert_eq!(back, source, "{method:?}");
    }
    let words = Span::new(alias.span().offset, Length(8));
    assert!(alias.words_mut(words).unwrap().store(0, 99, Ordering::Release));
    assert_eq!(client.words(words).unwrap().load(0, Ordering::Acquire), Some(99));
    assert!(matches!(alias.write(Offset(0), b"x"), Err(AccessError::OutsideHeld { .. })));
    assert_eq!(client.counters().mapped_writable_bytes, 4 * page_bytes());
    drop(alias);
    assert_eq!(client.counters().mapped_writable_bytes, 0);
}

#[test]
fn lines_are_maintained_only_where_it_is_needed() {
    let home = home();
    let line = u64::from(cache::line_bytes());
    let span = Span::new(pages(3, 1).offset, Length(10 * line));

    let coherent = client(&home, CoherenceClass::Coherent);
    coherent.publish(span).unwrap();
    coherent.refresh(span).unwrap();
    let counters = coherent.counters();
    assert_eq!((counters.publish_calls, counters.refresh_calls), (1, 1));
    assert_eq!((counters.published_lines, counters.refreshed_lines), (0, 0));

    let local = client(&home, CoherenceClass::NodeLocal);
    local.publish(span).unwrap();
    local.refresh(span).unwrap();
    let counters = local.counters();
    assert_eq!((counters.published_lines, counters.refreshed_lines), (10, 10));

    let alias = local.alias(pages(3, 4)).unwrap();
    alias.write_published(span.offset, &[1; 3000]).unwrap();
    assert!(local.counters().published_lines > 10);
    let mut back = [0; 3000];
    local.refresh(pages(3, 1)).unwrap();
    local.copy_out(span.offset, &mut back).unwrap();
    assert!(back.iter().all(|byte| *byte == 1));
}

/// For every method of a profile and every size: the bytes are those written, adjacent bytes do not
/// change, and each line touched by plain stores is counted.
#[test]
fn every_way_of_a_profile_keeps_the_bytes_and_is_counted() {
    let home = home();
    let line = u64::from(cache::line_bytes());
    let refreshes = cache::methods_available().into_iter().filter(|method| method.can_refresh());
    for (way, refresh) in
        refreshes.flat_map(|one| WriteWay::all().into_iter().map(move |w| (w, one)))
    {
        for publish in cache::methods_available() {
            let profile = Arc::new(Profile::uniform(publish, refresh, way).unwrap());
            let local = Arc::into_inner(client(&home, CoherenceClass::NodeLocal)).unwrap();
            let local = Arc::new(local.with_profile(profile));
            assert_eq!(local.profile().origin(), Origin::Given);
            let alias = local.alias(pages(3, 8)).unwrap();
            for (phase, length) in [(0, 64), (1, 1), (5, 63), (64, 128), (13, 1000), (7, 20_000)] {
                let at = Offset(alias.span().offset.0 + 256 + phase);
                let around = Span::new(Offset(at.0 - 256), Length(length + 512));
                alias.write(around.offset, &vec![0xEE; around.length.as_usize()]).unwrap();
                let source: Vec<u8> = (0..length).map(|index| (index * 7 + 1) as u8).collect();
                let before = local.counters();
                alias.write_published(at, &source).unwrap();
                let after = local.counters();
                let published = after.published_lines - before.published_lines;
                let lines = (at.0 + length).div_ceil(line) - at.0 / line;
                match way {
                    WriteWay::CopyThenPublish(_) => assert_eq!(published, lines, "{way:?}"),
                    WriteWay::Stream(_) => assert!((1..=6).contains(&published), "{way:?}"),
                }
                local.publish(around).unwrap();
                local.refresh(around).unwrap();
                assert!(local.counters().refreshed_lines > after.refreshed_lines);
                let mut back = vec![0; around.length.as_usize()];
                home.copy_out(around.offset, &mut back).unwrap();
                assert!(back[256..][..source.len()] == source, "{way:?} {phase} {length}");
                assert!(back[..256].iter().all(|byte| *byte == 0xEE));
                assert!(back[256 + source.len()..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }
}

#[test]
fn a_call_reads_and_writes_the_same_bytes() {
    let home = home();
    let offset = Offset(pages(5, 1).offset.0 + 9);
    home.write_by_call(offset, b"by call").unwrap();
    let mut back = [0; 7];
    home.copy_out(offset, &mut back).unwrap();
    assert_eq!(&back, b"by call");
    back.fill(0);
    home.read_by_call(offset, &mut back).unwrap();
    assert_eq!(&back, b"by call");
    let client = client(&home, CoherenceClass::Coherent);
    assert!(matches!(client.write_by_call(Offset(0), b"x"), Err(AccessError::ReadOnly { .. })));
    let mut across = [0; 16];
    assert!(home.read_by_call(Offset(2 * page_bytes() - 8), &mut across).is_err());
}

#[test]
fn pages_made_ready_keep_their_bytes() {
    let home = home();
    let span = pages(2, 16);
    home.write_by_call(span.offset, b"stays").unwrap();
    assert_eq!(home.prepare(span, &|| false).unwrap(), span.length);
    assert_eq!(home.prepare(span, &|| true).unwrap(), Length(0));
    home.populate(Span::new(Offset(1), Length(5000)), Populate::Read).unwrap();
    assert!(home.populate(span, Populate::Write).is_err());
    let mut back = [0; 5];
    home.copy_out(span.offset, &mut back).unwrap();
    assert_eq!(&back, b"stays");
}

#[test]
fn touching_pages_changes_nothing() {
    let mut bytes = vec![5u8; 3 * page_bytes() as usize];
    // SAFETY: the range is this vector.
    unsafe { mapping::touch_for_writing(bytes.as_mut_ptr(), Length::from(bytes.len())) };
    assert!(bytes.iter().all(|byte| *byte == 5));
}

/// If the module no longer allows writing back all caches, lines are written back one by one.
#[test]
fn lines_are_maintained_where_all_caches_cannot_be() {
    let length = ALL_CACHES_BYTES_MIN;
    let geometry = Geometry { control: Length(page_bytes()), data: length };
    let fabric = Arc::new(ShmFabric::memfd("all-caches", geometry).unwrap());
    let home = Region::map(fabric, Access::Home, None).unwrap();
    let client = Arc::into_inner(client(&home, CoherenceClass::NodeLocal)).unwrap();
    let (profile, _) = Profile::measure(Duration::ZERO, None);
    let refused = Arc::new(AllCaches::refused(Duration::ZERO));
    let client = client.with_profile(Arc::new(profile)).with_all_caches(Some(refused));
    let span = Span::new(Offset(page_bytes()), length);
    assert!(client.profile().estimate(Upkeep::Publish, length).unwrap() > Duration::ZERO);
    client.publish(span).unwrap();
    client.refresh(span).unwrap();
    let counters = client.counters();
    let lines = length.0 / u64::from(cache::line_bytes());
    assert_eq!((counters.published_lines, counters.refreshed_lines), (lines, lines));
    assert_eq!(counters.all_caches_calls, 0);
}
