//! Fetches that nobody waits for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::sync::mpsc::{Receiver, channel};

use common::proxy::{Proxy, StreamFault};
use common::{LONG, STALL, TestHome, TestReader, span, until};
use farrow_memory::{Length, Span};
use farrow_net::NetError;
use farrow_net::cache::MirrorHold;
use farrow_net::peer::FetchStart;
use farrow_net::records::Credentials;
use farrow_net::source::HoldId;

const SECTION: u64 = 32 << 20;
const CHUNK: u64 = 64 << 10;

type ReadReceiver = Receiver<Result<Length, NetError>>;

struct BegunRead {
    _home: TestHome,
    proxy: Proxy,
    reader: TestReader,
}

impl BegunRead {
    fn new() -> Self {
        let home = TestHome::start(SECTION, Credentials::Plain, STALL);
        let proxy = Proxy::start(home.address);
        let reader = TestReader::plain(&home, proxy.address, STALL);
        home.add(1, &[span(77, SECTION - 1000)]);
        Self { _home: home, proxy, reader }
    }

    fn begin(
        &self,
        held: &MirrorHold,
        hold: HoldId,
        ranges: &[Span],
    ) -> (FetchStart, ReadReceiver) {
        let (sender, ended) = channel();
        let on_end = move |result| sender.send(result).unwrap();
        (self.reader.peer.begin_fetch(held, hold, ranges, on_end).unwrap(), ended)
    }
}

/// Parts of the block, small and large ones: whole chunks, but for the ends of the block.
fn parts() -> [Span; 4] {
    [
        span(77, CHUNK - 77),
        span(5 * CHUNK, CHUNK),
        span(16 * CHUNK, 16 * CHUNK),
        span(64 * CHUNK, 3 * CHUNK),
    ]
}

#[test]
fn many_are_on_their_way_and_each_ends_once() {
    let world = BegunRead::new();
    let (opened, held) = world.reader.open(1);
    let begun: Vec<_> =
        parts().iter().map(|part| (*part, world.begin(&held, opened.hold, &[*part]))).collect();
    for (part, (start, ended)) in &begun {
        assert!(matches!(start, FetchStart::Started(_)), "{start:?}");
        assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap(), part.length);
        // The sender is gone with the closure.
        assert!(ended.recv_timeout(LONG).is_err(), "called once");
        assert!(held.is_complete(&[*part]).unwrap());
        let FetchStart::Started(fetch) = start else { unreachable!() };
        assert!(fetch.is_over());
    }
    world.reader.assert_pattern(&parts());
    let (start, ended) = world.begin(&held, opened.hold, &parts());
    assert!(matches!(start, FetchStart::Complete), "{start:?}");
    assert!(ended.recv_timeout(LONG).is_err(), "nothing is called");
}

/// What another call brings is not brought twice, and its bytes are complete at its end.
#[test]
fn what_arrives_for_another_call_is_contended() {
    let world = BegunRead::new();
    let (opened, held) = world.reader.open(1);
    let claim = held.claim(&[span(5 * CHUNK, CHUNK)], LONG).unwrap();
    let two = [span(4 * CHUNK, 2 * CHUNK)];
    let (start, ended) = world.begin(&held, opened.hold, &two);
    assert!(matches!(start, FetchStart::Contended), "{start:?}");
    assert!(ended.recv_timeout(LONG).is_err(), "nothing is called");
    drop(claim);
    let (start, ended) = world.begin(&held, opened.hold, &two);
    assert!(matches!(start, FetchStart::Started(_)), "{start:?}");
    ended.recv_timeout(LONG).unwrap().unwrap();
    world.reader.assert_pattern(&two);
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    for part in parts() {
        let world = BegunRead::new();
        let (opened, held) = world.reader.open(1);
        world.proxy.set_faults(&[StreamFault::CutAfter(5000)]);
        let (_, ended) = world.begin(&held, opened.hold, &[part]);
        assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap(), part.length);
        world.reader.assert_pattern(&[part]);
    }
}

#[test]
fn what_fails_is_reported_and_missing_again() {
    let world = BegunRead::new();
    let (opened, held) = world.reader.open(1);
    for part in parts() {
        // A hold that the home does not know.
        let (_, ended) = world.begin(&held, HoldId(opened.hold.0 ^ 1), &[part]);
        let failed = ended.recv_timeout(LONG).unwrap();
        assert!(matches!(failed, Err(NetError::Refused { .. })), "{failed:?}");
        until("the bytes are free", || held.claim(&[part], LONG).unwrap().length() == part.length);
    }
    // A lost peer.
    world.proxy.set_fault(StreamFault::StallAfter(0));
    let begun: Vec<_> =
        parts().iter().map(|part| world.begin(&held, opened.hold, &[*part])).collect();
    world.reader.peer.lose("the test says so");
    for (_, ended) in begun {
        let failed = ended.recv_timeout(LONG).unwrap();
        assert!(matches!(failed, Err(NetError::Lost { .. })), "{failed:?}");
    }
    assert!(!held.is_complete(&[parts()[1]]).unwrap());
}

#[test]
fn one_that_stalls_can_be_cancelled() {
    let world = BegunRead::new();
    let (opened, held) = world.reader.open(1);
    world.proxy.set_fault(StreamFault::StallAfter(0));
    let part = span(16 * CHUNK, 16 * CHUNK);
    let (start, ended) = world.begin(&held, opened.hold, &[part]);
    let FetchStart::Started(fetch) = start else { panic!("{start:?}") };
    let error = world.reader.peer.stalled();
    world.reader.peer.cancel(&fetch, error);
    let failed = ended.recv_timeout(LONG).unwrap();
    assert!(matches!(failed, Err(NetError::Connection { .. })), "{failed:?}");
    world.reader.peer.cancel(&fetch, world.reader.peer.stalled());
    assert!(ended.recv_timeout(LONG).is_err(), "called once");
    assert!(!held.is_complete(&[part]).unwrap());
}
