//! The client: calls with a deadline, on one connection.

use crate::server::{BUFFERS, WINDOW_BYTES};
use crate::wire::pb::rows_client::RowsClient;
use crate::wire::{MESSAGE_BYTES_MAX, RowKey, pb};
use bytes::Bytes;
use farrow_graph::Segment;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tower_service::Service;

/// Far beyond any call on loopback, short enough that a test of a lost server ends.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Bytes of a segment that one call transfers.
const PIECE_BYTES: usize = 1 << 20;
/// Concurrent calls: enough to keep both ends busy.
const IN_FLIGHT: usize = 8;

/// Why rows could not be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// No connection.
    #[error("no connection to {address}: {reason}")]
    Unreachable {
        /// The server's address.
        address: SocketAddr,
        /// The reason.
        reason: String,
    },
    /// A call had no answer in time.
    #[error("a call had no answer within {} ms", deadline.as_millis())]
    Late {
        /// The deadline.
        deadline: Duration,
    },
    /// A call was refused, or its connection ended.
    #[error("a call failed: {0}")]
    Refused(String),
    /// An answer that does not match its request.
    #[error("an answer to {requested} rows has {given} lengths and {bytes} bytes")]
    Nonsense {
        /// Requested rows.
        requested: usize,
        /// Lengths in the answer.
        given: usize,
        /// Bytes in the answer.
        bytes: usize,
    },
    /// A segment that cannot be transferred to a server.
    #[error("a segment {0} whose rows are not in this process")]
    NotHere(u32),
}

/// Traffic of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallCounters {
    /// Calls that fetched rows.
    pub calls: u64,
    /// Rows that they fetched.
    pub rows: u64,
    /// Bytes of entries that they fetched.
    pub bytes: u64,
}

/// A connection in tonic's interface.
#[derive(Clone, Debug)]
struct RowConnection(SendRequest<Body>);

impl Service<http::Request<Body>> for RowConnection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = std::pin::Pin<
        Box<dyn Future<Output = Result<http::Response<Incoming>, hyper::Error>> + Send>,
    >;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// Fetches rows from one server.
///
/// The calling thread drives the connection itself: no answer waits for another thread to wake.
/// Concurrent callers therefore wait for each other.
#[derive(Debug)]
pub struct RowClient {
    runtime: Mutex<Runtime>,
    rows: RowsClient<RowConnection>,
    deadline: Duration,
    counters: Mutex<CallCounters>,
}

async fn connect(address: SocketAddr) -> Result<RowConnection, String> {
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // Its errors appear in the calls on it.
    tokio::spawn(async move { drop(connection.await) });
    Ok(RowConnection(sender))
}

