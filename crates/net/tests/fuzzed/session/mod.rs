//! Connections of two members with one server: forged, split at any byte, doubled, cut short, in any
//! order. The real server answers over sockets, and a model says what it may answer.
//!
//! After each step all answers are read and compared, so a run depends on its bytes alone.

pub mod model;
pub mod source;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use farrow_net::frame::{ConnectionClass, FrameHeader, HEADER_BYTES, Op, PeerHello, VERSION};
use farrow_net::records::Credentials;
use farrow_net::server::{DataServer, ServerOptions};
use farrow_net::source::{GrantId, PushTarget, Source};
use farrow_net::ticket::{TICKET_BYTES, Ticket};

use super::{Dice, SECTION};
use crate::common::{LONG, member, options};
use model::{ExpectedAnswer, ModelledSession, Shared};
use source::{GatedSource, MEMBERS, grants};

mod answers;
mod forge;

const STEPS_MAX: usize = 32;

/// Live connections of a run: fewer than the limits of the server.
const CONNECTIONS_MAX: usize = 5;

/// A server, and the bytes of its memory.
pub struct JudgedServer {
    server: DataServer,
    source: Arc<GatedSource>,
    image: Vec<u8>,
    address: SocketAddr,
    /// Compared answers and ends, by their kind.
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

/// A connection, and what the model knows of it.
struct ForgedConnection {
    stream: TcpStream,
    session: ModelledSession,
    /// The rest of a frame that was split.
    unsent: Vec<u8>,
}

/// One run.
struct ForgedRun<'a> {
    server: &'a JudgedServer,
    /// In the order of their connections.
    lines: Vec<ForgedConnection>,
    shared: Shared,
    /// Tickets that were issued before they are used, or used before.
    stash: Vec<Ticket>,
}

impl JudgedServer {
    pub fn new() -> Self {
        let (source, image) = GatedSource::new();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        // Nothing ends for its silence during a run: other tests look at that.
        let options = ServerOptions { socket: options(LONG), ..ServerOptions::default() };
        let reads: Arc<dyn Source> = Arc::clone(&source) as _;
        let pushes: Arc<dyn PushTarget> = Arc::clone(&source) as _;
        let server =
            DataServer::start(listener, options, Credentials::Plain, reads, Some(pushes)).unwrap();
        Self { server, source, image, address, counts: Mutex::default() }
    }

    /// The errors that ended the newest connections.
    pub fn violations(&self) -> Vec<String> {
        self.server.violations()
    }

    /// Takes the steps that the bytes describe, and checks each answer and all memory.
    pub fn run(&self, data: &[u8]) {
        let mut dice = Dice(data);
        self.source.reset();
        let shared =
            Shared { objects: source::objects().map(|(key, _)| key).to_vec(), ..Shared::default() };
        let mut run = ForgedRun { server: self, lines: Vec::new(), shared, stash: Vec::new() };
        for _ in 0..STEPS_MAX {
            if dice.0.is_empty() {
                break;
            }
            run.step(&mut dice);
        }
        run.finish();
    }
}

