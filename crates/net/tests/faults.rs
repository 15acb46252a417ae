//! Network faults: a proxy delays, cuts, stalls, duplicates and flips bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::identity::Authority;
use common::proxy::{Proxy, StreamFault};
use common::{
    LONG, ReaderOptions, STALL, TestHome, TestReader, member, memory, pattern, span, until,
};
use farrow_memory::Span;
use farrow_net::NetError;
use farrow_net::peer::{Peer, PeerOptions, Piece, Placement};
use farrow_net::records::Credentials;
use farrow_net::source::GrantId;
use farrow_net::source::table::want;

const SECTION: u64 = 32 << 20;
const MIB: u64 = 1 << 20;

fn over_each(test: impl Fn(&TestHome, &TestReader, &Proxy)) {
    let authority = Authority::new();
    let tls = ["home", "reader"].map(|name| authority.credentials(name));
    for [of_home, of_reader] in [[Credentials::Plain, Credentials::Plain], tls] {
        println!("over {}", of_home.as_str());
        let home = TestHome::start(SECTION, of_home, STALL);
        let proxy = Proxy::start(home.address);
        let reader = TestReader::start(
            &home,
            ReaderOptions { credentials: of_reader, ..ReaderOptions::plain(proxy.address, STALL) },
        );
        home.add(1, &[span(77, 20 * MIB)]);
        test(&home, &reader, &proxy);
    }
}

/// Fetched bytes are right, whatever the faults of the connections.
#[test]
fn connections_that_break_are_made_again() {
    let faults = [
        StreamFault::CutAfter(3 * MIB + 5),
        StreamFault::Flip(2 * MIB + 100_000),
        StreamFault::Double(MIB + 17, 40),
        StreamFault::Double(2 * MIB, 300_000),
        StreamFault::StallAfter(2 * MIB + 12_345),
        StreamFault::CutAfter(4097),
    ];
    for fault in faults {
        over_each(|_, reader, proxy| {
            proxy.set_faults(&[fault]);
            let (opened, held) = reader.open(1);
            let block = span(77, 20 * MIB);
            let before = proxy.connections();
            reader.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
            reader.assert_pattern(&[block]);
            assert!(proxy.connections() > before + 1, "{fault:?} ended no connection");
        });
    }
}

#[test]
fn a_slow_link_is_slow_and_no_error() {
    over_each(|_, reader, proxy| {
        let (opened, held) = reader.open(1);
        proxy.set_fault(StreamFault::Delay(Duration::from_millis(5)));
        let block = span(77, 20 * MIB);
        reader.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
        reader.assert_pattern(&[block]);
    });
}

/// Regression test: an answer that took longer than the stall limit was given up, although its bytes
/// arrived all the time.
#[test]
fn an_open_over_a_slow_link_is_no_error() {
    over_each(|home, reader, proxy| {
        let object = span(25 * MIB, 60_000);
        home.add(2, &[object]);
        // The connection is there before the link becomes slow.
        let first = reader.peer.open(&want(1)).unwrap();
        reader.peer.release(first.hold);
        proxy.set_fault(StreamFault::Trickle(STALL / 8));
        let opened = reader.peer.open(&want(2)).unwrap();
        assert_eq!(opened.opened.inline, pattern(object));
    });
}

/// Regression test: only the first address of a name was used.
#[test]
fn the_next_address_is_tried_where_one_does_not_answer() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    home.add(1, &[span(0, 100)]);
    let reader = TestReader::plain(&home, home.address, STALL);
    let closed = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let options = PeerOptions {
        addresses: vec![closed, home.address],
        ..PeerOptions::new("home", closed, home.map.length())
    };
    let control = Arc::clone(&reader.control) as _;
    let peer = Peer::start(options, Credentials::Plain, control).unwrap();
    assert_eq!(peer.open(&want(1)).unwrap().opened.inline, pattern(span(0, 100)));
}

