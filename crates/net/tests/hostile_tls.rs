//! Malicious peers behind the handshake, which protect each record themselves; and a peer whose record
//! layer is all of rustls, as in earlier versions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use common::identity::Authority;
use common::{LONG, ReaderOptions, STALL, TestHome, TestReader, member, span};
use farrow_net::frame::{ConnectionClass, FrameHeader, HEADER_BYTES, Op, PeerHello, VERSION};
use farrow_net::source::table::want;
use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::pki_types::ServerName;
use rustls::{
    ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite,
};

const SECTION: u64 = 4 << 20;

/// A client after its handshake.
fn handshake(home: &TestHome, authority: &Authority) -> (ClientConnection, TcpStream) {
    let mut stream = TcpStream::connect(home.address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    let configs = authority.material("liar", 1).configs(b"farrow-data/1").unwrap();
    let name = ServerName::try_from("home.net.test").unwrap();
    let mut connection = ClientConnection::new(Arc::clone(&configs.client), name).unwrap();
    connection.complete_io(&mut stream).unwrap();
    assert!(!connection.is_handshaking());
    (connection, stream)
}

fn frame(op: Op, id: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    let head = FrameHeader::new(op, id, offset, body.len() as u64).encode(&[], false);
    [&head[..], body].concat()
}

fn hello(home: &TestHome) -> Vec<u8> {
    let ticket = home.server.issue_ticket(&member("liar")).unwrap();
    frame(Op::Hello, 0, VERSION, &PeerHello { ticket, class: ConnectionClass::Small }.encode())
}

/// A peer that makes its own records.
struct Liar {
    stream: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
}

impl Liar {
    fn new(home: &TestHome, authority: &Authority) -> Self {
        let (connection, stream) = handshake(home, authority);
        let Some(SupportedCipherSuite::Tls13(suite)) = connection.negotiated_cipher_suite() else {
            panic!("not TLS 1.3");
        };
        let (sequence, secrets) = connection.dangerous_extract_secrets().unwrap().tx;
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
            panic!("another algorithm");
        };
        Self { stream, encrypter: suite.aead_alg.encrypter(key, iv), sequence }
    }

    fn record(&mut self, typ: ContentType, bytes: &[u8]) -> Vec<u8> {
        let (version, payload) = (ProtocolVersion::TLSv1_2, OutboundChunks::Single(bytes));
        let message = OutboundPlainMessage { typ, version, payload };
        let record = self.encrypter.encrypt(message, self.sequence).unwrap();
        self.sequence += 1;
        record.encode()
    }

    fn send(&mut self, typ: ContentType, bytes: &[u8]) {
        let record = self.record(typ, bytes);
        let _ = self.stream.write_all(&record);
    }

    /// Checks that the home ends the connection before it answers.
    fn assert_ended(mut self) {
        let mut rest = Vec::new();
        // A reset is also an end.
        if let Err(error) = self.stream.read_to_end(&mut rest) {
            assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock);
        }
        let welcome = HEADER_BYTES + 5 + 17;
        assert!(rest.len() < welcome, "it answers {} B", rest.len());
    }
}

type TlsLie = fn(&mut Liar, &[u8]);

const LIES: [(&str, TlsLie); 8] = [
    ("an altered record", |liar, hello| {
        let mut record = liar.record(ContentType::ApplicationData, hello);
        record[20] ^= 1;
        liar.stream.write_all(&record).unwrap();
    }),
    ("a record twice", |liar, hello| {
        let (first, rest) = hello.split_at(10);
        let record = liar.record(ContentType::ApplicationData, first);
        let _ = liar.stream.write_all(&[&record[..], &record[..]].concat());
        liar.send(ContentType::ApplicationData, rest);
    }),
    ("a record in the clear", |liar, hello| {
        let length = (hello.len() as u16).to_be_bytes();
        let record = [&[22, 3, 3][..], &length, hello].concat();
        liar.stream.write_all(&record).unwrap();
    }),
    ("a record that is too long", |liar, _| {
        liar.stream.write_all(&[23, 3, 3, 0x41, 1]).unwrap();
    }),
    ("a record that is too short", |liar, _| {
        liar.stream.write_all(&[23, 3, 3, 0, 16]).unwrap();
        liar.stream.write_all(&[0; 16]).unwrap();
    }),
    ("records without a byte", |liar, hello| {
        (0..100).for_each(|_| liar.send(ContentType::ApplicationData, &[]));
        liar.send(ContentType::ApplicationData, hello);
    }),
    ("an update of keys", |liar, hello| {
        liar.send(ContentType::Handshake, &[24, 0, 0, 1, 0]);
        liar.send(ContentType::ApplicationData, hello);
    }),
    ("an end that goes on", |liar, hello| {
        liar.send(ContentType::Alert, &[1, 0]);
        liar.send(ContentType::ApplicationData, hello);
    }),
];

