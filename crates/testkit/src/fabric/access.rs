//! Contracts of access: bounds, words, bytes, aliases, publish and refresh.

use farrow_memory::copy::{self, CopyPlan};
use farrow_memory::sync::Ordering;
use farrow_memory::{
    AccessError, BoundsError, CoherenceClass, Length, MapError, Offset, Populate, Region, Span,
    page_bytes,
};

use super::world::ConformanceRegion;
use super::world::Role::{Client, Home};
use super::{data_pages, geometry};

/// Every access checks its span, even if the end exceeds 64 bits.
pub fn nothing_outside_is_reached(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    for party in [&home, &client] {
        party.act(|region| {
            let total = region.length().0;
            for (offset, length) in
                [(total, 8), (total - 8, 16), (0, total + 8), (u64::MAX - 7, 8), (8, u64::MAX - 7)]
            {
                let span = Span::new(Offset(offset), Length(length));
                let expected =
                    BoundsError { offset: span.offset, length: span.length, region: Length(total) };
                assert_eq!(region.check(span), Err(expected), "{span}");
                assert_eq!(region.address_of(span), Err(expected));
                assert_eq!(region.publish(span), Err(expected));
                assert_eq!(region.refresh(span), Err(expected));
                assert_eq!(region.sealed(span).unwrap_err(), expected);
                let words = region.words(span);
                assert!(matches!(words, Err(AccessError::Bounds(found)) if found == expected));
                assert!(matches!(region.words_mut(span), Err(AccessError::Bounds(_))));
                assert!(matches!(region.writable_slice(span), Err(AccessError::Bounds(_))));
                assert!(matches!(region.alias(span), Err(MapError::Bounds(_))));
                assert!(matches!(region.make_writable(span), Err(MapError::Bounds(_))));
                assert!(matches!(region.make_read_only(span), Err(MapError::Bounds(_))));
                assert!(matches!(region.retire_writable(span), Err(MapError::Bounds(_))));
                assert!(matches!(region.populate(span, Populate::Read), Err(MapError::Bounds(_))));
                assert!(matches!(region.prepare(span, &|| false), Err(MapError::Bounds(_))));
            }
            let mut byte = [0];
            for offset in [total, u64::MAX] {
                assert!(region.copy_out(Offset(offset), &mut byte).is_err());
                assert!(region.write(Offset(offset), &byte).is_err());
                assert!(region.read_by_call(Offset(offset), &mut byte).is_err());
                assert!(region.write_by_call(Offset(offset), &byte).is_err());
            }
            let end = Span::new(Offset(total), Length(0));
            assert!(region.check(end).is_ok() && region.sealed(end).unwrap().is_empty());
        });
    }
}

/// Words start and end at multiples of 8, and their views end where they end.
pub fn words_are_whole(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    home.act(|home| {
        for (offset, length) in [(4, 8), (8, 4), (1, 1), (7, 9)] {
            let span = Span::new(Offset(offset), Length(length));
            assert!(matches!(home.words(span), Err(AccessError::NotAligned { alignment: 8, .. })));
            assert!(matches!(home.words_mut(span), Err(AccessError::NotAligned { .. })));
        }
        let words = home.words_mut(Span::new(Offset(16), Length(24))).unwrap();
        assert_eq!((words.len(), words.is_empty()), (3, false));
        for index in 0..3 {
            assert!(words.store(index, index as u64 + 1, Ordering::SeqCst));
        }
        assert!(!words.store(3, 0, Ordering::Relaxed));
    });
    for party in [&home, &client] {
        party.act(|region| {
            let mut bytes = [0; 40];
            region.copy_out(Offset(8), &mut bytes).unwrap();
            assert_eq!(bytes[..8], [0; 8]);
            assert_eq!(bytes[8..16], 1u64.to_le_bytes());
            assert_eq!(bytes[24..32], 3u64.to_le_bytes());
            assert_eq!(bytes[32..], [0; 8]);
        });
    }
}

/// Only the home writes control, and data can be written only after it is made writable.
pub fn only_what_is_writable_is_written(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    let (control, data) = (Offset(0), data_pages(0, 1).offset);
    home.act(|home| home.write(control, b"home").unwrap());
    for (party, offset) in [(&home, data), (&client, data), (&client, control)] {
        party.act(|region| {
            assert!(matches!(region.write(offset, b"x"), Err(AccessError::ReadOnly { .. })));
            let word = Span::new(offset, Length(8));
            assert!(matches!(region.words_mut(word), Err(AccessError::ReadOnly { .. })));
        });
    }
    // The last byte of control and the first of data.
    home.act(|home| assert!(home.write(Offset(data.0 - 1), b"xy").is_err()));
    let all: Vec<u8> = (0..page_bytes()).map(|index| (index % 253) as u8).collect();
    client.act(|client| {
        client.make_writable(data_pages(0, 1)).unwrap();
        client.write(data, b"client").unwrap();
        client.words_mut(Span::new(data, Length(8))).unwrap().clear();
        assert!(client.write(Offset(data.0 + page_bytes() - 1), b"xy").is_err());
        client.write(data, &all).unwrap();
    });
    home.act(|home| assert!(bytes_of(home, data, all.len()) == all));
}

