//! Requests of clients and scrapers.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Instant;

use farrow_wire::{NodeStats, Request};
use rustix::event::epoll::{self, EventFlags};

use super::Server;
use super::audit::Audit;
use super::connection::ReadOutcome;
use super::output::flush;
use crate::line_queue::wall_clock_ns;
use crate::metrics;
use crate::metrics::text::Measured;
use crate::peers::NodeCredentials;
use crate::protocol::{Action, SessionId};

impl Server {
    pub(super) fn ready(
        &mut self,
        session: SessionId,
        flags: EventFlags,
        ready: &mut BTreeSet<SessionId>,
    ) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        if flags.intersects(EventFlags::OUT) && flush(connection, &self.fabric).is_err() {
            self.drop_connection(session);
            return;
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            let is_over = flags.intersects(EventFlags::HUP | EventFlags::ERR);
            if !self.has_room_to_read(session) {
                match is_over {
                    true => self.drop_connection(session),
                    false => drop(ready.insert(session)),
                }
                return;
            }
            let Some(connection) = self.connections.get_mut(&session) else {
                return;
            };
            match connection.fill() {
                Ok(ReadOutcome::Open) => {}
                Ok(ReadOutcome::Ended) | Err(_) => {
                    self.drop_connection(session);
                    return;
                }
            }
        }
        ready.insert(session);
    }

    /// Bytes of the next request of a client, as it announced them; 0: there is none.
    pub(super) fn next_request_bytes(&self, session: SessionId) -> usize {
        let of_remote_client = || {
            let all = &self.remote_sessions.as_ref()?.remote_clients;
            all.get(&session)?.announced_bytes()
        };
        match self.connections.get(&session) {
            Some(connection) => connection.next_request_bytes(),
            None => of_remote_client().unwrap_or(0),
        }
    }

    /// Serves the requests of a client, at most `requests_max`. Returns their bytes.
    pub(super) fn serve(
        &mut self,
        session: SessionId,
        requests_max: usize,
        actions: &mut Vec<Action>,
    ) -> usize {
        let Some(connection) = self.connections.get_mut(&session) else {
            return self.serve_remote_client(session, requests_max, actions);
        };
        if connection.is_closing {
            return 0;
        }
        if connection.forwarded.is_some() {
            return self.carry_on(session, requests_max);
        }
        let (requests, bytes) = match connection.requests(requests_max) {
            Ok(requests) => requests,
            Err(error) => {
                match connection.is_introduced {
                    true => self.warn_of(session, "an invalid message", Some(&error)),
                    false => {
                        tracing::debug!(
                            session = session.0, %error,
                            "a connection ended without a valid first message"
                        )
                    }
                }
                self.drop_connection(session);
                return 0;
            }
        };
        if connection.has_request() && !connection.is_stuffed() {
            self.pending.insert(session);
        }
        self.handle_all(session, requests, actions);
        bytes
    }

    pub(super) fn handle_all(
        &mut self,
        session: SessionId,
        requests: Vec<Request>,
        actions: &mut Vec<Action>,
    ) {
        let wall_ns = wall_clock_ns();
        for request in requests {
            // The requests before it can have taken longer than a lease.
            let now_ms = self.now_ms();
            let kind = request.body.kind();
            let _span = tracing::debug_span!("request", session = session.0, kind).entered();
            self.audit_request(session, &request);
            let began = Instant::now();
            self.state.handle(session, request, now_ms, wall_ns, actions);
            self.latencies.entry(kind).or_default().add(began.elapsed());
        }
        self.observe_clients();
        if let Some(connection) = self.connections.get_mut(&session)
            && !connection.is_introduced
        {
            connection.is_introduced = self.state.is_introduced(session);
        }
    }

    /// Handles a scraper. Returns whether metrics are to be computed for it.
    pub(super) fn scrape(&mut self, token: u64) -> bool {
        let now_ms = self.now_ms();
        let readiness = self.readiness(now_ms);
        let poll = self.poll.as_fd();
        let scrapers = self.scrapers.as_mut();
        scrapers.is_some_and(|scrapers| scrapers.ready(poll, token, now_ms, readiness))
    }

    /// Whether the node serves clients, and new ones can connect; otherwise the reason.
    fn readiness(&self, now_ms: u64) -> Result<(), String> {
        self.state.readiness(now_ms).and_then(|()| self.socket_file.check())
    }

    /// Sends the metrics to the scrapers that wait; `None`: the region cannot be read.
    pub(super) fn scraped(&mut self, stats: Option<Box<NodeStats>>) {
        let _span = tracing::debug_span!("scrape").entered();
        let now_ms = self.now_ms();
        let text = stats.map(|stats| self.metrics(&stats, now_ms)).unwrap_or_default();
        if let Some(scrapers) = &mut self.scrapers {
            scrapers.counted(self.poll.as_fd(), now_ms, text);
        }
    }

    fn metrics(&self, stats: &NodeStats, now_ms: u64) -> String {
        let Self { state, latencies, errors, remote_sessions, audit, .. } = self;
        let of_cluster = state.cluster_stats(now_ms);
        let traffic = remote_sessions.as_ref().map(|remote_sessions| &remote_sessions.traffic);
        let credentials = remote_sessions.as_ref().map(|remote_sessions| {
            let credentials = remote_sessions.peers.credentials();
            credentials.map(NodeCredentials::status).unwrap_or_default()
        });
        metrics::text::write(Measured {
            stats,
            namespaces: &state.namespace_reports(),
            latencies,
            errors,
            is_ready: self.readiness(now_ms).is_ok(),
            of_cluster: of_cluster.as_ref().zip(traffic),
            credentials: credentials.as_ref(),
            audited: audit.as_ref().map(Audit::totals).unwrap_or_default(),
        })
    }

    pub(super) fn process_died(&mut self, session: SessionId) {
        if let Some(process) =
            self.connections.get_mut(&session).and_then(|connection| connection.process.take())
        {
            let _ = epoll::delete(&self.poll, &process);
        }
        self.drop_connection(session);
    }
}
