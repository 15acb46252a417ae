//! The leave of this node from its cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Server;
use super::turn::REQUESTS_PER_CLIENT;
use crate::protocol::{Action, NodeState};

/// Limit on the wait of a leaving node for an acknowledgement of other nodes. They detect its
/// absence anyway.
const LEAVE_MAX: Duration = Duration::from_secs(2);

impl Server {
    /// Ends the waits of other nodes for barriers and flags, which then ask the next daemon of this
    /// node, for a limited time.
    pub(super) fn stop_sync(&mut self) {
        let mut actions = Vec::new();
        self.state.stop_sync(self.now_ms(), &mut actions);
        // The next daemon does not know which clients have ended.
        self.go_on_until(|state| state.has_handed_over() && state.has_reported_ends(), actions);
    }

    /// Hands over the state that this node manages for other nodes, announces that it leaves, and
    /// waits for acknowledgements, each for a limited time.
    pub(super) fn part_from_remote_sessions(&mut self) {
        let mut actions = Vec::new();
        self.state.hand_over_sync(self.now_ms(), &mut actions);
        self.go_on_until(|state| state.has_handed_over(), actions);
        let mut actions = Vec::new();
        self.state.leave_cluster(self.now_ms(), &mut actions);
        self.go_on_until(|state| state.has_left(), actions);
    }

    /// Handles only other nodes until the condition holds, for at most [`LEAVE_MAX`].
    pub(super) fn go_on_until(
        &mut self,
        is_so: impl Fn(&NodeState) -> bool,
        mut actions: Vec<Action>,
    ) {
        let until = Instant::now() + LEAVE_MAX;
        while !is_so(&self.state) && Instant::now() < until {
            self.perform(std::mem::take(&mut actions));
            let Some(remote_sessions) = &self.remote_sessions else {
                return;
            };
            let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = poll(&mut [PollFd::new(remote_sessions.wake(), PollFlags::IN)], Some(&wait));
            let mut ready = BTreeSet::new();
            self.take_from_remote_sessions(&mut ready, &mut actions);
            for session in ready {
                self.serve(session, REQUESTS_PER_CLIENT, &mut actions);
            }
            self.state.tick(self.now_ms(), &mut actions);
        }
        self.perform(actions);
    }
}
