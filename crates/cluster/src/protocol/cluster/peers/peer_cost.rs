//! What a node has measured of another one: its room, and the cost of its messages and transfers.

use farrow_wire::NodeCost;

/// Bytes of a transfer from which its bandwidth counts: a shorter one measures the round trip.
const TRANSFER_BYTES_MIN: u64 = 1 << 20;

/// A question without an answer leaves the room known for this long: a node may be busy.
const ROOM_MS_MAX: u64 = 5_000;

/// What is known of the cost of another node, and when it is asked next.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PeerCost {
    pub(super) measured: NodeCost,
    /// When the next question is due, unless one is under way.
    ask_at_ms: u64,
    is_queried: bool,
    /// When its room was reported.
    room_at_ms: u64,
    /// Bytes that it lends.
    capacity: Option<u64>,
}

impl PeerCost {
    /// The cost of the same node in a new view. Its room may have changed with its life.
    pub(super) fn in_view(self, is_same_life: bool) -> Self {
        match is_same_life {
            true => self,
            false => {
                let measured = NodeCost { free: None, ..self.measured };
                Self { measured, ..Self::default() }
            }
        }
    }

    /// When the next question is due.
    pub(super) fn ask_at_ms(&self) -> Option<u64> {
        (!self.is_queried).then_some(self.ask_at_ms)
    }

    pub(super) fn query_sent(&mut self) {
        self.is_queried = true;
    }

    /// Notes the free bytes of an answer, if it has them.
    pub(super) fn on_response(&mut self, free: Option<u64>, now_ms: u64) {
        (self.measured.free, self.room_at_ms) = (free, now_ms);
    }

    /// Notes how many bytes it lends. Returns whether that is another number than before.
    pub(super) fn lends(&mut self, capacity: u64) -> bool {
        self.capacity.replace(capacity) != Some(capacity)
    }

    pub(super) fn capacity(&self) -> Option<u64> {
        self.capacity
    }

    /// Notes that a question had no answer.
    pub(super) fn on_no_response(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.room_at_ms) > ROOM_MS_MAX {
            self.measured.free = None;
        }
    }

    /// No question is under way any more. The next one is due at this time.
    pub(super) fn ask_at(&mut self, at_ms: u64) {
        (self.is_queried, self.ask_at_ms) = (false, at_ms);
    }

    pub(super) fn round_trip(&mut self, elapsed_us: u64) {
        self.measured.latency_us = Some(mean(self.measured.latency_us, elapsed_us));
    }

    pub(super) fn transferred(&mut self, bytes: u64, elapsed_us: u64) {
        if bytes < TRANSFER_BYTES_MIN {
            return;
        }
        let rate = u128::from(bytes) * 1_000_000 / u128::from(elapsed_us.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.measured.bytes_per_second = Some(mean(self.measured.bytes_per_second, rate));
    }
}

/// The exponentially weighted mean of measurements: the newest has a weight of a quarter.
fn mean(before: Option<u64>, newest: u64) -> u64 {
    let Some(before) = before else { return newest };
    let sum = 3 * u128::from(before) + u128::from(newest);
    u64::try_from(sum / 4).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_follows_and_does_not_overflow() {
        assert_eq!(mean(None, 7), 7);
        assert_eq!(mean(Some(100), 200), 125);
        assert_eq!(mean(Some(u64::MAX), u64::MAX), u64::MAX);
        let mut value = None;
        (0..64).for_each(|_| value = Some(mean(value, 1000)));
        assert_eq!(value, Some(1000));
    }

    #[test]
    fn a_new_life_has_its_room_asked_again() {
        let measured = NodeCost { free: Some(1), latency_us: Some(2), bytes_per_second: Some(3) };
        let cost =
            PeerCost { measured, ask_at_ms: 9, is_queried: true, room_at_ms: 0, capacity: Some(4) };
        assert_eq!(cost.ask_at_ms(), None);
        assert_eq!(cost.in_view(true).measured, measured);
        let later = cost.in_view(false);
        assert_eq!(later.measured, NodeCost { free: None, ..measured });
        assert_eq!((later.ask_at_ms(), later.capacity()), (Some(0), None));
    }

    #[test]
    fn a_question_without_an_answer_forgets_the_room_after_a_while() {
        let mut cost = PeerCost::default();
        cost.on_response(Some(7), 100);
        cost.on_no_response(100 + ROOM_MS_MAX);
        assert_eq!(cost.measured.free, Some(7));
        cost.on_no_response(101 + ROOM_MS_MAX);
        assert_eq!(cost.measured.free, None);
        cost.on_response(Some(7), 20_000);
        cost.on_response(None, 20_001);
        assert_eq!(cost.measured.free, None, "an earlier version does not say");
    }
}
