//! Memory of the daemon that clients and other nodes occupy: incomplete requests, unread replies,
//! waiting requests and reserved names. One total, shared fairly.
//!
//! Each session may always hold `HELD_BYTES_FREE`. Below the total a session may hold more. At the
//! total each session is limited to its share: the total divided by the sessions above
//! `HELD_BYTES_FREE`. A session below its share then displaces the session that holds most above
//! it.

use std::collections::{BTreeMap, BTreeSet};

use farrow_wire::{QuotaExceeded, WireError};

use crate::protocol::identity::SessionId;

/// Bytes that a session may always hold: the buffer of one read, and short replies and waits. 1,024
/// clients then hold 16 MiB at most.
pub const HELD_BYTES_FREE: usize = 16 << 10;

/// The default total.
pub const BUFFERS_BYTES_DEFAULT: usize = 128 << 20;

/// The least total: four requests of the maximum length.
pub const BUFFERS_BYTES_MIN: u64 = 16 << 20;

/// Bytes that one session occupies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::protocol) struct SessionBuffers {
    /// Requests and replies on its connection: these can be dropped.
    pub(in crate::protocol) buffered: usize,
    /// Waiting requests and names: these stay until they are answered or given back.
    pub(in crate::protocol) waiting: usize,
}

impl SessionBuffers {
    pub(in crate::protocol) fn all(self) -> usize {
        self.buffered.saturating_add(self.waiting)
    }
}

/// Bytes of all sessions.
#[derive(Debug)]
pub(crate) struct Buffers {
    max: usize,
    /// Bytes of unprocessed messages of other nodes, and their limit.
    of_peers: (usize, usize),
    total: usize,
    waiting: usize,
    /// Sessions that hold any bytes.
    of: BTreeMap<SessionId, SessionBuffers>,
    /// Sessions above `HELD_BYTES_FREE`, ordered by the bytes that can be dropped.
    large: BTreeSet<(usize, SessionId)>,
}

impl Default for Buffers {
    fn default() -> Self {
        let (of, large) = (BTreeMap::new(), BTreeSet::new());
        Self { max: BUFFERS_BYTES_DEFAULT, of_peers: (0, 0), total: 0, waiting: 0, of, large }
    }
}

impl Buffers {
    /// Sets the memory that all clients and other nodes together may occupy.
    pub(crate) fn set_max(&mut self, bytes: u64) {
        self.max = usize::try_from(bytes.max(BUFFERS_BYTES_MIN)).unwrap_or(usize::MAX);
    }

    /// Notes the bytes of unprocessed messages of other nodes, and their limit.
    pub(crate) fn note_peers(&mut self, of_peers: (usize, usize)) {
        self.of_peers = of_peers;
    }

