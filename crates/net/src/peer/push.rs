//! Pushes to a peer, in the threads of the callers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farrow_memory::{FileMap, Length, Offset, Span};

use super::connect::{PeerConnection, dial};
use super::shared::PeerShared;
use crate::error::{ConnectionError, FrameError, NetError};
use crate::frame::{
    ConnectionClass, ErrorCode, FrameHeader, Op, READ_BYTES_MAX, behind, encode_ranges, piece,
};
use crate::records::FrameBody;
use crate::source::GrantId;

/// Maximum requests sent before the first is acknowledged.
const AHEAD: usize = 4;

/// Maximum callers that wait for a connection.
const WAITERS_MAX: usize = 1024;

#[derive(Default)]
struct PushState {
    free: Vec<PeerConnection>,
    used: usize,
    waiters: usize,
}

/// The connections for pushes.
pub(super) struct PushPool {
    peer: Arc<PeerShared>,
    state: Mutex<PushState>,
    changed: Condvar,
    connections_max: usize,
}

/// The right to use one connection of a pool.
struct PoolPermit<'a>(&'a PushPool);

impl Drop for PoolPermit<'_> {
    fn drop(&mut self) {
        self.0.lock().used -= 1;
        self.0.changed.notify_one();
    }
}

impl PushPool {
    pub(super) fn new(peer: Arc<PeerShared>) -> Self {
        let connections_max = peer.options.push_connections.max(1);
        Self { peer, state: Mutex::default(), changed: Condvar::new(), connections_max }
    }

    fn lock(&self) -> MutexGuard<'_, PushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(
        &self,
        begin: Instant,
        time: Duration,
        requested: Length,
    ) -> Result<PoolPermit<'_>, NetError> {
        let peer = || self.peer.options.name.clone();
        let mut state = self.lock();
        if state.waiters >= WAITERS_MAX {
            let waiting = state.waiters;
            return Err(NetError::Busy { peer: peer(), waiting, max: WAITERS_MAX });
        }
        state.waiters += 1;
        while state.used >= self.connections_max {
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                state.waiters -= 1;
                let done = Length::ZERO;
                return Err(NetError::Deadline { peer: peer(), done, requested, waited: time });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.waiters -= 1;
        state.used += 1;
        Ok(PoolPermit(self))
    }
}

enum PushFailure {
    Connection(ConnectionError),
    Final(NetError),
}

impl From<ConnectionError> for PushFailure {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

pub(super) fn push(
    pool: &PushPool,
    grant: GrantId,
    map: &Arc<FileMap>,
    ranges: &[Span],
    time: Duration,
) -> Result<(), NetError> {
    let (begin, shared) = (Instant::now(), &*pool.peer);
    for range in ranges {
        map.check(*range).map_err(crate::error::CacheError::from)?;
    }
    let requested = Length(ranges.iter().map(|range| range.length.0).sum());
    let requests = divide(ranges);
    let place = pool.place(begin, time, requested)?;
    let pooled = pool.lock().free.pop();
    // The peer may have closed an idle connection, so its failure is retried once.
    let mut is_old = pooled.is_some();
    let mut connection = pooled;
    loop {
        let mut used = match connection.take() {
            Some(connection) => connection,
            None => {
                let dialed = dial(shared, ConnectionClass::Push);
                dialed.map_err(|error| shared.dialer.error(shared, error))?
            }
        };
        let mut push =
            Push { shared, grant, map, connection: &mut used, begin, time, done: 0, requested };
        match push.run(&requests) {
            Ok(()) => {
                pool.lock().free.push(used);
                drop(place);
                return Ok(());
            }
            Err(PushFailure::Final(error)) => {
                used.socket.cut(error.to_string());
                return Err(error);
            }
            Err(PushFailure::Connection(error))
                if is_old && is_end_of_idle(&error) && !shared.dialer.is_lost() =>
            {
                tracing::debug!(peer = %shared.options.name, %error, "idle push connection ended");
                is_old = false;
            }
            Err(PushFailure::Connection(error)) => {
                used.socket.cut(error.to_string());
                return Err(shared.dialer.error(shared, error));
            }
        }
    }
}

/// Can a connection that lay idle fail like this although both sides are right? A peer that
/// vanished without a word is a stall.
fn is_end_of_idle(error: &ConnectionError) -> bool {
    use ConnectionError::{Closed, Io, Stalled};
    matches!(error, Io(_) | Closed | Stalled { .. })
}

/// Requests of some pieces each.
fn divide(ranges: &[Span]) -> Vec<Vec<Span>> {
    let mut requests: Vec<Vec<Span>> = Vec::new();
    let mut room = 0;
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        let mut at = 0;
        while at < range.length.0 {
            let is_full = requests.last().is_none_or(|last| last.len() >= crate::frame::RANGES_MAX);
            if is_full || room == 0 {
                requests.push(Vec::new());
                room = READ_BYTES_MAX;
            }
            let length = room.min(range.length.0 - at);
            if let Some(last) = requests.last_mut() {
                last.push(Span::new(Offset(range.offset.0 + at), Length(length)));
            }
            (at, room) = (at + length, room - length);
        }
    }
    requests
}

