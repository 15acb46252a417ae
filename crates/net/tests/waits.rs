//! Calls that may not wait, and requests that do not wait for others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use farrow_memory::sync::{AtomicBool, Ordering};
use std::io::Read;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{LONG, TestHome, TestReader, member, options, span, until};
use farrow_memory::{FileMap, Length, Span};
use farrow_net::NetError;
use farrow_net::frame::{ErrorCode, Opened};
use farrow_net::peer::{DaemonControl, Peer, PeerOptions};
use farrow_net::records::Credentials;
use farrow_net::server::{DataServer, ServerOptions};
use farrow_net::source::table::{TableSource, want};
use farrow_net::source::{Guard, HoldId, MemberLife, Source, SourceRefusal};
use farrow_net::ticket::Ticket;

struct AnyTicket;

impl DaemonControl for AnyTicket {
    fn ticket(&self) -> Result<Ticket, String> {
        Ok(Ticket::from_bytes([1; 32]))
    }

    fn on_invalidate(&self, _: u64, _: u64) {}
}

/// Regression test: a peer restarts and accepts a connection, and does not answer yet. The event
/// loop of the reader's daemon released a hold, waited for the new connection, and sent no
/// heartbeat. With a lease of one second the node was excluded.
#[test]
fn a_release_does_not_wait_for_a_connection() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    // Far longer than the test may take.
    let stall = 10 * LONG;
    let settings = PeerOptions {
        socket: options(stall),
        ..PeerOptions::new("home", address, Length(1 << 20))
    };
    let peer = Arc::new(Peer::start(settings, Credentials::Plain, Arc::new(AnyTicket)).unwrap());
    let opening = Arc::clone(&peer);
    let opened = std::thread::spawn(move || opening.open(&want(1)));
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();

    let (done, is_done) = channel();
    let releasing = Arc::clone(&peer);
    std::thread::spawn(move || {
        releasing.release(HoldId(7));
        done.send(()).unwrap();
    });
    let released = is_done.recv_timeout(LONG);
    assert!(!opened.is_finished(), "the connection is still being opened");
    // Ends both, also if the test fails.
    peer.lose("the test is over");
    drop(stream);
    assert!(released.is_ok(), "the release waits for the connection");
    assert!(matches!(opened.join().unwrap(), Err(NetError::Lost { .. })));
}

/// Regression test: a release without a connection waited for the next request to the home, and the
/// object was held there until then.
#[test]
fn a_release_without_a_connection_opens_one() {
    let home = TestHome::start(1 << 20, Credentials::Plain, common::STALL);
    home.add(1, &[span(0, 100)]);
    let reader = TestReader::plain(&home, home.address, common::STALL);
    let [first, second] = [1, 1].map(|key| reader.peer.open(&want(key)).unwrap());
    reader.peer.release(first.hold);
    until("the first hold is released", || home.source.holds() == 1);
    home.server.cut(&member("reader"), LONG).unwrap();
    reader.peer.release(second.hold);
    until("the second hold is released", || home.source.holds() == 0);
    // Without a ticket there is no connection for a while.
    let third = reader.peer.open(&want(1)).unwrap();
    *reader.control.is_expelled.lock().unwrap() = true;
    home.server.cut(&member("reader"), LONG).unwrap();
    reader.peer.release(third.hold);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(home.source.holds(), 1);
    *reader.control.is_expelled.lock().unwrap() = false;
    until("no hold is left", || home.source.holds() == 0);
}

/// A reader is killed while the home opens an object for it. Its next daemon has the holds of this
/// one ended, and then the open is done.
#[test]
fn an_open_that_outlives_its_connection_leaves_no_hold() {
    let (home, source) = spilling(common::STALL);
    home.add(2, &[span(0, 100)]);
    let reader = TestReader::plain(&home, home.address, common::STALL);
    let first = reader.peer.open(&want(2)).unwrap();
    reader.peer.release(first.hold);
    until("the hold is released", || home.source.holds() == 0);
    // It opens no further connection, over which it would release the hold.
    *reader.control.is_expelled.lock().unwrap() = true;
    *source.disconnects.lock().unwrap() = Some(Arc::clone(&home.server));
    assert!(reader.peer.open(&want(2)).is_err());
    assert!(source.disconnects.lock().unwrap().is_none(), "it was opened");
    until("the connection ends", || home.server.connections() == 0);
    assert_eq!(home.source.holds(), 0);
}

