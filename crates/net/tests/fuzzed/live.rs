//! Forged frames over sockets: from a client to a server, and from a home to a reader.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farrow_net::CHUNK_BYTES;
use farrow_net::frame::{
    ConnectionClass, FrameHeader, HEADER_BYTES, Op, Opened, PeerHello, VERSION,
};
use farrow_net::pack::{PackMode, PackingOptions};
use farrow_net::records::Credentials;
use farrow_net::source::GrantId;
use farrow_net::source::table::want;

use super::{BLOCK, Dice, SECTION};
use crate::common::{LONG, ReaderOptions, TestHome, TestReader, member, pattern, span, until};

const STALL: Duration = Duration::from_millis(500);

/// Maximum frames of one run.
const FRAMES_MAX: usize = 24;

/// A server with an object, an honest reader, and a grant of the malicious client.
pub struct Victim {
    home: TestHome,
    reader: TestReader,
}

impl Victim {
    pub fn new() -> Self {
        let home = TestHome::start(SECTION, Credentials::Plain, STALL);
        home.add(1, &[BLOCK]);
        let reader = TestReader::plain(&home, home.address, STALL);
        let victim = Self { home, reader };
        victim.assert_served();
        victim
    }

    /// Sends frames chosen by the bytes, and checks that the server ends the connection unharmed.
    pub fn run(&self, data: &[u8]) {
        let mut dice = Dice(data);
        let liar = member("liar");
        let grant = span(SECTION - 2 * CHUNK_BYTES, CHUNK_BYTES);
        self.home.source.grant(GrantId(1), &liar, grant);
        let mut stream = TcpStream::connect(self.home.address).unwrap();
        let classes = [
            ConnectionClass::Small,
            ConnectionClass::Bulk,
            ConnectionClass::Push,
            ConnectionClass::Rdma,
        ];
        let class = classes[usize::from(dice.byte()) % classes.len()];
        let ticket = self.home.server.issue_ticket(&liar).unwrap();
        let hello = PeerHello { ticket, class }.encode();
        let head = FrameHeader::new(Op::Hello, 0, VERSION, hello.len() as u64).encode(&hello, true);
        stream.write_all(&[&head[..], &hello].concat()).unwrap();
        let mut welcome = [0; HEADER_BYTES + 8];
        stream.read_exact(&mut welcome).unwrap();
        let mut reading = stream.try_clone().unwrap();
        let reads = thread::spawn(move || {
            reading.set_read_timeout(Some(LONG)).unwrap();
            let mut answers = Vec::new();
            let ended = reading.read_to_end(&mut answers);
            assert_bytes_of_the_object(&answers);
            !matches!(ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        });
        for _ in 0..FRAMES_MAX {
            if dice.0.is_empty() || stream.write_all(&dice.frame(&[1, 2])).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
        assert!(reads.join().unwrap(), "the server leaves a connection open");
        self.home.server.cut(&liar, LONG).unwrap();
        self.home.source.forget(&liar);
        assert_eq!(self.home.source.guards(), 0);
        // Only bytes of the grant may have changed.
        let before = self.home.map.sealed(span(0, SECTION - 2 * CHUNK_BYTES)).unwrap();
        let after = self.home.map.sealed(span(SECTION - CHUNK_BYTES, CHUNK_BYTES)).unwrap();
        let (first, length) = (BLOCK.offset.0 as usize, BLOCK.length.as_usize());
        assert_eq!(&before[first..first + length], pattern(BLOCK));
        assert!(before[..first].iter().chain(&before[first + length..]).all(|byte| *byte == 0));
        assert!(after.iter().all(|byte| *byte == 0));
    }

    /// Checks that the honest reader is served.
    pub fn assert_served(&self) {
        let (opened, held) = self.reader.open(1);
        self.reader.peer.fetch(&held, opened.hold, &[BLOCK], LONG).unwrap();
        self.reader.assert_pattern(&[BLOCK]);
        drop(held);
        self.reader.mirror.remove(1);
        self.reader.peer.release(opened.hold);
        until("the hold ends", || self.home.source.holds() == 0);
    }
}

/// Checks that all bytes of answers are those of the object that the malicious client may read.
fn assert_bytes_of_the_object(mut answers: &[u8]) {
    while let Some((head, rest)) = answers.split_first_chunk::<HEADER_BYTES>() {
        let header = FrameHeader::decode(head, true).unwrap();
        // A connection may end within a frame.
        let Some((body, rest)) = rest.split_at_checked(header.length as usize) else { break };
        header.verify(head, body).unwrap();
        assert!(header.op != Op::Packed, "the bytes do not shrink");
        if header.op == Op::Data {
            let piece = span(header.offset, header.length);
            assert!(BLOCK.contains(piece), "{piece} is outside of the object");
            assert!(body == pattern(piece), "other bytes than those of {piece}");
        }
        answers = rest;
    }
}

/// Runs a peer whose home answers each request as chosen by the bytes. Bytes outside its requests
/// are unchanged, no call hangs, and all room is released.
pub fn run_home(data: &[u8]) {
    let tickets = TestHome::start(SECTION, Credentials::Plain, STALL);
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let script: Arc<[u8]> = data.into();
    let is_ended = Arc::new(std::sync::Mutex::new(false));
    let ended = Arc::clone(&is_ended);
    let homes = thread::spawn(move || {
        let mut threads = Vec::new();
        for stream in listener.incoming().flatten() {
            if *ended.lock().unwrap() {
                break;
            }
            let script = Arc::clone(&script);
            threads.push(thread::spawn(move || drop(answer(stream, &script))));
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let packing = PackingOptions { packing: PackMode::Lz4, ..PackingOptions::default() };
    let settings = ReaderOptions { packing, ..ReaderOptions::plain(address, STALL) };
    let reader = TestReader::start(&tickets, settings);
    if let Ok(opened) = reader.peer.open(&want(1))
        && let Ok(held) = reader.mirror.insert(1, &[BLOCK], LONG)
    {
        let _ = reader.peer.fetch(&held, opened.hold, &[BLOCK], LONG);
        let _ = reader.peer.fetch(&held, opened.hold, &[span(BLOCK.offset.0, 10)], LONG);
    }
    let bytes = reader.mirror.map().sealed(span(0, SECTION)).unwrap();
    let (first, length) = (BLOCK.offset.0 as usize, BLOCK.length.as_usize());
    assert!(bytes[..first].iter().chain(&bytes[first + length..]).all(|byte| *byte == 0));
    reader.peer.lose("the run has ended");
    reader.mirror.remove(1);
    until("all room is back", || reader.cache.stats().used == 0);
    drop(reader);
    *is_ended.lock().unwrap() = true;
    drop(TcpStream::connect(address));
    homes.join().unwrap();
}

fn answer(mut stream: TcpStream, script: &[u8]) -> std::io::Result<()> {
    stream.set_read_timeout(Some(4 * STALL))?;
    stream.set_write_timeout(Some(4 * STALL))?;
    let mut dice = Dice(script);
    // Most runs answer Hello and Open correctly.
    let (greets, opens) = (dice.byte() % 16 != 0, dice.byte() % 8 != 0);
    loop {
        let mut head = [0; HEADER_BYTES];
        stream.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head, true).map_err(std::io::Error::other)?;
        let mut body = vec![0; header.length as usize];
        stream.read_exact(&mut body)?;
        let mut id = header.id;
        let (op, offset, body) = match header.op {
            Op::Hello if greets => {
                // Mostly of a home that packs.
                id = u64::from(dice.byte() % 8 != 0);
                (Op::Welcome, VERSION, SECTION.to_le_bytes().to_vec())
            }
            Op::Open if opens => {
                let opened = Opened { blocks: vec![BLOCK], ..Opened::default() };
                (Op::Opened, header.offset, opened.encode().unwrap())
            }
            _ => {
                if dice.0.is_empty() {
                    return Ok(());
                }
                stream.write_all(&dice.frame(&[header.id]))?;
                continue;
            }
        };
        let head = FrameHeader::new(op, id, offset, body.len() as u64).encode(&body, true);
        stream.write_all(&[&head[..], &body].concat())?;
    }
}
