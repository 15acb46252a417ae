//! Requests that wait for memory, in order of arrival.
//!
//! A request that may wait is queued when no run of free memory is long enough. The queue is served
//! in order of arrival, with one exception. Smaller requests may overtake the first waiter until
//! they have taken as many bytes as it asks for. So small requests do not starve a large one, and a
//! large one that may never fit does not block small ones at once. A request that may not wait
//! overtakes by the same rule; otherwise it is rejected, however much is free. It only waits while
//! memory is being freed for it.

use std::collections::VecDeque;

use farrow_memory::Span;
use farrow_store::Freed;
use farrow_wire::{NoRoom, OutOfMemory, ReplyBody, WAIT_MS_MAX, WireError};

use super::residency::SPILL_MS_MAX;
use super::rooms::{RoomRequest, RoomSource};
use crate::protocol::action::{Action, answer};
use crate::protocol::context::{Asker, QueueWait};
use crate::protocol::identity::SessionId;
use crate::protocol::limits::check_limit;

/// Limit of waiting requests of all clients: a scan of the queue stays within microseconds.
const WAITING_MAX: usize = 1024;

/// Limit of waiting requests of one client: room for sixteen such clients.
const WAITING_PER_SESSION_MAX: usize = 64;

/// Limit of names of all waiting requests: half a megabyte.
const NAMES_WAITING_MAX: usize = 65_536;

#[derive(Debug, Clone)]
struct WaitingGrant {
    asker: Asker,
    ask: RoomRequest,
    since_ms: u64,
    deadline_ms: u64,
    /// Waits only while memory is being freed.
    is_for_spills: bool,
}

/// Requests that wait for memory, in order of arrival.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Admission {
    queue: VecDeque<WaitingGrant>,
    /// Bytes granted to others since the first of the queue became the first.
    passed_bytes: u64,
    /// The store's freed amount when the queue was last served; `None`: the queue must be served.
    seen: Option<Freed>,
}

impl Admission {
    /// Grants a request, or has it wait. `None`: the answer follows later.
    pub(in crate::protocol) fn grant(
        &mut self,
        source: &mut dyn RoomSource,
        asker: Asker,
        ask: RoomRequest,
        now_ms: u64,
    ) -> Result<Option<ReplyBody>, WireError> {
        let bytes = ask.bytes();
        let may_wait = ask.wait_ms > 0;
        let mut refused = None;
        if self.may_pass(bytes) {
            // No memory in advance of need while others wait.
            let want = if self.queue.is_empty() { ask.want } else { 0 };
            match source.take(asker.slot, &RoomRequest { want, ..ask.clone() }) {
                Ok(granted) => {
                    self.passed_bytes = self.passed_bytes.saturating_add(bytes_of(&granted));
                    return Ok(Some(ask.answer(&granted)));
                }
                Err(error) if is_want_of_room(&error) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        let refused = refused.unwrap_or_else(|| source.out_of_memory(bytes));
        let is_memory = matches!(refused, WireError::OutOfMemory(_));
        let is_for_spills = !may_wait && ask.may_evict && is_memory && source.is_making_room();
        if !may_wait && !is_for_spills {
            let waited = QueueWait { ahead: self.queue.len(), ms: 0 };
            return Err(with_wait(source, refused, &ask, waited));
        }
        let wait_ms = if may_wait { ask.wait_ms.min(WAIT_MS_MAX) } else { SPILL_MS_MAX };
        let deadline_ms = now_ms.saturating_add(wait_ms);
        let since_ms = now_ms;
        self.push(WaitingGrant { asker, ask, since_ms, deadline_ms, is_for_spills })?;
        Ok(None)
    }

    /// Rejects expired requests and serves those for which there is room now.
    pub(in crate::protocol) fn serve(
        &mut self,
        source: &mut dyn RoomSource,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        self.expire(source, now_ms, out);
        if self.seen == Some(source.freed()) {
            return;
        }
        // What becomes free meanwhile may be enough for a request that was looked at before.
        let seen = source.freed();
        let mut place = 0;
        while let Some(waiting) = self.queue.get(place).cloned() {
            let WaitingGrant { asker, ask, is_for_spills, .. } = waiting;
            // Only the first of the queue causes evictions.
            let may_evict = ask.may_evict && place == 0;
            let found = match place == 0 || self.may_pass(ask.bytes()) {
                true => source.take(asker.slot, &RoomRequest { want: 0, may_evict, ..ask.clone() }),
                false => Err(source.out_of_memory(ask.bytes())),
            };
            match found {
                Ok(granted) => {
                    self.remove(place, bytes_of(&granted));
                    out.push(answer(asker, Ok(ask.answer(&granted))));
                }
                Err(error)
                    if is_want_of_room(&error) && (!is_for_spills || source.is_making_room()) =>
                {
                    place += 1;
                }
                Err(error) => {
                    self.remove(place, 0);
                    let waited = QueueWait { ahead: place, ms: 0 };
                    out.push(answer(asker, Err(with_wait(source, error, &ask, waited))));
                }
            }
        }
        self.seen = Some(seen);
    }

    fn expire(&mut self, source: &mut dyn RoomSource, now_ms: u64, out: &mut Vec<Action>) {
        let mut place = 0;
        while let Some(waiting) = self.queue.get(place) {
            if waiting.deadline_ms > now_ms {
                place += 1;
                continue;
            }
            let WaitingGrant { asker, ask, since_ms, .. } = waiting.clone();
            self.remove(place, 0);
            self.seen = None;
            let waited = QueueWait { ahead: place, ms: now_ms.saturating_sub(since_ms) };
            let short = source.shortage(&ask);
            let error = with_wait(source, short, &ask, waited);
            out.push(answer(asker, Err(error)));
        }
    }

    /// Number of waiting requests.
    pub(in crate::protocol) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of the waiting requests.
    pub(in crate::protocol) fn waiting_bytes(&self) -> u64 {
        self.queue.iter().fold(0, |sum, waiting| sum.saturating_add(waiting.ask.bytes()))
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        let first = self.queue.front().map(|waiting| waiting.asker.session);
        self.queue.retain(|waiting| waiting.asker.session != session);
        if first == Some(session) {
            self.passed_bytes = 0;
            self.seen = None;
        }
    }

    /// Forgets one request and returns whether there was one. The requests behind it are
    /// reconsidered.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        let of =
            |waiting: &WaitingGrant| (waiting.asker.session, waiting.asker.seq) == (session, seq);
        let Some(place) = self.queue.iter().position(of) else {
            return false;
        };
        self.remove(place, 0);
        self.seen = None;
        true
    }

    /// Takes out all requests at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> impl Iterator<Item = Asker> + '_ {
        self.passed_bytes = 0;
        self.queue.drain(..).map(|waiting| waiting.asker)
    }

