//! Bytes as they are.

use std::sync::Arc;
use std::time::Duration;

use farrow_memory::{FileMap, Span};

use super::{Body, RecordReader, RecordWriter};
use crate::error::ConnectionError;
use crate::socket::Socket;

pub(super) struct PlainReader(Arc<Socket>);

pub(super) struct PlainWriter(Arc<Socket>);

pub(super) fn halves(socket: &Arc<Socket>) -> (PlainReader, PlainWriter) {
    (PlainReader(Arc::clone(socket)), PlainWriter(Arc::clone(socket)))
}

impl RecordReader for PlainReader {
    fn read(&mut self, into: &mut [u8], patience: Duration) -> Result<usize, ConnectionError> {
        self.0.read(into, patience)
    }

    fn read_into(&mut self, map: &FileMap, span: Span) -> Result<usize, ConnectionError> {
        self.0.receive(map, span)
    }
}

impl RecordWriter for PlainWriter {
    fn write(&mut self, head: &[u8], body: Body<'_>) -> Result<(), ConnectionError> {
        match body {
            Body::Bytes([]) => self.0.write_all(head),
            // One call, and so one packet for a small frame.
            Body::Bytes(bytes) => self.0.write_all(&[head, bytes].concat()),
            Body::Map(map, span) => self.0.send_all(head, map, span),
        }
    }
}
