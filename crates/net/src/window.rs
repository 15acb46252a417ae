//! The window of bytes that are requested ahead: twice bandwidth times round trip.
//!
//! A single outstanding request would limit throughput to one request per round trip. Twice the
//! product keeps the link full even if round trips double. A larger window only fills the socket
//! buffers.

use std::time::Duration;

/// Initial and minimum window. Twice the product reaches it at 400 us and 40 Gb/s, or at 17 ms and
/// 1 Gb/s.
pub const WINDOW_BYTES_MIN: u64 = 4 << 20;

/// Maximum window. Twice the product reaches it at 2.7 ms and 100 Gb/s.
pub const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// Weight of the newest bandwidth measurement, out of 256.
const NEWEST_OF_256: u64 = 64;

/// The measured link to one peer. Time is an argument.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimate {
    round_trip: Option<Duration>,
    /// Total of all connections while data arrives.
    bytes_per_second: u64,
}

impl LinkEstimate {
    /// Records the round trip of a small request. The shortest counts: others include waiting.
    pub fn on_round_trip(&mut self, elapsed: Duration) {
        let shortest = self.round_trip.map_or(elapsed, |before| before.min(elapsed));
        self.round_trip = Some(shortest);
    }

    /// Records the bytes that arrived in a period without a pause.
    pub fn on_bytes(&mut self, bytes: u64, elapsed: Duration) {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX).max(1);
        let newest = bytes.saturating_mul(1_000_000) / micros;
        self.bytes_per_second = match self.bytes_per_second {
            0 => newest,
            before => {
                let weighted = u128::from(before) * u128::from(256 - NEWEST_OF_256)
                    + u128::from(newest) * u128::from(NEWEST_OF_256);
                u64::try_from(weighted / 256).unwrap_or(u64::MAX)
            }
        };
    }

    /// As [`Self::on_bytes`], where something else may have been slower than the link: the estimate
    /// does not become less.
    pub fn on_bytes_at_least(&mut self, bytes: u64, elapsed: Duration) {
        let before = self.bytes_per_second;
        self.on_bytes(bytes, elapsed);
        self.bytes_per_second = self.bytes_per_second.max(before);
    }

    /// Maximum bytes in flight, over all connections.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        let micros = self.round_trip.unwrap_or_default().as_micros();
        let twice = (2 * u128::from(self.bytes_per_second)).saturating_mul(micros) / 1_000_000;
        u64::try_from(twice).unwrap_or(u64::MAX).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
    }

    /// Shortest measured round trip of a small request.
    #[must_use]
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Measured bandwidth; zero before the first measurement.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_twice_bandwidth_times_round_trip() {
        let mut link = LinkEstimate::default();
        assert_eq!(link.window_bytes(), WINDOW_BYTES_MIN);
        link.on_round_trip(Duration::from_millis(9));
        link.on_round_trip(Duration::from_millis(2));
        link.on_round_trip(Duration::from_millis(30));
        link.on_bytes(5 << 30, Duration::from_secs(1));
        assert_eq!(link.window_bytes(), 2 * (5 << 30) / 500);
        link.on_round_trip(Duration::from_micros(10));
        assert_eq!(link.window_bytes(), WINDOW_BYTES_MIN);
    }

    #[test]
    fn a_rate_that_something_else_limits_never_makes_the_estimate_less() {
        let (mut link, second) = (LinkEstimate::default(), Duration::from_secs(1));
        link.on_bytes(1000, second);
        link.on_bytes_at_least(10, second);
        assert_eq!(link.bytes_per_second(), 1000);
        link.on_bytes_at_least(5000, second);
        assert_eq!(link.bytes_per_second(), 2000);
    }

    #[test]
    fn no_measurement_leaves_the_limits() {
        let mut link = LinkEstimate::default();
        link.on_round_trip(Duration::MAX);
        link.on_bytes(u64::MAX, Duration::ZERO);
        assert_eq!(link.window_bytes(), WINDOW_BYTES_MAX);
        link.on_bytes(0, Duration::MAX);
        assert!(link.window_bytes() >= WINDOW_BYTES_MIN);
    }
}
