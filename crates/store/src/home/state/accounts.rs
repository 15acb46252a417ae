//! Which account the bytes of each client count for.

use std::collections::BTreeMap;

use crate::alloc::blocks::ClientAccount;
use crate::format::entry::Entry;
use crate::format::ids::NamespaceId;
use crate::tables::clients::{ClientRecord, ClientSlot};

/// The account of each joined client.
#[derive(Debug)]
pub(in crate::home) struct ClientAccounts {
    pub(in crate::home) of_client: BTreeMap<u32, (ClientAccount, u32)>,
    next: u32,
}

impl ClientAccounts {
    /// One account for each client that a former home left.
    pub(in crate::home) fn new<'a>(clients: impl Iterator<Item = &'a ClientRecord>) -> Self {
        let mut accounts = Self { of_client: BTreeMap::new(), next: 1 };
        for record in clients {
            accounts.open(record.client, record.pid, record.namespace);
        }
        accounts
    }

    pub(in crate::home) fn open(&mut self, client: ClientSlot, pid: u32, namespace: NamespaceId) {
        let account = ClientAccount { namespace, client: self.next };
        self.of_client.insert(client.0, (account, pid));
        // After 2^32 clients account numbers repeat; 0 is reserved for disconnected clients.
        self.next = self.next.checked_add(1).unwrap_or(1);
    }

    pub(in crate::home) fn close(&mut self, client: ClientSlot) -> Option<ClientAccount> {
        self.of_client.remove(&client.0).map(|(account, _)| account)
    }

    /// The account of a client, if it has joined in this namespace.
    pub(in crate::home) fn of(&self, client: u32, namespace: NamespaceId) -> ClientAccount {
        let account = self.of_client.get(&client).map(|(account, _)| *account);
        let same = account.filter(|account| account.namespace == namespace);
        same.unwrap_or(ClientAccount::ended(namespace))
    }

    /// The account of the process that created an object, if it is still that client.
    pub(in crate::home) fn of_creator(&self, entry: &Entry) -> ClientAccount {
        match self.of_client.get(&entry.creator) {
            Some((_, pid)) if *pid == entry.creator_pid => self.of(entry.creator, entry.namespace),
            _ => ClientAccount::ended(entry.namespace),
        }
    }
}
