//! Quarantine: memory of a client on another node that disconnected without cleaning its caches.
//!
//! On a node-local region the caches of that node may still have dirty lines of the client, and may
//! write them back at any time. So its writable memory (grants, hold blocks, entry pages) stays
//! unused until its node confirms that no such line is left. Its holds no longer count. Its sealed
//! objects were published before and stay.
//!
//! In the region the client is still joined. If the home is killed meanwhile, the next home finds
//! the client in its table and is notified of the disconnect again.

use farrow_memory::{Length, Proximity, Span};

use super::lend::RECLAIMED_MAX;
use crate::error::StoreError;
use crate::home::{Home, Reclaimed};
use crate::tables::clients::{ClientRecord, ClientSlot};
use crate::tables::grants::span_of;

/// Memory of a disconnected client that its node must clean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarantined {
    /// The client's writable memory: its node cleans it with [`crate::clean`] before
    /// [`Home::release_quarantine`].
    pub spans: Vec<Span>,
    /// Bytes of the heap among `spans`.
    pub bytes: Length,
    /// Resources reclaimed with the client's holds.
    pub reclaimed: Reclaimed,
}

impl Home {
    /// Set on which node a client runs. Until then, clients of a node-local region are assumed to
    /// be on other nodes. That is always correct, but refreshes their pages before each scan.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`].
    pub fn set_proximity(
        &mut self,
        client: ClientSlot,
        proximity: Proximity,
    ) -> Result<(), StoreError> {
        self.present(client)?;
        self.holds.set_proximity(client.0, proximity);
        self.locals.area.set_proximity(client.0, proximity);
        Ok(())
    }

    /// Quarantine a client of another node that disconnected without confirmation that its node
    /// holds no dirty line of its writable memory. Its holds and reserved names are released at
    /// once; its memory waits for [`Home::release_quarantine`].
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`], also if it is in quarantine already.
    pub fn quarantine(&mut self, client: ClientSlot) -> Result<Quarantined, StoreError> {
        self.present(client)?;
        match self.register(client) {
            // Its objects stay unregistered until it leaves.
            Ok(()) | Err(StoreError::TooManyGrants { .. }) => {}
            Err(error) => return Err(error),
        }
        self.quarantined.insert(client);
        self.holds.silence(client.0);
        self.reserved.retain_of(client, |_| false);
        self.forget_retained(client);
        let reclaimed = self.reclaim_some(RECLAIMED_MAX)?;
        let bytes = Length(self.grants.bytes_of(client.0));
        Ok(Quarantined { spans: self.writable_by(client), bytes, reclaimed })
    }

    /// End the quarantine of a client whose node holds no dirty line of it any more: the client
    /// leaves.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`] if it is not in quarantine.
    pub fn release_quarantine(&mut self, client: ClientSlot) -> Result<Reclaimed, StoreError> {
        if !self.quarantined.remove(&client) {
            return Err(StoreError::NoSuchClient { slot: client.0 });
        }
        self.client_leave(client)
    }

    /// Clients in quarantine. They are also in [`Home::clients`].
    pub fn quarantined(&self) -> impl Iterator<Item = ClientSlot> + '_ {
        self.quarantined.iter().copied()
    }

    /// All memory that a client may have written and not published: its grants, in order, then its
    /// hold blocks and entry pages.
    #[must_use]
    pub fn writable_by(&self, client: ClientSlot) -> Vec<Span> {
        let mut spans: Vec<Span> = self.grants.of(client.0).map(span_of).collect();
        spans.extend(self.holds.spans_of(client.0));
        spans.extend(self.locals.area.spans_of(client.0));
        spans
    }

    /// Bytes of the heap in quarantine.
    pub(in crate::home) fn quarantined_bytes(&self) -> u64 {
        self.quarantined.iter().map(|client| self.grants.bytes_of(client.0)).sum()
    }

    /// The record of a client that has joined and is not in quarantine.
    pub(in crate::home) fn present(&self, client: ClientSlot) -> Result<&ClientRecord, StoreError> {
        if self.quarantined.contains(&client) {
            return Err(StoreError::NoSuchClient { slot: client.0 });
        }
        self.clients.get(client)
    }
}