    /// Bytes held now, and their limit.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let (of_peers, of_peers_max) = self.of_peers;
        ((self.total + of_peers) as u64, (self.max + of_peers_max) as u64)
    }

    pub(in crate::protocol) fn held(&self, session: SessionId) -> SessionBuffers {
        self.of.get(&session).copied().unwrap_or_default()
    }

    pub(in crate::protocol) fn set(&mut self, session: SessionId, now: SessionBuffers) {
        let before = self.held(session);
        if before == now {
            return;
        }
        self.total = self.total.saturating_sub(before.all()).saturating_add(now.all());
        self.waiting = self.waiting.saturating_sub(before.waiting).saturating_add(now.waiting);
        self.large.remove(&(before.buffered, session));
        if now.all() > HELD_BYTES_FREE {
            self.large.insert((now.buffered, session));
        }
        match now.all() {
            0 => drop(self.of.remove(&session)),
            _ => drop(self.of.insert(session, now)),
        }
    }

    /// Forgets an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.set(session, SessionBuffers::default());
    }

    /// Share of each session above `HELD_BYTES_FREE` when all of them use theirs.
    fn share(&self) -> usize {
        (self.max / self.large.len().max(1)).max(HELD_BYTES_FREE)
    }

    /// Whether a session may buffer `more` bytes more.
    pub(crate) fn may_buffer(&self, session: SessionId, more: usize) -> bool {
        let all = self.held(session).all().saturating_add(more);
        let fits = self.total.saturating_add(more) <= self.max;
        all <= HELD_BYTES_FREE || fits || all <= self.share()
    }

    /// Whether `more` bytes more may wait. They cannot be displaced, so all of them take at most
    /// half of the total, and each session its share of that half.
    pub(in crate::protocol) fn may_wait(&self, session: SessionId, more: usize) -> bool {
        let waiting = self.held(session).waiting.saturating_add(more);
        let fits = self.waiting.saturating_add(more) <= self.max / 2;
        waiting <= HELD_BYTES_FREE || (fits && waiting <= (self.share() / 2).max(HELD_BYTES_FREE))
    }

    /// Bytes of unread replies above which a session is no longer served.
    pub(crate) fn replies_max(&self, max: usize) -> usize {
        let is_scarce = self.total > self.max / 2;
        if is_scarce { max.min(self.share() / 2) } else { max }
    }

    /// While the total is exceeded: the session to displace, and the error for it.
    pub(crate) fn to_displace(&self) -> Option<(SessionId, WireError)> {
        let session = self.over()?;
        Some((session, self.refused(session, 0)))
    }

    fn over(&self) -> Option<SessionId> {
        let (buffered, session) = self.large.last()?;
        (self.total > self.max && *buffered > HELD_BYTES_FREE).then_some(*session)
    }

    /// The error for a session that may not hold `more` bytes more.
    pub(crate) fn refused(&self, session: SessionId, more: usize) -> WireError {
        WireError::QuotaExceeded(QuotaExceeded {
            whose: format!("this client in the node's buffers of {} B", self.max),
            what: "bytes".to_owned(),
            requested: more as u64,
            used: self.held(session).all() as u64,
            limit: self.share() as u64,
            waiting: 0,
            waited_ms: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn buffers(max: usize) -> Buffers {
        Buffers { max, ..Buffers::default() }
    }

    fn buffered(buffered: usize) -> SessionBuffers {
        SessionBuffers { buffered, waiting: 0 }
    }

    #[test]
    fn one_alone_may_hold_all_and_makes_way_for_another() {
        let mut all = buffers(16 * MIB);
        let (greedy, modest) = (SessionId(1), SessionId(2));
        assert!(all.may_buffer(greedy, 16 * MIB) && !all.may_buffer(greedy, 17 * MIB));
        all.set(greedy, buffered(16 * MIB));
        assert_eq!(all.over(), None, "no more than may be");
        assert!(!all.may_buffer(greedy, 1));
        // While it is alone, its share is the total.
        assert!(all.may_buffer(modest, MIB));
        all.set(modest, buffered(MIB));
        assert_eq!(all.over(), Some(greedy));
        all.set(greedy, SessionBuffers::default());
        assert_eq!((all.over(), all.total), (None, MIB));
        all.set(modest, SessionBuffers::default());
        assert_eq!((all.total, all.of.len(), all.large.len()), (0, 0, 0));
    }

    #[test]
    fn six_hundred_get_a_share_each_and_never_more_than_the_total_is_left() {
        let mut all = buffers(64 * MIB);
        for round in 0..40 {
            for session in (0..600).map(SessionId) {
                let more = 64 << 10;
                if all.may_buffer(session, more) {
                    let now = all.held(session).buffered + more;
                    all.set(session, buffered(now));
                }
                while let Some(over) = all.over() {
                    assert_ne!(all.held(over).buffered, 0);
                    all.set(over, SessionBuffers::default());
                }
                assert!(all.total <= all.max, "round {round}: {}", all.total);
            }
        }
        // A session that requests little is served regardless of the others.
        assert!(all.may_buffer(SessionId(1000), HELD_BYTES_FREE));
        assert!(all.may_buffer(SessionId(1000), all.share()));
    }

    #[test]
    fn what_waits_takes_half_at_most_and_leaves_a_little_to_all() {
        let mut all = buffers(16 * MIB);
        let mut total = 0;
        for session in (0..100).map(SessionId) {
            let mut waiting = 0;
            while all.may_wait(session, 1024) {
                waiting += 1024;
                all.set(session, SessionBuffers { buffered: 0, waiting });
            }
            assert!(waiting >= HELD_BYTES_FREE);
            total += waiting;
        }
        assert!(total <= 8 * MIB + 100 * HELD_BYTES_FREE, "{total}");
        assert_eq!(all.over(), None, "nothing of it can be displaced");
    }
}