    /// When the queue must be served: at once if memory became free, otherwise at its next
    /// deadline.
    pub(in crate::protocol) fn next_deadline_ms(&self, freed: Freed) -> Option<u64> {
        if !self.queue.is_empty() && self.seen != Some(freed) {
            return Some(0);
        }
        self.queue.iter().map(|waiting| waiting.deadline_ms).min()
    }

    /// Has the queue served again after a change other than freed memory.
    pub(in crate::protocol) fn look_again(&mut self) {
        self.seen = None;
    }

    /// Whether a request that is not the first of the queue may take `bytes`.
    fn may_pass(&self, bytes: u64) -> bool {
        let first = self.queue.front();
        first.is_none_or(|first| self.passed_bytes.saturating_add(bytes) <= first.ask.bytes())
    }

    fn push(&mut self, waiting: WaitingGrant) -> Result<(), WireError> {
        let session = waiting.asker.session;
        let of_session = self.queue.iter().filter(|other| other.asker.session == session).count();
        check_limit("requests that wait for memory", self.queue.len() + 1, WAITING_MAX)?;
        check_limit("requests of a client that wait", of_session + 1, WAITING_PER_SESSION_MAX)?;
        let names = |waiting: &WaitingGrant| waiting.ask.room.names.len();
        let all_names = self.queue.iter().chain([&waiting]).map(names).sum();
        check_limit("names that wait for room", all_names, NAMES_WAITING_MAX)?;
        if self.queue.is_empty() {
            self.passed_bytes = 0;
        }
        self.queue.push_back(waiting);
        Ok(())
    }

    /// Takes out a request that received `bytes`, or an error.
    fn remove(&mut self, place: usize, bytes: u64) {
        self.queue.remove(place);
        self.passed_bytes = if place == 0 { 0 } else { self.passed_bytes.saturating_add(bytes) };
    }
}

fn bytes_of(granted: &[Span]) -> u64 {
    granted.iter().map(|span| span.length.0).sum()
}

/// Adds the requests in front and the time waited to an error. If objects could not be spilled, the
/// error is about that.
fn with_wait(
    source: &dyn RoomSource,
    error: WireError,
    ask: &RoomRequest,
    waited: QueueWait,
) -> WireError {
    let (waiting, waited_ms) = (waited.ahead as u64, waited.ms);
    match error {
        WireError::OutOfMemory(full) => {
            let not_spilled =
                source.not_spilled(full.requested, waited_ms).filter(|_| ask.may_evict);
            let plain = WireError::OutOfMemory(OutOfMemory { waiting, waited_ms, ..full });
            not_spilled.unwrap_or(plain)
        }
        WireError::NoRoom(full) => WireError::NoRoom(NoRoom { waiting, waited_ms, ..full }),
        error => error,
    }
}

