//! Contracts of coherence: the guarantees of publish and refresh between nodes, on every back end.

use std::time::Instant;

use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Offset, Region, Span, page_bytes};

use super::data_pages;
use super::wire::WAIT_MAX;
use super::world::Role::{Client, Home, Other};
use super::world::{ConformanceRegion, together};

/// Multiples of the longest cache line: two objects that start at them share no line.
const GRAIN: u64 = 128;

fn bytes_of(region: &Region, span: Span) -> Vec<u8> {
    region.refresh(span).unwrap();
    let mut bytes = vec![0; span.length.as_usize()];
    region.copy_out(span.offset, &mut bytes).unwrap();
    bytes
}

/// Published stores of any node are visible to every node that refreshes.
pub fn what_is_published_arrives(world: &ConformanceRegion) {
    let [home, client, other] = world.parties([Home, Client, Other]);
    let is_remote = other.act(|other| other.is_remote());
    assert_eq!(home.act(|home| home.is_node_local()), is_remote);
    assert!(!home.act(|home| home.is_remote()) && !client.act(|client| client.is_remote()));
    let control = Span::new(Offset(4096 - 3), Length(7));
    home.act(|home| {
        home.write(control.offset, b"control").unwrap();
        home.publish(control).unwrap();
    });
    other.act(|other| assert_eq!(bytes_of(other, control), b"control"));
    let span = data_pages(3, 2);
    for (round, writer) in [&client, &other, &client].into_iter().enumerate() {
        let bytes: Vec<u8> =
            (0..span.length.0).map(|at| (at * 7 + at / 251 + round as u64) as u8).collect();
        writer.act(|writer| {
            let alias = writer.alias(span).unwrap();
            writer.refresh(span).unwrap();
            alias.write_published(span.offset, &bytes).unwrap();
        });
        for reader in [&home, &client, &other] {
            reader.act(|reader| assert!(bytes_of(reader, span) == bytes, "round {round}"));
        }
    }
    if is_remote {
        other.act(|other| {
            let before = other.counters();
            other.refresh_if_remote(control).unwrap();
            other.publish_if_remote(control).unwrap();
            let after = other.counters();
            assert!(after.refreshed_lines > before.refreshed_lines && after.refresh_ns > 0);
            assert!(after.published_lines > before.published_lines && after.publish_ns > 0);
        });
    }
    client.act(|client| {
        let before = client.counters();
        client.refresh_if_remote(control).unwrap();
        client.publish_if_remote(control).unwrap();
        assert_eq!(client.counters(), before, "a local client does nothing");
    });
}

/// Two nodes that write adjacent ranges overwrite nothing of each other.
pub fn neighbours_keep_their_lines(world: &ConformanceRegion) {
    let [home, client, other] = world.parties([Home, Client, Other]);
    let page = data_pages(5, 1);
    let (ours, theirs) = (
        client.keep(|client| client.alias(page).unwrap()),
        other.keep(|other| other.alias(page).unwrap()),
    );
    let part = |n: u64| Span::new(Offset(page.offset.0 + n * GRAIN), Length(GRAIN));
    for n in 0..page_bytes() / GRAIN {
        let alias = if n % 2 == 0 { &ours } else { &theirs };
        alias.act(|alias| alias.write(part(n).offset, &[n as u8 + 1; GRAIN as usize]).unwrap());
    }
    for n in (0..page_bytes() / GRAIN).rev() {
        let party = if n % 2 == 0 { &client } else { &other };
        party.act(|region| region.publish(part(n)).unwrap());
    }
    for n in 0..page_bytes() / GRAIN {
        for reader in [&home, &other] {
            reader.act(|reader| {
                assert_eq!(bytes_of(reader, part(n)), [n as u8 + 1; GRAIN as usize], "part {n}");
            });
        }
    }
}

/// A node that has read a line, and has an old copy of it, does not write it back to memory.
pub fn what_is_not_written_is_not_written_back(world: &ConformanceRegion) {
    let [home, client, other] = world.parties([Home, Client, Other]);
    let span = data_pages(9, 1);
    let alias = client.keep(|client| client.alias(span).unwrap());
    for round in 0..20u8 {
        other.act(|other| drop(bytes_of(other, span)));
        alias.act(|alias| {
            alias.write_published(span.offset, &vec![round; span.length.as_usize()]).unwrap();
        });
        other.act(|other| {
            // Flushes the other node's lines, and lets its demon act elsewhere.
            other.refresh(data_pages(20, 1)).unwrap();
            other.refresh(span).unwrap();
        });
        home.act(|home| assert!(bytes_of(home, span).iter().all(|byte| *byte == round)));
    }
}

/// A word that changes repeatedly is seen with all bytes of one store, and never reverts.
pub fn words_are_never_torn(world: &ConformanceRegion) {
    const ROUNDS: u64 = 200;
    let [client, other] = world.parties([Client, Other]);
    let span = Span::new(Offset(data_pages(2, 1).offset.0 + 8), Length(8));
    let alias = client.keep(|client| client.alias(data_pages(2, 1)).unwrap());
    let here = alias.here();
    let write = |client: &Region| {
        for round in 1..=ROUNDS {
            let word = round * 0x0101_0101_0101_0101;
            let words = here.unwrap().words_mut(span).unwrap();
            assert!(words.store(0, word, Ordering::Release));
            client.publish(span).unwrap();
        }
    };
    let read = |other: &Region| {
        let begin = Instant::now();
        let mut last = 0;
        while last < ROUNDS {
            other.refresh(span).unwrap();
            let word = other.words(span).unwrap().load(0, Ordering::Acquire).unwrap();
            let round = word & 0xff;
            assert_eq!(word, round * 0x0101_0101_0101_0101);
            assert!(round >= last);
            last = round;
            assert!(begin.elapsed() < WAIT_MAX, "the writer stopped at {last}");
        }
    };
    together((&client, |region| write(region)), (&other, |region| read(region)));
}
