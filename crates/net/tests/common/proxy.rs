//! A proxy between reader and home that injects faults of networks and malicious peers.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A fault in the bytes from home to reader. Positions count the bytes of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    None,
    /// Delays each read by this time.
    Delay(Duration),
    /// Forwards a few kilobytes at a time, with this pause after each.
    Trickle(Duration),
    /// Closes both sides at this position.
    CutAfter(u64),
    /// Forwards no bytes after this position, without closing.
    StallAfter(u64),
    /// Duplicates a number of bytes from this position.
    Double(u64, usize),
    /// Flips the lowest bit of the byte at this position.
    Flip(u64),
}

#[derive(Default)]
struct ProxyFaults {
    faults: Vec<StreamFault>,
    otherwise: Option<StreamFault>,
    to_reader: u64,
    connections: u64,
}

#[derive(Clone)]
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<Mutex<ProxyFaults>>,
}

impl Proxy {
    /// Starts a proxy to `home`, which runs until the test's process ends.
    pub fn start(home: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(ProxyFaults::default()));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for reader in listener.incoming().flatten() {
                let Ok(home) = TcpStream::connect(home) else { continue };
                for stream in [&reader, &home] {
                    stream.set_nodelay(true).unwrap();
                }
                shared.lock().unwrap().connections += 1;
                let (to_home, from_reader) =
                    (home.try_clone().unwrap(), reader.try_clone().unwrap());
                thread::spawn(move || forward(from_reader, to_home));
                let shared = Arc::clone(&shared);
                thread::spawn(move || pass_on(home, reader, &shared));
            }
        });
        Self { address, state }
    }

    /// Sets one fault for each connection, in the order in which they exceed 4 KiB.
    pub fn set_faults(&self, faults: &[StreamFault]) {
        let mut state = self.state.lock().unwrap();
        state.faults = faults.iter().rev().copied().collect();
        state.otherwise = None;
    }

    /// Sets a fault for every connection.
    pub fn set_fault(&self, fault: StreamFault) {
        let mut state = self.state.lock().unwrap();
        state.faults.clear();
        state.otherwise = Some(fault);
    }

    /// Bytes forwarded from home to reader.
    pub fn to_reader(&self) -> u64 {
        self.state.lock().unwrap().to_reader
    }

    pub fn connections(&self) -> u64 {
        self.state.lock().unwrap().connections
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

/// Bytes of a connection before a planned fault applies: handshakes and small answers pass.
const GREETING_BYTES: u64 = 4096;

fn pass_on(mut from: TcpStream, mut to: TcpStream, state: &Mutex<ProxyFaults>) {
    let mut buffer = vec![0; 64 << 10];
    let (mut passed, mut fault) = (0_u64, None);
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        let mut bytes = buffer[..count].to_vec();
        let end = passed + count as u64;
        let current = {
            let mut state = state.lock().unwrap();
            state.to_reader += count as u64;
            if fault.is_none() && end > GREETING_BYTES {
                fault = state.faults.pop();
            }
            fault.or(state.otherwise).unwrap_or(StreamFault::None)
        };
        match current {
            StreamFault::None => {}
            StreamFault::Delay(time) => thread::sleep(time),
            StreamFault::Trickle(time) => {
                for few in bytes.chunks(4 << 10) {
                    if to.write_all(few).is_err() {
                        break;
                    }
                    thread::sleep(time);
                }
                bytes.clear();
            }
            StreamFault::CutAfter(at) if end > at => {
                bytes.truncate(at.saturating_sub(passed) as usize);
                let _ = to.write_all(&bytes);
                break;
            }
            StreamFault::StallAfter(at) if end > at => {
                bytes.truncate(at.saturating_sub(passed) as usize);
                let _ = to.write_all(&bytes);
                // Until the reader closes the connection.
                let _ = std::io::copy(&mut to.try_clone().unwrap(), &mut std::io::sink());
                break;
            }
            StreamFault::Double(at, length) if passed <= at && at < end => {
                let begin = (at - passed) as usize;
                let twice = bytes[begin..(begin + length).min(count)].to_vec();
                bytes.splice(begin..begin, twice);
            }
            StreamFault::Flip(at) if passed <= at && at < end => bytes[(at - passed) as usize] ^= 1,
            _ => {}
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
        passed = end;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