struct Push<'a> {
    shared: &'a PeerShared,
    grant: GrantId,
    map: &'a Arc<FileMap>,
    connection: &'a mut PeerConnection,
    begin: Instant,
    time: Duration,
    done: u64,
    requested: Length,
}

impl Push<'_> {
    fn run(&mut self, requests: &[Vec<Span>]) -> Result<(), PushFailure> {
        let mut sent = std::collections::VecDeque::new();
        for ranges in requests {
            let id = self.shared.number();
            self.send(id, ranges)?;
            sent.push_back((id, ranges));
            if sent.len() >= AHEAD
                && let Some((id, ranges)) = sent.pop_front()
            {
                self.acknowledged(id, ranges)?;
            }
        }
        for (id, ranges) in sent {
            self.acknowledged(id, ranges)?;
        }
        Ok(())
    }

    fn check_time(&self) -> Result<(), PushFailure> {
        if self.begin.elapsed() < self.time { Ok(()) } else { Err(self.deadline()) }
    }

    fn deadline(&self) -> PushFailure {
        PushFailure::Final(NetError::Deadline {
            peer: self.shared.options.name.clone(),
            done: Length(self.done),
            requested: self.requested,
            waited: self.time,
        })
    }

    fn send(&mut self, id: u64, ranges: &[Span]) -> Result<(), PushFailure> {
        let writer = &mut self.connection.writer;
        writer.write_bytes(Op::Push, id, self.grant.0, &encode_ranges(ranges))?;
        for range in ranges {
            let mut rest = Some(*range);
            while let Some(range) = rest {
                let piece = piece(range);
                let header = FrameHeader::new(Op::Data, id, piece.offset.0, piece.length.0);
                self.connection.writer.write(header, FrameBody::Map(self.map, piece))?;
                rest = behind(range, piece.length);
                self.check_time()?;
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, id: u64, ranges: &[Span]) -> Result<(), PushFailure> {
        self.check_time()?;
        let left = self.time.saturating_sub(self.begin.elapsed());
        let reader = &mut self.connection.reader;
        let stall = reader.stall();
        let header = match reader.header(left.min(stall)) {
            Err(ConnectionError::Stalled { .. }) if left < stall => return Err(self.deadline()),
            header => header?,
        };
        let body = reader.body(&header)?;
        match header.op {
            Op::Pushed if header.id == id && header.offset == self.grant.0 => {
                self.done += ranges.iter().map(|range| range.length.0).sum::<u64>();
                self.shared.on_progress();
                Ok(())
            }
            Op::Error if header.id == id => Err(PushFailure::Final(NetError::Refused {
                peer: self.shared.options.name.clone(),
                code: ErrorCode::from_word(header.offset),
                text: String::from_utf8_lossy(&body).into_owned(),
            })),
            op => {
                let place = "where an acknowledgement is due";
                let error = FrameError::Unexpected { op, id: header.id, place };
                Err(PushFailure::Connection(error.into()))
            }
        }
    }
}
