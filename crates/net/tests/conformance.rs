//! The contract of every record layer: source, mirror and pushes over real sockets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::{Arc, Barrier};
use std::time::Duration;

use common::identity::{Authority, identity};
use common::proxy::Proxy;
use common::{
    LONG, ReaderOptions, TestHome, TestReader, member, memory, options, pattern, span, until,
};
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Fabric, FileMap, Geometry, HUGE_PAGE_BYTES_USUAL, Length, Section, Span, mount,
};
use farrow_net::CHUNK_BYTES;
use farrow_net::NetError;
use farrow_net::cache::{Cache, RemoveOutcome};
use farrow_net::frame::ErrorCode;
use farrow_net::peer::{Peer, PeerOptions, Piece, Placement};
use farrow_net::records::{Credentials, TlsMaterial};
use farrow_net::source::table::want;
use farrow_net::source::{GrantId, HoldId};

const SECTION: u64 = 64 << 20;
const STALL: Duration = Duration::from_secs(10);

/// Runs a test with a home and a reader over each record layer.
fn over_each(test: impl Fn(&TestHome, &TestReader)) {
    let authority = Authority::new();
    let tls = ["home", "reader"].map(|name| authority.credentials(name));
    for [home, reader] in [[Credentials::Plain, Credentials::Plain], tls] {
        println!("over {}", home.as_str());
        let home = TestHome::start(SECTION, home, STALL);
        let reader = TestReader::start(
            &home,
            ReaderOptions { credentials: reader, ..ReaderOptions::plain(home.address, STALL) },
        );
        test(&home, &reader);
    }
}

#[test]
fn ranges_arrive_where_they_belong_and_once() {
    over_each(|home, reader| {
        let blocks = [span(5000, 20 << 20), span(30 << 20, 700_001)];
        home.add(1, &blocks);
        let (opened, held) = reader.open(1);
        assert_eq!(opened.opened.blocks, blocks);
        assert_eq!(opened.opened.inline, [0; 0]);
        let columns = [span(1 << 20, 2 << 20), span(15 << 20, 1), span(30 << 20, 100)];
        let report = reader.peer.fetch(&held, opened.hold, &columns, LONG).unwrap();
        // Two whole MiB, and the chunks around the other ranges.
        let chunk_of_15 = CHUNK_BYTES;
        assert_eq!(report.fetched, Length((2 << 20) + chunk_of_15 + CHUNK_BYTES));
        reader.assert_pattern(&columns);
        let rest = reader.peer.fetch(&held, opened.hold, &blocks, LONG).unwrap();
        let all: u64 = blocks.iter().map(|block| block.length.0).sum();
        assert_eq!(report.fetched.0 + rest.fetched.0, all);
        reader.assert_pattern(&blocks);
        let again = reader.peer.fetch(&held, opened.hold, &blocks, Duration::ZERO).unwrap();
        assert_eq!(again.fetched, Length(0), "no byte for who comes later, and no time");
        let link = reader.peer.link();
        assert!(link.round_trip().is_some());
    });
}

#[test]
fn ranges_go_to_the_places_that_were_chosen() {
    over_each(|home, reader| {
        let blocks = [span(8 << 20, 5 << 20), span(1280, 700_001), span(20 << 20, 128)];
        home.add(1, &blocks);
        let opened = reader.peer.open(&want(1)).unwrap();
        let map = memory(16 << 20);
        let mut at = 4096;
        let pieces: Vec<Piece> = blocks
            .iter()
            .map(|from| {
                let to = span(at, 0).offset;
                at += from.length.0 + 4096;
                Piece { from: *from, to }
            })
            .collect();
        let placement = Placement::new(Arc::clone(&map), pieces.clone()).unwrap();
        reader.peer.read(placement, opened.hold, LONG).unwrap();
        for Piece { from, to } in &pieces {
            let found = map.sealed(Span::new(*to, from.length)).unwrap();
            assert!(found == pattern(*from), "{from}");
            // The bytes before and after are unchanged.
            let behind = span(to.0 + from.length.0, 4096);
            assert_eq!(map.sealed(behind).unwrap(), [0; 4096]);
        }
        assert_eq!(map.sealed(span(0, 4096)).unwrap(), [0; 4096]);
        // Ranges outside the object are refused, small and large.
        for length in [1, 1 << 20] {
            let piece = Piece { from: span(40 << 20, length), to: span(0, 0).offset };
            let placement = Placement::new(Arc::clone(&map), vec![piece]).unwrap();
            let refused = reader.peer.read(placement, opened.hold, LONG);
            let is_not_held =
                matches!(refused, Err(NetError::Refused { code: ErrorCode::NotHeld, .. }));
            assert!(is_not_held, "{refused:?}");
        }
    });
}

