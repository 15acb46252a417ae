//! Malicious peers. Each is disconnected with a reason that names its violation, and affects no
//! other peer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, STALL, TestHome, TestReader, member, memory, span, until};
use farrow_memory::{Offset, Span};
use farrow_net::NetError;
use farrow_net::frame::{
    ConnectionClass, ENDPOINT_BYTES, ErrorCode, FrameHeader, HEADER_BYTES, Op, Opened, PeerHello,
    VERSION, decode_ranges, encode_ranges, piece,
};
use farrow_net::peer::{Piece, Placement};
use farrow_net::records::Credentials;
use farrow_net::source::GrantId;
use farrow_net::source::table::want;
use farrow_net::ticket::Ticket;
use rustix::net::{AddressFamily, SocketType};

const SECTION: u64 = 16 << 20;

fn send(stream: &mut TcpStream, op: Op, id: u64, offset: u64, body: &[u8]) -> std::io::Result<()> {
    let head = FrameHeader::new(op, id, offset, body.len() as u64).encode(body, true);
    stream.write_all(&head)?;
    stream.write_all(body)
}

fn receive(stream: &mut TcpStream) -> std::io::Result<(FrameHeader, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let header = FrameHeader::decode(&head, true).map_err(std::io::Error::other)?;
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body)?;
    Ok((header, body))
}

type HomeLie = fn(&mut TcpStream, u64, &[Span]) -> std::io::Result<()>;

/// A home that answers reads with `lie`, and all other requests correctly.
fn lying_home(lie: HomeLie) -> SocketAddr {
    opening_home(vec![span(0, 4 << 20)], lie)
}

/// Like [`lying_home`], with objects of these blocks.
fn opening_home(blocks: Vec<Span>, lie: HomeLie) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let blocks = blocks.clone();
            thread::spawn(move || -> std::io::Result<()> {
                receive(&mut stream)?;
                send(&mut stream, Op::Welcome, 0, VERSION, &SECTION.to_le_bytes())?;
                loop {
                    let (header, body) = receive(&mut stream)?;
                    match header.op {
                        Op::Open => {
                            let opened = Opened { blocks: blocks.clone(), ..Opened::default() };
                            let body = opened.encode().unwrap();
                            send(&mut stream, Op::Opened, header.id, header.offset, &body)?;
                        }
                        Op::Read => lie(&mut stream, header.id, &decode_ranges(&body).unwrap())?,
                        _ => {}
                    }
                }
            });
        }
    });
    address
}