/// Whether a request with this error may succeed later.
fn is_want_of_room(error: &WireError) -> bool {
    match error {
        WireError::OutOfMemory(_) | WireError::NoRoom(_) => true,
        WireError::TooMany { what, .. } => what == "objects" || what == "grants",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use farrow_memory::{Length, Offset};
    use farrow_store::{ClientSlot, Room};

    use super::*;

    /// Memory without addresses; a request that may evict gets what is evictable too.
    #[derive(Debug, Default)]
    struct CountedMemory {
        free: u64,
        evictable: u64,
        freed: u64,
        is_making_room: bool,
        /// A request of the first number of bytes frees the second number.
        freed_for: Option<(u64, u64)>,
    }

    impl CountedMemory {
        fn give_back(&mut self, bytes: u64) {
            self.free += bytes;
            self.freed += bytes;
        }
    }

    impl RoomSource for CountedMemory {
        fn take(&mut self, _: ClientSlot, ask: &RoomRequest) -> Result<Vec<Span>, WireError> {
            let bytes = ask.bytes();
            if let Some((_, freed)) = self.freed_for.take_if(|(one, _)| *one == bytes) {
                self.give_back(freed);
            }
            if ask.may_evict && bytes <= self.free + self.evictable {
                let evicted = bytes.saturating_sub(self.free);
                self.evictable -= evicted;
                self.give_back(evicted);
            }
            self.free = self.free.checked_sub(bytes).ok_or_else(|| self.out_of_memory(bytes))?;
            Ok(vec![Span { offset: Offset(0), length: Length(bytes) }])
        }

        fn freed(&self) -> Freed {
            Freed { bytes: self.freed, ..Freed::default() }
        }

        fn is_making_room(&self) -> bool {
            self.is_making_room
        }

        fn shortage(&mut self, ask: &RoomRequest) -> WireError {
            self.out_of_memory(ask.bytes())
        }

        fn out_of_memory(&self, requested: u64) -> WireError {
            let (free, largest) = (self.free, self.free);
            WireError::OutOfMemory(OutOfMemory {
                requested,
                free,
                largest,
                waiting: 0,
                waited_ms: 0,
            })
        }

        fn not_spilled(&self, _: u64, _: u64) -> Option<WireError> {
            None
        }
    }

    fn ask(bytes: u64, wait_ms: u64) -> RoomRequest {
        let room = Room::of_run(Length(bytes));
        let (want, may_evict, is_single) = (bytes, false, true);
        RoomRequest { room, objects: 0, want, wait_ms, may_evict, is_single }
    }

    /// Requests of one client each, numbered from 1 on.
    struct AdmissionQueue {
        admission: Admission,
        memory: CountedMemory,
        requested: u64,
    }

    impl AdmissionQueue {
        fn new(memory: CountedMemory) -> Self {
            Self { admission: Admission::default(), memory, requested: 0 }
        }

        /// Whether the request was granted at once; `None`: it waits.
        fn ask(&mut self, ask: RoomRequest, now_ms: u64) -> Option<Result<(), WireError>> {
            self.requested += 1;
            let (session, seq, slot) = (SessionId(self.requested), self.requested, ClientSlot(0));
            let asker = Asker { session, seq, slot };
            let answer = self.admission.grant(&mut self.memory, asker, ask, now_ms);
            answer.map(|granted| granted.map(drop)).transpose()
        }

        /// The requests that are answered now, and whether they were granted.
        fn serve(&mut self, now_ms: u64) -> Vec<(u64, bool)> {
            let mut out = Vec::new();
            self.admission.serve(&mut self.memory, now_ms, &mut out);
            let answers = out.into_iter().map(|action| match action {
                Action::Send { reply, .. } => (reply.seq, reply.body.is_ok()),
                other => panic!("{other:?}"),
            });
            answers.collect()
        }
    }

    #[test]
    fn a_request_waits_for_memory_until_its_deadline_and_learns_how_long() {
        let mut queue = AdmissionQueue::new(CountedMemory { free: 10, ..CountedMemory::default() });
        assert_eq!(queue.ask(ask(4, 0), 0), Some(Ok(())));
        assert_eq!(queue.ask(ask(20, 100), 5), None);
        assert_eq!(queue.serve(104), []);
        let mut out = Vec::new();
        queue.admission.serve(&mut queue.memory, 105, &mut out);
        let [Action::Send { reply, .. }] = &out[..] else { panic!("{out:?}") };
        let error = WireError::OutOfMemory(OutOfMemory {
            requested: 20,
            free: 6,
            largest: 6,
            waiting: 0,
            waited_ms: 100,
        });
        assert_eq!((reply.seq, &reply.body), (2, &Err(error)));
        assert_eq!(queue.admission.waiting(), 0);
    }

    /// Requests that may not wait overtake by the same rule as those that wait.
    #[test]
    fn smaller_requests_overtake_the_first_until_they_have_as_many_bytes_as_it_asks_for() {
        let mut queue = AdmissionQueue::new(CountedMemory { free: 8, ..CountedMemory::default() });
        assert_eq!(queue.ask(ask(10, 1_000), 0), None);
        assert_eq!(queue.ask(ask(4, 0), 0), Some(Ok(())));
        assert_eq!(queue.ask(ask(4, 1_000), 0), Some(Ok(())));
        queue.memory.give_back(4);
        let refused = queue.ask(ask(4, 0), 0);
        assert!(
            matches!(refused, Some(Err(WireError::OutOfMemory(OutOfMemory { free: 4, .. })))),
            "{refused:?}"
        );
        assert_eq!(queue.ask(ask(3, 1_000), 0), None, "it is behind the first one too");
        assert_eq!(queue.serve(1), []);
        queue.memory.give_back(9);
        assert_eq!(queue.serve(2), [(1, true), (5, true)]);
        assert_eq!(queue.memory.free, 0);
    }

    #[test]
    fn only_the_first_of_the_queue_causes_evictions() {
        let mut queue = AdmissionQueue::new(CountedMemory::default());
        let evicting = |bytes| RoomRequest { may_evict: true, ..ask(bytes, 1_000) };
        assert_eq!(queue.ask(evicting(20), 0), None);
        assert_eq!(queue.ask(evicting(6), 0), None);
        queue.memory.evictable = 6;
        assert_eq!(queue.serve(1), []);
        assert!(queue.admission.cancel(SessionId(1), 1));
        assert_eq!(queue.serve(1), [(2, true)]);
        assert_eq!((queue.memory.free, queue.memory.evictable), (0, 0));
    }

    /// What is evicted for the first of the queue can be enough for one that was looked at before.
    #[test]
    fn memory_that_a_later_request_frees_is_not_lost_on_an_earlier_one() {
        let mut queue = AdmissionQueue::new(CountedMemory { free: 4, ..CountedMemory::default() });
        assert_eq!(queue.ask(ask(20, 1_000), 0), None);
        assert_eq!(queue.ask(ask(6, 1_000), 0), None);
        assert_eq!(queue.ask(ask(2, 1_000), 0), Some(Ok(())));
        // Deleted objects are freed on the way to an answer for the second.
        queue.memory.freed_for = Some((6, 30));
        assert_eq!(queue.serve(1), [(2, true)]);
        assert_eq!(queue.admission.next_deadline_ms(queue.memory.freed()), Some(0));
        assert_eq!(queue.serve(1), [(1, true)]);
    }

    #[test]
    fn a_request_that_may_not_wait_waits_while_memory_is_freed_for_it() {
        let mut queue =
            AdmissionQueue::new(CountedMemory { is_making_room: true, ..CountedMemory::default() });
        let evicting = RoomRequest { may_evict: true, ..ask(8, 0) };
        assert_eq!(queue.ask(evicting.clone(), 0), None);
        assert_eq!(queue.admission.next_deadline_ms(queue.memory.freed()), Some(0));
        assert_eq!(queue.serve(1), []);
        let deadline_ms = queue.admission.next_deadline_ms(queue.memory.freed());
        assert_eq!(deadline_ms, Some(SPILL_MS_MAX));
        queue.memory.give_back(1);
        queue.memory.is_making_room = false;
        assert_eq!(queue.serve(2), [(1, false)]);
        let refused = queue.ask(evicting, 2);
        assert!(matches!(refused, Some(Err(WireError::OutOfMemory(_)))), "{refused:?}");
    }

    #[test]
    fn the_queue_has_an_end_and_forgets_sessions_and_requests() {
        let mut queue = AdmissionQueue::new(CountedMemory::default());
        for _ in 0..WAITING_MAX {
            assert_eq!(queue.ask(ask(1, 1_000), 0), None);
        }
        let refused = queue.ask(ask(1, 1_000), 0);
        assert!(matches!(refused, Some(Err(WireError::TooMany { .. }))), "{refused:?}");
        assert!(queue.admission.cancel(SessionId(7), 7));
        assert!(!queue.admission.cancel(SessionId(7), 7));
        queue.admission.forget(SessionId(1));
        assert_eq!(queue.admission.waiting(), WAITING_MAX - 2);
        queue.memory.give_back(1);
        assert_eq!(queue.serve(1), [(2, true)]);
        assert_eq!(queue.admission.drain().count(), WAITING_MAX - 3);
    }
}
