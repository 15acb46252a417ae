//! Requests for memory: who gets it at once, who waits, who is refused.
//!
//! A request that may wait is queued when no run of free memory is long enough. The queue is
//! served in the order of arrival, with one exception: while its first request does not fit,
//! those behind it, and newcomers, may pass it, but only until they took as many bytes as it
//! asks for. So a great request is not starved by small ones, and small ones go on for a while
//! beside a great one that may never fit. A request that may not wait passes by the same rule, and
//! where it may not it is refused at once, whatever is free.

use std::collections::VecDeque;

use farrow_memory::{Length, Span};
use farrow_store::ClientSlot;

use super::convert::{limit, store_error, wire_span};
use super::node::NodeState;
use super::spill::SPILL_MS_MAX;
use super::{Action, SessionId};
use crate::wire::{Reply, ReplyBody, WAIT_MS_MAX, WireError};

/// Most requests that wait at a time, of all clients: each look at the queue stays a matter of
/// microseconds.
const WAITING_MAX: usize = 1024;

/// Most requests that one client may have waiting: room for sixteen such clients.
const WAITING_PER_SESSION_MAX: usize = 64;

/// Who asks, and which of its requests this is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    pub(super) session: SessionId,
    pub(super) seq: u64,
    pub(super) slot: ClientSlot,
}

/// How much memory, and how long it may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    pub(super) min: u64,
    pub(super) want: u64,
    pub(super) wait_ms: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    asker: Asker,
    min: u64,
    since_ms: u64,
    deadline_ms: u64,
    /// Only as long as objects are on their way out of memory.
    is_for_spills: bool,
}

/// The requests that wait for memory, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Admission {
    queue: VecDeque<Waiting>,
    /// Bytes that others got since the first of the queue became the first.
    passed_bytes: u64,
    /// What the store had freed when the queue was last looked at; none: it is to be looked at.
    seen_freed_bytes: Option<u64>,
}

impl Admission {
    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Bytes that they wait for.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.queue.iter().fold(0, |sum, waiting| sum.saturating_add(waiting.min))
    }

    /// Forgets the requests of a session that went.
    pub(super) fn forget(&mut self, session: SessionId) {
        let first = self.queue.front().map(|waiting| waiting.asker.session);
        self.queue.retain(|waiting| waiting.asker.session != session);
        if first == Some(session) {
            self.passed_bytes = 0;
            self.seen_freed_bytes = None;
        }
    }

    /// Forgets one request. False: there is none. What waits behind it is looked at again.
    pub(super) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let of = |waiting: &Waiting| (waiting.asker.session, waiting.asker.seq) == (session, seq);
        let Some(place) = self.queue.iter().position(of) else {
            return false;
        };
        self.remove(place, 0);
        self.seen_freed_bytes = None;
        true
    }

    /// Takes out all, for the end.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Asker> + '_ {
        self.passed_bytes = 0;
        self.queue.drain(..).map(|waiting| waiting.asker)
    }

    /// When the queue is to be looked at: at once when memory came free, else at its next
    /// deadline.
    pub(super) fn next_deadline_ms(&self, freed_bytes: u64) -> Option<u64> {
        if !self.queue.is_empty() && self.seen_freed_bytes != Some(freed_bytes) {
            return Some(0);
        }
        self.queue.iter().map(|waiting| waiting.deadline_ms).min()
    }

    /// Something else than free memory has changed.
    pub(super) fn look_again(&mut self) {
        self.seen_freed_bytes = None;
    }

    /// Whether so many bytes may go to somebody who is not the first of the queue.
    fn may_pass(&self, bytes: u64) -> bool {
        let first = self.queue.front();
        first.is_none_or(|first| self.passed_bytes.saturating_add(bytes) <= first.min)
    }

    fn push(&mut self, waiting: Waiting) -> Result<(), WireError> {
        let session = waiting.asker.session;
        let of_session = self.queue.iter().filter(|other| other.asker.session == session).count();
        limit("requests that wait for memory", self.queue.len() + 1, WAITING_MAX)?;
        limit("requests of a client that wait", of_session + 1, WAITING_PER_SESSION_MAX)?;
        if self.queue.is_empty() {
            self.passed_bytes = 0;
        }
        self.queue.push_back(waiting);
        Ok(())
    }

    /// Takes out a request that got `bytes`, or an error.
    fn remove(&mut self, place: usize, bytes: u64) {
        self.queue.remove(place);
        self.passed_bytes = if place == 0 { 0 } else { self.passed_bytes.saturating_add(bytes) };
    }
}