impl RowClient {
    /// Connects.
    ///
    /// # Errors
    /// [`NetworkError::Unreachable`].
    pub fn new(address: SocketAddr, deadline: Duration) -> Result<RowClient, NetworkError> {
        let unreachable = |reason: String| NetworkError::Unreachable { address, reason };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| unreachable(error.to_string()))?;
        let connected =
            runtime.block_on(async { tokio::time::timeout(deadline, connect(address)).await });
        let wire = connected.map_err(|_| NetworkError::Late { deadline })?.map_err(unreachable)?;
        // The name is not resolved: the connection is already open.
        let origin = http::Uri::from_static("http://rows.farrow.internal");
        let rows = RowsClient::with_origin(wire, origin)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        let (runtime, counters) = (Mutex::new(runtime), Mutex::default());
        Ok(RowClient { runtime, rows, deadline, counters })
    }

    fn wait<A>(
        &self,
        work: impl Future<Output = Result<A, NetworkError>>,
    ) -> Result<A, NetworkError> {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        runtime.block_on(work)
    }

    async fn within<A>(
        &self,
        call: impl Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    ) -> Result<A, NetworkError> {
        match tokio::time::timeout(self.deadline, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(NetworkError::Refused(status.to_string())),
            Err(_) => Err(NetworkError::Late { deadline: self.deadline }),
        }
    }

    /// Transfers a segment to the server, under a number.
    ///
    /// # Errors
    /// [`NetworkError::NotHere`] for a segment of another process; those of calls.
    pub fn bring(&self, number: u32, segment: &Segment) -> Result<(), NetworkError> {
        let buffers = segment.buffers().ok_or(NetworkError::NotHere(number))?;
        let [s0, s1, s2] = &buffers.starts;
        let [e0, e1, e2] = &buffers.entries;
        let parts: [&[u8]; BUFFERS] = [
            buffers.index.inner(),
            s0.inner(),
            s1.inner(),
            s2.inner(),
            e0.inner(),
            e1.inner(),
            e2.inner(),
            buffers.times.inner(),
        ]
        .map(|buffer| buffer.as_slice());
        self.wait(async {
            for (buffer, bytes) in (0..).zip(parts) {
                for piece in bytes.chunks(PIECE_BYTES) {
                    let bytes = Bytes::copy_from_slice(piece);
                    let piece = pb::Piece { segment: number, buffer, bytes };
                    self.within(self.rows.clone().append(piece)).await?;
                }
            }
            let about = segment.info();
            let about = pb::About {
                segment: number,
                first: about.first,
                numbers: about.numbers,
                base: about.base,
                span: about.span,
                edges: about.edges,
                loops: about.loops,
                accounts: about.accounts,
            };
            self.within(self.rows.clone().seal(about)).await.map(drop)
        })
    }

    /// Fetches rows, in concurrent calls of `call_rows` each; returns them in order.
    ///
    /// # Errors
    /// The error of the first failed call.
    pub fn fetch(
        &self,
        keys: &[RowKey],
        call_rows: usize,
    ) -> Result<Vec<Arc<[u64]>>, NetworkError> {
        let calls = keys.chunks(call_rows.max(1)).map(|part| self.fetch_part(part));
        self.wait(async {
            // Most misses are of one row, which needs no stream.
            if keys.len() <= call_rows {
                return self.fetch_part(keys).await;
            }
            let parts = stream::iter(calls).buffered(IN_FLIGHT);
            let parts: Vec<Vec<Arc<[u64]>>> = parts.try_collect().await?;
            Ok(parts.into_iter().flatten().collect())
        })
    }

    async fn fetch_part(&self, keys: &[RowKey]) -> Result<Vec<Arc<[u64]>>, NetworkError> {
        let mut rows = Vec::with_capacity(keys.len());
        while let Some(rest) = keys.get(rows.len()..).filter(|rest| !rest.is_empty()) {
            let wanted = pb::Wanted { rows: rest.iter().map(|key| key.bits()).collect() };
            let answer = self.within(self.rows.clone().fetch(wanted)).await?;
            let before = rows.len();
            split(&answer, rest.len(), &mut rows)?;
            let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
            counters.calls += 1;
            counters.rows += (rows.len() - before) as u64;
            counters.bytes += answer.entries.len() as u64;
        }
        Ok(rows)
    }

    /// The traffic so far.
    pub fn counters(&self) -> CallCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the counters.
    pub fn reset_counters(&self) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = CallCounters::default();
    }
}

/// The rows of an answer: at least one, at most as many as requested.
fn split(
    answer: &pb::Fetched,
    requested: usize,
    rows: &mut Vec<Arc<[u64]>>,
) -> Result<(), NetworkError> {
    let (given, bytes) = (answer.lengths.len(), answer.entries.len());
    let total: u64 = answer.lengths.iter().map(|&length| u64::from(length)).sum();
    if given == 0 || given > requested || total.checked_mul(8) != Some(bytes as u64) {
        return Err(NetworkError::Nonsense { requested, given, bytes });
    }
    let mut words = answer.entries.as_chunks::<8>().0;
    for &length in &answer.lengths {
        let (row, rest) = words.split_at(length as usize);
        rows.push(row.iter().map(|word| u64::from_le_bytes(*word)).collect());
        words = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{pb, split};
    use bytes::Bytes;

    #[test]
    fn answers_that_do_not_fit_are_errors() {
        let answer = |lengths: &[u32], bytes: usize| pb::Fetched {
            lengths: lengths.to_vec(),
            entries: Bytes::from(vec![1; bytes]),
        };
        let mut rows = Vec::new();
        split(&answer(&[1, 0, 2], 24), 4, &mut rows).unwrap();
        assert_eq!(rows.iter().map(|row| row.len()).collect::<Vec<_>>(), [1, 0, 2]);
        for (lengths, bytes) in [(&[][..], 0), (&[1, 1, 1], 24), (&[2, 1], 16), (&[1, 1], 17)] {
            let error = split(&answer(lengths, bytes), 2, &mut rows).unwrap_err().to_string();
            assert!(error.starts_with("an answer to 2 rows"), "{error}");
        }
    }
}
