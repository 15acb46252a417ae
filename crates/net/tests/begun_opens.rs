//! Opens that no thread waits for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, STALL, TestHome, TestReader, options, span, until};
use farrow_memory::Length;
use farrow_net::NetError;
use farrow_net::frame::{ErrorCode, FrameHeader, HEADER_BYTES, Op, Opened, VERSION};
use farrow_net::peer::{DaemonControl, OpenedObject, Peer, PeerOptions};
use farrow_net::records::Credentials;
use farrow_net::source::table::want;
use farrow_net::ticket::Ticket;

const SECTION: u64 = 1 << 20;

type OpenReceiver = Receiver<Result<OpenedObject, NetError>>;

/// Begins an open; `None`: it would have to wait.
fn begin(peer: &Peer, key: u64) -> Option<OpenReceiver> {
    let (sender, ended) = channel();
    let on_end = move |result| sender.send(result).unwrap();
    let is_begun = peer.begin_open(&want(key), on_end).unwrap();
    if !is_begun {
        assert!(ended.recv_timeout(LONG).is_err(), "nothing is called");
    }
    is_begun.then_some(ended)
}

/// Begins an open as soon as the connection has nothing else to send, as releases.
fn begin_soon(peer: &Peer, key: u64) -> OpenReceiver {
    let since = Instant::now();
    loop {
        if let Some(ended) = begin(peer, key) {
            return ended;
        }
        assert!(since.elapsed() < LONG, "it is not begun");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The one result of an open.
fn result(ended: &OpenReceiver) -> Result<OpenedObject, NetError> {
    let result = ended.recv_timeout(LONG).unwrap();
    assert!(ended.recv_timeout(LONG).is_err(), "called once");
    result
}

#[test]
fn many_opens_are_on_their_way_and_each_ends_once() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    home.add(1, &[span(77, 1000)]);
    let reader = TestReader::plain(&home, home.address, STALL);
    assert!(begin(&reader.peer, 1).is_none(), "without a connection");
    let first = reader.peer.open(&want(1)).unwrap();
    let begun: Vec<_> = (0..20).filter_map(|_| begin(&reader.peer, 1)).collect();
    assert!(!begun.is_empty());
    let mut holds = BTreeSet::from([first.hold.0]);
    for ended in &begun {
        let opened = result(ended).unwrap();
        assert_eq!(opened.opened.inline, first.opened.inline);
        assert!(holds.insert(opened.hold.0), "a hold of its own");
    }
    assert_eq!(home.source.holds(), holds.len());
    let missing = result(&begin_soon(&reader.peer, 2));
    assert!(
        matches!(missing, Err(NetError::Refused { code: ErrorCode::NotFound, .. })),
        "{missing:?}"
    );
    assert!(reader.peer.begin_open(&[], |_| panic!("it is called")).is_err());
    for hold in holds {
        reader.peer.release(farrow_net::source::HoldId(hold));
    }
    until("no hold is left", || home.source.holds() == 0);
}

/// What a home does with an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    Answer,
    /// Ends the connection.
    Cut,
    /// Does not answer this one.
    Silence,
    /// Reports another hold.
    OtherHold,
}

/// What a home does with the next opens of each key. It answers all further ones.
type OpensPlan = Arc<Mutex<BTreeMap<Vec<u8>, VecDeque<Conduct>>>>;

fn send(stream: &mut TcpStream, op: Op, id: u64, offset: u64, body: &[u8]) -> std::io::Result<()> {
    let head = FrameHeader::new(op, id, offset, body.len() as u64).encode(body, true);
    stream.write_all(&[&head, body].concat())
}

fn receive(stream: &mut TcpStream) -> std::io::Result<(FrameHeader, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let header = FrameHeader::decode(&head, true).map_err(std::io::Error::other)?;
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body)?;
    Ok((header, body))
}

