//! A home and a reader over real sockets on this machine.
#![allow(dead_code)] // each test uses a part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

pub mod identity;
pub mod proxy;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length, Offset, Span};
use farrow_net::CHUNK_BYTES;
use farrow_net::cache::{Cache, Mirror, MirrorHold};
use farrow_net::pack::{PackMode, PackingOptions};
use farrow_net::peer::{DaemonControl, OpenedObject, Peer, PeerOptions, SocketOptions};
use farrow_net::records::Credentials;
use farrow_net::server::{DataServer, ServerOptions};
use farrow_net::source::table::{TableSource, want};
use farrow_net::source::{MemberLife, PushTarget, Source};
use farrow_net::ticket::Ticket;
use rustix::fs::MemfdFlags;

/// Limit of waits for conditions that must occur.
pub const LONG: Duration = Duration::from_secs(60);

/// The stall limit of tests that wait for one.
pub const STALL: Duration = Duration::from_millis(400);

pub fn span(offset: u64, length: u64) -> Span {
    Span::new(Offset(offset), Length(length))
}

pub fn memory(length: u64) -> Arc<FileMap> {
    let file = rustix::fs::memfd_create("net-test", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, length).unwrap();
    Arc::new(FileMap::new(file, 0, Length(length), true).unwrap())
}

/// Bytes that depend on the offset, and are never zero.
pub fn pattern(span: Span) -> Vec<u8> {
    let first = span.offset.0;
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 | 1;
    (first..first + span.length.0).map(byte).collect()
}

pub fn options(stall: Duration) -> SocketOptions {
    SocketOptions { stall, ..SocketOptions::default() }
}

pub struct TestHome {
    pub map: Arc<FileMap>,
    pub source: Arc<TableSource>,
    pub server: Arc<DataServer>,
    pub address: SocketAddr,
}

impl TestHome {
    pub fn start(length: u64, credentials: Credentials, stall: Duration) -> Self {
        Self::packing(length, credentials, (stall, PackingOptions::default()))
    }

    /// As [`TestHome::start`], with packed pieces.
    pub fn packing(
        length: u64,
        credentials: Credentials,
        (stall, packing): (Duration, PackingOptions),
    ) -> Self {
        let map = memory(length);
        let source = TableSource::new(Arc::clone(&map));
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let options = ServerOptions { socket: options(stall), packing, ..ServerOptions::default() };
        let reads: Arc<dyn Source> = Arc::clone(&source) as _;
        let pushes: Arc<dyn PushTarget> = Arc::clone(&source) as _;
        let server =
            DataServer::start(listener, options, credentials, reads, Some(pushes)).unwrap();
        Self { map, source, server: Arc::new(server), address }
    }

    /// Adds an object with the bytes of [`pattern`].
    pub fn add(&self, key: u64, blocks: &[Span]) {
        for block in blocks {
            self.map.write(block.offset, &pattern(*block)).unwrap();
        }
        self.source.add(key, blocks.to_vec());
    }
}

/// The control channel of a member to a server in this process.
pub struct TestControl {
    pub server: Mutex<Arc<DataServer>>,
    pub member: MemberLife,
    pub removed: Mutex<Vec<(u64, u64)>>,
    pub is_expelled: Mutex<bool>,
}

impl DaemonControl for TestControl {
    fn ticket(&self) -> Result<Ticket, String> {
        if *self.is_expelled.lock().unwrap() {
            return Err(format!("{} is not a member", self.member));
        }
        self.server.lock().unwrap().issue_ticket(&self.member).map_err(|error| error.to_string())
    }

    fn on_invalidate(&self, notice: u64, object: u64) {
        self.removed.lock().unwrap().push((notice, object));
    }
}

pub fn member(name: &str) -> MemberLife {
    MemberLife { name: name.to_owned(), incarnation: 1 }
}

pub struct TestReader {
    pub cache: Arc<Cache>,
    pub mirror: Arc<Mirror>,
    pub peer: Peer,
    pub control: Arc<TestControl>,
}

/// A reader, and its connection to a home.
pub struct ReaderOptions<'a> {
    pub name: &'a str,
    pub address: SocketAddr,
    pub credentials: Credentials,
    pub cache_bytes: u64,
    pub stall: Duration,
    pub packing: PackingOptions,
}

impl ReaderOptions<'_> {
    pub fn plain(address: SocketAddr, stall: Duration) -> Self {
        // On a busy machine the loopback may look like a slow link.
        let packing = PackingOptions { packing: PackMode::Off, ..PackingOptions::default() };
        let credentials = Credentials::Plain;
        Self { name: "reader", address, credentials, cache_bytes: 1 << 30, stall, packing }
    }
}

impl TestReader {
    pub fn start(home: &TestHome, settings: ReaderOptions<'_>) -> Self {
        let ReaderOptions { name, address, credentials, cache_bytes, stall, packing } = settings;
        let control = Arc::new(TestControl {
            server: Mutex::new(Arc::clone(&home.server)),
            member: member(name),
            removed: Mutex::default(),
            is_expelled: Mutex::default(),
        });
        let section = home.map.length();
        let cache = Cache::new(Length(cache_bytes));
        let mirror = cache.mirror(memory(section.0), Length(CHUNK_BYTES)).unwrap();
        let of_peer = PeerOptions::new("home", address, section);
        let settings = PeerOptions { socket: options(stall), packing, ..of_peer };
        let peer = Peer::start(settings, credentials, Arc::clone(&control) as _).unwrap();
        Self { cache, mirror, peer, control }
    }

    pub fn plain(home: &TestHome, address: SocketAddr, stall: Duration) -> Self {
        Self::start(home, ReaderOptions::plain(address, stall))
    }

    /// Opens an object and adds it to the mirror.
    pub fn open(&self, key: u64) -> (OpenedObject, MirrorHold) {
        let opened = self.peer.open(&want(key)).unwrap();
        let held = self.mirror.insert(key, &opened.opened.blocks, LONG).unwrap();
        (opened, held)
    }

    pub fn assert_pattern(&self, ranges: &[Span]) {
        for range in ranges {
            let found = self.mirror.map().sealed(*range).unwrap();
            let expected = pattern(*range);
            let wrong = found.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "first wrong byte of {range}");
        }
    }
}

/// Waits for a condition, up to a limit.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}: not after {LONG:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
