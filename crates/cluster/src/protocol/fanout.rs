//! Answers to requests that waited, many of which one event may end. A turn of the event loop sends a
//! limited number of them, so that nobody else waits behind a thousand that asked for the same.

use std::collections::VecDeque;

use super::node::NodeState;
use super::requests::answer_wait;
use super::{Action, SessionId};

/// Such answers in one turn: encoding and sending one takes some 4 us.
const ANSWERS_PER_TURN: usize = 64;

/// What is still to be answered.
#[derive(Debug)]
pub(super) struct FanOut {
    /// How many more this turn may send.
    left: usize,
    later: VecDeque<Action>,
}

impl Default for FanOut {
    fn default() -> Self {
        Self { left: ANSWERS_PER_TURN, later: VecDeque::new() }
    }
}

impl FanOut {
    /// Answers now what this turn has room for, and the rest later.
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

    /// How many more answers this turn may send.
    pub(super) fn left(&self) -> usize {
        if self.later.is_empty() { self.left } else { 0 }
    }

    /// Whether answers are left for the next turn.
    pub(super) fn is_behind(&self) -> bool {
        !self.later.is_empty()
    }

    /// Forgets what was for a session that ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.later
            .retain(|action| !matches!(action, Action::Send { session: of, .. } if *of == session));
    }

    /// Takes out all, for the end.
    pub(super) fn drain(&mut self, out: &mut Vec<Action>) {
        out.extend(self.later.drain(..));
    }
}

impl NodeState {
    /// Once a turn: answers what the last one had no room for.
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

    /// Answers waits whose names are sealed, as far as this turn has room.
    pub(super) fn answer_waits(&mut self, out: &mut Vec<Action>) {
        let ready = self.waits.ready(self.fan_out.left());
        self.fan_out.add(ready.into_iter().map(answer_wait), out);
    }

    /// Whether answers are left for the next turn.
    pub(super) fn is_behind_with_answers(&self) -> bool {
        self.fan_out.is_behind() || self.waits.has_ready()
    }
}
