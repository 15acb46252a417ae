//! The plain record layer: frames without encryption.

use std::sync::Arc;
use std::time::Duration;

use farrow_memory::{FileMap, Span};

use super::{FrameBody, RecordReceiver, RecordSender};
use crate::error::ConnectionError;
use crate::socket::{Pipe, Socket};

pub(super) struct PlainReader {
    socket: Arc<Socket>,
    /// Created for the first piece whose pages do not exist.
    pipe: Option<Pipe>,
}

pub(super) struct PlainWriter(Arc<Socket>);

pub(super) fn halves(socket: &Arc<Socket>) -> (PlainReader, PlainWriter) {
    let reader = PlainReader { socket: Arc::clone(socket), pipe: None };
    (reader, PlainWriter(Arc::clone(socket)))
}

impl RecordReceiver for PlainReader {
    fn read(&mut self, into: &mut [u8], patience: Duration) -> Result<usize, ConnectionError> {
        self.socket.read(into, patience)
    }

    fn read_into(&mut self, map: &FileMap, span: Span) -> Result<usize, ConnectionError> {
        if !map.is_for_pipe(span) {
            return self.socket.receive(map, span);
        }
        let pipe = match self.pipe.take() {
            Some(pipe) => pipe,
            None => Pipe::new()?,
        };
        let received = self.socket.receive_by_pipe(&pipe, map, span);
        // After a failure the pipe may hold bytes, so it is dropped.
        self.pipe = received.is_ok().then_some(pipe);
        received
    }
}

impl RecordSender for PlainWriter {
    fn write(&mut self, head: &[u8], body: FrameBody<'_>) -> Result<(), ConnectionError> {
        match body {
            FrameBody::Bytes([]) => self.0.write_all(head),
            // One call, so that a small frame is one packet.
            FrameBody::Bytes(bytes) => self.0.write_all(&[head, bytes].concat()),
            FrameBody::Map(map, span) => self.0.send_all(head, map, span),
        }
    }
}
