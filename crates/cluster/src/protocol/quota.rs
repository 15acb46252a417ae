//! What one client may have at a time.
//!
//! Bytes count from the grant on until the memory is free again: so a deleted object counts for
//! its maker until the last reader lets go. Objects count while they are sealed.

use farrow_memory::Length;
use farrow_store::ClientSlot;

use super::node::NodeState;
use crate::wire::WireError;

/// Limits for each client; `None`: no limit but the region's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Bytes of grants and objects.
    pub client_bytes_max: Option<u64>,
    /// Sealed objects.
    pub client_objects_max: Option<u32>,
}

impl NodeState {
    /// Limits from here on; who is beyond them keeps what it has and gets no more.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quotas = quotas;
    }

    /// How many bytes of `min` to `want`, whole pages, a client may have more.
    pub(super) fn allowance(
        &self,
        slot: ClientSlot,
        min: Length,
        want: Length,
    ) -> Result<Length, WireError> {
        let Some(limit) = self.quotas.client_bytes_max else {
            return Ok(want);
        };
        let page = self.home.layout().page.0;
        let used = self.home.usage_of(slot).bytes.0;
        let left = limit.saturating_sub(used);
        let least = min.0.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        if least > left {
            return Err(self.quota_exceeded(slot, "bytes", min.0, used, limit));
        }
        Ok(Length(want.0.min(left - left % page).max(min.0)))
    }

    /// Whether a client may have one object more. Those that it sealed by itself are looked for.
    pub(super) fn check_objects(&mut self, slot: ClientSlot) -> Result<(), WireError> {
        let Some(limit) = self.quotas.client_objects_max else {
            return Ok(());
        };
        if let Err(error) = self.home.register(slot) {
            tracing::debug!(slot = slot.0, %error, "objects stay out of the books");
        }
        let used = self.home.usage_of(slot).objects;
        if used < limit {
            return Ok(());
        }
        Err(self.quota_exceeded(slot, "objects", 1, used.into(), limit.into()))
    }

    fn quota_exceeded(
        &self,
        slot: ClientSlot,
        what: &str,
        asked: u64,
        used: u64,
        limit: u64,
    ) -> WireError {
        let pid = self.home.clients().find(|record| record.client == slot).map(|record| record.pid);
        let whose = format!("client {} (process {})", slot.0, pid.unwrap_or_default());
        WireError::QuotaExceeded { whose, what: what.to_owned(), asked, used, limit }
    }
}
