//! One word of flags, and the requests that wait for some of them.

use super::waits::{Outcomes, WaitOutcome, Waiter};

#[derive(Debug)]
struct FlagWait {
    waiter: Waiter,
    mask: u64,
    deadline_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Flags {
    value: u64,
    waits: Vec<FlagWait>,
}

impl Flags {
    pub(super) fn value(&self) -> u64 {
        self.value
    }

    /// Clears flags, then sets flags.
    pub(super) fn change(&mut self, set: u64, clear: u64, out: &mut Outcomes) {
        let value = self.value & !clear | set;
        self.value = value;
        self.waits.retain(|wait| {
            let is_met = value & wait.mask == wait.mask;
            if is_met {
                out.push((wait.waiter.clone(), WaitOutcome::Flags { value, is_met }));
            }
            !is_met
        });
    }

    /// Clears all flags; waiters for them continue to wait.
    pub(super) fn clear(&mut self) {
        self.value = 0;
    }

    /// Waits until all flags of `mask` are set.
    pub(super) fn wait(&mut self, mask: u64, waiter: Waiter, deadline_ms: u64, out: &mut Outcomes) {
        let value = self.value;
        if value & mask == mask {
            return out.push((waiter, WaitOutcome::Flags { value, is_met: true }));
        }
        self.waits.push(FlagWait { waiter, mask, deadline_ms });
    }

    /// Forgets waits without an outcome.
    pub(super) fn forget(&mut self, has_left: impl Fn(&Waiter) -> bool) {
        self.waits.retain(|wait| !has_left(&wait.waiter));
    }

    /// Ends expired waits.
    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Outcomes) {
        let value = self.value;
        self.waits.retain(|wait| {
            let is_over = wait.deadline_ms <= now_ms;
            if is_over {
                out.push((wait.waiter.clone(), WaitOutcome::Flags { value, is_met: false }));
            }
            !is_over
        });
    }

    /// The flags, and the requests that waited.
    pub(super) fn into_parts(self) -> (u64, impl Iterator<Item = Waiter>) {
        (self.value, self.waits.into_iter().map(|wait| wait.waiter))
    }

    pub(super) fn deadlines_ms(&self) -> impl Iterator<Item = u64> {
        self.waits.iter().map(|wait| wait.deadline_ms)
    }

    /// Waiting requests.
    pub(super) fn entries(&self) -> usize {
        self.waits.len()
    }

    pub(super) fn is_unused(&self) -> bool {
        self.value == 0 && self.waits.is_empty()
    }
}