#[test]
fn neighbours_in_a_chunk_are_neither_fetched_nor_overwritten() {
    over_each(|home, reader| {
        let spans = [span(128, 100), span(256, 200_000), span(200_320, 70_000)];
        for (key, block) in (1..).zip(spans) {
            home.add(key, &[block]);
        }
        // In reverse order, so that the chunk that two objects share is written twice.
        for (key, block) in [1, 2, 3].into_iter().zip(spans).rev() {
            let (opened, held) = reader.open(key);
            if opened.opened.inline.is_empty() {
                reader.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
            } else {
                let claim = held.claim(&[block], LONG).unwrap();
                claim.put(block.offset, &opened.opened.inline).unwrap();
            }
            drop(held);
        }
        reader.assert_pattern(&spans);
        let between = span(200_256, 64);
        assert_eq!(reader.mirror.map().sealed(between).unwrap(), [0; 64]);
        assert_eq!(reader.mirror.remove(2), RemoveOutcome::Removed);
        reader.assert_pattern(&[spans[0], spans[2]]);
    });
}

#[test]
fn two_fetchers_move_the_bytes_once() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let block = span(1000, 40 << 20);
    home.add(1, &[block]);
    let proxy = Proxy::start(home.address);
    let reader = Arc::new(TestReader::plain(&home, proxy.address, STALL));
    let (opened, held) = reader.open(1);
    let (hold, before) = (opened.hold, proxy.to_reader());
    let start = Arc::new(Barrier::new(8));
    let threads: Vec<_> = (0..8_u64)
        .map(|number| {
            let (reader, held, start) = (Arc::clone(&reader), held.clone(), Arc::clone(&start));
            std::thread::spawn(move || {
                // Each range has its own start, and all overlap.
                let skip = number * 100_000;
                let range = Span::new(span(1000 + skip, 0).offset, Length((40 << 20) - skip));
                start.wait();
                let report = reader.peer.fetch(&held, hold, &[range], LONG).unwrap();
                reader.assert_pattern(&[range]);
                report.fetched.0
            })
        })
        .collect();
    let fetched: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(fetched, 40 << 20);
    let moved = proxy.to_reader() - before;
    // Overhead: a header of 32 bytes for at most 256 KiB, and a welcome for each connection.
    assert!(moved >= fetched && moved < fetched + (fetched >> 10), "{moved} for {fetched}");
}