fn reason_of(failed: &Result<farrow_net::peer::FetchReport, NetError>) -> String {
    match failed {
        Err(NetError::Connection { reason, .. }) => reason.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_home_that_lies_is_cut_with_a_reason() {
    let lies: [(HomeLie, &str); 9] = [
        (
            |s, id, r| {
                let p = piece(r[0]);
                send(s, Op::Data, id, p.offset.0 + 1, &vec![0; p.length.as_usize()])
            },
            "expected",
        ),
        (
            |s, id, r| {
                let p = piece(r[0]);
                send(s, Op::Data, id, p.offset.0, &vec![0; p.length.as_usize() - 1])
            },
            "expected",
        ),
        (
            |s, id, r| {
                let p = piece(r[0]);
                send(s, Op::Data, id + 1000, p.offset.0, &vec![0; p.length.as_usize()])
            },
            "answer|expected",
        ),
        // Beyond the end of the mirror.
        (|s, id, _| send(s, Op::Data, id, SECTION, &[0; 1000]), "expected"),
        (
            |s, id, r| {
                let p = piece(r[0]);
                let bytes = vec![0; p.length.as_usize()];
                send(s, Op::Data, id, p.offset.0, &bytes)?;
                send(s, Op::Data, id, p.offset.0, &bytes)
            },
            "answer|expected",
        ),
        (|s, id, _| send(s, Op::Pushed, id, 0, &[]), "Pushed"),
        (|s, id, _| send(s, Op::Open, id, 0, b"want"), "Open"),
        (
            |s, id, r| {
                let p = piece(r[0]);
                let bytes = vec![0; p.length.as_usize()];
                let mut head =
                    FrameHeader::new(Op::Data, id, p.offset.0, p.length.0).encode(&bytes, true);
                head[4] ^= 0x80;
                s.write_all(&head)?;
                s.write_all(&bytes)
            },
            "checksum",
        ),
        (|s, _, _| s.write_all(&[0xEE; 64]), "unknown op 238"),
    ];
    for (number, (lie, expected)) in lies.into_iter().enumerate() {
        // This home only issues tickets, and one home would reach its limit of unused tickets.
        let home = TestHome::start(SECTION, Credentials::Plain, STALL);
        let reader = TestReader::plain(&home, lying_home(lie), STALL);
        for range in [span(0, 4 << 20), span(70_000, 10)] {
            let (opened, held) = reader.open(1);
            let failed = reader.peer.fetch(&held, opened.hold, &[range], LONG);
            // A small read is one piece, so only the next read detects data after it.
            if number == 4 && range.length.0 == 10 {
                continue;
            }
            let reason = reason_of(&failed);
            let is_it = expected.split('|').any(|words| reason.contains(words));
            assert!(is_it, "lie {number}, {range}: {reason}");
        }
    }
}

/// Regression test: a home sent notices instead of the bytes. Each began the stall limit of the
/// connection anew, so that the read lasted until its own limit.
#[test]
fn notices_in_place_of_bytes_do_not_keep_a_read_waiting() {
    let address = lying_home(|stream, _, _| {
        loop {
            send(stream, Op::Invalidate, 1, 1, &[])?;
            thread::sleep(STALL / 20);
        }
    });
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let reader = TestReader::plain(&home, address, STALL);
    let (opened, held) = reader.open(1);
    let failed = reader.peer.fetch(&held, opened.hold, &[span(70_000, 10)], LONG);
    assert!(matches!(failed, Err(NetError::Connection { .. })), "{failed:?}");
}

/// Regression test: a home answered opens and never a read. The read had failed, and waited for the
/// end of its connection, which the answers kept alive.
#[test]
fn a_read_that_is_never_answered_ends_while_other_requests_are() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let reader = Arc::new(TestReader::plain(&home, lying_home(|_, _, _| Ok(())), STALL));
    let hold = reader.peer.open(&want(1)).unwrap().hold;
    let (done, ended) = channel();
    let of_thread = Arc::clone(&reader);
    let reading = thread::spawn(move || {
        let piece = Piece { from: span(0, 10), to: Offset(0) };
        let placement = Placement::new(memory(1 << 16), vec![piece]).unwrap();
        let read = of_thread.peer.read(placement, hold, STALL);
        done.send(read).unwrap();
    });
    let until = Instant::now() + LONG;
    let read = loop {
        let _ = reader.peer.open(&want(1));
        if let Ok(read) = ended.recv_timeout(STALL / 20) {
            break Some(read);
        }
        if Instant::now() > until {
            break None;
        }
    };
    reader.peer.lose("the test is over");
    reading.join().unwrap();
    assert!(matches!(read, Some(Err(NetError::Deadline { .. }))), "{read:?}");
}

#[test]
fn a_home_whose_blocks_lie_outside_is_cut() {
    let address = opening_home(vec![span(SECTION - 1, 2)], |_, _, _| Ok(()));
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let reader = TestReader::plain(&home, address, STALL);
    let failed = reader.peer.open(&want(1)).unwrap_err().to_string();
    assert!(failed.contains(&SECTION.to_string()), "{failed}");
}

fn connect(home: &TestHome) -> TcpStream {
    let stream = TcpStream::connect(home.address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

fn welcomed(home: &TestHome, class: ConnectionClass) -> TcpStream {
    let mut stream = connect(home);
    let ticket = home.server.issue_ticket(&member("liar")).unwrap();
    let hello = PeerHello { ticket, class }.encode();
    send(&mut stream, Op::Hello, 0, VERSION, &hello).unwrap();
    assert_eq!(receive(&mut stream).unwrap().0.op, Op::Welcome);
    stream
}

/// Checks that the home ends the connection.
fn assert_ended(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // A reset is also an end.
    let ended = stream.read_to_end(&mut rest);
    assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock));
}

#[test]
fn clients_that_lie_are_cut_and_others_are_served() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    home.add(1, &[span(0, 4 << 20)]);
    let honest = TestReader::plain(&home, home.address, STALL);
    let (opened, held) = honest.open(1);

    let mut garbage = connect(&home);
    garbage.write_all(&[0xA5; 200]).unwrap();
    assert_ended(garbage);

    let mut early = connect(&home);
    send(&mut early, Op::Open, 1, 0, &want(1)).unwrap();
    assert_ended(early);

    let mut guessed = connect(&home);
    let hello =
        PeerHello { ticket: Ticket::from_bytes([7; 32]), class: ConnectionClass::Small }.encode();
    send(&mut guessed, Op::Hello, 0, VERSION, &hello).unwrap();
    let (header, body) = receive(&mut guessed).unwrap();
    assert_eq!((header.op, header.offset), (Op::Error, ErrorCode::Denied.to_word()));
    assert!(String::from_utf8(body).unwrap().contains("ticket"));
    assert_ended(guessed);

    let mut newer = connect(&home);
    send(&mut newer, Op::Hello, 0, VERSION + 1, &hello).unwrap();
    assert_ended(newer);

    let mut bulk = welcomed(&home, ConnectionClass::Bulk);
    send(&mut bulk, Op::Open, 1, 1, &want(1)).unwrap();
    assert_ended(bulk);

    let mut small = welcomed(&home, ConnectionClass::Small);
    send(&mut small, Op::Open, 1, 1, &want(1)).unwrap();
    assert_eq!(receive(&mut small).unwrap().0.op, Op::Opened);
    let again = send(&mut small, Op::Open, 2, 1, &want(1)).and_then(|()| receive(&mut small));
    assert_eq!(again.unwrap().0.op, Op::Error, "a hold that is in use");
    // Another member has a hold of the same number.
    for (hold, range) in [(opened.hold.0 + 1000, span(0, 1)), (1, span(4 << 20, 1))] {
        send(&mut small, Op::Read, 3, hold, &encode_ranges(&[range])).unwrap();
        let (header, _) = receive(&mut small).unwrap();
        assert_eq!((header.op, header.offset), (Op::Error, ErrorCode::NotHeld.to_word()));
    }
    send(&mut small, Op::Read, 4, 1, &encode_ranges(&[span(u64::MAX, 1)])).unwrap();
    assert_ended(small);

    let mut cards = welcomed(&home, ConnectionClass::Rdma);
    send(&mut cards, Op::Meet, 5, 0, &[0; ENDPOINT_BYTES]).unwrap();
    let (header, body) = receive(&mut cards).unwrap();
    assert_eq!((header.op, header.id), (Op::Error, 5));
    assert!(String::from_utf8(body).unwrap().contains("no RDMA"));
    send(&mut cards, Op::Read, 6, 1, &encode_ranges(&[span(0, 1)])).unwrap();
    assert_ended(cards);

    let mut idle = connect(&home);
    idle.write_all(&[Op::Hello as u8]).unwrap();
    // Half a header, then no more bytes.
    assert_ended(idle);

    honest.peer.fetch(&held, opened.hold, &[span(0, 4 << 20)], LONG).unwrap();
    honest.assert_pattern(&[span(0, 4 << 20)]);
    let reasons = home.server.violations().join("\n");
    for expected in
        ["unknown op 165", "as the first frame", "ticket", "version 2", "another class", "no range"]
    {
        assert!(reasons.contains(expected), "{expected}: {reasons}");
    }
    home.server.cut(&member("liar"), LONG).unwrap();
    home.source.forget(&member("liar"));
    assert_eq!(home.source.holds(), 1);
}

