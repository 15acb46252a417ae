//! Answers to waiting requests; one event may end many of them. A turn of the event loop sends a
//! limited number, so that a thousand equal requests do not delay the others.

use std::collections::VecDeque;

use super::waits::Waits;
use crate::protocol::action::{Action, answer_wait};
use crate::protocol::identity::SessionId;

/// Limit of such answers in one turn: encoding and sending one takes about 4 us.
const ANSWERS_PER_TURN: usize = 64;

/// Answers that are not sent yet.
#[derive(Debug)]
pub(in crate::protocol) struct FanOut {
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
    pub(in crate::protocol) fn add(
        &mut self,
        answers: impl IntoIterator<Item = Action>,
        out: &mut Vec<Action>,
    ) {
        for answer in answers {
            if self.left > 0 && self.later.is_empty() {
                self.left -= 1;
                out.push(answer);
            } else {
                self.later.push_back(answer);
            }
        }
    }

    /// Answers waits whose names are sealed, as far as they fit into this turn.
    pub(in crate::protocol) fn answer(&mut self, waits: &mut Waits, out: &mut Vec<Action>) {
        let ready = waits.ready(self.left());
        self.add(ready.into_iter().map(answer_wait), out);
    }

    /// Once a turn: sends the answers that did not fit into the last one.
    pub(in crate::protocol) fn next_turn(&mut self, waits: &mut Waits, out: &mut Vec<Action>) {
        self.left = ANSWERS_PER_TURN;
        while self.left > 0
            && let Some(answer) = self.later.pop_front()
        {
            self.left -= 1;
            out.push(answer);
        }
        self.answer(waits, out);
    }

    /// Number of answers that this turn may still send.
    pub(in crate::protocol) fn left(&self) -> usize {
        if self.later.is_empty() { self.left } else { 0 }
    }

    /// Whether answers are left for the next turn.
    pub(in crate::protocol) fn is_behind(&self) -> bool {
        !self.later.is_empty()
    }

    /// Forgets the answers for an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.later
            .retain(|action| !matches!(action, Action::Send { session: of, .. } if *of == session));
    }

    /// Takes out all answers at shutdown.
    pub(in crate::protocol) fn drain(&mut self, out: &mut Vec<Action>) {
        out.extend(self.later.drain(..));
    }
}
