//! Memory usage by client: each allocated byte of the heap belongs to one account, either of a
//! joined client or of all disconnected ones. Accounts are private memory. A new home rebuilds
//! them: an object belongs to the client in its creator's slot if that is still the creating
//! process.

use farrow_memory::Length;

use crate::alloc::blocks::Usage;
use crate::format::ids::NamespaceId;
use crate::home::Home;
use crate::tables::clients::ClientSlot;

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

    /// Spilled objects of a client. They are no part of its usage, which is of memory.
    #[must_use]
    pub fn spilled_of(&self, client: ClientSlot) -> u32 {
        let account = self.accounts.of_client.get(&client.0);
        account.map_or(0, |(account, _)| self.spilled.of(*account))
    }

    /// Spilled objects in a namespace.
    #[must_use]
    pub fn spilled_of_namespace(&self, id: NamespaceId) -> u32 {
        self.spilled.of_namespace(id)
    }

    /// Usage of all disconnected clients.
    #[must_use]
    pub fn usage_of_ended(&self) -> Usage {
        self.blocks.usage_of_ended()
    }

    /// Check that the accounts add up to the total.
    pub(in crate::home) fn check_accounts(&self) -> Result<(), String> {
        let clients = self.clients().map(|record| self.usage_of(record.client));
        let sum = clients.fold(self.usage_of_ended(), Usage::plus);
        let namespaces = self.namespaces().map(|one| self.usage_of_namespace(one.id));
        let in_namespaces = namespaces.fold(Usage::default(), Usage::plus);
        let granted = self.granted_bytes();
        let bytes = self.blocks.sealed_bytes() + self.blocks.retiring_bytes() + granted;
        let all = Usage { bytes: Length(bytes), objects: self.objects };
        let blocks = self.blocks.usage_of_all();
        let granted = Length(all.bytes.0 - granted);
        if sum != all || in_namespaces != all || blocks != (Usage { bytes: granted, ..all }) {
            return Err(format!(
                "accounts sum to {sum:?}, namespaces to {in_namespaces:?}, blocks to {blocks:?}, \
                 there is {all:?}"
            ));
        }
        let spilled: u32 = self.namespaces().map(|one| self.spilled_of_namespace(one.id)).sum();
        if spilled as usize != self.spilled.len() {
            let all = self.spilled.len();
            return Err(format!("accounts sum to {spilled} spilled objects, there are {all}"));
        }
        Ok(())
    }
}
