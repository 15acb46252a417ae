//! Memory usage by client: each allocated byte of the heap belongs to one account, either of a
//! joined client or of all disconnected ones. Accounts are private memory. A new home rebuilds
//! them: an object belongs to the client in its creator's slot if that is still the creating
//! process.

use std::collections::BTreeMap;

use farrow_memory::Length;

use super::Home;
use crate::alloc::blocks::{ClientAccount, Usage};
use crate::format::entry::Entry;
use crate::format::ids::NamespaceId;
use crate::tables::clients::{ClientRecord, ClientSlot};

/// The account of each joined client.
#[derive(Debug)]
pub(super) struct ClientAccounts {
    of_client: BTreeMap<u32, (ClientAccount, u32)>,
    next: u32,
}

impl ClientAccounts {
    /// One account for each client that a former home left.
    pub(super) fn new<'a>(clients: impl Iterator<Item = &'a ClientRecord>) -> Self {
        let mut accounts = Self { of_client: BTreeMap::new(), next: 1 };
        for record in clients {
            accounts.open(record.client, record.pid, record.namespace);
        }
        accounts
    }

    pub(super) fn open(&mut self, client: ClientSlot, pid: u32, namespace: NamespaceId) {
        let account = ClientAccount { namespace, client: self.next };
        self.of_client.insert(client.0, (account, pid));
        // After 2^32 clients account numbers repeat; 0 is reserved for disconnected clients.
        self.next = self.next.checked_add(1).unwrap_or(1);
    }

    pub(super) fn close(&mut self, client: ClientSlot) -> Option<ClientAccount> {
        self.of_client.remove(&client.0).map(|(account, _)| account)
    }

    /// The account of a client, if it has joined in this namespace.
    pub(super) fn of(&self, client: u32, namespace: NamespaceId) -> ClientAccount {
        let account = self.of_client.get(&client).map(|(account, _)| *account);
        let same = account.filter(|account| account.namespace == namespace);
        same.unwrap_or(ClientAccount::gone(namespace))
    }

    /// The account of the process that created an object, if it is still that client.
    pub(super) fn of_creator(&self, entry: &Entry) -> ClientAccount {
        match self.of_client.get(&entry.creator) {
            Some((_, pid)) if *pid == entry.creator_pid => self.of(entry.creator, entry.namespace),
            _ => ClientAccount::gone(entry.namespace),
        }
    }
}

impl Home {
    /// Usage of a client: its grants and the objects it made. Objects that it sealed itself count
    /// once they are registered; until then their bytes count as granted.
    #[must_use]
    pub fn usage_of(&self, client: ClientSlot) -> Usage {
        let account = self.accounts.of_client.get(&client.0);
        let blocks = account.map(|(account, _)| self.blocks.usage(*account)).unwrap_or_default();
        let granted = self.grants.bytes_of(client.0);
        Usage { bytes: Length(blocks.bytes.0 + granted), objects: blocks.objects }
    }

    /// Usage of all disconnected clients.
    #[must_use]
    pub fn usage_of_gone(&self) -> Usage {
        self.blocks.usage_of_gone()
    }

    /// Check that the accounts add up to the total.
    pub(super) fn check_accounts(&self) -> Result<(), String> {
        let clients = self.clients().map(|record| self.usage_of(record.client));
        let sum = clients.fold(self.usage_of_gone(), Usage::plus);
        let namespaces = self.namespaces().map(|one| self.usage_of_namespace(one.id));
        let in_namespaces = namespaces.fold(Usage::default(), Usage::plus);
        let bytes = self.blocks.sealed_bytes() + self.blocks.retiring_bytes() + self.grants.bytes();
        let all = Usage { bytes: Length(bytes), objects: self.objects };
        let blocks = self.blocks.usage_of_all();
        let granted = Length(all.bytes.0 - self.grants.bytes());
        if sum != all || in_namespaces != all || blocks != (Usage { bytes: granted, ..all }) {
            return Err(format!(
                "accounts sum to {sum:?}, namespaces to {in_namespaces:?}, blocks to {blocks:?}, \
                 there is {all:?}"
            ));
        }
        Ok(())
    }
}