/// Bytes written through an alias are visible in the window at once, and an alias is bounded by its
/// span.
pub fn an_alias_shows_in_the_window(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    let span = data_pages(10, 2);
    let alias = client.keep(|client| client.alias(span).unwrap());
    let small = Offset(span.offset.0 + 100);
    alias.act(|alias| {
        let client = alias.region();
        assert_eq!(alias.span(), span);
        let window = client.address_of(span).unwrap();
        assert_ne!(alias.pointer(span.offset).unwrap().addr(), window.0);
        alias.write(small, b"small").unwrap();
        assert_eq!(&client.sealed(Span::new(small, Length(5))).unwrap()[..], b"small");
    });
    home.act(|home| assert_eq!(bytes_of(home, small, 5), b"small"));
    alias.act(|alias| {
        let client = alias.region();
        for offset in [0, span.offset.0 - 1, span.end().unwrap().0 - 4, u64::MAX] {
            assert!(matches!(
                alias.write(Offset(offset), b"small"),
                Err(AccessError::OutsideHeld { .. })
            ));
        }
        assert!(alias.words_mut(Span::new(Offset(span.offset.0 + 1), Length(8))).is_err());
        assert!(alias.pointer(span.end().unwrap()).is_none() && alias.pointer(Offset(0)).is_none());
        alias.populate().unwrap();
        alias.populate_part(Span::new(span.offset, Length(1))).unwrap();
        let not_pages = Span::new(Offset(span.offset.0 + 8), span.length);
        assert!(matches!(client.alias(not_pages), Err(MapError::NotPages { .. })));
        let control = Span::new(Offset(0), Length(page_bytes()));
        assert!(matches!(client.alias(control), Err(MapError::NotData { .. })));
    });
}

/// Each method of copying, at unaligned lengths and offsets.
pub fn large_writes_arrive(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    let span = data_pages(0, 64);
    let alias = client.keep(|client| client.alias(span).unwrap());
    let length = span.length.as_usize() - 2 * 77;
    let start = Offset(span.offset.0 + 77);
    for (round, method) in copy::methods_available().into_iter().enumerate() {
        for threshold in [0, u64::MAX] {
            let source: Vec<u8> =
                (0..length).map(|index| (index * 7 + index / 509 + round) as u8).collect();
            let plan = CopyPlan {
                stream_bytes_min: Length(0),
                parallel_bytes_min: Length(threshold),
                method,
                ..CopyPlan::automatic()
            };
            alias.act(|alias| {
                alias.write(start, &vec![0; length]).unwrap();
                alias.write_as(start, &source, plan).unwrap();
            });
            home.act(|home| assert!(bytes_of(home, start, length) == source, "{method:?}"));
        }
    }
    let end = Offset(start.0 + length as u64);
    for edge in [span.offset, end] {
        home.act(|home| assert_eq!(bytes_of(home, edge, 77), [0; 77]));
    }
}

/// System calls and maps show the same bytes.
pub fn calls_and_maps_agree(world: &ConformanceRegion) {
    let [home, client] = world.parties([Home, Client]);
    let offset = Offset(data_pages(3, 1).offset.0 + 5);
    let mut back = [0; 6];
    home.act(|home| home.write_by_call(offset, b"called").unwrap());
    client.act(|client| assert_eq!(bytes_of(client, offset, 6), b"called"));
    client.act(|client| {
        client.alias(data_pages(3, 1)).unwrap().write(offset, b"mapped").unwrap();
    });
    home.act(|home| {
        home.read_by_call(offset, &mut back).unwrap();
        assert_eq!(&back, b"mapped");
        home.write(Offset(0), b"header").unwrap();
    });
    client.act(|client| {
        client.read_by_call(Offset(0), &mut back).unwrap();
        assert_eq!(&back, b"header");
        let border = Offset(geometry().control.0 - 3);
        assert!(client.read_by_call(border, &mut back).is_err(), "across the sections");
    });
}

/// A coherent fabric maintains no line; any other fabric maintains each line of the span, once.
pub fn lines_are_maintained_only_where_needed(world: &ConformanceRegion) {
    let [client] = world.parties([Client]);
    client.act(|client| {
        let line = u64::from(client.line_bytes());
        let span = Span::new(Offset(data_pages(1, 1).offset.0 + 1), Length(4 * line));
        client.publish(span).unwrap();
        client.refresh(span).unwrap();
        client.refresh(Span::new(Offset(0), Length(0))).unwrap();
        let counters = client.counters();
        assert_eq!((counters.publish_calls, counters.refresh_calls), (1, 2));
        // One line more, since the span starts inside of one.
        let expected = match client.fabric().coherence_class() {
            CoherenceClass::Coherent => 0,
            CoherenceClass::NodeLocal => 5,
        };
        assert_eq!((counters.published_lines, counters.refreshed_lines), (expected, expected));
        let alias = client.alias(data_pages(1, 8)).unwrap();
        let source = vec![9; 20_000];
        alias.write_published(span.offset, &source).unwrap();
        alias.write_published(span.offset, b"short").unwrap();
        assert_eq!(&client.sealed(Span::new(span.offset, Length(5))).unwrap()[..], b"short");
    });
}

/// The bytes as loads of this process see them.
fn bytes_of(region: &Region, at: Offset, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    region.copy_out(at, &mut bytes).unwrap();
    bytes
}
