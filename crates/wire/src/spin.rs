//! Polling for a message for a short time instead of sleeping.
//!
//! Waking a sleeping core takes 50 to 100 us on a virtual machine, ten times the cost of a request.
//! So after a request each side polls a while, and gives its core to the other side meanwhile. Where
//! all cores compute, others take the core, for milliseconds each. A process that sleeps is served
//! sooner there, and no core needs to wake.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use farrow_memory::sync::{AtomicU64, Ordering};

/// After a request, each side polls for the next message for this long before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// A core that is given away for longer than this went to a process that computes. The other side
/// of a connection answers in a tenth of it.
const FOREIGN_US: u64 = 500;

/// First time without polling after that. It doubles each time the cores are still busy. One
/// that the machine lost for another reason costs little.
const REST_US_MIN: u64 = 5_000;
/// Longest such time.
const REST_US_MAX: u64 = 10_000_000;

/// One wait for a message, as long as the process polls for it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spin {
    /// `None`: it is time to sleep.
    until: Option<Instant>,
}

/// When polling is worth it, as this process found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Crowd {
    /// No thread polls until then, in microseconds.
    until_us: u64,
    /// The length of that time.
    rest_us: u64,
}

impl Spin {
    /// Begins to poll, unless the cores are busy.
    #[must_use]
    pub fn begin() -> Self {
        let now = Instant::now();
        let is_crowded = micros(now) < UNTIL_US.load(Ordering::Relaxed);
        Self { until: (!is_crowded).then(|| now + SPIN) }
    }

    /// Whether to poll once more.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// Lets another process use this core: the other side may need it.
    pub fn give_way(&mut self) {
        let before = Instant::now();
        std::thread::yield_now();
        if before.elapsed() > Duration::from_micros(FOREIGN_US) {
            self.until = None;
            note_crowded(micros(before));
        }
    }
}

static UNTIL_US: AtomicU64 = AtomicU64::new(0);
static REST_US: AtomicU64 = AtomicU64::new(0);

/// Microseconds since the first call.
fn micros(at: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let since = at.saturating_duration_since(*START.get_or_init(|| at));
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Threads that note it at the same time may lose a doubling.
fn note_crowded(now_us: u64) {
    let (until_us, rest_us) = (UNTIL_US.load(Ordering::Relaxed), REST_US.load(Ordering::Relaxed));
    let Crowd { until_us, rest_us } = Crowd { until_us, rest_us }.after(now_us);
    REST_US.store(rest_us, Ordering::Relaxed);
    UNTIL_US.store(until_us, Ordering::Relaxed);
}

impl Crowd {
    /// The state after another process took the core.
    fn after(self, now_us: u64) -> Self {
        // Busy again within as long as the last rest was.
        let is_again = now_us < self.until_us.saturating_add(self.rest_us);
        let rest_us = if is_again { self.rest_us * 2 } else { 0 };
        let rest_us = rest_us.clamp(REST_US_MIN, REST_US_MAX);
        Self { until_us: now_us.saturating_add(rest_us), rest_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_grows_while_the_cores_stay_busy() {
        let (mut crowd, mut now_us) = (Crowd::default(), 1_000);
        let mut rests = Vec::new();
        for _ in 0..10 {
            crowd = crowd.after(now_us);
            assert_eq!(crowd.until_us, now_us + crowd.rest_us);
            rests.push(crowd.rest_us / 1_000);
            now_us = crowd.until_us + 10;
        }
        assert_eq!(rests, [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560]);
        // Idle for as long as the last rest was.
        let crowd = crowd.after(crowd.until_us + crowd.rest_us);
        assert_eq!(crowd.rest_us, REST_US_MIN);
        assert_eq!(Crowd { until_us: u64::MAX, rest_us: 1 }.after(u64::MAX).until_us, u64::MAX);
    }

    #[test]
    fn a_process_polls_for_a_while_and_not_where_cores_are_busy() {
        let mut spin = Spin::begin();
        while spin.goes_on() {
            spin.give_way();
        }
        assert!(!Spin::default().goes_on());
        note_crowded(micros(Instant::now()));
        assert!(!Spin::begin().goes_on());
    }
}