/// Each limit ends the call. The test checks that it ends, not when.
#[test]
fn a_home_that_is_silent_for_good_is_an_error() {
    for fault in
        [StreamFault::StallAfter(0), StreamFault::StallAfter(9000), StreamFault::CutAfter(9000)]
    {
        over_each(|home, reader, proxy| {
            let (opened, held) = reader.open(1);
            proxy.set_fault(fault);
            let begin = Instant::now();
            for range in [span(77, 20 * MIB), span(77 + 20 * MIB - 10, 10)] {
                let failed = reader.peer.fetch(&held, opened.hold, &[range], LONG);
                let is_reason = matches!(failed, Err(NetError::Connection { .. }));
                assert!(is_reason || fault != StreamFault::StallAfter(0), "{fault:?} {failed:?}");
            }
            if fault == StreamFault::StallAfter(0) {
                assert!(matches!(reader.peer.open(&want(1)), Err(NetError::Connection { .. })));
            }
            assert!(begin.elapsed() < LONG);
            assert!(!held.is_complete(&[span(77, 20 * MIB)]).unwrap());
            // Nothing stays claimed: after the link recovers, everything arrives.
            proxy.set_fault(StreamFault::None);
            let block = span(77, 20 * MIB);
            reader.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
            reader.assert_pattern(&[block]);
            until("guards end", || home.source.guards() == 0);
        });
    }
}

#[test]
fn the_callers_time_ends_a_fetch_and_late_bytes_do_no_harm() {
    over_each(|_, reader, proxy| {
        let (opened, held) = reader.open(1);
        proxy.set_fault(StreamFault::Delay(Duration::from_millis(30)));
        let block = span(77, 20 * MIB);
        let time = Duration::from_millis(100);
        match reader.peer.fetch(&held, opened.hold, &[block], time) {
            Err(NetError::Deadline { done, requested, waited, .. }) => {
                assert!(done < requested && waited == time, "{done} of {requested}");
            }
            other => panic!("{other:?}"),
        }
        drop(held);
        proxy.set_fault(StreamFault::None);
        // Late data is written before its memory is freed, never after.
        reader.mirror.remove(1);
        until("the late bytes", || reader.cache.stats().used == 0);
        assert_eq!(reader.mirror.map().committed().unwrap().0, 0);
        let (opened, held) = reader.open(1);
        reader.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
        reader.assert_pattern(&[block]);
    });
}

#[test]
fn after_a_read_that_failed_nothing_more_arrives() {
    over_each(|_, reader, proxy| {
        let (opened, _held) = reader.open(1);
        let map = memory(32 * MIB);
        for (fault, time) in [
            (StreamFault::Delay(Duration::from_millis(30)), Duration::from_millis(100)),
            (StreamFault::StallAfter(9000), LONG),
            (StreamFault::CutAfter(9000), LONG),
        ] {
            for from in [span(77, 20 * MIB), span(77, 100_000)] {
                proxy.set_fault(fault);
                let piece = Piece { from, to: span(500, 0).offset };
                let placement = Placement::new(Arc::clone(&map), vec![piece]).unwrap();
                let outcome = reader.peer.read(placement, opened.hold, time);
                let place = Span::new(piece.to, from.length);
                if outcome.is_ok() {
                    assert!(map.sealed(place).unwrap() == pattern(from));
                }
                // From here on, the caller may reuse the memory.
                let zeros = vec![0; from.length.as_usize()];
                map.write(piece.to, &zeros).unwrap();
                proxy.set_fault(StreamFault::None);
                std::thread::sleep(Duration::from_millis(300));
                assert!(map.sealed(place).unwrap() == zeros, "{fault:?} {from}");
            }
        }
    });
}

#[test]
fn a_home_that_ends_is_an_error_within_the_limit() {
    over_each(|home, reader, proxy| {
        let (opened, held) = reader.open(1);
        proxy.set_fault(StreamFault::Delay(Duration::from_millis(2)));
        let fetcher = {
            let held = held.clone();
            let peer = &reader.peer;
            std::thread::scope(|scope| {
                let fetching = scope
                    .spawn(move || peer.fetch(&held, opened.hold, &[span(77, 20 * MIB)], LONG));
                until("some bytes", || proxy.to_reader() > 3 * MIB);
                // Like a kill by the supervisor: every connection ends, and the listener is closed.
                *reader.control.is_expelled.lock().unwrap() = true;
                home.server.cut(&member("reader"), LONG).unwrap();
                fetching.join().unwrap()
            })
        };
        assert!(matches!(fetcher, Err(NetError::Connection { .. })), "{fetcher:?}");
    });
}

