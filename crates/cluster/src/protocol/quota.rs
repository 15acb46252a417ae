//! What one client, and one namespace, may have at a time.
//!
//! Bytes count from the grant on until the memory is free again: so a deleted object counts for
//! its maker until the last reader lets go. Objects count while they are sealed. Who has a limit
//! of objects gets no entry pages, so that each of its seals passes here.

use farrow_memory::Length;
use farrow_store::{ClientSlot, Namespace, Usage};

use super::convert::{store_error, too_many};
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

/// Whose limit it is.
#[derive(Debug, Clone, Copy)]
enum Whose<'a> {
    Client(ClientSlot),
    Namespace(&'a str),
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
        let page = self.home.layout().page.0;
        let least = min.0.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        let within = |whose, limit: u64, used: u64, want: Length| {
            let left = limit.saturating_sub(used);
            if least > left {
                return Err(self.quota_exceeded(whose, "bytes", min.0, used, limit));
            }
            Ok(Length(want.0.min(left - left % page).max(min.0)))
        };
        let mut want = want;
        if let Some(limit) = self.quotas.client_bytes_max {
            let used = self.home.usage_of(slot).bytes.0;
            want = within(Whose::Client(slot), limit, used, want)?;
        }
        let Namespace { id, options, .. } = self.home.namespace_of(slot).map_err(store_error)?;
        if let Some(limit) = options.bytes_max {
            let used = self.home.usage_of_namespace(*id).bytes.0;
            want = within(Whose::Namespace(&options.name), limit, used, want)?;
        }
        Ok(want)
    }

    /// Whether a client may have one object more.
    pub(super) fn check_objects(&mut self, slot: ClientSlot) -> Result<(), WireError> {
        // It may have pages from a time before there was a limit.
        if self.quotas.client_objects_max.is_some()
            && let Err(error) = self.home.register(slot)
        {
            tracing::debug!(slot = slot.0, %error, "objects stay out of the books");
        }
        let check = |whose, limit: u32, Usage { objects, .. }: Usage| {
            if objects < limit {
                return Ok(());
            }
            Err(self.quota_exceeded(whose, "objects", 1, objects.into(), limit.into()))
        };
        if let Some(limit) = self.quotas.client_objects_max {
            check(Whose::Client(slot), limit, self.home.usage_of(slot))?;
        }
        let Namespace { id, options, .. } = self.home.namespace_of(slot).map_err(store_error)?;
        if let Some(limit) = options.objects_max {
            let used = self.home.usage_of_namespace(*id);
            check(Whose::Namespace(&options.name), limit, used)?;
        }
        Ok(())
    }

    /// Whether a client may seal by itself, unseen: not where its objects are counted.
    pub(super) fn check_unseen(&self, slot: ClientSlot) -> Result<(), WireError> {
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        if self.quotas.client_objects_max.is_some() || namespace.options.objects_max.is_some() {
            return Err(too_many("entry pages where objects are limited", 0_u64));
        }
        Ok(())
    }

    fn quota_exceeded(
        &self,
        whose: Whose<'_>,
        what: &str,
        asked: u64,
        used: u64,
        limit: u64,
    ) -> WireError {
        let whose = match whose {
            Whose::Client(slot) => {
                let pid = self.home.client(slot).map(|record| record.pid);
                format!("client {} (process {})", slot.0, pid.unwrap_or_default())
            }
            Whose::Namespace(name) => format!("namespace {name:?}"),
        };
        WireError::QuotaExceeded { whose, what: what.to_owned(), asked, used, limit }
    }
}
