//! The process that holds the segments: serves rows, on loopback only, without TLS.

use crate::wire::pb::rows_server::{Rows, RowsServer};
use crate::wire::{ANSWER_BYTES, MESSAGE_BYTES_MAX, RowKey, pb};
use arrow_buffer::ScalarBuffer;
use bytes::{BufMut, Bytes, BytesMut};
use farrow_graph::{Segment, SegmentBuffers, SegmentInfo};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status};
use tower_service::Service;

/// Buffers of a segment that rows need: the index, offsets and entries of three lists, times.
pub(crate) const BUFFERS: usize = 8;
/// Rows of one call: those of a prefetch, and a reserve.
const ROWS_MAX: usize = 1 << 16;
/// Segments that a server takes: more than years of days.
const SEGMENTS_MAX: usize = 1 << 12;
/// Flow-control window of a call and of the connection: no wait for a window on loopback.
pub(crate) const WINDOW_BYTES: u32 = 8 << 20;

#[derive(Debug, Default)]
struct Store {
    coming: HashMap<u32, [Vec<u8>; BUFFERS]>,
    segments: HashMap<u32, Arc<Segment>>,
}

#[derive(Clone, Debug, Default)]
struct RowServer {
    store: Arc<Mutex<Store>>,
}

fn values<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|one| read(*one)).collect()
}

fn built(about: &pb::About, parts: [Vec<u8>; BUFFERS]) -> Result<Segment, Status> {
    let wide = |bytes: &[u8]| ScalarBuffer::from(values(bytes, u64::from_le_bytes));
    let starts = |bytes: &[u8]| ScalarBuffer::from(values(bytes, i32::from_le_bytes));
    let [index, s0, s1, s2, e0, e1, e2, times] = parts;
    let buffers = SegmentBuffers {
        index: wide(&index),
        // Readers ask for rows by small number.
        accounts: Vec::new().into(),
        starts: [starts(&s0), starts(&s1), starts(&s2)],
        entries: [wide(&e0), wide(&e1), wide(&e2)],
        times: wide(&times),
        ids: Vec::new().into(),
        values: Vec::new(),
    };
    let &pb::About { first, numbers, base, span, edges, loops, accounts, .. } = about;
    let about = SegmentInfo { first, numbers, base, span, edges, loops, accounts };
    Segment::new(about, buffers).map_err(|error| Status::invalid_argument(error.to_string()))
}

#[tonic::async_trait]
impl Rows for RowServer {
    async fn append(&self, request: Request<pb::Piece>) -> Result<Response<pb::Done>, Status> {
        let pb::Piece { segment, buffer, bytes } = request.into_inner();
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if store.coming.len() + store.segments.len() > SEGMENTS_MAX {
            return Err(Status::resource_exhausted(format!("more than {SEGMENTS_MAX} segments")));
        }
        match store.coming.entry(segment).or_default().get_mut(buffer as usize) {
            Some(to) => to.extend_from_slice(&bytes),
            None => return Err(Status::invalid_argument(format!("a buffer {buffer}"))),
        }
        Ok(Response::new(pb::Done {}))
    }

    async fn seal(&self, request: Request<pb::About>) -> Result<Response<pb::Done>, Status> {
        let about = request.into_inner();
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = store.coming.remove(&about.segment).unwrap_or_default();
        let segment = built(&about, parts)?;
        store.segments.insert(about.segment, Arc::new(segment));
        Ok(Response::new(pb::Done {}))
    }

    async fn fetch(&self, request: Request<pb::Wanted>) -> Result<Response<pb::Fetched>, Status> {
        let wanted = request.into_inner().rows;
        if wanted.len() > ROWS_MAX {
            return Err(Status::out_of_range(format!("{} rows; {ROWS_MAX} go", wanted.len())));
        }
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lengths = Vec::with_capacity(wanted.len());
        let mut entries = BytesMut::new();
        for bits in wanted {
            let parts = RowKey::from(bits).parts();
            let (segment, account, list) =
                parts.ok_or_else(|| Status::invalid_argument(format!("a row {bits:#x}")))?;
            let Some(held) = store.segments.get(&segment) else {
                return Err(Status::not_found(format!("there is no segment {segment}")));
            };
            let row = &*held.row(account, list);
            if !lengths.is_empty() && entries.len() + size_of_val(row) > ANSWER_BYTES {
                break;
            }
            lengths.push(row.len() as u32);
            entries.reserve(size_of_val(row));
            row.iter().for_each(|&entry| entries.put_u64_le(entry));
        }
        Ok(Response::new(pb::Fetched { lengths, entries: Bytes::from(entries) }))
    }
}

/// Serves all connections, until it is dropped.
///
/// # Errors
/// Accepting a connection failed.
pub async fn serve(listener: TcpListener) -> std::io::Result<()> {
    let service = RowsServer::new(RowServer::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = service.clone();
        tokio::spawn(async move {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new())
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES);
            let answer = hyper::service::service_fn(move |request| service.clone().call(request));
            // The client notices an error by the end of the connection.
            let _ = http.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}