impl ForgedRun<'_> {
    fn step(&mut self, dice: &mut Dice<'_>) {
        match dice.byte() % 32 {
            0 => self.cut(dice),
            1 => self.delete_or_add(dice),
            2 => self.invalidate(dice),
            3 => self.stash_ticket(dice),
            4 => self.close(dice),
            5..8 => self.connect(dice),
            _ if self.lines.is_empty() => self.connect(dice),
            _ => self.send_frame(dice),
        }
        self.lines.retain(|line| !line.session.is_ended());
    }

    /// Connects, mostly with a new ticket.
    fn connect(&mut self, dice: &mut Dice<'_>) {
        if self.lines.len() >= CONNECTIONS_MAX {
            return;
        }
        let stream = TcpStream::connect(self.server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        self.lines.push(ForgedConnection {
            stream,
            session: ModelledSession::default(),
            unsent: Vec::new(),
        });
        let hello = match dice.byte() % 16 {
            0 => dice.frame(&[]),
            kind => {
                let ticket = self.ticket(kind, dice);
                let class = dice.pick(&[
                    ConnectionClass::Small,
                    ConnectionClass::Small,
                    ConnectionClass::Small,
                    ConnectionClass::Bulk,
                    ConnectionClass::Bulk,
                    ConnectionClass::Bulk,
                    ConnectionClass::Push,
                    ConnectionClass::Push,
                    ConnectionClass::Rdma,
                ]);
                let body = PeerHello { ticket, class }.encode();
                let version = if dice.byte() == 0 { VERSION + 1 } else { VERSION };
                let head = FrameHeader::new(Op::Hello, dice.word(), version, body.len() as u64);
                [&head.encode(&body, true)[..], &body].concat()
            }
        };
        self.send(self.lines.len() - 1, &hello, dice);
    }

    fn ticket(&mut self, kind: u8, dice: &mut Dice<'_>) -> Ticket {
        match kind {
            1 => Ticket::from_bytes([dice.byte(); TICKET_BYTES]),
            2 | 3 if !self.stash.is_empty() => {
                self.stash[usize::from(dice.byte()) % self.stash.len()]
            }
            4 => {
                let mut bytes = *self.issue(dice).as_bytes();
                bytes[usize::from(dice.byte()) % TICKET_BYTES] ^= 1 << (dice.byte() % 8);
                Ticket::from_bytes(bytes)
            }
            _ => {
                let ticket = self.issue(dice);
                self.stash.push(ticket);
                ticket
            }
        }
    }

    fn issue(&mut self, dice: &mut Dice<'_>) -> Ticket {
        let member_number = usize::from(dice.byte().is_multiple_of(4));
        let issued = self.server.server.issue_ticket(&member(MEMBERS[member_number])).unwrap();
        self.shared.tickets.push((issued, member_number));
        issued
    }

    fn stash_ticket(&mut self, dice: &mut Dice<'_>) {
        let ticket = self.issue(dice);
        self.stash.push(ticket);
    }

    /// Sends the rest of a split frame, or another frame.
    fn send_frame(&mut self, dice: &mut Dice<'_>) {
        let number = usize::from(dice.byte()) % self.lines.len();
        let rest = std::mem::take(&mut self.lines[number].unsent);
        let bytes = match rest.is_empty() {
            true => forge::frame(&self.lines[number].session, &self.shared, dice),
            false => rest,
        };
        self.send(number, &bytes, dice);
    }

    /// Sends bytes whole, in part, twice, damaged or cut short, and checks the answers.
    fn send(&mut self, number: usize, bytes: &[u8], dice: &mut Dice<'_>) {
        // A frame that was cut before its first byte is none.
        let at = dice.word() as usize % bytes.len().max(1);
        let bit = 1 << (dice.byte() % 8);
        let mut bytes = bytes.to_vec();
        let mut is_last = false;
        match dice.byte() % 32 {
            0 if !bytes.is_empty() => bytes[at] ^= bit,
            1 => bytes.extend_from_within(..),
            2 => {
                bytes.truncate(at);
                is_last = true;
            }
            3..8 => self.lines[number].unsent = bytes.split_off(at),
            _ => {}
        }
        self.end_other_pushes(number);
        let before = self.lines[number].session.admitted;
        let line = &mut self.lines[number];
        let sent = line.stream.write_all(&bytes);
        let expected = line.session.feed(&bytes, &mut self.shared);
        assert!(sent.is_ok() || line.session.is_ended(), "{sent:?}");
        if before.is_none()
            && let Some((member, ConnectionClass::Small)) = self.lines[number].session.admitted
        {
            self.replace(number, member);
        }
        self.expect(number, &expected);
        if is_last && !self.lines[number].session.is_ended() {
            self.end(number);
        }
    }

    /// Ends the other pushes of the member. Two into one range at a time see each other's bytes, and
    /// end by their checksums or not.
    fn end_other_pushes(&mut self, number: usize) {
        let own = self.lines[number].session.member();
        if !matches!(own, Some((_, ConnectionClass::Push))) {
            return;
        }
        for other in 0..self.lines.len() {
            let session = &self.lines[other].session;
            if other != number && session.member() == own && session.is_writing() {
                self.end(other);
            }
        }
    }

    /// A newer small connection of a member ends its older ones.
    fn replace(&mut self, number: usize, member: usize) {
        for older in 0..number {
            if self.lines[older].session.member() == Some((member, ConnectionClass::Small)) {
                self.assert_ended(older);
            }
        }
    }

    /// The member's incarnation ends.
    fn cut(&mut self, dice: &mut Dice<'_>) {
        let number = usize::from(dice.byte().is_multiple_of(4));
        let life = member(MEMBERS[number]);
        self.server.server.cut(&life, LONG).unwrap();
        self.server.source.table.forget(&life);
        self.shared.tickets.retain(|(_, of)| *of != number);
        self.shared.holds.retain(|(of, _), _| *of != number);
        self.shared.is_forgotten[number] = true;
        for line in 0..self.lines.len() {
            if self.lines[line].session.member().is_some_and(|(of, _)| of == number) {
                self.assert_ended(line);
            }
        }
    }

    fn delete_or_add(&mut self, dice: &mut Dice<'_>) {
        let (key, block) = dice.pick(&source::objects());
        let is_there = self.shared.objects.contains(&key);
        self.shared.objects.retain(|one| *one != key);
        match is_there {
            true => self.server.source.table.delete(key),
            false => {
                self.server.source.table.add(key, vec![block]);
                self.shared.objects.push(key);
            }
        }
    }

    /// The server notifies a member on its small connections.
    fn invalidate(&mut self, dice: &mut Dice<'_>) {
        let number = usize::from(dice.byte().is_multiple_of(4));
        let object = dice.word();
        let is_sent = self.server.server.send_invalidation(&member(MEMBERS[number]), object);
        let is_small = |line: &ForgedConnection| {
            line.session.member() == Some((number, ConnectionClass::Small))
        };
        let small: Vec<usize> =
            (0..self.lines.len()).filter(|line| is_small(&self.lines[*line])).collect();
        assert_eq!(is_sent, !small.is_empty());
        // The table of connections has no order, but there is more than one only if one of them
        // began to connect before the other and said hello after it.
        match small[..] {
            [] => {}
            [one] => self.expect(one, &[ExpectedAnswer::Invalidate { object }]),
            _ => {
                let got = answers::first_readable(small.iter().map(|one| &self.lines[*one].stream));
                self.expect(small[got], &[ExpectedAnswer::Invalidate { object }]);
            }
        }
    }

    fn close(&mut self, dice: &mut Dice<'_>) {
        if !self.lines.is_empty() {
            self.end(usize::from(dice.byte()) % self.lines.len());
        }
    }

    /// Ends a connection from this side, perhaps within a frame.
    fn end(&mut self, number: usize) {
        let _ = self.lines[number].stream.shutdown(Shutdown::Write);
        self.assert_ended(number);
    }

    fn assert_ended(&mut self, number: usize) {
        self.lines[number].session.phase = model::Phase::Ended;
        self.expect(number, &[]);
    }

    /// Reads all answers that a connection owes, and its end.
    fn expect(&mut self, number: usize, expected: &[ExpectedAnswer]) {
        let line = &mut self.lines[number];
        let is_ended = line.session.is_ended();
        for one in expected {
            // The end of a connection may overtake its last answers.
            if !self.server.take(&line.stream, one, is_ended) {
                return;
            }
        }
        if is_ended {
            self.server.count("ended");
            let rest = (&line.stream).read(&mut [0; 1]);
            match &rest {
                Ok(0) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                _ => panic!("{rest:?} where the connection must end"),
            }
        }
    }

    fn finish(mut self) {
        for number in 0..self.lines.len() {
            if !self.lines[number].session.is_ended() {
                self.end(number);
            }
        }
        let Self { server, shared, .. } = self;
        for name in MEMBERS {
            server.server.cut(&member(name), LONG).unwrap();
        }
        assert_eq!(server.server.connections(), 0);
        assert_eq!(server.source.table.guards(), 0);
        assert_eq!(server.source.table.holds(), shared.holds.len());
        let written =
            shared.written.iter().map(|(grant, ranges)| (GrantId(*grant), ranges.clone()));
        assert_eq!(server.source.written(), written.collect::<Vec<_>>());
        // Only bytes of the grants may have changed.
        let first = grants()[1].offset.0;
        let last = grants()[0].end().unwrap_or_default().0;
        assert!(server.source.bytes(0, first) == &server.image[..first as usize]);
        assert!(server.source.bytes(last, SECTION - last) == &server.image[last as usize..]);
    }
}

/// Reads a frame, or `None` if the connection ended.
fn read_frame(mut stream: &TcpStream) -> Option<(FrameHeader, Vec<u8>)> {
    let mut head = [0; HEADER_BYTES];
    let mut read = |into: &mut [u8]| match stream.read_exact(into) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer in {LONG:?}"),
        Err(_) => false,
    };
    if !read(&mut head) {
        return None;
    }
    let header = FrameHeader::decode(&head, true).unwrap();
    let mut body = vec![0; header.length as usize];
    if !read(&mut body) {
        return None;
    }
    header.verify(&head, &body).unwrap();
    Some((header, body))
}