/// Single bytes are progress, but a frame has a time limit.
#[test]
fn a_frame_that_trickles_in_is_given_up() {
    let home = TestHome::start(SECTION, Credentials::Plain, Duration::from_millis(50));
    let mut slow = welcomed(&home, ConnectionClass::Small);
    let head = FrameHeader::new(Op::Open, 1, 1, 4000).encode(&[0; 4000], true);
    slow.write_all(&head).unwrap();
    let mut written = 0;
    while written < 4000 && slow.write_all(&[0]).is_ok() {
        written += 1;
        thread::sleep(Duration::from_millis(5));
    }
    assert!(written < 4000, "all of it was taken");
    until("a reason", || home.server.violations().iter().any(|one| one.contains("not whole")));
}

#[test]
fn connections_are_limited() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let retained: Vec<_> = (0..16).map(|_| welcomed(&home, ConnectionClass::Bulk)).collect();
    let mut more = connect(&home);
    let ticket = home.server.issue_ticket(&member("liar")).unwrap();
    let hello = PeerHello { ticket, class: ConnectionClass::Bulk }.encode();
    send(&mut more, Op::Hello, 0, VERSION, &hello).unwrap();
    let (header, body) = receive(&mut more).unwrap();
    assert_eq!(header.op, Op::Error);
    assert!(String::from_utf8(body).unwrap().contains("16 connections"));
    drop(retained);
    until("they end", || home.server.connections() == 0);
    drop(Arc::new(welcomed(&home, ConnectionClass::Push)));
}

