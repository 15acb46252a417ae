//! A limit of waits and members, which other nodes announce.

/// Limit of waiting requests and of members of all barriers together, each some 150 B: another node
/// can claim any number of clients.
pub(super) const ENTRIES_MAX: usize = 1 << 18;

/// A limit of entries that are counted when they are added, and again when the limit seems reached.
#[derive(Debug, Default)]
pub(super) struct EntryBudget {
    /// At least the number of entries.
    used: usize,
}

impl EntryBudget {
    /// Adds entries.
    ///
    /// # Errors
    ///
    /// There would be too many. `count` counts those that there are.
    pub(super) fn add(&mut self, more: usize, count: impl FnOnce() -> usize) -> Result<(), String> {
        if self.used.saturating_add(more) > ENTRIES_MAX {
            self.used = count();
        }
        let used = self.used.saturating_add(more);
        if used > ENTRIES_MAX {
            return Err(format!("{used} parties and waits: the limit is {ENTRIES_MAX}"));
        }
        self.used = used;
        Ok(())
    }
}
