//! Establishes connections, with pauses after failures, and ends all of them together.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use farrow_memory::Length;

use super::shared::PeerShared;
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{CAN_PACK, ConnectionClass, Op, PeerHello, VERSION};
use crate::records::{FrameReader, FrameWriter, RecordStream};
use crate::socket::Socket;
use crate::ticket::Ticket;

/// First pause after a failure; each further pause is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Maximum pause: a recovered peer is detected within a lease.
const PAUSE_MAX: Duration = Duration::from_millis(640);

/// A connection that the peer has welcomed.
pub(super) struct PeerConnection {
    pub(super) socket: Arc<Socket>,
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    /// The peer answers reads of packed pieces.
    pub(super) can_pack: bool,
}

#[derive(Default)]
struct ConnectorState {
    lost: Option<String>,
    pause: Duration,
    /// Earliest time of the next attempt.
    next: Option<Instant>,
    sockets: Vec<Weak<Socket>>,
    /// Index of the address that worked last.
    at: usize,
}

/// Establishes and tracks the connections to a peer.
#[derive(Default)]
pub(super) struct Dialer {
    state: Mutex<ConnectorState>,
    lost: Condvar,
}

impl Dialer {
    fn lock(&self) -> MutexGuard<'_, ConnectorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts every connection, and prevents new ones.
    pub(super) fn lose(&self, reason: &str) {
        let mut state = self.lock();
        state.lost.get_or_insert_with(|| reason.to_owned());
        for socket in state.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            socket.cut(reason);
        }
        self.lost.notify_all();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    pub(super) fn lost_error(&self, peer: &str) -> NetError {
        let reason = self.lock().lost.clone().unwrap_or_default();
        NetError::Lost { peer: peer.to_owned(), reason }
    }

    /// The reason of the loss if the peer is lost, else `error`.
    pub(super) fn error(&self, shared: &PeerShared, error: ConnectionError) -> NetError {
        if self.is_lost() { self.lost_error(&shared.options.name) } else { shared.failed(error) }
    }

    /// Waits for the end of the pause.
    fn pause(&self) -> Result<(), ConnectionError> {
        let mut state = self.lock();
        loop {
            if let Some(reason) = &state.lost {
                return Err(ConnectionError::Cut(reason.clone()));
            }
            let left = state.next.and_then(|next| next.checked_duration_since(Instant::now()));
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return Ok(());
            };
            let waited = self.lost.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn register(&self, socket: &Arc<Socket>) -> Result<(), ConnectionError> {
        let mut state = self.lock();
        if let Some(reason) = &state.lost {
            return Err(ConnectionError::Cut(reason.clone()));
        }
        state.sockets.retain(|socket| socket.strong_count() > 0);
        state.sockets.push(Arc::downgrade(socket));
        Ok(())
    }

    fn on_outcome(&self, is_connected: bool) {
        let mut state = self.lock();
        if is_connected {
            (state.pause, state.next) = (Duration::ZERO, None);
        } else {
            state.pause = (state.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            state.next = Instant::now().checked_add(state.pause);
        }
    }
}

/// Connects, after any pending pause.
pub(super) fn dial(
    shared: &PeerShared,
    class: ConnectionClass,
) -> Result<PeerConnection, ConnectionError> {
    shared.dialer.pause()?;
    let connection = attempt(shared, class);
    shared.dialer.on_outcome(connection.is_ok());
    connection
}

/// Tries the addresses, first the one that worked last.
fn attempt(shared: &PeerShared, class: ConnectionClass) -> Result<PeerConnection, ConnectionError> {
    let addresses = &shared.options.addresses;
    let ticket = shared.control.ticket().map_err(ConnectionError::NotAdmitted)?;
    let first = shared.dialer.lock().at;
    let mut failed = None;
    for step in 0..addresses.len() {
        let at = (first + step) % addresses.len();
        let Some(address) = addresses.get(at) else { continue };
        match attempt_at(address, shared, class, ticket) {
            Ok(connection) => {
                shared.dialer.lock().at = at;
                return Ok(connection);
            }
            // The ticket is used up then, so what a later address says matters less.
            Err(error) => failed = failed.filter(is_answer).or(Some(error)),
        }
        if shared.dialer.is_lost() {
            break;
        }
    }
    Err(failed.unwrap_or_else(|| ConnectionError::Cut("the peer has no address".into())))
}

/// Whether a peer spoke, and did not let this node in.
fn is_answer(error: &ConnectionError) -> bool {
    matches!(error, ConnectionError::NotAdmitted(_) | ConnectionError::Frame(_))
}

fn attempt_at(
    address: &SocketAddr,
    shared: &PeerShared,
    class: ConnectionClass,
    ticket: Ticket,
) -> Result<PeerConnection, ConnectionError> {
    let options = &shared.options;
    let stream = TcpStream::connect_timeout(address, options.connect)?;
    let socket = Socket::new(stream, &options.socket)?;
    shared.dialer.register(&socket)?;
    let RecordStream { mut reader, mut writer, .. } =
        RecordStream::connect(&socket, &shared.credentials, &options.name)?;
    let begin = Instant::now();
    let hello = PeerHello { ticket, class }.encode();
    writer.write_bytes(Op::Hello, 0, VERSION, &hello)?;
    let header = reader.header(options.socket.stall)?;
    let body = reader.body(&header)?;
    match header.op {
        Op::Welcome => {}
        Op::Error => {
            let text = String::from_utf8_lossy(&body).into_owned();
            return Err(ConnectionError::NotAdmitted(text));
        }
        op => {
            let place = "where a welcome is due";
            return Err(FrameError::Unexpected { op, id: header.id, place }.into());
        }
    }
    if header.offset != VERSION {
        return Err(FrameError::Version { found: header.offset, expected: VERSION }.into());
    }
    let found = body.try_into().map_or(Length::ZERO, |word| Length(u64::from_le_bytes(word)));
    if found != options.section {
        return Err(FrameError::SectionLength { found, expected: options.section }.into());
    }
    shared.link().on_round_trip(begin.elapsed());
    shared.on_progress();
    let can_pack = header.id & CAN_PACK != 0;
    Ok(PeerConnection { socket, reader, writer, can_pack })
}