/// Regression test: connections from one address that said nothing took the places of all members.
#[test]
fn a_stranger_does_not_keep_members_away() {
    // Nothing ends for its silence during the test.
    let home = TestHome::start(SECTION, Credentials::Plain, LONG);
    home.add(1, &[span(0, 100)]);
    let silent: Vec<_> = (0..64)
        .map(|_| {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
            let socket = socket.unwrap();
            let own = SocketAddr::from(([127, 0, 0, 2], 0));
            rustix::net::bind(&socket, &own).unwrap();
            rustix::net::connect(&socket, &home.address).unwrap();
            socket
        })
        .collect();
    let reader = TestReader::plain(&home, home.address, STALL);
    reader.peer.open(&want(1)).unwrap();
    drop(silent);
}

/// Regression test: such a connection held its place for 16 stall limits.
#[test]
fn a_connection_that_says_who_it_is_too_slowly_is_ended() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let begin = Instant::now();
    let mut slow = connect(&home);
    while !home.server.violations().iter().any(|one| one.contains("not admitted in time")) {
        assert!(begin.elapsed() < LONG, "{:?}", home.server.violations());
        if slow.write_all(&[Op::Hello as u8]).is_err() {
            slow = connect(&home);
        }
        // The next one ends those that are overdue.
        drop(connect(&home));
        thread::sleep(STALL / 10);
    }
}

/// The grant of a dead sender is released; its push is not acknowledged, and no guard remains.
#[test]
fn a_push_that_ends_half_way_commits_nothing() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let (grant, ranges) = (GrantId(1), [span(0, 600_000)]);
    home.source.grant(grant, &member("liar"), ranges[0]);
    let first = piece(ranges[0]);
    let bytes = vec![7; first.length.as_usize()];
    for is_half_a_frame in [false, true] {
        let mut sender = welcomed(&home, ConnectionClass::Push);
        send(&mut sender, Op::Push, 1, grant.0, &encode_ranges(&ranges)).unwrap();
        send(&mut sender, Op::Data, 1, first.offset.0, &bytes).unwrap();
        until("the push begins", || home.source.guards() == 1);
        if is_half_a_frame {
            let head = FrameHeader::new(Op::Data, 1, first.length.0, first.length.0);
            sender.write_all(&head.encode(&bytes, true)).unwrap();
            sender.write_all(&bytes[..1000]).unwrap();
        }
        drop(sender);
        until("the push ends", || home.source.guards() == 0);
        assert_eq!(home.source.written(grant), []);
    }
    // Data that another connection announced is rejected.
    let mut sender = welcomed(&home, ConnectionClass::Push);
    send(&mut sender, Op::Push, 1, grant.0, &encode_ranges(&ranges)).unwrap();
    send(&mut sender, Op::Data, 1, 1 << 20, &bytes).unwrap();
    assert_ended(sender);
    assert_eq!(home.map.sealed(span(1 << 20, 1000)).unwrap(), [0; 1000]);
    home.server.cut(&member("liar"), LONG).unwrap();
    assert_eq!(home.source.guards(), 0);
}

/// A home whose second acknowledgement on each connection names another request.
fn home_that_acknowledges_wrongly() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || -> std::io::Result<()> {
                receive(&mut stream)?;
                send(&mut stream, Op::Welcome, 0, VERSION, &SECTION.to_le_bytes())?;
                for number in 0.. {
                    let (push, _) = receive(&mut stream)?;
                    assert_eq!(receive(&mut stream)?.0.op, Op::Data);
                    send(&mut stream, Op::Pushed, push.id + number, push.offset, &[])?;
                }
                Ok(())
            });
        }
    });
    address
}

/// Another attempt is for connections that the home closed while they lay idle.
#[test]
fn a_home_that_acknowledges_another_push_is_an_error_on_a_pooled_connection_too() {
    let home = TestHome::start(SECTION, Credentials::Plain, STALL);
    let reader = TestReader::plain(&home, home_that_acknowledges_wrongly(), STALL);
    let push = || reader.peer.push(GrantId(1), reader.mirror.map(), &[span(0, 10)], LONG);
    push().unwrap();
    let failed = push();
    let Err(NetError::Connection { reason, .. }) = &failed else { panic!("{failed:?}") };
    assert!(reason.to_string().contains("where an acknowledgement is due"), "{reason}");
    // The connection that ended with this reason is not used again.
    push().unwrap();
}
