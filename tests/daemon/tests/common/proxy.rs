//! Links between nodes that a test can delay, cut one way or both, and make lose: a TCP proxy in
//! front of each node, in threads of the test.
//!
//! Nodes advertise the proxy's address, so all their traffic passes through it. The kernel
//! identifies the caller: the socket at the other end belongs to the daemon of one node. Data on a
//! cut link is retained, like TCP's retransmissions, and delivered when the link is restored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::Daemon;
use super::nodes::DaemonNodes;

/// Most connections at a time through all proxies of a test; more are closed.
const CONNECTIONS_MAX: usize = 256;
/// Bytes read at once, and pieces under way in one direction of one connection.
const PIECE_BYTES: usize = 16 << 10;
const PIECES_MAX: usize = 64;
/// Polling interval of a cut link.
const PAUSE: Duration = Duration::from_millis(2);
/// Delay of a lost piece: Linux's minimum retransmission timeout.
const RESEND: Duration = Duration::from_millis(200);

/// One direction between two nodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// Delay of each piece.
    pub delay: Duration,
    /// Whether all data is held until the link is restored.
    pub is_cut: bool,
    /// Pieces per thousand that are resent once or twice, which delays later ones.
    pub lost_per_mille: u64,
    /// Pieces per thousand that reset their connection.
    pub reset_per_mille: u64,
}

struct ProxyState {
    /// By sender, then receiver.
    weather: Vec<Vec<Weather>>,
    /// Process ids of the daemons.
    pids: Vec<u32>,
    /// Connections, each with the node that called, its end and the other.
    streams: BTreeMap<u64, (usize, [TcpStream; 2])>,
    next_stream: u64,
    dice: super::SeededDice,
    is_over: bool,
}

/// All links between the nodes of a test.
#[derive(Clone)]
pub struct ProxyLinks(Arc<Mutex<ProxyState>>);

impl ProxyLinks {
    fn with<T>(&self, ask: impl FnOnce(&mut ProxyState) -> T) -> T {
        ask(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn weather(&self, from: usize, to: usize) -> Weather {
        self.with(|shared| shared.weather[from][to])
    }

    fn is_over(&self) -> bool {
        self.with(|shared| shared.is_over)
    }

    /// From one node to another, one way.
    pub fn set(&self, from: usize, to: usize, change: impl FnOnce(&mut Weather)) {
        self.with(|shared| change(&mut shared.weather[from][to]));
    }

    /// Everywhere, both ways.
    pub fn set_all(&self, change: impl Fn(&mut Weather)) {
        self.with(|shared| shared.weather.iter_mut().flatten().for_each(change));
    }

    /// Between a node and all others, both ways.
    pub fn cut_off(&self, node: usize, is_cut: bool) {
        self.with(|shared| {
            for other in 0..shared.weather.len() {
                shared.weather[node][other].is_cut = is_cut;
                shared.weather[other][node].is_cut = is_cut;
            }
        });
    }

    /// Ends the connections that a node has opened, at its own end only: what it had sent is still
    /// under way, and arrives.
    pub fn hang_up(&self, caller: usize) {
        self.with(|shared| {
            let streams = shared.streams.values().filter(|(of, _)| *of == caller);
            streams.for_each(|(_, [near, _])| drop(near.shutdown(Shutdown::Both)));
        });
    }

    /// Ends all connections; what was under way is lost.
    pub fn reset(&self) {
        self.with(|shared| {
            let ends = shared.streams.values().flat_map(|(_, ends)| ends);
            ends.for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        });
    }

    /// Tells whose process a daemon is, after each start of one.
    pub fn know(&self, node: usize, daemon: &Daemon) {
        self.with(|shared| shared.pids[node] = daemon.pid());
    }

    /// The node whose daemon has this socket.
    fn caller(&self, address: SocketAddr) -> Option<usize> {
        let inode = inode_of(address)?;
        let wanted = format!("socket:[{inode}]");
        let pids = self.with(|shared| shared.pids.clone());
        pids.iter().position(|pid| {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            let mut targets =
                descriptors.flatten().filter_map(|one| fs::read_link(one.path()).ok());
            targets.any(|target| target.to_str() == Some(&wanted))
        })
    }

    fn serve(&self, listener: &TcpListener, to: usize, target: SocketAddr) {
        for stream in listener.incoming() {
            if self.is_over() {
                return;
            }
            let Ok(stream) = stream else { continue };
            let links = self.clone();
            thread::spawn(move || links.join(stream, to, target));
        }
    }

    /// One connection, until both of its directions are over.
    fn join(&self, near: TcpStream, to: usize, target: SocketAddr) -> Option<()> {
        let address = near.peer_addr().ok()?;
        // The daemon may be so new that its process is not known yet.
        let until = Instant::now() + Duration::from_secs(2);
        let from = loop {
            match self.caller(address) {
                Some(from) => break from,
                None if Instant::now() > until || self.is_over() => return None,
                None => thread::sleep(PAUSE),
            }
        };
        while self.weather(from, to).is_cut || self.weather(to, from).is_cut {
            if self.is_over() || is_ended(&near) {
                return None;
            }
            thread::sleep(PAUSE);
        }
        let far = TcpStream::connect(target).ok()?;
        near.set_nodelay(true).and_then(|()| far.set_nodelay(true)).ok()?;
        let ends = [near.try_clone().ok()?, far.try_clone().ok()?];
        let number = self.with(|shared| {
            shared.next_stream += 1;
            let is_room = shared.streams.len() < CONNECTIONS_MAX && !shared.is_over;
            is_room.then(|| shared.streams.insert(shared.next_stream, (from, ends)));
            is_room.then_some(shared.next_stream)
        })?;
        thread::scope(|scope| {
            for (source, sink, from, to) in [(&near, &far, from, to), (&far, &near, to, from)] {
                let (sender, pieces) = sync_channel(PIECES_MAX);
                scope.spawn(move || self.read(source, &sender, from, to));
                scope.spawn(move || self.write(source, sink, &pieces, from, to));
            }
        });
        self.with(|shared| drop(shared.streams.remove(&number)));
        Some(())
    }

    /// Takes what comes in, with the time at which it is to arrive.
    fn read(
        &self,
        mut source: &TcpStream,
        sender: &SyncSender<DelayedBytes>,
        from: usize,
        to: usize,
    ) {
        let mut last = Instant::now();
        loop {
            let mut bytes = vec![0; PIECE_BYTES];
            let count = source.read(&mut bytes).unwrap_or(0);
            bytes.truncate(count);
            let weather = self.weather(from, to);
            let (lost, resets) = self.with(|shared| {
                (shared.dice.roll(1000), shared.dice.roll(1000) < weather.reset_per_mille)
            });
            if resets {
                let _ = source.shutdown(Shutdown::Both);
            }
            let again = match lost {
                lost if lost * 4 < weather.lost_per_mille => 3 * RESEND,
                lost if lost < weather.lost_per_mille => RESEND,
                _ => Duration::ZERO,
            };
            last = last.max(Instant::now() + weather.delay + again);
            if sender.send((last, bytes)).is_err() || count == 0 {
                return;
            }
        }
    }

    /// Hands it on when it is due and the link is not cut. An empty piece is the end.
    fn write(
        &self,
        source: &TcpStream,
        mut sink: &TcpStream,
        pieces: &Receiver<DelayedBytes>,
        from: usize,
        to: usize,
    ) {
        for (due, bytes) in pieces {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            while self.weather(from, to).is_cut && !self.is_over() {
                thread::sleep(PAUSE);
            }
            if bytes.is_empty() {
                let _ = sink.shutdown(Shutdown::Write);
            } else if sink.write_all(&bytes).is_err() {
                // Whoever sent it would be told so by a reset, on the way back.
                while self.weather(to, from).is_cut && !self.is_over() {
                    thread::sleep(PAUSE);
                }
                let _ = source.shutdown(Shutdown::Read);
                return;
            }
        }
    }
}

type DelayedBytes = (Instant, Vec<u8>);

/// Whether the other end has closed; what it sent stays there to be read.
fn is_ended(stream: &TcpStream) -> bool {
    let _ = stream.set_nonblocking(true);
    let ended = matches!(stream.peek(&mut [0]), Ok(0));
    let _ = stream.set_nonblocking(false);
    ended
}

/// The inode of the socket that is bound to this loopback address and connected.
fn inode_of(address: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(address) = address else { return None };
    let ip = u32::from_ne_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local))?;
    line.split_whitespace().nth(9)?.parse().ok().filter(|inode| *inode != 0)
}

