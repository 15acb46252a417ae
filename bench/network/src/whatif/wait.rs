//! Waits like those of a load that missed: without yielding the core.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

/// Parts of a calibration; the fastest counts, because other programs use this machine too.
const PARTS: u32 = 20;
const WAITS: u32 = 1000;

/// A wait for each missing line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineWait {
    line: Duration,
    /// Overhead of a wait: reading the clock takes time.
    beyond: Duration,
}

impl LineWait {
    /// A wait that takes `line` for each line, calibrated now.
    pub fn calibrated(line: Duration) -> LineWait {
        let plain = LineWait { line, beyond: Duration::ZERO };
        let part = || {
            let began = Instant::now();
            (0..WAITS).for_each(|_| plain.lines(1));
            began.elapsed() / WAITS
        };
        let fastest = (0..PARTS).map(|_| part()).min().unwrap_or_default();
        LineWait { line, beyond: fastest.saturating_sub(line) }
    }

    /// Waits for `lines` lines.
    pub fn lines(self, lines: u32) {
        let wait = (self.line * lines).saturating_sub(self.beyond);
        if wait.is_zero() {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < wait {
            spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LineWait;
    use std::time::{Duration, Instant};

    #[test]
    fn a_wait_asks_for_less_than_it_takes() {
        let line = Duration::from_nanos(700);
        let wait = LineWait::calibrated(line);
        assert!(wait.beyond > Duration::ZERO, "to look at the clock takes time");
        let began = Instant::now();
        (0..1000).for_each(|_| wait.lines(3));
        assert!(began.elapsed() >= 1000 * (3 * line - wait.beyond));
    }

    #[test]
    fn a_link_as_fast_as_memory_here_is_not_waited_for() {
        let wait = LineWait::calibrated(Duration::ZERO);
        let began = Instant::now();
        wait.lines(u32::MAX);
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
