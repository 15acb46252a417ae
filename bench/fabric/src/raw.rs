//! The same sockets without a fabric: requests of 16 bytes, answered by their bytes, from committed
//! pages into pages. No checksum, no hold, no mirror.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use farrow_memory::{FileMap, Length, Offset, Span};

use crate::AnyError;

/// The fabric's request size.
const REQUEST_BYTES: u64 = 1 << 20;
const AHEAD: usize = 2;

fn prepare(stream: &TcpStream, congestion: &str) -> Result<(), AnyError> {
    stream.set_nodelay(true)?;
    // Without this algorithm the system's default stays, as with the fabric.
    let _ = rustix::net::sockopt::set_tcp_congestion(stream, congestion);
    Ok(())
}

pub fn serve(map: Arc<FileMap>, congestion: String) -> Result<SocketAddr, AnyError> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (map, congestion) = (Arc::clone(&map), congestion.clone());
            thread::spawn(move || drop(answer(&stream, &map, &congestion)));
        }
    });
    Ok(address)
}

fn answer(mut stream: &TcpStream, map: &FileMap, congestion: &str) -> Result<(), AnyError> {
    prepare(stream, congestion)?;
    loop {
        let mut request = [[0; 8]; 2];
        stream.read_exact(request.as_flattened_mut())?;
        let [offset, length] = request.map(u64::from_le_bytes);
        let mut done = 0;
        while done < length {
            let rest = Span::new(Offset(offset + done), Length(length - done));
            done += map.send(stream.as_fd(), &[], rest)? as u64;
        }
    }
}

/// Connections to a raw server.
pub struct RawStreams {
    streams: Vec<TcpStream>,
}

impl RawStreams {
    pub fn connect(
        address: SocketAddr,
        connections: usize,
        congestion: &str,
    ) -> Result<Self, AnyError> {
        let connect = |_| {
            let stream = TcpStream::connect(address)?;
            prepare(&stream, congestion)?;
            Ok(stream)
        };
        Ok(Self { streams: (0..connections).map(connect).collect::<Result<_, AnyError>>()? })
    }

    /// Fetches ranges, by all connections.
    pub fn fetch(&self, map: &FileMap, ranges: &[Span]) -> Result<(), AnyError> {
        let mut requests = VecDeque::new();
        for range in ranges {
            for at in (0..range.length.0).step_by(REQUEST_BYTES as usize) {
                let length = Length(REQUEST_BYTES.min(range.length.0 - at));
                requests.push_back(Span::new(Offset(range.offset.0 + at), length));
            }
        }
        let requests = Mutex::new(requests);
        thread::scope(|scope| {
            let bring = |stream| bring(stream, map, &requests);
            let bringing: Vec<_> =
                self.streams.iter().map(|stream| scope.spawn(move || bring(stream))).collect();
            bringing.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread failed")?)
        })
    }

    /// One request, by one connection and this thread.
    pub fn fetch_one(&self, map: &FileMap, range: Span) -> Result<(), AnyError> {
        let stream = self.streams.first().ok_or("no connection")?;
        ask(stream, range)?;
        receive(stream, map, range)
    }
}

fn bring(
    stream: &TcpStream,
    map: &FileMap,
    requests: &Mutex<VecDeque<Span>>,
) -> Result<(), AnyError> {
    let mut sent = VecDeque::new();
    loop {
        while sent.len() < AHEAD {
            let next = requests.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(next) = next else { break };
            ask(stream, next)?;
            sent.push_back(next);
        }
        let Some(range) = sent.pop_front() else { return Ok(()) };
        receive(stream, map, range)?;
    }
}

fn ask(mut stream: &TcpStream, range: Span) -> Result<(), AnyError> {
    let request = [range.offset.0, range.length.0].map(u64::to_le_bytes);
    Ok(stream.write_all(request.as_flattened())?)
}

fn receive(stream: &TcpStream, map: &FileMap, range: Span) -> Result<(), AnyError> {
    let mut done = 0;
    while done < range.length.0 {
        let rest = Span::new(Offset(range.offset.0 + done), Length(range.length.0 - done));
        match map.receive(stream.as_fd(), rest)? {
            0 => return Err("closed".into()),
            count => done += count as u64,
        }
    }
    Ok(())
}
