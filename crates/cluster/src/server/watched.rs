//! Processes and memory that are watched for other nodes, and those of their clients here.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use farrow_store::ClientSlot;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::Server;
use super::process::{watch, watch_by};
use super::remote_sessions::WatchedProcess;
use super::tokens::{ORPHANS, WATCHED};
use crate::peer_memory;
use crate::protocol::PeerIdentity;
use crate::protocol::cluster::Answer;

/// Limit on processes watched for other nodes. Beyond it, a request is answered at once: the
/// process is alive.
const WATCHED_MAX: usize = 1024;

/// The same for one node: half of its places for questions, so that its other questions need not wait
/// for these.
pub(super) const WATCHED_OF_NODE_MAX: usize = 16;

/// A request about a process that is still alive is answered after this time.
const WATCH_MAX: Duration = Duration::from_millis(800);

/// How often the memory of unreachable nodes is checked: it may have disappeared with their
/// processes.
const UNHEARD_PAUSE: Duration = Duration::from_millis(250);

impl Server {
    /// Answers a node once a process has ended, or after a while, or at once at a limit: the node asks
    /// again after a pause.
    pub(super) fn watch_for_other(&mut self, token: u64, node: String, of: (u32, u64)) {
        let (pid, start_time) = of;
        let identity = PeerIdentity { pid, start_time, uid: 0, remote_client: None };
        let process = watch(&identity);
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        // A process whose end is uncertain counts as alive: the other node asks again.
        let is_there = !matches!(process, Ok(None));
        if let Ok(Some(process)) = process
            && remote_sessions.watched.len() < WATCHED_MAX
            && remote_sessions.watched_for(&node) < WATCHED_OF_NODE_MAX
        {
            let number = remote_sessions.next_watched;
            remote_sessions.next_watched += 1;
            let event = EventData::new_u64(WATCHED | number);
            if epoll::add(&self.poll, &process, event, EventFlags::IN).is_ok() {
                let until = Instant::now() + WATCH_MAX;
                let watched = WatchedProcess { number, token, node, until, process };
                remote_sessions.watched.push_back(watched);
                return;
            }
        }
        self.say_is_there(token, is_there);
    }

    pub(super) fn say_is_there(&mut self, token: u64, is_there: bool) {
        let answer = Answer::IsThere(is_there);
        self.answer_other(token, postcard::to_allocvec(&answer).unwrap_or_default());
    }

    /// Answers a request about a watched process that has ended.
    pub(super) fn watched_ended(&mut self, number: u64) {
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let Some(at) = remote_sessions.watched.iter().position(|one| one.number == number) else {
            return;
        };
        if let Some(ended) = remote_sessions.watched.remove(at) {
            let _ = epoll::delete(&self.poll, &ended.process);
            self.say_is_there(ended.token, false);
        }
    }

    /// Answers requests about watched processes that have waited long enough.
    pub(super) fn tick_remote_sessions(&mut self) {
        let now = Instant::now();
        while let Some(remote_sessions) = &mut self.remote_sessions
            && remote_sessions.watched.front().is_some_and(|first| first.until <= now)
            && let Some(first) = remote_sessions.watched.pop_front()
        {
            let _ = epoll::delete(&self.poll, &first.process);
            self.say_is_there(first.token, true);
        }
    }

    /// Unmaps memory that disappeared with the last process of its node, so that the kernel can
    /// free it. Clients that read it keep their mappings.
    pub(super) fn tick_unheard(&mut self) {
        let Some(remote_sessions) = &mut self.remote_sessions else {
            return;
        };
        let now = Instant::now();
        if remote_sessions.unheard_at.is_some_and(|at| now < at) {
            return;
        }
        let unheard: Vec<(String, bool)> = self
            .state
            .unheard_memory()
            .map(|(name, memory)| (name.to_owned(), peer_memory::has_ended(memory)))
            .collect();
        let is_any_left = unheard.iter().any(|(_, has_ended)| !has_ended);
        remote_sessions.unheard_at = is_any_left.then(|| now + UNHEARD_PAUSE);
        for (node, _) in unheard.iter().filter(|(_, has_ended)| *has_ended) {
            let why = "its processes have ended, and its memory with them";
            self.state.mapped(node, Err(why.to_owned()));
        }
    }

    /// Watches the process of a client of another node that runs on this machine.
    pub(super) fn watch_remote_client(&mut self, slot: ClientSlot) {
        let identity = self.state.orphans().find(|(of, _)| *of == slot).map(|(_, peer)| peer);
        let token = ORPHANS | u64::from(slot.0);
        let now_ms = self.now_ms();
        let Some(peer) = identity else {
            return self.state.orphan_died(slot, now_ms);
        };
        match watch_by(self.poll.as_fd(), &peer, token) {
            Ok(Some(fd)) => drop(self.orphans.insert(slot, (peer, fd))),
            Ok(None) => self.state.orphan_died(slot, now_ms),
            Err(_) => self.state.watch_later(slot, now_ms),
        }
    }
}
