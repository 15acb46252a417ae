//! The edges of the graph that a trigger can see.

use super::entry::EdgeEntry;
use super::stamp::Stamp;

/// The part of the graph that a trigger sees, while the graph holds the trigger's whole batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visibility<T> {
    /// Sequence number of the batch's first edge, modulo 2^32.
    first: u32,
    /// None: every edge is visible, as in batch mode.
    trigger: Option<TriggerView<T>>,
}

/// The graph as it was just after the trigger was added.
#[derive(Clone, Copy, Debug)]
struct TriggerView<T> {
    /// The trigger's position in the batch.
    place: i32,
    /// The trigger's time.
    time: T,
    /// The first edge that was not evicted, in order of time, then of arrival.
    floor: EvictionFloor<T>,
}

/// The first edge that is not evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EvictionFloor<T> {
    pub time: T,
    /// Edges of that instant that arrived before this position are evicted. Positions count from
    /// the batch's first edge.
    pub place: Option<i32>,
}

/// The test that selects the visible edges of a window from a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ListCut<T> {
    /// Edges with times from the first to the second.
    Times(T, T),
    /// Edges from a time on that had arrived when the trigger did.
    Arrivals(T),
    /// Both tests apply to each edge.
    Each,
}

impl<T: Stamp> EvictionFloor<T> {
    fn is_above(self, entry: EdgeEntry<T>, place: i32) -> bool {
        let is_earlier = self.place.is_some_and(|floor| place < floor);
        (entry.time < self.time) | ((entry.time == self.time) & is_earlier)
    }
}

impl<T: Stamp> Visibility<T> {
    /// Every edge in the graph.
    pub(crate) fn all(first: u32) -> Visibility<T> {
        Visibility { first, trigger: None }
    }

    /// The edges from `floor` on that had arrived when the batch's edge at `place` did, at `time`.
    pub(crate) fn until(first: u32, place: u32, time: T, floor: EvictionFloor<T>) -> Visibility<T> {
        Visibility { first, trigger: Some(TriggerView { place: place.cast_signed(), time, floor }) }
    }

    /// The cheapest test for the visible edges of a window, if edges arrived in order of time.
    pub(crate) fn cut(self, (from, to): (T, T)) -> ListCut<T> {
        let Some(TriggerView { time, floor, .. }) = self.trigger else {
            return ListCut::Times(from, to);
        };
        if floor.time > time || (floor.place.is_some() && from <= floor.time) {
            return ListCut::Each;
        }
        let from = from.max(floor.time);
        if to < time { ListCut::Times(from, to) } else { ListCut::Arrivals(from) }
    }

    /// An edge's position in the batch, negative for edges of earlier batches.
    fn relative(self, seq: u32) -> i32 {
        seq.wrapping_sub(self.first).cast_signed()
    }

    /// The position of an edge of this batch; None for earlier edges.
    pub(crate) fn place(self, seq: u32) -> Option<usize> {
        usize::try_from(self.relative(seq)).ok()
    }

    pub(crate) fn sees(self, entry: EdgeEntry<T>) -> bool {
        self.has_arrived(entry.seq) && !self.is_evicted(entry)
    }

    /// Whether an edge had arrived when the trigger did.
    pub(crate) fn has_arrived(self, seq: u32) -> bool {
        self.trigger.is_none_or(|trigger| self.relative(seq) <= trigger.place)
    }

    /// The time of the eviction floor: older edges of earlier batches are evicted.
    pub(crate) fn oldest(self) -> T {
        self.trigger.map_or(T::default(), |trigger| trigger.floor.time)
    }

    /// The trigger's sequence number, modulo 2^32.
    pub(crate) fn trigger_seq(self) -> Option<u32> {
        self.trigger.map(|trigger| self.first.wrapping_add_signed(trigger.place))
    }

    /// Whether one edge arrived after another.
    pub(crate) fn is_after(self, seq: u32, other: u32) -> bool {
        seq.wrapping_sub(other).cast_signed() > 0
    }

    /// Whether an edge had been evicted when the trigger arrived.
    pub(crate) fn is_evicted(self, entry: EdgeEntry<T>) -> bool {
        self.trigger.is_some_and(|trigger| {
            let at = self.relative(entry.seq);
            (at != trigger.place) & trigger.floor.is_above(entry, at)
        })
    }

    /// This view with the eviction floor of an older one.
    pub(crate) fn with_floor_of(self, older: Visibility<T>) -> Visibility<T> {
        let trigger = self.trigger.zip(older.trigger);
        Visibility {
            trigger: trigger.map(|(new, old)| TriggerView { floor: old.floor, ..new }),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EvictionFloor, Visibility};
    use crate::edge::EdgeEntry;

    #[test]
    fn a_causal_trigger_sees_what_came_before_it_and_is_not_evicted() {
        // The batch starts just before sequence numbers wrap.
        let first = u32::MAX - 1;
        let view = Visibility::until(first, 2, 30, EvictionFloor { time: 10u32, place: Some(-3) });
        let entry =
            |time, place: i32| EdgeEntry { time, other: 0, seq: first.wrapping_add_signed(place) };
        assert!(view.sees(entry(11, -9)) && view.sees(entry(10, -3)) && view.sees(entry(30, 1)));
        assert!(!view.sees(entry(9, -1)) && !view.sees(entry(10, -4)) && !view.sees(entry(30, 3)));
        assert!(view.sees(entry(1, 2)), "itself, however late");
        assert_eq!((view.place(first), view.place(first.wrapping_sub(1))), (Some(0), None));
    }
}
