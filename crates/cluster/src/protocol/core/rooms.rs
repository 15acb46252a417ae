//! Memory for clients: what they ask for, and where it comes from.

use farrow_memory::{Length, Span};
use farrow_store::{ClientSlot, Freed, Home, NAME_BYTES_MAX, Room, full_name};
use farrow_wire::{
    OutOfMemory, Purpose, ReplyBody, RequestBody, RoomAsk, TooLarge, WireError, wire_span,
};

use super::quota::Quota;
use super::residency::{RemoteReplicas, Residency, RoomSearch};
use crate::protocol::action::Action;
use crate::protocol::convert::store_error;

/// Requested room, its purpose and its longest wait.
#[derive(Debug, Clone)]
pub(in crate::protocol) struct RoomRequest {
    pub(in crate::protocol) room: Room,
    /// Number of objects to be sealed.
    pub(in crate::protocol) objects: u32,
    pub(in crate::protocol) want: u64,
    pub(in crate::protocol) wait_ms: u64,
    /// Whether objects may be evicted for it.
    pub(in crate::protocol) may_evict: bool,
    /// Whether the answer is one range instead of a list.
    pub(in crate::protocol) is_single: bool,
}

impl RoomRequest {
    /// Validates a request for memory. `home` is that of the client.
    pub(in crate::protocol) fn new(
        home: &Home,
        slot: ClientSlot,
        body: RequestBody,
    ) -> Result<Self, WireError> {
        let (ask, is_single) = match body {
            RequestBody::Grant { min, want, wait_ms } => {
                let purpose = Some(Purpose::default());
                (RoomAsk { sizes: vec![min], want, wait_ms, purpose }, true)
            }
            RequestBody::Room(ask) => (ask, false),
            _ => return Err(WireError::Invalid("not a request for memory".into())),
        };
        let RoomAsk { sizes, want, wait_ms, purpose } = ask;
        let least = if is_single { sizes.first().copied().unwrap_or_default() } else { 0 };
        if sizes.contains(&0) || want < least || (sizes.is_empty() && purpose.is_none()) {
            return Err(WireError::Invalid(format!(
                "a grant of {sizes:?} to {want} B makes no sense"
            )));
        }
        let may_evict = purpose.is_some();
        let Purpose { objects, names } = purpose.unwrap_or_default();
        let namespace = home.namespace_of(slot).map_err(store_error)?;
        let shortest = full_name(&namespace.options.name, "x").map_err(store_error)?;
        let before = shortest.len() as u64 - 1;
        let full = |name: &u32| Length((before + u64::from(*name)).min(NAME_BYTES_MAX));
        let room = Room {
            runs: sizes.into_iter().map(Length).collect(),
            slots: objects,
            names: names.iter().map(full).collect(),
        };
        Ok(Self { room, objects, want, wait_ms, may_evict, is_single })
    }

    /// Bytes of all ranges.
    pub(in crate::protocol) fn bytes(&self) -> u64 {
        self.room.runs.iter().fold(0, |sum, run| sum.saturating_add(run.0))
    }

    pub(in crate::protocol) fn answer(&self, granted: &[Span]) -> ReplyBody {
        match granted {
            [one] if self.is_single => ReplyBody::Granted(wire_span(*one)),
            all => ReplyBody::Room(all.iter().copied().map(wire_span).collect()),
        }
    }
}

/// Where memory for clients comes from.
pub(in crate::protocol) trait RoomSource {
    /// Allocates memory for a client, within its quota.
    fn take(&mut self, slot: ClientSlot, ask: &RoomRequest) -> Result<Vec<Span>, WireError>;

    /// What became free since the start. While it is equal, a failed request fails again.
    fn freed(&self) -> Freed;

    /// Whether memory will become free without further requests.
    fn is_making_room(&self) -> bool;

    /// The error of a request without room, by what is free now.
    fn shortage(&mut self, ask: &RoomRequest) -> WireError;

    /// The error of a request for `bytes` that was not served.
    fn out_of_memory(&self, bytes: u64) -> WireError;

    /// The error for a lack of memory, if failed writes of files are its cause.
    fn not_spilled(&self, bytes: u64, waited_ms: u64) -> Option<WireError>;
}

