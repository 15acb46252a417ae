//! Namespaces: creation, removal and usage.

use farrow_memory::Length;

use super::Home;
use crate::alloc::blocks::Usage;
use crate::error::StoreError;
use crate::format::ids::{NamespaceId, ObjectId, Target};
use crate::tables::clients::ClientSlot;
use crate::tables::names::check_full_name;
use crate::tables::namespaces::{Namespace, NamespaceOptions};

/// Maximum number of names that an error lists.
const NAMES_LISTED_MAX: usize = 64;

impl Home {
    /// Create a namespace. It persists, with its objects, until it is dropped.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`], [`StoreError::NamespaceNameInvalid`],
    /// [`StoreError::TooManyNamespaces`], [`StoreError::TooManyWriters`].
    pub fn create_namespace(
        &mut self,
        options: &NamespaceOptions,
    ) -> Result<NamespaceId, StoreError> {
        let events_from = self.events.head();
        let (blocks, clients, spilled) = (&self.blocks, &self.clients, &self.spilled);
        // A dropped namespace is empty; one with a damaged record may still have objects.
        let is_unused = |id| {
            spilled.of_namespace(id) == 0
                && blocks.usage_of_namespace(id) == Usage::default()
                && clients.records().all(|record| record.namespace != id)
        };
        self.namespaces.create(options, events_from, is_unused)
    }

    /// Set both limits of a namespace. What exceeds a lower limit stays.
    ///
    /// # Errors
    /// [`StoreError::NoSuchNamespace`]; [`StoreError::NamespaceNameInvalid`] for the default one,
    /// which has no limits.
    pub fn set_namespace_limits(
        &mut self,
        name: &str,
        bytes_max: Option<u64>,
        objects_max: Option<u32>,
    ) -> Result<(), StoreError> {
        let id = self.namespace(name)?.id;
        self.namespaces.set_limits(id, bytes_max, objects_max)
    }

    /// Drop a namespace that has no objects, memory or clients.
    ///
    /// # Errors
    /// [`StoreError::NamespaceInUse`] with the numbers, [`StoreError::NoSuchNamespace`].
    pub fn drop_namespace(&mut self, name: &str) -> Result<(), StoreError> {
        let id = self.namespace(name)?.id;
        let Usage { bytes, objects } = self.usage_of_namespace(id);
        let objects = objects + self.spilled_of_namespace(id);
        let clients = self.clients_in(id).count() as u32;
        if id == NamespaceId::DEFAULT || objects > 0 || bytes.0 > 0 || clients > 0 {
            let name = name.to_owned();
            return Err(StoreError::NamespaceInUse { name, objects, bytes, clients });
        }
        self.namespaces.remove(id)
    }

    /// All namespaces, the default one first.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.iter()
    }

    /// The namespace with this name; `""` is the default one.
    ///
    /// # Errors
    /// [`StoreError::NoSuchNamespace`] with the existing names.
    pub fn namespace(&self, name: &str) -> Result<&Namespace, StoreError> {
        self.namespaces.find(name).ok_or_else(|| StoreError::NoSuchNamespace {
            name: name.to_owned(),
            known: (self.namespaces().skip(1).take(NAMES_LISTED_MAX))
                .map(|one| one.options.name.clone())
                .collect(),
        })
    }

    /// The namespace of a client.
    ///
    /// # Errors
    /// [`StoreError::NoSuchClient`]; [`StoreError::Inconsistent`] if the namespace record was
    /// damaged.
    pub fn namespace_of(&self, client: ClientSlot) -> Result<&Namespace, StoreError> {
        let id = self.clients.get(client)?.namespace;
        let lost = || StoreError::Inconsistent(format!("namespace {} has no record", id.0));
        self.namespaces.get(id).ok_or_else(lost)
    }

    /// Usage of a namespace: the grants of its clients, and its objects, whichever client made
    /// them. Objects that a client sealed itself count as in [`Home::usage_of`].
    #[must_use]
    pub fn usage_of_namespace(&self, id: NamespaceId) -> Usage {
        let blocks = self.blocks.usage_of_namespace(id);
        let granted: u64 = self.clients_in(id).map(|client| self.grants.bytes_of(client.0)).sum();
        Usage { bytes: Length(blocks.bytes.0 + granted), ..blocks }
    }

    /// The clients in a namespace.
    pub fn clients_in(&self, id: NamespaceId) -> impl Iterator<Item = ClientSlot> + '_ {
        self.clients().filter(move |record| record.namespace == id).map(|record| record.client)
    }

    /// The namespace of an object, registered or not.
    ///
    /// # Errors
    /// [`StoreError::NotFound`].
    pub fn namespace_of_object(&self, id: ObjectId) -> Result<NamespaceId, StoreError> {
        let id = self.forwarded(id)?;
        match self.layout().client_entry(id.slot()) {
            Some(number) => Ok(self.locals.area.namespace_of(number)),
            None => match self.find_spilled(Target::Id(id))? {
                Some(entry) => Ok(entry.namespace),
                None => self.find(Target::Id(id)).map(|entry| entry.namespace),
            },
        }
    }

    /// The full name of an object, if it has one.
    #[must_use]
    pub fn name_of_object(&self, id: ObjectId) -> Option<String> {
        let id = self.forwarded(id).ok()?;
        if self.layout().client_entry(id.slot()).is_some() {
            // An object that a client sealed itself has no name.
            return None;
        }
        let entry = match self.find_spilled(Target::Id(id)).ok()? {
            Some(entry) => entry,
            None => self.find(Target::Id(id)).ok()?,
        };
        let name = self.name_of(&entry).ok()?;
        String::from_utf8(name).ok().filter(|name| !name.is_empty())
    }

    /// Check that this client may use a full name.
    pub(super) fn check_name_for_client(
        &self,
        client: ClientSlot,
        full: &str,
    ) -> Result<(), StoreError> {
        check_full_name(&self.namespace_of(client)?.options.name, full)
    }
}
