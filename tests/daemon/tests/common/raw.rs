//! A client without the library, which sends arbitrary messages.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use farrow_wire::{
    self as wire, Hello, PROTOCOL_VERSION, Reply, ReplyBody, Request, RequestBody, Welcome,
    WireError,
};

use super::{Daemon, PATIENCE, wait_for};

/// A socket on which a test sends arbitrary messages.
pub struct RawSocket {
    pub stream: UnixStream,
    input: Vec<u8>,
}

impl RawSocket {
    pub fn open(daemon: &Daemon) -> Self {
        Self::open_at(&daemon.socket)
    }

    pub fn open_at(socket: &Path) -> Self {
        let stream = wait_for("the socket", || UnixStream::connect(socket).ok()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, input: Vec::new() }
    }

    pub fn joined(daemon: &Daemon) -> (Self, Welcome) {
        Self::joined_at(&daemon.socket)
    }

    pub fn joined_at(socket: &Path) -> (Self, Welcome) {
        let mut raw = Self::open_at(socket);
        match raw.ask(RequestBody::Hello(Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: String::new(),
            node: String::new(),
            maps_memory: true,
        })) {
            Ok(ReplyBody::Welcome(welcome)) => (raw, welcome),
            other => panic!("{other:?}"),
        }
    }

    pub fn ask(&mut self, body: RequestBody) -> Result<ReplyBody, WireError> {
        let mut frame = Vec::new();
        wire::encode(&Request { seq: 1, body }, &mut frame).unwrap();
        self.stream.write_all(&frame).unwrap();
        self.reply().expect("an answer").body
    }

    /// The next reply, or `None` when the daemon has closed the connection.
    pub fn reply(&mut self) -> Option<Reply> {
        loop {
            if let Some((reply, used)) = wire::decode::<Reply>(&self.input).unwrap() {
                self.input.drain(..used);
                return Some(reply);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
