//! The connections of a server: their limits, their members, and the wait for their end.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::ConnectionError;
use crate::frame::{ConnectionClass, Op};
use crate::records::FrameWriter;
use crate::socket::Socket;
use crate::source::MemberLife;

/// Threads of connections did not end in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{running} connections still run after {} ms", waited.as_millis())]
pub struct StillRunning {
    /// Number of running threads.
    pub running: usize,
    /// The caller's time limit.
    pub waited: Duration,
}

/// Maximum number of recorded errors.
const VIOLATIONS_MAX: usize = 64;

/// Maximum connections that are not yet admitted.
const UNADMITTED_MAX: usize = 128;

/// Those of them from one address. Less than all, so that one stranger does not keep members away.
const UNADMITTED_PER_ADDRESS_MAX: usize = 32;

/// Time for the admission of a connection, in stall limits.
const STALLS_PER_ADMISSION: u32 = 2;

/// A writer that the thread of a connection shares with notices.
pub(super) type SharedWriter = Arc<Mutex<FrameWriter>>;

struct ServedConnection {
    socket: Arc<Socket>,
    address: IpAddr,
    since: Instant,
    member: Option<MemberLife>,
    /// Writer for notices, which only small connections have.
    notices: Option<SharedWriter>,
}

impl ServedConnection {
    fn is_overdue(&self) -> bool {
        self.since.elapsed() > self.socket.stall() * STALLS_PER_ADMISSION
    }
}

#[derive(Default)]
struct RegistryState {
    connections: HashMap<u64, ServedConnection>,
    next: u64,
    is_closed: bool,
    violations: VecDeque<String>,
}

/// All connections of a server.
pub(super) struct Registry {
    state: Arc<(Mutex<RegistryState>, Condvar)>,
    connections_max: usize,
    per_member_max: usize,
}

/// A registered connection; dropping the entry at the end of the thread removes it.
pub(super) struct RegistryEntry {
    state: Arc<(Mutex<RegistryState>, Condvar)>,
    number: u64,
}

fn lock(state: &(Mutex<RegistryState>, Condvar)) -> MutexGuard<'_, RegistryState> {
    state.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for RegistryEntry {
    fn drop(&mut self) {
        lock(&self.state).connections.remove(&self.number);
        self.state.1.notify_all();
    }
}

impl Registry {
    pub(super) fn new(connections_max: usize, per_member_max: usize) -> Self {
        Self { state: Arc::default(), connections_max, per_member_max }
    }

