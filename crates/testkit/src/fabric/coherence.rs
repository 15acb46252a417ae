//! Contracts of coherence: what publish and refresh promise between nodes, on every back end.

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Offset, Region, Span, page_bytes};

use super::{Backend, data_pages, geometry};

/// No cache line is longer, so no two objects that start at multiples of it share one.
const GRAIN: u64 = 128;

fn bytes_of(region: &Region, span: Span) -> Vec<u8> {
    region.refresh(span).unwrap();
    let mut bytes = vec![0; span.length.as_usize()];
    region.copy_out(span.offset, &mut bytes).unwrap();
    bytes
}

/// Stores of any node, once published, are seen by every node that refreshes.
pub fn what_is_published_arrives(backend: &Backend) {
    let made = (backend.make)(geometry());
    let (home, client, other) = (made.map_home(), made.map_client(), made.map_other());
    assert_eq!(home.is_node_local(), other.is_remote());
    assert!(!home.is_remote() && !client.is_remote());
    let control = Span::new(Offset(4096 - 3), Length(7));
    home.write(control.offset, b"control").unwrap();
    home.publish(control).unwrap();
    assert_eq!(bytes_of(&other, control), b"control");
    for (round, writer) in [&client, &other, &client].into_iter().enumerate() {
        let span = data_pages(3, 2);
        let alias = writer.alias(span).unwrap();
        let bytes: Vec<u8> =
            (0..span.length.0).map(|at| (at * 7 + at / 251 + round as u64) as u8).collect();
        writer.refresh(span).unwrap();
        alias.write_published(span.offset, &bytes).unwrap();
        for reader in [&home, &client, &other] {
            assert!(bytes_of(reader, span) == bytes, "round {round}");
        }
    }
    if other.is_remote() {
        let before = other.counters();
        other.refresh_if_remote(control).unwrap();
        other.publish_if_remote(control).unwrap();
        let after = other.counters();
        assert!(after.refreshed_lines > before.refreshed_lines && after.refresh_ns > 0);
        assert!(after.published_lines > before.published_lines && after.publish_ns > 0);
    }
    let before = client.counters();
    client.refresh_if_remote(control).unwrap();
    client.publish_if_remote(control).unwrap();
    assert_eq!(client.counters(), before, "a local client does nothing");
}

/// Two nodes that write neighbouring ranges take nothing from each other.
pub fn neighbours_keep_their_lines(backend: &Backend) {
    let made = (backend.make)(geometry());
    let (home, client, other) = (made.map_home(), made.map_client(), made.map_other());
    let page = data_pages(5, 1);
    let (ours, theirs) = (client.alias(page).unwrap(), other.alias(page).unwrap());
    let part = |n: u64| Span::new(Offset(page.offset.0 + n * GRAIN), Length(GRAIN));
    for n in 0..page_bytes() / GRAIN {
        let alias = if n % 2 == 0 { &ours } else { &theirs };
        alias.write(part(n).offset, &[n as u8 + 1; GRAIN as usize]).unwrap();
    }
    for n in (0..page_bytes() / GRAIN).rev() {
        let region = if n % 2 == 0 { &client } else { &other };
        region.publish(part(n)).unwrap();
    }
    for n in 0..page_bytes() / GRAIN {
        for reader in [&home, &other] {
            assert_eq!(bytes_of(reader, part(n)), [n as u8 + 1; GRAIN as usize], "part {n}");
        }
    }
}

/// A node that has read a line, and has an old copy of it, does not bring that back to memory.
pub fn what_is_not_written_is_not_written_back(backend: &Backend) {
    let made = (backend.make)(geometry());
    let (home, client, other) = (made.map_home(), made.map_client(), made.map_other());
    let span = data_pages(9, 1);
    let alias = client.alias(span).unwrap();
    for round in 0..20u8 {
        bytes_of(&other, span);
        alias.write_published(span.offset, &vec![round; span.length.as_usize()]).unwrap();
        // Flushes what the other node has, and lets its demon act elsewhere.
        other.refresh(data_pages(20, 1)).unwrap();
        other.refresh(span).unwrap();
        assert!(bytes_of(&home, span).iter().all(|byte| *byte == round));
    }
}

/// A word that changes again and again is seen with all bytes of one store, and never goes back.
pub fn words_are_never_torn(backend: &Backend) {
    const ROUNDS: u64 = 200;
    let made = (backend.make)(geometry());
    let (client, other) = (made.map_client(), made.map_other());
    let span = Span::new(Offset(data_pages(2, 1).offset.0 + 8), Length(8));
    let alias = client.alias(data_pages(2, 1)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                let word = round * 0x0101_0101_0101_0101;
                assert!(alias.words_mut(span).unwrap().store(0, word, Ordering::Release));
                client.publish(span).unwrap();
            }
        });
        let mut last = 0;
        // The writer stops at the last round, so this ends.
        while last < ROUNDS {
            other.refresh(span).unwrap();
            let word = other.words(span).unwrap().load(0, Ordering::Acquire).unwrap();
            let round = word & 0xff;
            assert_eq!(word, round * 0x0101_0101_0101_0101);
            assert!(round >= last);
            last = round;
        }
    });
}
