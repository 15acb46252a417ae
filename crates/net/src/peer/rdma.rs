//! Reads of large objects by the network card, from the peer's memory to that of this node.
//!
//! The peer lets the card read the ranges of one fetch at a time. Whatever fails, the caller fetches
//! the same bytes over TCP; the next attempt is made after a pause.

use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use farrow_memory::Span;
use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_rdma::{ADDRESS_BYTES, Endpoint, EndpointAddress, RdmaError, RemoteRange};

use super::connect::{PeerConnection, dial};
use super::destination::{Destination, Piece};
use super::shared::PeerShared;
use crate::error::{ConnectionError, FrameError};
use crate::frame::{ConnectionClass, KEY_BYTES, Op, RANGES_MAX, encode_ranges};
use crate::source::HoldId;

/// Pause after a failure: a peer without RDMA, or a broken card, costs one connection in this time.
const PAUSE: Duration = Duration::from_secs(10);

/// Unused connections end after this time, before the peer ends them.
const IDLE: Duration = Duration::from_secs(60);

/// Why a fetch goes over TCP.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    #[error("the peer refuses: {0}")]
    Refused(String),
}

struct OneSidedConnection {
    control: PeerConnection,
    endpoint: Endpoint,
    used: Instant,
}

#[derive(Default)]
struct OneSidedState {
    connection: Option<OneSidedConnection>,
    failed: Option<Instant>,
    /// The last reason, which is logged once.
    reason: String,
}

/// The one-sided reads of a peer: one fetch at a time, others go over TCP.
pub(super) struct OneSidedReader {
    shared: Arc<PeerShared>,
    state: Mutex<OneSidedState>,
    is_used: AtomicBool,
}

impl OneSidedReader {
    pub(super) fn new(shared: Arc<PeerShared>) -> Self {
        Self { shared, state: Mutex::default(), is_used: AtomicBool::new(false) }
    }

    pub(super) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Fetches all bytes; false: some or none of them are in place, and no device writes any more.
    pub(super) fn fetch(&self, destination: &Destination, hold: HoldId) -> bool {
        let Some(device) = &self.shared.options.rdma else { return false };
        let Some((map, pieces)) = destination.placed() else { return false };
        if pieces.len() > RANGES_MAX {
            return false;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if state.failed.is_some_and(|failed| failed.elapsed() < PAUSE) {
            return false;
        }
        let connection = state.connection.take().filter(|one| one.used.elapsed() < IDLE);
        let connected = connection.map_or_else(|| self.connect(device), Ok);
        let outcome = connected.and_then(|mut connection| {
            let keys = connection.expose(hold, pieces)?;
            let ranges = pieces.iter().zip(keys);
            let ranges: Vec<RemoteRange> = ranges
                .map(|(piece, key)| RemoteRange { from: piece.from, key, to: piece.to })
                .collect();
            let stall = self.shared.options.socket.stall;
            let socket = Arc::clone(&connection.control.socket);
            connection.endpoint.read(map, &ranges, stall, &|| socket.is_cut())?;
            connection.conceal()?;
            Ok(connection)
        });
        let peer = &self.shared.options.name;
        match outcome {
            Ok(connection) => {
                self.shared.on_progress();
                if !self.is_used.swap(true, Ordering::Relaxed) {
                    tracing::info!(peer, device, "objects are read by RDMA");
                }
                *state = OneSidedState { connection: Some(connection), ..Default::default() };
                true
            }
            Err(error) => {
                self.is_used.store(false, Ordering::Relaxed);
                let reason = error.to_string();
                if reason == state.reason {
                    tracing::debug!(peer, device, reason, "no RDMA, so TCP");
                } else {
                    tracing::warn!(peer, device, reason, "no RDMA, so TCP");
                }
                (state.failed, state.reason) = (Some(Instant::now()), reason);
                false
            }
        }
    }

    fn connect(&self, device: &str) -> Result<OneSidedConnection, Failure> {
        let mut endpoint = Endpoint::open(device)?;
        let mut control = dial(&self.shared, ConnectionClass::Rdma)?;
        let own = endpoint.address().encode();
        let body = request(&mut control, (Op::Meet, Op::Met), 0, &own)?;
        let peer = <&[u8; ADDRESS_BYTES]>::try_from(&*body).map(EndpointAddress::decode);
        let peer = peer.map_err(|_| Failure::Refused("an address of another length".into()))?;
        endpoint.connect(&peer)?;
        Ok(OneSidedConnection { control, endpoint, used: Instant::now() })
    }
}

impl OneSidedConnection {
    /// The key of each piece.
    fn expose(&mut self, hold: HoldId, pieces: &[Piece]) -> Result<Vec<u32>, Failure> {
        let ranges: Vec<Span> = pieces.iter().map(|piece| piece.from).collect();
        let ops = (Op::Expose, Op::Exposed);
        let body = request(&mut self.control, ops, hold.0, &encode_ranges(&ranges))?;
        let (keys, rest) = body.as_chunks::<KEY_BYTES>();
        if keys.len() != pieces.len() || !rest.is_empty() {
            let text = format!("{} B of keys for {} ranges", body.len(), pieces.len());
            return Err(Failure::Refused(text));
        }
        Ok(keys.iter().map(|key| u32::from_le_bytes(*key)).collect())
    }

    fn conceal(&mut self) -> Result<(), Failure> {
        self.used = Instant::now();
        Ok(self.control.writer.write_bytes(Op::Conceal, 0, 0, &[])?)
    }
}

/// Sends a request and receives its answer.
fn request(
    control: &mut PeerConnection,
    (request, response): (Op, Op),
    offset: u64,
    body: &[u8],
) -> Result<Vec<u8>, Failure> {
    control.writer.write_bytes(request, 0, offset, body)?;
    let stall = control.reader.stall();
    let header = control.reader.header(stall)?;
    let body = control.reader.body(&header)?;
    match header.op {
        op if op == response && header.offset == offset => Ok(body),
        Op::Error => Err(Failure::Refused(String::from_utf8_lossy(&body).into_owned())),
        op => {
            let place = "where the answer for network cards is due";
            Err(ConnectionError::from(FrameError::Unexpected { op, id: header.id, place }).into())
        }
    }
}