#[test]
fn a_push_that_is_cut_commits_nothing() {
    for fault in [StreamFault::CutAfter(0), StreamFault::StallAfter(0)] {
        let home = TestHome::start(SECTION, Credentials::Plain, STALL);
        let proxy = Proxy::start(home.address);
        let reader = TestReader::plain(&home, proxy.address, STALL);
        home.source.grant(GrantId(1), &member("reader"), span(0, 20 * MIB));
        let map = Arc::clone(reader.mirror.map());
        map.write(span(0, 0).offset, &pattern(span(0, 20 * MIB))).unwrap();
        // A connection that was established before the fault.
        reader.peer.push(GrantId(1), &map, &[span(0, 10)], LONG).unwrap();
        let acknowledged = home.source.written(GrantId(1)).len();
        proxy.set_fault(fault);
        let failed = reader.peer.push(GrantId(1), &map, &[span(0, 20 * MIB)], LONG);
        assert!(matches!(failed, Err(NetError::Connection { .. })), "{failed:?}");
        until("guards end", || home.source.guards() == 0);
        assert!(acknowledged <= home.source.written(GrantId(1)).len());
        proxy.set_fault(StreamFault::None);
        reader.peer.push(GrantId(1), &map, &[span(0, 20 * MIB)], LONG).unwrap();
        assert_eq!(home.map.sealed(span(0, 20 * MIB)).unwrap(), pattern(span(0, 20 * MIB)));
    }
}

/// The caller's time is much shorter than the limit after which a connection counts as stalled.
#[test]
fn a_push_that_is_never_acknowledged_ends_at_the_callers_deadline() {
    let stall = Duration::from_secs(4);
    let home = TestHome::start(SECTION, Credentials::Plain, stall);
    let proxy = Proxy::start(home.address);
    let reader = TestReader::plain(&home, proxy.address, stall);
    home.source.grant(GrantId(1), &member("reader"), span(0, 20 * MIB));
    let map = Arc::clone(reader.mirror.map());
    // A connection that was welcomed before the fault.
    reader.peer.push(GrantId(1), &map, &[span(0, 10)], LONG).unwrap();
    proxy.set_fault(StreamFault::StallAfter(0));
    let (time, begin) = (Duration::from_millis(300), Instant::now());
    let failed = reader.peer.push(GrantId(1), &map, &[span(0, 10)], time);
    let Err(NetError::Deadline { done, requested, waited, .. }) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!((done.0, requested.0, waited), (0, 10, time));
    assert!(begin.elapsed() < stall, "{:?}", begin.elapsed());
}

#[test]
fn a_push_is_sent_again_if_its_idle_connection_had_ended() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let reader = TestReader::plain(&home, home.address, STALL);
    home.source.grant(GrantId(1), &member("reader"), span(0, MIB));
    let map = Arc::clone(reader.mirror.map());
    reader.peer.push(GrantId(1), &map, &[span(0, 10)], LONG).unwrap();
    home.server.cut(&member("reader"), LONG).unwrap();
    reader.peer.push(GrantId(1), &map, &[span(0, MIB)], LONG).unwrap();
}

/// An open whose answer is lost leaves no hold behind.
#[test]
fn lost_answers_leave_no_holds() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    home.add(1, &[span(0, 60_000)]);
    let proxy = Proxy::start(home.address);
    let reader = TestReader::plain(&home, proxy.address, STALL);
    proxy.set_faults(&[StreamFault::CutAfter(5000), StreamFault::StallAfter(5000)]);
    let opened = reader.peer.open(&want(1)).unwrap();
    assert_eq!(opened.opened.inline, pattern(span(0, 60_000)));
    until("one hold", || home.source.holds() == 1);
    reader.peer.release(opened.hold);
    until("no hold", || home.source.holds() == 0);
}
