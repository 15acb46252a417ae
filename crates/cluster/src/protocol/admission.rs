//! Requests for memory: grants, waits and refusals.
//!
//! A request that may wait is queued when no run of free memory is long enough. The queue is served
//! in order of arrival, with one exception. Smaller requests may overtake the first waiter until
//! they have taken as many bytes as it asks for. So small requests do not starve a large one, and a
//! large one that may never fit does not block small ones at once. A request that may not wait
//! overtakes by the same rule; otherwise it is rejected, however much is free. It only waits while
//! memory is being freed for it.

use farrow_memory::{Length, Span};
use farrow_store::{ClientSlot, NAME_BYTES_MAX, Room};
use farrow_wire::{
    BATCH_ITEMS_MAX, Purpose, ROOM_RANGES_MAX, ReplyBody, RequestBody, RoomAsk, WAIT_MS_MAX,
    WireError,
};

use super::Action;
use super::action::answer;
use super::context::Asker;
use super::convert::{limit, store_error};
use super::core::admission::{RoomRequest, WaitingGrant};
use super::spill::SPILL_MS_MAX;
use super::state::NodeState;

impl NodeState {
    /// Handles a request for memory. `None`: the answer follows later.
    pub(super) fn grant(
        &mut self,
        asker: Asker,
        body: RequestBody,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        self.check_writer(asker.slot)?;
        let ask = self.ask_of(asker.slot, body)?;
        let bytes = ask.bytes();
        let capacity = self.home.layout().heap.length.0;
        if bytes > capacity {
            return Err(WireError::TooLarge { asked: bytes, capacity });
        }
        if self.quota.reservations.of(asker.slot) == 0 {
            // A client that could not seal an object gets the error before it writes. Freed room is
            // for requests that still wait.
            self.quota.serve(&mut self.home, now_ms, out);
            self.quota.check_objects(&mut self.home, asker.slot, ask.objects.max(1))?;
        }
        self.check_allowance(asker.slot, &ask)?;
        let is_behind = self.admission.waiting() > 0;
        let may_wait = ask.wait_ms > 0;
        let mut refused = None;
        if self.admission.may_pass(bytes) {
            // No memory in advance of need while others wait.
            let want = if is_behind { 0 } else { ask.want };
            match self.take_room(asker.slot, &RoomRequest { want, ..ask.clone() }, ask.may_evict) {
                Ok(granted) => {
                    let bytes = granted.iter().map(|span| span.length.0).sum();
                    self.admission.passed_bytes = self.admission.passed_bytes.saturating_add(bytes);
                    return Ok(Some(ask.answer(&granted)));
                }
                Err(error) if is_want_of_room(&error) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        let refused = refused.unwrap_or_else(|| self.out_of_memory(bytes));
        let is_memory = matches!(refused, WireError::OutOfMemory { .. });
        let is_for_spills = !may_wait && ask.may_evict && is_memory && self.is_making_room();
        if !may_wait && !is_for_spills {
            return Err(self.with_wait(refused, &ask, (self.admission.waiting(), 0)));
        }
        let wait_ms = if may_wait { ask.wait_ms.min(WAIT_MS_MAX) } else { SPILL_MS_MAX };
        let deadline_ms = now_ms.saturating_add(wait_ms);
        let since_ms = now_ms;
        self.admission.push(WaitingGrant { asker, ask, since_ms, deadline_ms, is_for_spills })?;
        Ok(None)
    }

    /// Validates a request for room.
    fn ask_of(&self, slot: ClientSlot, body: RequestBody) -> Result<RoomRequest, WireError> {
        let (ask, is_single) = match body {
            RequestBody::Grant { min, want, wait_ms } => {
                let purpose = Some(Purpose { objects: 0, names: Vec::new() });
                (RoomAsk { sizes: vec![min], want, wait_ms, purpose }, true)
            }
            RequestBody::Room(ask) => (ask, false),
            _ => return Err(WireError::Invalid("no request for memory".into())),
        };
        let RoomAsk { sizes, want, wait_ms, purpose } = ask;
        limit("ranges in one message", sizes.len(), ROOM_RANGES_MAX)?;
        let least = if is_single { sizes.first().copied().unwrap_or_default() } else { 0 };
        if sizes.contains(&0) || want < least || (sizes.is_empty() && purpose.is_none()) {
            return Err(WireError::Invalid(format!(
                "a grant of {sizes:?} to {want} B makes no sense"
            )));
        }
        let may_evict = purpose.is_some();
        let Purpose { objects, names } = purpose.unwrap_or_default();
        limit("objects in one message", objects as usize, BATCH_ITEMS_MAX)?;
        limit("names in one message", names.len(), BATCH_ITEMS_MAX)?;
        let before = self.full_name(slot, "x")?.len() as u64 - 1;
        let full = |name: &u32| Length((before + u64::from(*name)).min(NAME_BYTES_MAX));
        let room = Room {
            runs: sizes.into_iter().map(Length).collect(),
            slots: objects,
            names: names.iter().map(full).collect(),
        };
        Ok(RoomRequest { room, objects, want, wait_ms, may_evict, is_single })
    }

    /// Checks the quotas for all ranges; returns the bytes that they allow.
    fn check_allowance(&self, slot: ClientSlot, ask: &RoomRequest) -> Result<Length, WireError> {
        let page = self.home.layout().page.0;
        let whole = |run: &Length| run.0.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let bytes = match ask.room.runs[..] {
            [] => return Ok(Length(0)),
            [one] => one.0,
            _ => ask.room.runs.iter().map(whole).fold(0, u64::saturating_add),
        };
        self.quota.allowance(&self.home, slot, Length(bytes), Length(ask.want.max(bytes)))
    }

    /// As [`Self::find_room`], within the client's quota.
    fn take_room(
        &mut self,
        slot: ClientSlot,
        ask: &RoomRequest,
        may_evict: bool,
    ) -> Result<Vec<Span>, WireError> {
        let want = self.check_allowance(slot, ask)?;
        self.find_room(slot, &ask.room, want, may_evict).map_err(store_error)
    }

    /// Rejects expired requests and serves those for which there is room now.
    pub(super) fn serve_waiting(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let mut place = 0;
        while let Some(waiting) = self.admission.queue.get(place) {
            if waiting.deadline_ms > now_ms {
                place += 1;
                continue;
            }
            let WaitingGrant { asker, ask, since_ms, .. } = waiting.clone();
            self.admission.remove(place, 0);
            self.admission.seen = None;
            let waited_ms = now_ms.saturating_sub(since_ms);
            let short = self.home.check_room(&ask.room).map_err(store_error).err();
            let short = short.unwrap_or_else(|| self.out_of_memory(ask.bytes()));
            let error = self.with_wait(short, &ask, (place, waited_ms));
            out.push(answer(asker, Err(error)));
        }
        if self.admission.seen == Some(self.home.freed()) {
            return;
        }
        let mut place = 0;
        while let Some(waiting) = self.admission.queue.get(place).cloned() {
            let WaitingGrant { asker, ask, is_for_spills, .. } = waiting;
            let ask = RoomRequest { want: 0, ..ask };
            let found = match place {
                // Only the first of the queue causes evictions.
                0 => self.take_room(asker.slot, &ask, ask.may_evict),
                _ if self.admission.may_pass(ask.bytes()) => {
                    self.take_room(asker.slot, &ask, false)
                }
                _ => Err(self.out_of_memory(ask.bytes())),
            };
            match found {
                Ok(granted) => {
                    let bytes = granted.iter().map(|span| span.length.0).sum();
                    self.admission.remove(place, bytes);
                    out.push(answer(asker, Ok(ask.answer(&granted))));
                }
                Err(error)
                    if is_want_of_room(&error) && (!is_for_spills || self.is_making_room()) =>
                {
                    place += 1;
                }
                Err(error) => {
                    self.admission.remove(place, 0);
                    let error = self.with_wait(error, &ask, (place, 0));
                    out.push(answer(asker, Err(error)));
                }
            }
        }
        self.admission.seen = Some(self.home.freed());
    }

    /// The error with the memory that is free now.
    fn out_of_memory(&self, asked: u64) -> WireError {
        let (free, largest) = self.home.free_bytes();
        let (free, largest) = (free.0, largest.0);
        WireError::OutOfMemory { asked, free, largest, waiting: 0, waited_ms: 0 }
    }

    /// Adds the requests in front and the time waited to an error. If objects could not be spilled,
    /// the error is about that.
    fn with_wait(
        &self,
        error: WireError,
        ask: &RoomRequest,
        (before, after): (usize, u64),
    ) -> WireError {
        let (waiting, waited_ms) = (before as u64, after);
        match error {
            WireError::OutOfMemory { asked, free, largest, .. } => {
                let blocked = self.spills.failure(asked, (free, largest), waited_ms);
                let plain = WireError::OutOfMemory { asked, free, largest, waiting, waited_ms };
                blocked.filter(|_| ask.may_evict).unwrap_or(plain)
            }
            WireError::NoRoom { what, asked, free, largest, used, .. } => {
                WireError::NoRoom { what, asked, free, largest, used, waiting, waited_ms }
            }
            error => error,
        }
    }
}

/// Whether a request with this error may succeed later.
fn is_want_of_room(error: &WireError) -> bool {
    match error {
        WireError::OutOfMemory { .. } | WireError::NoRoom { .. } => true,
        WireError::TooMany { what, .. } => what == "objects" || what == "grants",
        _ => false,
    }
}