    /// Registers a connection whose member is not yet known. Ends those of which it is not known for
    /// too long: a stranger that sends a byte now and then would keep its place.
    pub(super) fn enter(
        &self,
        socket: &Arc<Socket>,
        address: IpAddr,
    ) -> Result<RegistryEntry, ConnectionError> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(ConnectionError::Cut("the server stops".into()));
        }
        let unadmitted = state.connections.values().filter(|one| one.member.is_none());
        let (overdue, unadmitted): (Vec<_>, Vec<_>) = unadmitted.partition(|one| one.is_overdue());
        overdue.iter().for_each(|one| one.socket.cut("not admitted in time"));
        let of_address = unadmitted.iter().filter(|one| one.address == address).count();
        for (count, max) in [
            (state.connections.len(), self.connections_max),
            (unadmitted.len(), UNADMITTED_MAX),
            (of_address, UNADMITTED_PER_ADDRESS_MAX),
        ] {
            if count >= max {
                return Err(ConnectionError::Cut(format!("{count} connections, at most {max}")));
            }
        }
        state.next += 1;
        let number = state.next;
        let (socket, since) = (Arc::clone(socket), Instant::now());
        let connection = ServedConnection { socket, address, since, member: None, notices: None };
        state.connections.insert(number, connection);
        Ok(RegistryEntry { state: Arc::clone(&self.state), number })
    }

    /// Assigns a connection to the member that `redeem` returns. `redeem` runs under the lock, so a
    /// disconnected member either has its ticket revoked or its connection cut.
    pub(super) fn admit(
        &self,
        entry: &RegistryEntry,
        class: ConnectionClass,
        writer: &SharedWriter,
        redeem: impl FnOnce() -> Result<MemberLife, ConnectionError>,
    ) -> Result<MemberLife, ConnectionError> {
        let mut state = lock(&self.state);
        let member = redeem()?;
        let of_member = |one: &&ServedConnection| one.member.as_ref() == Some(&member);
        let count = state.connections.values().filter(of_member).count();
        if count >= self.per_member_max {
            let max = self.per_member_max;
            let text = format!("{count} connections of {member}, at most {max}");
            return Err(ConnectionError::NotAdmitted(text));
        }
        if let Some(connection) = state.connections.get_mut(&entry.number) {
            connection.member = Some(member.clone());
            connection.notices = (class == ConnectionClass::Small).then(|| Arc::clone(writer));
        }
        Ok(member)
    }

    /// Ends older small connections of a member, so that their requests are complete before those
    /// of the new one.
    pub(super) fn replace_small(
        &self,
        entry: &RegistryEntry,
        member: &MemberLife,
        class: ConnectionClass,
        time: Duration,
    ) -> Result<(), ConnectionError> {
        if class != ConnectionClass::Small {
            return Ok(());
        }
        let is_older = |number: u64, one: &ServedConnection| {
            number < entry.number && one.notices.is_some() && one.member.as_ref() == Some(member)
        };
        let ended = self.cut_where(is_older, "replaced by a newer connection", time);
        ended.map_err(|error| ConnectionError::NotAdmitted(error.to_string()))
    }

    pub(super) fn send_invalidation(&self, member: &MemberLife, object: u64) -> bool {
        let (number, writers) = {
            let mut state = lock(&self.state);
            state.next += 1;
            let number = state.next;
            let of_member = |one: &&ServedConnection| one.member.as_ref() == Some(member);
            let all = state.connections.values().filter(of_member);
            let writers: Vec<_> = all
                .filter_map(|one| Some((one.notices.clone()?, Arc::clone(&one.socket))))
                .collect();
            (number, writers)
        };
        writers.into_iter().any(|(writer, socket)| {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            let sent = writer.write_bytes(Op::Invalidate, number, object, &[]);
            if let Err(error) = &sent {
                socket.cut(format!("a notice was not sent: {error}"));
            }
            sent.is_ok()
        })
    }

    /// Cuts the connections of a member, or all if `None`, and waits until their threads have
    /// ended.
    pub(super) fn cut(
        &self,
        member: Option<&MemberLife>,
        reason: &str,
        time: Duration,
    ) -> Result<(), StillRunning> {
        let is_meant =
            |_: u64, one: &ServedConnection| member.is_none() || one.member.as_ref() == member;
        self.cut_where(is_meant, reason, time)
    }

    /// Cuts the connections of a member, without waiting.
    pub(super) fn disconnect(&self, member: &MemberLife, reason: &str) {
        let state = lock(&self.state);
        let of_member =
            state.connections.values().filter(|one| one.member.as_ref() == Some(member));
        of_member.for_each(|one| one.socket.cut(reason));
    }

    fn cut_where(
        &self,
        is_meant: impl Fn(u64, &ServedConnection) -> bool,
        reason: &str,
        time: Duration,
    ) -> Result<(), StillRunning> {
        let begin = Instant::now();
        let mut state = lock(&self.state);
        let meant = state.connections.iter().filter(|(number, one)| is_meant(**number, one));
        meant.for_each(|(_, one)| one.socket.cut(reason));
        loop {
            let all = state.connections.iter();
            let running = all.filter(|(number, one)| is_meant(**number, one)).count();
            if running == 0 {
                return Ok(());
            }
            let left = time.checked_sub(begin.elapsed()).filter(|left| !left.is_zero());
            let left = left.ok_or(StillRunning { running, waited: time })?;
            let waited = self.state.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).is_closed
    }

    pub(super) fn admitted(&self) -> usize {
        lock(&self.state).connections.values().filter(|one| one.member.is_some()).count()
    }

    pub(super) fn record(&self, error: &ConnectionError) {
        let mut state = lock(&self.state);
        if state.violations.len() >= VIOLATIONS_MAX {
            state.violations.pop_front();
        }
        state.violations.push_back(error.to_string());
    }

    pub(super) fn violations(&self) -> Vec<String> {
        lock(&self.state).violations.iter().cloned().collect()
    }
}
