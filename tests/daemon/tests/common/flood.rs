//! A process that floods a daemon, for the tests of floods.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farrow_store::HEAP_CELLS_MAX;
use farrow_wire::{
    self as wire, Hello, Listen, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody, Watch,
    Welcome, WireTarget,
};

/// Set in the environment of a flooding child: the socket, and the kind of flood.
pub const PLACE: &str = "FARROW_TEST_FLOOD_PLACE";
pub const KIND: &str = "FARROW_TEST_FLOOD_KIND";

/// Connections of one process in floods that keep many.
const CONNECTIONS: usize = 60;

/// The kind of a flood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloodKind {
    /// Connects and closes.
    Connect,
    /// Connects, sends bytes that are no message, and closes.
    Garbage,
    /// Connects, stays silent, and reconnects after the daemon closes.
    Silence,
    /// One client that has thousands of short requests under way.
    Requests,
    /// Many connections with as many waits for events as they may have.
    Watches,
    /// Many connections with as many waits for names as they may have.
    Waits,
    /// One client that asks for long replies and reads none.
    Unread,
    /// Asks for metrics.
    Scrapes,
}

impl FloodKind {
    pub const ALL: [Self; 8] = [
        Self::Connect,
        Self::Garbage,
        Self::Silence,
        Self::Requests,
        Self::Watches,
        Self::Waits,
        Self::Unread,
        Self::Scrapes,
    ];

    pub fn name(self) -> String {
        format!("{self:?}")
    }
}

/// The main function of the child; returns in other processes. Ends with its parent.
pub fn flood() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let kind = std::env::var(KIND).unwrap();
    let kind = FloodKind::ALL.into_iter().find(|one| one.name() == kind).unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    match kind {
        FloodKind::Connect => connect(&place),
        FloodKind::Garbage => garbage(&place),
        FloodKind::Silence => silence(&place),
        FloodKind::Requests => requests(&place),
        FloodKind::Watches => watches(&place),
        FloodKind::Waits => waits(&place),
        FloodKind::Unread => unread(&place),
        FloodKind::Scrapes => scrapes(&place),
    }
}

fn say_it_begins() {
    // A line of its own: the harness does not end its line before a test runs.
    println!("\nflooding");
}

fn connect(place: &Path) {
    drop(UnixStream::connect(place).unwrap());
    say_it_begins();
    loop {
        drop(UnixStream::connect(place));
    }
}

fn garbage(place: &Path) {
    let noise: Vec<u8> =
        (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    say_it_begins();
    for round in 0_usize.. {
        if let Ok(mut stream) = UnixStream::connect(place) {
            let mut bytes = noise[round % 1000..].to_vec();
            if round % 2 == 0 {
                // Announced right, so that all of it is looked at.
                let length = (bytes.len() as u32 - 4).min(900);
                bytes[..4].copy_from_slice(&length.to_le_bytes());
            }
            let _ = stream.write_all(&bytes);
        }
    }
}

fn silence(place: &Path) {
    let mut open: Vec<UnixStream> = Vec::new();
    say_it_begins();
    loop {
        open.retain(|stream| {
            stream.set_nonblocking(true).unwrap();
            !matches!((&*stream).read(&mut [0; 16]), Ok(0))
        });
        while open.len() < CONNECTIONS {
            match UnixStream::connect(place) {
                Ok(stream) => open.push(stream),
                Err(_) => break,
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An admitted connection.
fn joined(place: &Path) -> (UnixStream, Welcome) {
    let mut stream = UnixStream::connect(place).unwrap();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    match ask(&mut stream, RequestBody::Hello(hello)) {
        ReplyBody::Welcome(welcome) => (stream, welcome),
        other => panic!("{other:?}"),
    }
}

fn ask(stream: &mut UnixStream, body: RequestBody) -> ReplyBody {
    stream.write_all(&frame(0, body)).unwrap();
    let mut input = Vec::new();
    loop {
        if let Some((reply, _)) = wire::decode::<Reply>(&input).unwrap() {
            return reply.body.unwrap();
        }
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "closed");
        input.extend_from_slice(&bytes[..count]);
    }
}

fn frame(seq: u64, body: RequestBody) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&Request { seq, body }, &mut bytes).unwrap();
    bytes
}

/// Reads replies on a separate thread and drops them.
fn drain(stream: &UnixStream) {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(
        move || while stream.read(&mut [0; 64 << 10]).is_ok_and(|count| count > 0) {},
    );
}

fn requests(place: &Path) {
    let (mut stream, _) = joined(place);
    drain(&stream);
    let frames = frame(1, RequestBody::Reclaim).repeat(10_000);
    say_it_begins();
    while stream.write_all(&frames).is_ok() {}
}

fn unread(place: &Path) {
    let (mut stream, _) = joined(place);
    let frames = frame(1, RequestBody::Overview { cells: HEAP_CELLS_MAX, held_max: 0 }).repeat(100);
    stream.write_all(&frames).unwrap();
    say_it_begins();
    while stream.write_all(&frames).is_ok() {}
    std::thread::sleep(Duration::from_secs(3600));
}

/// Each connection asks again as soon as it is answered.
fn watches(place: &Path) {
    let (_stream, welcome) = joined(place);
    let mut begun = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = UnixStream::connect(place).unwrap();
        let listen = Listen {
            version: PROTOCOL_VERSION,
            region_uid: welcome.region_uid,
            slot: welcome.slot,
            nonce: welcome.nonce,
            node: String::new(),
        };
        ask(&mut stream, RequestBody::Listen(listen));
        begun.push(stream);
    }
    let body = |after| {
        let prefix = String::new();
        RequestBody::Watch(Watch { after, prefix, kinds: 0xff, timeout_ms: 3_600_000 })
    };
    for stream in &mut begun {
        for seq in 0..16 {
            stream.write_all(&frame(seq, body(u64::MAX))).unwrap();
        }
    }
    say_it_begins();
    again(begun, |seq| frame(seq, body(u64::MAX)));
}

fn waits(place: &Path) {
    let mut begun: Vec<UnixStream> = (0..CONNECTIONS).map(|_| joined(place).0).collect();
    let body = || {
        let targets = (0..8).map(|n| WireTarget::Name(format!("flooded {}", n * 20))).collect();
        RequestBody::Wait { targets, count: 1, timeout_ms: 3_600_000 }
    };
    for stream in &mut begun {
        for seq in 0..200 {
            stream.write_all(&frame(seq, body())).unwrap();
        }
    }
    say_it_begins();
    again(begun, |seq| frame(seq, body()));
}

/// Asks once more for each answer.
fn again(streams: Vec<UnixStream>, next: impl Fn(u64) -> Vec<u8>) {
    let mut inputs = vec![Vec::new(); streams.len()];
    for stream in &streams {
        stream.set_nonblocking(true).unwrap();
    }
    loop {
        for (mut stream, input) in streams.iter().zip(&mut inputs) {
            let mut bytes = [0; 4096];
            if let Ok(count) = stream.read(&mut bytes) {
                input.extend_from_slice(&bytes[..count]);
            }
            while let Ok(Some((reply, used))) = wire::decode::<Reply>(input) {
                input.drain(..used);
                let _ = stream.write_all(&next(reply.seq));
            }
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn scrapes(place: &Path) {
    say_it_begins();
    loop {
        let Ok(mut stream) = UnixStream::connect(place) else { continue };
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    }
}
