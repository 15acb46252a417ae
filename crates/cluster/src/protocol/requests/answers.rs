//! Answers to requests that waited, spread over the turns of the event loop.

use crate::protocol::action::{Action, answer_wait};
use crate::protocol::core::fanout::ANSWERS_PER_TURN;
use crate::protocol::state::NodeState;

impl NodeState {
    /// Once a turn: sends the answers that did not fit into the last one.
    pub(in crate::protocol) fn answer_more(&mut self, out: &mut Vec<Action>) {
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
    pub(in crate::protocol) fn answer_waits(&mut self, out: &mut Vec<Action>) {
        let ready = self.waits.ready(self.fan_out.left());
        self.fan_out.add(ready.into_iter().map(answer_wait), out);
    }

    /// Whether answers are left for the next turn.
    pub(in crate::protocol) fn is_behind_with_answers(&self) -> bool {
        self.fan_out.is_behind() || self.waits.has_ready()
    }
}