#[test]
fn a_refusal_ends_the_request_and_not_the_connection() {
    over_each(|home, reader| {
        home.add(1, &[span(0, 1 << 20)]);
        home.add(2, &[span(1 << 20, 1 << 20)]);
        match reader.peer.open(&want(9)) {
            Err(NetError::Refused { code: ErrorCode::NotFound, text, .. }) => {
                assert_eq!(text, "no object 9");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(reader.peer.open(&[]), Err(NetError::Request(_))));
        assert!(matches!(reader.peer.open(&[0; 5000]), Err(NetError::Request(_))));
        let (first, _) = reader.open(1);
        let (second, held) = reader.open(2);
        // With the hold of another object, and with an unknown hold; small and large.
        for (hold, length) in [(first.hold, 1 << 20), (HoldId(99), 1), (first.hold, 1)] {
            let refused = reader.peer.fetch(&held, hold, &[span(1 << 20, length)], LONG);
            let is_not_held =
                matches!(refused, Err(NetError::Refused { code: ErrorCode::NotHeld, .. }));
            assert!(is_not_held, "{refused:?}");
        }
        reader.peer.fetch(&held, second.hold, &[span(1 << 20, 1 << 20)], LONG).unwrap();
        reader.assert_pattern(&[span(1 << 20, 1 << 20)]);
        assert_eq!(home.server.violations(), [""; 0]);
        assert!(home.source.holds() == 2 && home.source.guards() == 0);
        reader.peer.release(first.hold);
        reader.peer.release(second.hold);
        until("holds end", || home.source.holds() == 0);
    });
}

#[test]
fn a_delete_is_reported_and_acknowledged() {
    over_each(|home, reader| {
        let block = span(0, 200_000);
        home.add(5, &[block]);
        let own = member("reader");
        assert!(!home.server.send_invalidation(&own, 5), "there is no connection yet");
        let (opened, held) = reader.open(5);
        reader.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
        home.source.delete(5);
        assert!(home.server.send_invalidation(&own, 5));
        until("the notice", || !reader.control.removed.lock().unwrap().is_empty());
        let (notice, object) = reader.control.removed.lock().unwrap()[0];
        assert_eq!(object, 5);
        assert_eq!(reader.mirror.remove(5), RemoveOutcome::InUse);
        reader.peer.acknowledge_invalidation(notice, object).unwrap();
        until("the answer", || home.source.seen() == [(own.clone(), 5)]);
        reader.assert_pattern(&[block]);
        drop(held);
        assert_eq!(reader.cache.stats().used, 0);
    });
}

#[test]
fn pushes_arrive_whole_within_their_grant() {
    over_each(|home, reader| {
        let (own, other) = (member("reader"), member("other"));
        home.source.grant(GrantId(1), &own, span(4096, 20 << 20));
        home.source.grant(GrantId(2), &other, span(40 << 20, 1 << 20));
        let ranges = [span(4096, 18 << 20), span(19 << 20, 77)];
        let map = reader.mirror.map();
        for range in ranges {
            map.write(range.offset, &pattern(range)).unwrap();
        }
        reader.peer.push(GrantId(1), map, &ranges, LONG).unwrap();
        for range in ranges {
            assert_eq!(home.map.sealed(range).unwrap(), pattern(range));
        }
        let written: u64 = home.source.written(GrantId(1)).iter().map(|one| one.length.0).sum();
        assert_eq!(written, (18 << 20) + 77);
        for (grant, range) in [(2, span(40 << 20, 10)), (3, span(0, 10)), (1, span(0, 4097))] {
            let refused = reader.peer.push(GrantId(grant), map, &[range], LONG);
            let is_not_held =
                matches!(refused, Err(NetError::Refused { code: ErrorCode::NotHeld, .. }));
            assert!(is_not_held, "{refused:?}");
        }
        assert_eq!(home.map.sealed(span(0, 4096)).unwrap(), [0; 4096]);
        assert_eq!(home.map.sealed(span(40 << 20, 10)).unwrap(), [0; 10]);
        reader.peer.push(GrantId(1), map, &[span(4096, 5)], LONG).unwrap();
        until("guards end", || home.source.guards() == 0);
    });
}

#[test]
fn what_is_evicted_comes_again() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let blocks: Vec<_> = (0..6).map(|key| span(key * (10 << 20) + 7, 3 << 20)).collect();
    for (key, block) in (0..).zip(&blocks) {
        home.add(key, &[*block]);
    }
    let limit = 7 << 20;
    let reader = TestReader::start(
        &home,
        ReaderOptions { cache_bytes: limit, ..ReaderOptions::plain(home.address, STALL) },
    );
    for round in 0..3 {
        for (key, block) in (0..).zip(&blocks) {
            let (opened, held) = reader.open(key);
            reader.peer.fetch(&held, opened.hold, &[*block], LONG).unwrap();
            reader.assert_pattern(&[*block]);
            let committed = reader.mirror.map().committed().unwrap();
            assert!(committed.0 <= limit, "{committed} in round {round}");
            drop(held);
            reader.peer.release(opened.hold);
        }
    }
    assert!(reader.cache.stats().evicted_objects >= 12);
}

