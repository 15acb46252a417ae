//! Registration in parts: a client may have sealed a million objects by itself since the home
//! looked last, which takes some tenths of a second.

use std::collections::BTreeMap;

use crate::error::StoreError;
use crate::home::Home;
use crate::tables::clients::ClientSlot;

/// Cost of what one part of a registration does at most, in units of some 50 ns: about 500 objects.
const PART_COST: usize = 4096;
/// Cost of a page whose entries are all known.
const KNOWN_PAGE_COST: usize = 1;
/// Cost of a page that is read.
const READ_PAGE_COST: usize = 32;
/// Cost of each object that is registered.
const OBJECT_COST: usize = 8;

/// A part may use at most one in this number of the free grant records, which other clients need too.
const PART_OF_RECORDS: usize = 4;

/// How far a registration has come. Objects that a client seals meanwhile may be left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EntryRegistration {
    /// The next page to look at, and its client.
    next: (u32, u32),
    /// The client whose objects alone are registered.
    only: Option<ClientSlot>,
}

impl EntryRegistration {
    /// A registration of the objects of one client. The default one is of all clients.
    #[must_use]
    pub fn of(client: ClientSlot) -> Self {
        Self { next: (client.0, 0), only: Some(client) }
    }
}

/// The clients whose entries were looked at in the batch of requests that is being served, and
/// whether all of their objects were registered. `None`: there is no batch.
#[derive(Debug, Default)]
pub(in crate::home) struct BatchLooks(Option<BTreeMap<u32, bool>>);

impl Home {
    /// From here to [`Home::end_batch`], entries that clients wrote are looked at once for each
    /// client at most: a client asks for what was sealed before.
    pub fn begin_batch(&mut self) {
        self.batch_looks.0 = Some(BTreeMap::new());
    }

    /// See [`Home::begin_batch`].
    pub fn end_batch(&mut self) {
        self.batch_looks.0 = None;
    }

    /// As [`Home::register`], but once in a batch.
    ///
    /// # Errors
    /// As [`Home::register`].
    pub fn register_in_batch(&mut self, client: ClientSlot) -> Result<(), StoreError> {
        let looks = self.batch_looks.0.as_ref();
        match looks.and_then(|looks| looks.get(&client.0)) {
            Some(true) => return Ok(()),
            Some(false) => {
                return Err(StoreError::TooManyGrants { max: self.layout().grants_max });
            }
            None => {}
        }
        let registered = self.register(client);
        let is_full = matches!(registered, Err(StoreError::TooManyGrants { .. }));
        if let Some(looks) = self.batch_looks.0.as_mut()
            && (registered.is_ok() || is_full)
        {
            looks.insert(client.0, registered.is_ok());
        }
        registered
    }

    /// Register a part of the objects that clients sealed themselves. Returns true at the end of
    /// the registration. A client whose objects need too many grant records in parts has all of
    /// them registered at once, or none, as by [`Home::register_all`].
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn register_some(
        &mut self,
        registration: &mut EntryRegistration,
    ) -> Result<bool, StoreError> {
        let mut left = PART_COST;
        while left > 0 {
            let EntryRegistration { next, only } = *registration;
            let client = self.locals.area.clients_from(next.0);
            let Some(client) = client.filter(|one| only.is_none_or(|only| only.0 == *one)) else {
                return Ok(true);
            };
            let first = if client == next.0 { next.1 } else { 0 };
            let mut claims = Vec::new();
            registration.next = (client.saturating_add(1), 0);
            for (page, has_unknown) in self.locals.area.pages_from(client, first) {
                if left == 0 {
                    registration.next = (client, page);
                    break;
                }
                let before = claims.len();
                if has_unknown {
                    self.claims_in(page, &mut claims)?;
                }
                let page_cost = if has_unknown { READ_PAGE_COST } else { KNOWN_PAGE_COST };
                let cost = page_cost + (claims.len() - before) * OBJECT_COST;
                left = left.saturating_sub(cost);
            }
            let found = self.valid_claims(client, claims)?;
            let carving = self.plan_off(client, &found).and_then(|carving| {
                // In parts, the grants are cut in more places than at once.
                self.grants.check_records(carving.records() * PART_OF_RECORDS)?;
                Ok(carving)
            });
            match carving.and_then(|carving| self.enter_all(client, &carving, found)) {
                Err(StoreError::TooManyGrants { .. }) => {
                    registration.next = (client.saturating_add(1), 0);
                    if let Err(error) = self.register(ClientSlot(client)) {
                        tracing::debug!(client, %error, "objects are not registered");
                    }
                }
                registered => registered?,
            }
        }
        Ok(false)
    }
}
