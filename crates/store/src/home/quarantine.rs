//! Quarantine: memory of a client on another node that went without a word.
//!
//! On a node-local region the caches of that node may still have lines that the client wrote, and
//! may write them back at any time. So what it could write (its grants, hold blocks and entry
//! pages) is nobody's until its node has said that it has no such line any more. Its holds count no
//! longer, and what it sealed was published before and stays.
//!
//! In the region the client is still joined, so a home that is killed meanwhile finds it among its
//! clients, and hears once more that it went.

use farrow_memory::{Length, Proximity, Span};

use super::{Home, Reclaimed};
use crate::books::clients::{ClientRecord, ClientSlot};
use crate::books::grants::span_of;
use crate::error::StoreError;

/// What a client left behind that its node must clean.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarantined {
    /// Where it could write: what its node cleans by [`crate::clean`] before
    /// [`Home::release_quarantine`].
    pub spans: Vec<Span>,
    /// Bytes of the heap among them.
    pub bytes: Length,
    /// What came back because it held it.
    pub reclaimed: Reclaimed,
}

impl Home {
    /// Say on which node a client runs. Before it is said clients of a node-local region are taken
    /// to be on others, which is always right but has their pages refreshed before each look.
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

    /// A client of another node went, and nobody said that its node holds no dirty line of what it
    /// could write. Its holds and reserved names go at once; what it could write waits for
    /// [`Home::release_quarantine`].
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`], also if it is in quarantine already.
    pub fn quarantine(&mut self, client: ClientSlot) -> Result<Quarantined, StoreError> {
        self.present(client)?;
        match self.register(client) {
            // They stay out of the books until it leaves.
            Ok(()) | Err(StoreError::TooManyGrants { .. }) => {}
            Err(error) => return Err(error),
        }
        self.quarantined.insert(client);
        self.holds.silence(client.0);
        self.reserved.retain_of(client, |_| false);
        self.forget_retained(client);
        let reclaimed = self.reclaim()?;
        let bytes = Length(self.grants.bytes_of(client.0));
        Ok(Quarantined { spans: self.writable_by(client), bytes, reclaimed })
    }

    /// The node of a client that is in quarantine holds no dirty line of its any more: it leaves.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`] if it is not in quarantine.
    pub fn release_quarantine(&mut self, client: ClientSlot) -> Result<Reclaimed, StoreError> {
        if !self.quarantined.remove(&client) {
            return Err(StoreError::NoSuchClient { slot: client.0 });
        }
        self.client_leave(client)
    }

    /// Clients in quarantine. They are among [`Home::clients`] too.
    pub fn quarantined(&self) -> impl Iterator<Item = ClientSlot> + '_ {
        self.quarantined.iter().copied()
    }

    /// All that a client may have written and not published: its grants, in order, then its hold
    /// blocks and entry pages.
    #[must_use]
    pub fn writable_by(&self, client: ClientSlot) -> Vec<Span> {
        let mut spans: Vec<Span> = self.grants.of(client.0).map(span_of).collect();
        spans.extend(self.holds.spans_of(client.0));
        spans.extend(self.locals.area.spans_of(client.0));
        spans
    }

    /// Bytes of the heap in quarantine.
    pub(super) fn quarantined_bytes(&self) -> u64 {
        self.quarantined.iter().map(|client| self.grants.bytes_of(client.0)).sum()
    }

    /// A client that is there, and not in quarantine.
    pub(super) fn present(&self, client: ClientSlot) -> Result<&ClientRecord, StoreError> {
        if self.quarantined.contains(&client) {
            return Err(StoreError::NoSuchClient { slot: client.0 });
        }
        self.clients.get(client)
    }
}