/// A huge page stays allocated while any part of it is in use.
#[test]
fn huge_pages_stay_within_the_limit() {
    if !mount::can_mount_huge() {
        println!("skipped: no huge pages, or no right to mount");
        return;
    }
    let geometry = Geometry { control: Length(2 << 20), data: Length(SECTION) };
    let fabric = ShmFabric::nameless_in_mount(geometry).unwrap();
    let (file, at) = fabric.write_fd(Section::Data).unwrap();
    let file = file.try_clone_to_owned().unwrap();
    let map = Arc::new(FileMap::new(file, at, Length(SECTION), true).unwrap());
    // The fabric allocates memory for a region; a mirror starts without any.
    map.punch(span(0, SECTION)).unwrap();

    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let blocks: Vec<_> = (0..5).map(|key| span(key * (9 << 20) + 700, 5 << 20)).collect();
    for (key, block) in (0..).zip(&blocks) {
        home.add(key, &[*block]);
    }
    let limit = 16 << 20;
    let cache = Cache::new(Length(limit));
    let mirror = cache.mirror(map, HUGE_PAGE_BYTES_USUAL).unwrap();
    let reader = TestReader::plain(&home, home.address, STALL);
    for round in 0..3 {
        for (key, block) in (0..).zip(&blocks) {
            let opened = reader.peer.open(&want(key)).unwrap();
            let held = mirror.insert(key, &opened.opened.blocks, LONG).unwrap();
            reader.peer.fetch(&held, opened.hold, &[*block], LONG).unwrap();
            assert_eq!(mirror.map().sealed(*block).unwrap(), pattern(*block));
            let committed = mirror.map().committed().unwrap();
            assert!(committed.0 <= cache.stats().used, "{committed} in round {round}");
            assert!(cache.stats().used <= limit);
            reader.peer.release(opened.hold);
        }
    }
    assert!(cache.stats().evicted_objects >= 10);
    drop(mirror);
    assert_eq!(cache.stats().used, 0);
}

#[test]
fn a_member_that_is_cut_off_reads_no_more() {
    over_each(|home, reader| {
        home.add(1, &[span(0, 30 << 20)]);
        let (opened, held) = reader.open(1);
        reader.peer.fetch(&held, opened.hold, &[span(0, 1 << 20)], LONG).unwrap();
        *reader.control.is_expelled.lock().unwrap() = true;
        home.server.cut(&member("reader"), LONG).unwrap();
        assert_eq!((home.server.connections(), home.source.guards()), (0, 0));
        let refused = reader.peer.fetch(&held, opened.hold, &[span(0, 30 << 20)], LONG);
        let Err(NetError::Connection { reason, .. }) = &refused else { panic!("{refused:?}") };
        assert!(reason.to_string().contains("not a member"), "{reason}");
        reader.assert_pattern(&[span(0, 1 << 20)]);
        reader.peer.lose("node home is lost");
        let lost = reader.peer.fetch(&held, opened.hold, &[span(0, 30 << 20)], LONG);
        assert!(matches!(lost, Err(NetError::Lost { .. })), "{lost:?}");
        assert!(matches!(reader.peer.open(&want(1)), Err(NetError::Lost { .. })));
        let lost = reader.peer.push(GrantId(1), reader.mirror.map(), &[span(0, 1)], LONG);
        assert!(matches!(lost, Err(NetError::Lost { .. })), "{lost:?}");
    });
}