impl NodeState {
    /// Answers a request for memory; `None`: later.
    pub(super) fn grant(
        &mut self,
        asker: Asker,
        ask: Ask,
        now_ms: u64,
    ) -> Result<Option<ReplyBody>, WireError> {
        let Ask { min, want, wait_ms } = ask;
        if min == 0 || want < min {
            return Err(WireError::Invalid(format!("a grant of {min} to {want} B makes no sense")));
        }
        let capacity = self.home.layout().heap.length.0;
        if min > capacity {
            return Err(WireError::TooLarge { asked: min, capacity });
        }
        if self.promises.of(asker.slot) == 0 {
            // Who could not seal it is told before it writes.
            self.check_objects(asker.slot, 1)?;
        }
        self.allowance(asker.slot, Length(min), Length(want))?;
        let is_behind = self.admission.waiting() > 0;
        let may_wait = wait_ms > 0;
        if self.admission.may_pass(min) {
            // Nothing ahead of need while others wait.
            let want = if is_behind { min } else { want };
            match self.make_room(asker.slot, Length(min), Length(want)) {
                Ok(granted) => {
                    self.admission.passed_bytes =
                        self.admission.passed_bytes.saturating_add(granted.length.0);
                    return Ok(Some(ReplyBody::Granted(wire_span(granted))));
                }
                Err(WireError::OutOfMemory { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if !may_wait && !self.spills.is_making_room() {
            return Err(self.out_of_memory(min, self.admission.waiting(), 0));
        }
        let wait_ms = if may_wait { wait_ms.min(WAIT_MS_MAX) } else { SPILL_MS_MAX };
        let deadline_ms = now_ms.saturating_add(wait_ms);
        let (since_ms, is_for_spills) = (now_ms, !may_wait);
        self.admission.push(Waiting { asker, min, since_ms, deadline_ms, is_for_spills })?;
        Ok(None)
    }

    /// As [`Self::find_room`], as far as the client's quota goes.
    fn make_room(
        &mut self,
        slot: ClientSlot,
        min: Length,
        want: Length,
    ) -> Result<Span, WireError> {
        let want = self.allowance(slot, min, want)?;
        self.find_room(slot, min, want).map_err(store_error)
    }

    /// As [`Self::make_room`], of what is free.
    fn take_free(
        &mut self,
        slot: ClientSlot,
        min: Length,
        want: Length,
    ) -> Result<Span, WireError> {
        let want = self.allowance(slot, min, want)?;
        self.home.grant(slot, min, want).map_err(store_error)
    }

    /// Refuses those whose time is over; gives to those for whom there is room now.
    pub(super) fn serve_waiting(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut place = 0;
        while let Some(waiting) = self.admission.queue.get(place).copied() {
            if waiting.deadline_ms > now_ms {
                place += 1;
                continue;
            }
            self.admission.remove(place, 0);
            self.admission.seen_freed_bytes = None;
            let waited_ms = now_ms.saturating_sub(waiting.since_ms);
            let error = self.out_of_memory(waiting.min, place, waited_ms);
            out.push(answer(waiting.asker, Err(error)));
        }
        if self.admission.seen_freed_bytes == Some(self.home.freed_bytes()) {
            return;
        }
        let mut place = 0;
        while let Some(waiting) = self.admission.queue.get(place).copied() {
            let Waiting { asker, min, .. } = waiting;
            let found = match place {
                0 => self.make_room(asker.slot, Length(min), Length(min)),
                // Nobody makes room for one that is not the first.
                _ if self.admission.may_pass(min) => {
                    self.take_free(asker.slot, Length(min), Length(min))
                }
                _ => Err(self.out_of_memory(min, place, 0)),
            };
            match found {
                Ok(granted) => {
                    self.admission.remove(place, granted.length.0);
                    out.push(answer(asker, Ok(ReplyBody::Granted(wire_span(granted)))));
                }
                Err(WireError::OutOfMemory { .. })
                    if !waiting.is_for_spills || self.spills.is_making_room() =>
                {
                    place += 1;
                }
                Err(error) => {
                    self.admission.remove(place, 0);
                    out.push(answer(asker, Err(error)));
                }
            }
        }
        self.admission.seen_freed_bytes = Some(self.home.freed_bytes());
    }

    /// What there is, for a request behind so many others.
    fn out_of_memory(&self, asked: u64, before: usize, waited_ms: u64) -> WireError {
        let (free, largest) = self.home.free_bytes();
        let (free, largest, waiting) = (free.0, largest.0, before as u64);
        WireError::OutOfMemory { asked, free, largest, waiting, waited_ms }
    }
}

/// The answer to a request that waited.
pub(super) fn answer(asker: Asker, body: Result<ReplyBody, WireError>) -> Action {
    answer_to(asker.session, asker.seq, body)
}

/// As [`answer`], where no more is known of who asked.
pub(in crate::protocol) fn answer_to(
    session: SessionId,
    seq: u64,
    body: Result<ReplyBody, WireError>,
) -> Action {
    Action::Send { session, reply: Reply { seq, body }, has_descriptors: false }
}