/// The memory of this node, within the quotas.
#[derive(Debug)]
pub(in crate::protocol) struct Rooms<'a> {
    pub(in crate::protocol) home: &'a mut Home,
    pub(in crate::protocol) quota: &'a mut Quota,
    pub(in crate::protocol) residency: &'a mut Residency,
    pub(in crate::protocol) elsewhere: &'a mut dyn RemoteReplicas,
    /// Deleted objects without a hold were freed: all requests that wait need that once.
    pub(in crate::protocol) is_reclaimed: bool,
}

impl Rooms<'_> {
    /// Checks a request before it is served or waits: its size, and the quotas of its client.
    pub(in crate::protocol) fn check(
        &mut self,
        slot: ClientSlot,
        ask: &RoomRequest,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<(), WireError> {
        let (requested, capacity) = (ask.bytes(), self.home.capacity().0);
        if requested > capacity {
            return Err(WireError::TooLarge(TooLarge { requested, capacity }));
        }
        if self.quota.reservations.of(slot) == 0 {
            // A client that could not seal an object gets the error before it writes. Freed room is
            // for requests that still wait.
            self.quota.serve(self.home, now_ms, out);
            self.quota.check_objects(self.home, slot, ask.objects.max(1))?;
        }
        // Bytes of deleted objects that are held no more count until they are freed.
        let Self { home, quota, .. } = self;
        let reclaimed = home.reclaim_until(|home| allowance(home, quota, slot, ask).is_ok());
        reclaimed.map_err(store_error)?;
        self.allowance(slot, ask).map(drop)
    }

    /// Most bytes for a request. Clients ask for memory ahead in proportion to the whole heap, of
    /// which the node may lend a part.
    fn ahead(&self, ask: &RoomRequest) -> Length {
        let (lent, all) = (self.home.capacity().0, self.home.capacity_max().0);
        let part = u128::from(ask.want) * u128::from(lent) / u128::from(all.max(1));
        Length(u64::try_from(part).unwrap_or(u64::MAX).max(ask.bytes()))
    }

    fn allowance(&self, slot: ClientSlot, ask: &RoomRequest) -> Result<Length, WireError> {
        allowance(self.home, self.quota, slot, ask)
    }
}

/// Checks the quotas for all ranges; returns the bytes that they allow.
fn allowance(
    home: &Home,
    quota: &Quota,
    slot: ClientSlot,
    ask: &RoomRequest,
) -> Result<Length, WireError> {
    let page = home.layout().page.0;
    let whole = |run: &Length| run.0.checked_next_multiple_of(page).unwrap_or(u64::MAX);
    let bytes = match ask.room.runs[..] {
        [] => return Ok(Length(0)),
        [one] => one.0,
        _ => ask.room.runs.iter().map(whole).fold(0, u64::saturating_add),
    };
    quota.allowance(home, slot, Length(bytes), Length(ask.want.max(bytes)))
}

impl RoomSource for Rooms<'_> {
    fn take(&mut self, slot: ClientSlot, ask: &RoomRequest) -> Result<Vec<Span>, WireError> {
        let want = self.allowance(slot, ask)?.min(self.ahead(ask));
        let (may_evict, may_reclaim) = (ask.may_evict, !self.is_reclaimed);
        let search = RoomSearch { slot, room: &ask.room, want, may_evict, may_reclaim };
        let found = self.residency.find_room(self.home, self.elsewhere, search);
        self.is_reclaimed |= found.is_err();
        found.map_err(store_error)
    }

    fn freed(&self) -> Freed {
        self.home.freed()
    }

    fn is_making_room(&self) -> bool {
        self.residency.is_making_room() || self.elsewhere.is_recalling()
    }

    fn shortage(&mut self, ask: &RoomRequest) -> WireError {
        match self.home.check_room(&ask.room) {
            Ok(()) => self.out_of_memory(ask.bytes()),
            Err(error) => store_error(error),
        }
    }

    fn out_of_memory(&self, bytes: u64) -> WireError {
        let (free, largest) = self.home.free_bytes();
        let (requested, free, largest) = (bytes, free.0, largest.0);
        WireError::OutOfMemory(OutOfMemory { requested, free, largest, waiting: 0, waited_ms: 0 })
    }

    fn not_spilled(&self, bytes: u64, waited_ms: u64) -> Option<WireError> {
        self.residency.shortage(self.home, bytes, waited_ms)
    }
}