fn serve(stream: &mut TcpStream, plan: &OpensPlan) -> std::io::Result<()> {
    receive(stream)?;
    send(stream, Op::Welcome, 0, VERSION, &SECTION.to_le_bytes())?;
    loop {
        let (header, body) = receive(stream)?;
        if header.op == Op::Release {
            send(stream, Op::Released, header.id, header.offset, &[])?;
            continue;
        }
        assert_eq!(header.op, Op::Open);
        let next = plan.lock().unwrap().get_mut(&body).and_then(VecDeque::pop_front);
        let hold = match next.unwrap_or(Conduct::Answer) {
            Conduct::Answer => header.offset,
            Conduct::OtherHold => header.offset + 1,
            Conduct::Silence => continue,
            Conduct::Cut => return Ok(()),
        };
        send(stream, Op::Opened, header.id, hold, &Opened::default().encode().unwrap())?;
    }
}

fn odd_home(plan: &OpensPlan) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let plan = Arc::clone(plan);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let plan = Arc::clone(&plan);
            thread::spawn(move || serve(&mut stream, &plan));
        }
    });
    address
}

struct FixedTicket;

impl DaemonControl for FixedTicket {
    fn ticket(&self) -> Result<Ticket, String> {
        Ok(Ticket::from_bytes([1; 32]))
    }

    fn on_invalidate(&self, _: u64, _: u64) {}
}

/// A peer with a connection, and what its home does with the next opens of each key.
fn connected(stall: Duration) -> (Peer, OpensPlan) {
    let plan = OpensPlan::default();
    let settings = PeerOptions {
        socket: options(stall),
        ..PeerOptions::new("home", odd_home(&plan), Length(SECTION))
    };
    let peer = Peer::start(settings, Credentials::Plain, Arc::new(FixedTicket)).unwrap();
    peer.open(&want(0)).unwrap();
    (peer, plan)
}

fn plan_for(plan: &OpensPlan, key: u64, conduct: &[Conduct]) {
    plan.lock().unwrap().insert(want(key).to_vec(), conduct.iter().copied().collect());
}

#[test]
fn an_open_whose_connection_ends_is_sent_again() {
    for conduct in [Conduct::Cut, Conduct::OtherHold] {
        let (peer, plan) = connected(STALL);
        plan_for(&plan, 1, &[conduct; 2]);
        let opened = result(&begin_soon(&peer, 1));
        assert!(opened.is_ok(), "{conduct:?}: {opened:?}");
        plan_for(&plan, 1, &[conduct; 3]);
        let failed = result(&begin_soon(&peer, 1));
        assert!(matches!(failed, Err(NetError::Connection { .. })), "{conduct:?}: {failed:?}");
        // The next call makes a connection.
        peer.open(&want(1)).unwrap();
        assert!(result(&begin_soon(&peer, 1)).is_ok());
    }
}

/// A home that answers other requests, and not this one.
#[test]
fn an_open_that_is_passed_over_ends_its_connection() {
    let stall = Duration::from_millis(50);
    let (peer, plan) = connected(stall);
    plan_for(&plan, 1, &[Conduct::Silence]);
    let since = Instant::now();
    let ended = begin(&peer, 1).unwrap();
    let opened = loop {
        // Another connection answers both.
        peer.open(&want(2)).unwrap();
        if let Ok(opened) = ended.try_recv() {
            break opened;
        }
        assert!(since.elapsed() < LONG, "it waits for ever");
        thread::sleep(stall / 10);
    };
    assert!(opened.is_ok(), "{opened:?}");
    assert!(since.elapsed() >= 8 * stall, "as long as a frame may take");
}

#[test]
fn a_lost_peer_fails_what_was_begun() {
    let (peer, plan) = connected(STALL);
    plan_for(&plan, 1, &[Conduct::Silence]);
    let ended = begin(&peer, 1).unwrap();
    peer.lose("the test says so");
    let failed = result(&ended);
    assert!(matches!(failed, Err(NetError::Lost { .. })), "{failed:?}");
    assert!(begin(&peer, 1).is_none(), "it has no connection");
}
