//! Events of other nodes, and the actions of the state that involve them.

use std::collections::BTreeSet;
use std::time::Duration;

use farrow_memory::Span;
use farrow_wire::span;

use super::Server;
use super::forwarded::FirstMessage;
use super::remote_sessions::{named, parse};
use crate::metrics::cluster::{Direction, PeerMessageKind};
use crate::peer_memory;
use crate::peers::PeerEvent;
use crate::protocol::cluster::{Answer, PeerAction};
use crate::protocol::{Action, SessionId};

impl Server {
    /// Handles a limited number of events from other nodes. Inserts the sessions of remote clients
    /// with requests to serve into `ready`.
    pub(super) fn take_from_remote_sessions(
        &mut self,
        ready: &mut BTreeSet<SessionId>,
        actions: &mut Vec<Action>,
    ) {
        let Some(remote_sessions) = &self.remote_sessions else {
            return;
        };
        let events: Vec<PeerEvent> = remote_sessions.peers.events().collect();
        for event in events {
            let now_ms = self.now_ms();
            match event {
                PeerEvent::Message { from, incarnation, body } => {
                    self.count(from.as_str(), PeerMessageKind::Message, Direction::In, body.len());
                    self.state.on_message(
                        (from.as_str(), incarnation).into(),
                        &body,
                        now_ms,
                        actions,
                    );
                }
                PeerEvent::Request { token, from, incarnation, body } => {
                    self.count(from.as_str(), PeerMessageKind::Question, Direction::In, body.len());
                    let Some(remote_sessions) = &mut self.remote_sessions else { return };
                    let number = remote_sessions.next_request;
                    remote_sessions.next_request += 1;
                    remote_sessions.requests.insert(number, token);
                    let from = (from.as_str(), incarnation).into();
                    self.state.on_request(number, from, &body, now_ms, actions);
                }
                PeerEvent::Response { token, result } => {
                    if let Some(remote_sessions) = &mut self.remote_sessions
                        && let Some(node) = remote_sessions.asking.remove(&token)
                        && result.is_err()
                    {
                        remote_sessions.traffic.fail(&node);
                    }
                    if let Ok(answer) = &result {
                        let us = u64::try_from(answer.elapsed.as_micros()).unwrap_or(u64::MAX);
                        self.state.round_trip(token, us);
                    }
                    let answer = result.map(|answer| answer.body.to_vec());
                    let answer = answer.map_err(|error| error.to_string());
                    self.state.on_response(token, answer, now_ms, actions);
                }
                PeerEvent::Delivery { address, why_not } => {
                    self.state.delivery_changed(address, why_not)
                }
                PeerEvent::EtcdResponse { id, reply } => {
                    self.state.on_etcd_response(id, reply, now_ms, actions);
                }
                PeerEvent::EtcdChanged => self.state.etcd_changed(now_ms, actions),
                PeerEvent::RemoteSessionOpened { remote_session, from, process } => {
                    self.open_remote_client(remote_session, from.as_str(), process);
                }
                PeerEvent::RemoteSessionData { remote_session, bytes } => {
                    ready.extend(self.remote_session_data(remote_session, bytes))
                }
                PeerEvent::RemoteSessionWritable { remote_session } => {
                    ready.extend(self.remote_session_writable(remote_session))
                }
                PeerEvent::RemoteSessionEnded { remote_session, has_process_ended, reason } => {
                    self.serve_rest(remote_session, actions);
                    self.remote_session_ended(remote_session, has_process_ended, &reason);
                }
            }
        }
    }

    /// Counts a message if it is from a member: without TLS any process can claim any name.
    pub(super) fn count(
        &mut self,
        node: &str,
        kind: PeerMessageKind,
        way: Direction,
        bytes: usize,
    ) {
        if self.state.is_peer(node)
            && let Some(remote_sessions) = &mut self.remote_sessions
        {
            remote_sessions.traffic.add(node, kind, way, bytes);
        }
    }

    /// Performs an action of the state that involves other nodes.
    pub(super) fn perform_with_remote_sessions(&mut self, action: PeerAction) {
        match action {
            PeerAction::Message { address, incarnation, body } => {
                if let Some(node) = self.state.node_at(&address).map(str::to_owned) {
                    self.count(&node, PeerMessageKind::Message, Direction::Out, body.len());
                }
                if let (Some(remote_sessions), Some(address)) =
                    (&self.remote_sessions, parse(&address))
                {
                    remote_sessions.peers.set_incarnation(incarnation);
                    remote_sessions.peers.send_message(&address, body.into());
                }
            }
            PeerAction::Ask { token, node, address, incarnation, body, timeout_ms } => {
                if let Some(remote_sessions) = &self.remote_sessions {
                    remote_sessions.peers.set_incarnation(incarnation);
                }
                self.ask_other(token, &node, &address, body, Duration::from_millis(timeout_ms));
            }
            PeerAction::Answer { token, body } => self.answer_other(token, body),
            PeerAction::Map { node, offer } => {
                if let Some(remote_sessions) = &self.remote_sessions {
                    let memory = peer_memory::map(&offer, &remote_sessions.devices);
                    self.state.mapped(&node, memory);
                }
            }
            PeerAction::Bridge { session, seq, node, address, incarnation, first, maps_memory } => {
                let first = FirstMessage { seq, body: first, maps_memory };
                self.forward_client(session, (node, &address), incarnation, first);
            }
            PeerAction::CutOff { node, address } => self.cut_off(&node, &address),
            PeerAction::WatchProcess { token, node, pid, start_time } => {
                self.watch_for_other(token, node, (pid, start_time));
            }
            PeerAction::WatchRemoteClient { slot } => self.watch_remote_client(slot),
            PeerAction::AskEtcd { id, request } => {
                if let Some(remote_sessions) = &self.remote_sessions {
                    remote_sessions.peers.ask_etcd(id, request);
                }
            }
            PeerAction::Clean { token, node, spans } => {
                let spans: Vec<Span> = spans.into_iter().map(span).collect();
                let cleaned = match self.state.memory_of(&node) {
                    Some(memory) => peer_memory::clean(memory, &spans),
                    None => Err(format!("the memory of {node} is not mapped")),
                };
                let answer = cleaned.map_or_else(Answer::No, |()| Answer::Done);
                self.answer_other(token, postcard::to_allocvec(&answer).unwrap_or_default());
            }
        }
    }

    pub(super) fn ask_other(
        &mut self,
        token: u64,
        node: &str,
        address: &str,
        body: Vec<u8>,
        timeout: Duration,
    ) {
        self.count(node, PeerMessageKind::Question, Direction::Out, body.len());
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let failed = match named(node, address) {
            None => Some(format!("{address} is no address")),
            Some(address) => {
                let sent = remote_sessions.peers.ask(token, &address, body.into(), timeout);
                sent.err().map(|error| error.to_string())
            }
        };
        match &failed {
            Some(_) => remote_sessions.traffic.fail(node),
            None => drop(remote_sessions.asking.insert(token, node.to_owned())),
        }
        if let Some(reason) = failed {
            let mut actions = Vec::new();
            self.state.on_response(token, Err(reason), self.now_ms(), &mut actions);
            // A client may wait for the answer. Otherwise only a later retry follows.
            self.perform(actions);
        }
    }

    pub(super) fn answer_other(&mut self, token: u64, body: Vec<u8>) {
        if let Some(remote_sessions) = &mut self.remote_sessions
            && let Some(request) = remote_sessions.requests.remove(&token)
            && let Err(error) = remote_sessions.peers.answer(request, body.into())
        {
            tracing::error!(%error, "a response to another node cannot be sent");
        }
    }
}
