//! Answers to waiting requests; one event may end many of them. A turn of the event loop sends a
//! limited number, so that a thousand equal requests do not delay the others.

use std::collections::VecDeque;

use super::node::NodeState;
use super::requests::answer_wait;
use super::{Action, SessionId};

/// Limit of such answers in one turn: encoding and sending one takes about 4 us.
const ANSWERS_PER_TURN: usize = 64;

/// Answers that are not sent yet.
#[derive(Debug)]
pub(super) struct FanOut {
    /// Number of answers that this turn may still send.
    left: usize,
    later: VecDeque<Action>,
}

impl Default for FanOut {
    fn default() -> Self {
        Self { left: ANSWERS_PER_TURN, later: VecDeque::new() }
    }
}

impl FanOut {
    /// Sends the answers that fit into this turn, and queues the rest.
    pub(super) fn add(&mut self, answers: impl IntoIterator<Item = Action>, out: &mut Vec<Action>) {
        for answer in answers {
            if self.left > 0 && self.later.is_empty() {
                self.left -= 1;
                out.push(answer);
            } else {
                self.later.push_back(answer);
            }
        }
    }

    /// Number of answers that this turn may still send.
    pub(super) fn left(&self) -> usize {
        if self.later.is_empty() { self.left } else { 0 }
    }

    /// Whether answers are left for the next turn.
    pub(super) fn is_behind(&self) -> bool {
        !self.later.is_empty()
    }

    /// Forgets the answers for an ended session.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.later
            .retain(|action| !matches!(action, Action::Send { session: of, .. } if *of == session));
    }

    /// Takes out all answers at shutdown.
    pub(super) fn drain(&mut self, out: &mut Vec<Action>) {
        out.extend(self.later.drain(..));
    }
}

impl NodeState {
    /// Once a turn: sends the answers that did not fit into the last one.
    pub(super) fn answer_more(&mut self, out: &mut Vec<Action>) {
        self.fan_out.left = ANSWERS_PER_TURN;
        while self.fan_out.left > 0
            && let Some(answer) = self.fan_out.later.pop_front()
        {
            self.fan_out.left -= 1;
            out.push(answer);
        }
        self.answer_waits(out);
    }

    /// Answers waits whose names are sealed, as far as they fit into this turn.
    pub(super) fn answer_waits(&mut self, out: &mut Vec<Action>) {
        let ready = self.waits.ready(self.fan_out.left());
        self.fan_out.add(ready.into_iter().map(answer_wait), out);
    }

    /// Whether answers are left for the next turn.
    pub(super) fn is_behind_with_answers(&self) -> bool {
        self.fan_out.is_behind() || self.waits.has_ready()
    }
}