/// A call waits for the bytes that another one brings, and no longer than their peer is there.
#[test]
fn a_claim_that_brings_nothing_does_not_keep_fetches_waiting() {
    let home = TestHome::start(1 << 20, Credentials::Plain, common::STALL);
    home.add(1, &[span(0, 100)]);
    let reader = TestReader::plain(&home, home.address, common::STALL);
    let (opened, held) = reader.open(1);
    let _claim = held.claim(&[span(0, 100)], LONG).unwrap();
    let fetch = || reader.peer.fetch(&held, opened.hold, &[span(0, 100)], LONG);
    let stalled = fetch();
    assert!(matches!(stalled, Err(NetError::Connection { .. })), "{stalled:?}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(fetch);
        reader.peer.lose("the test is over");
        let lost = waiting.join().unwrap();
        assert!(matches!(lost, Err(NetError::Lost { .. })), "{lost:?}");
    });
}

/// A home whose objects with odd keys are in files until the test restores them.
struct SpillingSource {
    table: Arc<TableSource>,
    is_restored: AtomicBool,
    /// Opens of objects in files.
    requested: Mutex<Vec<HoldId>>,
    /// Ends the connections of a member while it opens the next object.
    disconnects: Mutex<Option<Arc<DataServer>>>,
}

impl Source for SpillingSource {
    fn map(&self) -> &Arc<FileMap> {
        Source::map(&*self.table)
    }

    fn open(
        &self,
        member: &MemberLife,
        hold: HoldId,
        want: &[u8],
    ) -> Result<Opened, SourceRefusal> {
        if want[0] % 2 == 1 && !self.is_restored.load(Ordering::SeqCst) {
            let mut requested = self.requested.lock().unwrap();
            if !requested.contains(&hold) {
                requested.push(hold);
            }
            return Err(SourceRefusal::passing("on its way"));
        }
        if let Some(server) = self.disconnects.lock().unwrap().take() {
            server.disconnect(member, "its daemon was killed");
        }
        self.table.open(member, hold, want)
    }

    fn read(
        &self,
        member: &MemberLife,
        hold: HoldId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal> {
        self.table.read(member, hold, ranges)
    }

    fn release(&self, member: &MemberLife, hold: HoldId) {
        self.table.release(member, hold);
    }

    fn on_invalidated(&self, member: &MemberLife, object: u64) {
        self.table.on_invalidated(member, object);
    }
}

fn spilling(stall: Duration) -> (TestHome, Arc<SpillingSource>) {
    let mut home = TestHome::start(1 << 20, Credentials::Plain, stall);
    let source = Arc::new(SpillingSource {
        table: Arc::clone(&home.source),
        is_restored: AtomicBool::new(false),
        requested: Mutex::default(),
        disconnects: Mutex::default(),
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    home.address = listener.local_addr().unwrap();
    let options = ServerOptions { socket: options(stall), ..ServerOptions::default() };
    let reads = Arc::clone(&source) as _;
    let server = DataServer::start(listener, options, Credentials::Plain, reads, None).unwrap();
    home.server = Arc::new(server);
    (home, source)
}

/// Regression test: a home restored spilled objects one after the other for each reader's node. Two
/// slow restores took longer than a connection may be silent. The reader cut it and got `NodeLost`.
#[test]
fn opens_of_spilled_objects_wait_side_by_side() {
    let (home, source) = spilling(10 * LONG);
    (1..=4).for_each(|key| home.add(key, &[span(key * 1000, 100)]));
    let reader = Arc::new(TestReader::plain(&home, home.address, 10 * LONG));
    let opens = [1, 3].map(|key| {
        let reader = Arc::clone(&reader);
        std::thread::spawn(move || reader.peer.open(&want(key)).unwrap())
    });
    until("the home restores both", || source.requested.lock().unwrap().len() == 2);
    // What is in memory does not wait for them.
    for key in [2, 4] {
        let opened = reader.peer.open(&want(key)).unwrap();
        assert_eq!(opened.opened.blocks, [span(key * 1000, 100)]);
    }
    assert!(opens.iter().all(|open| !open.is_finished()));
    source.is_restored.store(true, Ordering::SeqCst);
    for (open, key) in opens.into_iter().zip([1, 3]) {
        assert_eq!(open.join().unwrap().opened.blocks, [span(key * 1000, 100)]);
    }
}

/// An open whose object does not arrive is refused before the reader cuts the connection.
#[test]
fn an_open_whose_object_does_not_arrive_is_refused_as_busy() {
    let (home, source) = spilling(common::STALL);
    let reader = TestReader::plain(&home, home.address, common::STALL);
    let refused = reader.peer.open(&want(1));
    let is_busy = matches!(&refused, Err(NetError::Refused { code: ErrorCode::Busy, .. }));
    assert!(is_busy, "{refused:?}");
    assert_eq!(source.requested.lock().unwrap().len(), 1, "one attempt: the connection lives");
    // A connection that ends takes its waiting opens with it.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.peer.open(&want(3)));
        until("it waits", || source.requested.lock().unwrap().len() > 1);
        reader.peer.lose("the test is over");
        assert!(waiting.join().unwrap().is_err());
        home.server.cut(&member("reader"), LONG).unwrap();
    });
}