#[test]
fn certificates_and_tickets_have_to_agree() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let home = TestHome::start(SECTION, authority.credentials("home"), STALL);
    home.add(1, &[span(0, 100)]);
    let cases = [
        // A certificate of another authority, no certificate, and one of another member.
        (stranger.credentials("reader"), "reader"),
        (Credentials::Plain, "reader"),
        (authority.credentials("other"), "reader"),
    ];
    for (credentials, name) in cases {
        let reader = TestReader::start(
            &home,
            ReaderOptions {
                name,
                credentials,
                cache_bytes: 1 << 20,
                ..ReaderOptions::plain(home.address, STALL)
            },
        );
        let refused = reader.peer.open(&want(1));
        assert!(matches!(refused, Err(NetError::Connection { .. })), "{refused:?}");
    }
    // A home other than the requested one.
    let reader = TestReader::start(
        &home,
        ReaderOptions {
            credentials: authority.credentials("reader"),
            cache_bytes: 1 << 20,
            ..ReaderOptions::plain(home.address, STALL)
        },
    );
    let options = PeerOptions {
        socket: options(STALL),
        ..PeerOptions::new("else", home.address, home.map.length())
    };
    let control = Arc::clone(&reader.control);
    let wrong = Peer::start(options, authority.credentials("reader"), control).unwrap();
    assert!(matches!(wrong.open(&want(1)), Err(NetError::Connection { .. })));
    reader.open(1);
    assert_eq!(home.source.holds(), 1);
}

/// Once, credentials were read at the start only: a renewed certificate was not used, and nothing
/// ended the connections of a node whose key was lost.
#[test]
fn replaced_credentials_end_the_connections_that_they_no_longer_accept() {
    let authority = Authority::new();
    let (of_home, of_reader) = (authority.material("home", 1), authority.material("reader", 2));
    let at_home = Arc::new(identity(&of_home));
    let at_reader = Arc::new(identity(&of_reader));
    let home = TestHome::start(SECTION, Credentials::Tls(Arc::clone(&at_home)), STALL);
    home.add(1, &[span(0, 100)]);
    let credentials = Credentials::Tls(Arc::clone(&at_reader));
    let plain = ReaderOptions::plain(home.address, STALL);
    let reader = TestReader::start(&home, ReaderOptions { credentials, ..plain });
    reader.open(1);
    // Renewed certificates on both sides, and the revocation of a former one: nothing ends.
    let renewed = authority.material("home", 3);
    assert_eq!(at_home.replace(&renewed).unwrap(), 0);
    let revoking = |serial, of: &TlsMaterial| TlsMaterial {
        revocations: vec![authority.revoke(serial)],
        ..of.clone()
    };
    assert_eq!(at_home.replace(&revoking(9, &renewed)).unwrap(), 0);
    reader.open(1);
    // The server's side ends the connections, and admits no other one.
    assert!(at_home.replace(&revoking(2, &renewed)).unwrap() > 0);
    until("the connection ends", || home.server.connections() == 0);
    let refused = reader.peer.open(&want(1));
    assert!(matches!(refused, Err(NetError::Connection { .. })), "{refused:?}");
    // A new certificate is not that in the list.
    let again = authority.material("reader", 4);
    at_reader.replace(&again).unwrap();
    until("the reader is admitted again", || reader.peer.open(&want(1)).is_ok());
    // The client's side ends them, too: by a revocation, and by the removal of the authority.
    assert!(at_reader.replace(&revoking(3, &again)).unwrap() > 0);
    until("the connection ends", || home.server.connections() == 0);
    assert!(reader.peer.open(&want(1)).is_err());
    at_reader.replace(&again).unwrap();
    until("the home is reached again", || reader.peer.open(&want(1)).is_ok());
    let other = TlsMaterial { roots: Authority::new().material("x", 1).roots, ..again };
    assert!(at_reader.replace(&other).unwrap() > 0);
    until("the connection ends", || home.server.connections() == 0);
}

#[test]
fn a_mirror_of_another_length_is_refused() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let reader = TestReader::plain(&home, home.address, STALL);
    let section = Length(SECTION + 4096);
    let options =
        PeerOptions { socket: options(STALL), ..PeerOptions::new("home", home.address, section) };
    let peer = Peer::start(options, Credentials::Plain, Arc::clone(&reader.control) as _).unwrap();
    let refused = peer.open(&want(1)).unwrap_err().to_string();
    assert!(refused.contains(&SECTION.to_string()), "{refused}");
    assert!(Cache::new(Length(1)).mirror(common::memory(4096), Length(1)).is_err());
}
