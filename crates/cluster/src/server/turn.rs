//! One turn of the event loop: what is readable, and the part of the turn that each source gets.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use farrow_store::ClientSlot;
use rustix::event::epoll;

use super::Server;
use super::tokens::{
    LISTENER, NET, ORPHANS, REMOTE_SESSIONS, SCRAPE_LISTENER, SCRAPERS, SESSIONS, SPILL, WAKE,
    WATCHED,
};
use crate::protocol::{Action, SessionId};

/// Requests of all clients together that one turn serves: half a millisecond of short ones. Each
/// connection with requests has at least one served.
const REQUESTS_PER_TURN: usize = 128;

/// Requests of one client that one turn serves.
pub(super) const REQUESTS_PER_CLIENT: usize = 32;

/// Bytes of short requests of all clients together that one turn serves, and of long ones: they take
/// the event loop some milliseconds.
const BYTES_PER_TURN: usize = 256 << 10;

/// Bytes of a short request. Longer ones have many items, and come after the short ones.
const SHORT_BYTES_MAX: usize = 4 << 10;

/// Time after which a turn serves no further connection with short requests, or with long ones. Tests
/// count bytes only.
const SERVED_TIME_MAX: Duration =
    if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_millis(10) };

/// The sources that are readable in this turn.
#[derive(Debug, Default)]
struct Ready {
    sessions: BTreeSet<SessionId>,
    /// Clients are waiting to connect.
    has_newcomers: bool,
    /// Scrapers are waiting to connect.
    has_scrapers: bool,
    /// A scraper waits for metrics.
    are_metrics_wanted: bool,
    has_peers: bool,
    is_stop_requested: bool,
}

/// The connections that a turn serves first, since the last one ended before it came to them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FirstPending {
    short: Option<SessionId>,
    /// Of those whose next request is long.
    long: Option<SessionId>,
}

/// What a turn may still serve.
struct Budget {
    /// Requests of each connection.
    each: usize,
    /// Bytes of all of them.
    bytes: usize,
    until: Instant,
}

impl Budget {
    fn new(each: usize) -> Self {
        Self { each, bytes: BYTES_PER_TURN, until: Instant::now() + SERVED_TIME_MAX }
    }
}

impl Server {
    /// Collects the readable sources, then gives each its part of the turn. Other nodes are first,
    /// so that a flood of clients delays no heartbeat. Clients follow, then new connections. Returns
    /// whether the node is to stop.
    pub(super) fn turn(
        &mut self,
        events: &mut Vec<epoll::Event>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let mut ready = Ready { sessions: std::mem::take(&mut self.pending), ..Ready::default() };
        for event in events.drain(..) {
            self.sort(event, &mut ready);
        }
        self.count_faulted_bytes();
        let has_peer_work = ready.has_peers || self.has_net_events;
        if ready.has_peers {
            self.take_from_remote_sessions(&mut ready.sessions, actions);
        }
        if self.has_spilled {
            self.take_spilled(actions);
        }
        if self.has_net_events {
            self.take_net_events(actions);
        }
        if ready.are_metrics_wanted {
            self.state.count_for_scrapers(self.now_ms(), actions);
        }
        self.touched.extend(&ready.sessions);
        self.serve_all(ready.sessions, actions);
        let mut is_stopped = false;
        if !has_peer_work {
            // A client need not wait for the rest of the turn. News of other nodes are published to
            // clients there, before the replies that depend on them.
            self.publish_lease();
            is_stopped = self.perform(std::mem::take(actions));
        }
        if ready.has_newcomers {
            self.accept();
        }
        if ready.has_scrapers {
            let now_ms = self.now_ms();
            if let Some(scrapers) = &mut self.scrapers {
                scrapers.accept(self.poll.as_fd(), now_ms);
            }
        }
        ready.is_stop_requested || is_stopped
    }

    /// Serves requests of these connections, as many as a turn has time for. Connections whose next
    /// request is long come after the others. The rest is served in the next turns, first what was
    /// left out first.
    fn serve_all(&mut self, sessions: BTreeSet<SessionId>, actions: &mut Vec<Action>) {
        let each = REQUESTS_PER_TURN / sessions.len().max(1);
        let each = each.clamp(1, REQUESTS_PER_CLIENT);
        let (long, short): (BTreeSet<_>, BTreeSet<_>) = sessions
            .into_iter()
            .partition(|session| self.next_request_bytes(*session) > SHORT_BYTES_MAX);
        let FirstPending { short: first_short, long: first_long } = self.first_pending;
        let first_short = self.serve_from(first_short, &short, Budget::new(each), actions);
        let first_long = self.serve_from(first_long, &long, Budget::new(each), actions);
        self.first_pending = FirstPending { short: first_short, long: first_long };
    }

    /// Serves connections in order, beginning with `first`, one of them at least, until the budget is
    /// used. Returns the first one that is left for the next turn.
    fn serve_from(
        &mut self,
        first: Option<SessionId>,
        sessions: &BTreeSet<SessionId>,
        mut budget: Budget,
        actions: &mut Vec<Action>,
    ) -> Option<SessionId> {
        let first = first.unwrap_or(SessionId(0));
        let mut left = None;
        for session in sessions.range(first..).chain(sessions.range(..first)) {
            if budget.bytes == 0 {
                left = left.or(Some(*session));
                self.pending.insert(*session);
            } else {
                let served = self.serve(*session, budget.each, actions);
                let is_left = Instant::now() < budget.until;
                budget.bytes = if is_left { budget.bytes.saturating_sub(served) } else { 0 };
            }
        }
        left
    }

    fn sort(&mut self, event: epoll::Event, ready: &mut Ready) {
        match event.data.u64() {
            LISTENER => ready.has_newcomers = true,
            WAKE => {
                let mut bytes = [0; 64];
                ready.is_stop_requested |= self.wake.read(&mut bytes).is_ok();
            }
            SCRAPE_LISTENER => ready.has_scrapers = true,
            SPILL => self.has_spilled = true,
            REMOTE_SESSIONS => ready.has_peers = true,
            NET => self.has_net_events = true,
            token if token & ORPHANS != 0 => {
                let slot = ClientSlot((token & !ORPHANS) as u32);
                let watched = self.orphans.remove(&slot).map(|(peer, _)| (slot, peer));
                // The watched client may have returned and given its slot up to another one.
                if self.state.orphans().any(|orphan| Some(orphan) == watched) {
                    self.state.orphan_died(slot, self.now_ms());
                }
            }
            token if token & SCRAPERS != 0 => ready.are_metrics_wanted |= self.scrape(token),
            token if token & WATCHED != 0 => self.watched_ended(token & !WATCHED),
            token => {
                let number = token - SESSIONS;
                let session = SessionId(number / 2);
                if number % 2 == 1 {
                    self.process_died(session);
                } else {
                    self.ready(session, event.flags, &mut ready.sessions);
                }
            }
        }
    }

    /// Handles a limited number of finished spill jobs in one turn.
    fn take_spilled(&mut self, actions: &mut Vec<Action>) {
        let now_ms = self.now_ms();
        let Some(spill) = &self.spill else {
            return;
        };
        let (done, has_more) = spill.finished();
        for done in done {
            self.state.spill_done(done, now_ms, actions);
        }
        self.has_spilled = has_more;
    }
}