#[test]
fn peers_that_lie_in_records_are_cut_and_others_are_served() {
    let authority = Authority::new();
    let home = TestHome::start(SECTION, authority.credentials("home"), STALL);
    let block = span(0, 1 << 20);
    home.add(1, &[block]);
    let credentials = authority.credentials("reader");
    let options = ReaderOptions { credentials, ..ReaderOptions::plain(home.address, STALL) };
    let honest = TestReader::start(&home, options);
    for (what, lie) in LIES {
        println!("{what}");
        let mut liar = Liar::new(&home, &authority);
        lie(&mut liar, &hello(&home));
        liar.assert_ended();
    }
    let (opened, held) = honest.open(1);
    honest.peer.fetch(&held, opened.hold, &[block], LONG).unwrap();
    honest.assert_pattern(&[block]);
}

/// Regression test: a byte of a record within each stall limit kept a thread of the home for hours.
#[test]
fn a_record_that_trickles_in_is_given_up() {
    let authority = Authority::new();
    let home = TestHome::start(SECTION, authority.credentials("home"), STALL);
    let mut slow = Liar::new(&home, &authority);
    let record = slow.record(ContentType::ApplicationData, &[0; 4096]);
    let begin = Instant::now();
    let is_cut = record.chunks(1).any(|byte| {
        std::thread::sleep(STALL / 4);
        slow.stream.write_all(byte).is_err() || begin.elapsed() > LONG
    });
    assert!(is_cut && begin.elapsed() < LONG, "it still reads");
}

/// Frames need not begin with records: in small pieces, and many in one record.
#[test]
fn records_of_any_length_are_read() {
    let authority = Authority::new();
    let home = TestHome::start(SECTION, authority.credentials("home"), STALL);
    home.add(1, &[span(4096, 64 << 10)]);
    let mut odd = Liar::new(&home, &authority);
    for byte in hello(&home) {
        odd.send(ContentType::ApplicationData, &[byte]);
        odd.send(ContentType::ApplicationData, &[]);
    }
    // As many answers as requests, each at least a header.
    let opens: Vec<u8> = (1..=100).flat_map(|id| frame(Op::Open, id, id, &want(1))).collect();
    odd.send(ContentType::ApplicationData, &opens);
    let mut answers = vec![0; 100 * HEADER_BYTES];
    odd.stream.read_exact(&mut answers).unwrap();
}

#[test]
fn a_peer_with_all_of_rustls_is_served() {
    let authority = Authority::new();
    let home = TestHome::start(SECTION, authority.credentials("home"), STALL);
    home.add(1, &[span(4096, 64 << 10)]);
    let (mut connection, mut stream) = handshake(&home, &authority);
    let mut stream = rustls::Stream::new(&mut connection, &mut stream);
    let mut receive = |sent: Vec<u8>| {
        stream.write_all(&sent).unwrap();
        let mut head = [0; HEADER_BYTES];
        stream.read_exact(&mut head).unwrap();
        let header = FrameHeader::decode(&head, false).unwrap();
        let mut body = vec![0; header.length as usize];
        stream.read_exact(&mut body).unwrap();
        header.op
    };
    assert_eq!(receive(hello(&home)), Op::Welcome);
    assert_eq!(receive(frame(Op::Open, 1, 7, &want(1))), Op::Opened);
}