/// Nodes all of whose links go through proxies; dropped, the proxies end.
pub struct Linked {
    pub nodes: DaemonNodes,
    pub links: ProxyLinks,
    fronts: Vec<SocketAddr>,
}

impl Linked {
    /// So many nodes, each of which knows all others by the addresses of their proxies.
    pub fn start(count: usize, memory: &str, more: &[&str]) -> Self {
        let weather = vec![vec![Weather::default(); count]; count];
        let dice = super::SeededDice(0x11_4e5);
        let (pids, streams) = (vec![0; count], BTreeMap::new());
        let shared = ProxyState { weather, pids, streams, next_stream: 0, dice, is_over: false };
        let links = ProxyLinks(Arc::new(Mutex::new(shared)));
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = |one: &TcpListener| one.local_addr().unwrap();
        // Those of the nodes are held until all are chosen, so that no two are the same.
        let held: Vec<TcpListener> = (0..count).map(|_| bind()).collect();
        let backs: Vec<SocketAddr> = held.iter().map(address).collect();
        let held_for_data: Vec<TcpListener> = (0..count).map(|_| bind()).collect();
        let data_backs: Vec<SocketAddr> = held_for_data.iter().map(address).collect();
        let mut fronts = Vec::new();
        for (number, target) in backs.iter().chain(&data_backs).copied().enumerate() {
            let listener = bind();
            fronts.push(address(&listener));
            let links = links.clone();
            thread::spawn(move || links.serve(&listener, number % count, target));
        }
        drop((held, held_for_data));
        let mut known: Vec<String> = fronts.iter().map(ToString::to_string).collect();
        let known_for_data = known.split_off(count);
        let names: Vec<String> =
            (0..count).map(|n| char::from(b'a' + n as u8).to_string()).collect();
        let daemons = (0..count).map(|number| {
            let listen = backs[number].to_string();
            let mut words = vec!["--plaintext", "--name", &names[number], "--listen", &listen];
            words.extend(["--advertise", &known[number]]);
            let data_listen = data_backs[number].to_string();
            words.extend(["--data-listen", &data_listen]);
            words.extend(["--data-advertise", &known_for_data[number]]);
            for other in known.iter().enumerate().filter(|(n, _)| *n != number) {
                words.extend(["--join", other.1]);
            }
            words.extend(more);
            let daemon = Daemon::start(memory, &words);
            links.know(number, &daemon);
            daemon
        });
        let nodes = DaemonNodes { daemons: daemons.collect(), names: names.clone() };
        let linked = Self { nodes, links, fronts };
        linked.nodes.settle(count);
        linked
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.links.with(|shared| shared.is_over = true);
        self.links.reset();
        // Each listener looks whether it is over when somebody calls.
        self.fronts.iter().for_each(|front| drop(TcpStream::connect(front)));
    }
}
