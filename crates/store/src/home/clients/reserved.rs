//! Names that clients have reserved for objects in creation, and the memory each client's names
//! take.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::tables::clients::ClientSlot;

/// Estimated overhead of a name in the table, besides its bytes.
const NAME_COST_BYTES: usize = 64;

/// Reserved full names and the client of each.
#[derive(Debug, Default)]
pub(in crate::home) struct Reserved {
    by_name: HashMap<String, ClientSlot>,
    bytes: HashMap<ClientSlot, usize>,
}

impl Reserved {
    pub(in crate::home) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(in crate::home) fn get(&self, name: &str) -> Option<ClientSlot> {
        self.by_name.get(name).copied()
    }

    /// All names with their clients.
    pub(in crate::home) fn iter(&self) -> impl Iterator<Item = (&str, ClientSlot)> {
        self.by_name.iter().map(|(name, client)| (name.as_str(), *client))
    }

    /// Memory that a client's names take.
    pub(in crate::home) fn bytes_of(&self, client: ClientSlot) -> usize {
        self.bytes.get(&client).copied().unwrap_or(0)
    }

    /// Reserve a name. Returns false if it is reserved already.
    pub(in crate::home) fn insert(&mut self, name: &str, client: ClientSlot) -> bool {
        match self.by_name.entry(name.to_owned()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(client);
                *self.bytes.entry(client).or_default() += name.len() + NAME_COST_BYTES;
                true
            }
        }
    }

    pub(in crate::home) fn remove(&mut self, name: &str) {
        if let Some(client) = self.by_name.remove(name) {
            self.give_back(client, name.len());
        }
    }

    /// Drop the names of a client for which `is_retained` returns false.
    pub(in crate::home) fn retain_of(
        &mut self,
        client: ClientSlot,
        is_retained: impl Fn(&str) -> bool,
    ) {
        if !self.bytes.contains_key(&client) {
            return;
        }
        let Self { by_name, bytes } = self;
        let mut dropped = 0;
        by_name.retain(|name, owner| {
            let stays = *owner != client || is_retained(name);
            dropped += if stays { 0 } else { name.len() + NAME_COST_BYTES };
            stays
        });
        if let Some(left) = bytes.get_mut(&client) {
            *left = left.saturating_sub(dropped);
            if *left == 0 {
                bytes.remove(&client);
            }
        }
    }

    fn give_back(&mut self, client: ClientSlot, length: usize) {
        if let Some(left) = self.bytes.get_mut(&client) {
            *left = left.saturating_sub(length + NAME_COST_BYTES);
            if *left == 0 {
                self.bytes.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_names_that_are_left() {
        let (one, other) = (ClientSlot(1), ClientSlot(2));
        let mut reserved = Reserved::default();
        assert!(reserved.insert("abc", one) && reserved.insert("defg", one));
        assert!(reserved.insert("x", other) && !reserved.insert("abc", other));
        assert_eq!(reserved.bytes_of(one), 7 + 2 * NAME_COST_BYTES);
        reserved.remove("abc");
        reserved.remove("abc");
        assert_eq!(reserved.bytes_of(one), 4 + NAME_COST_BYTES);
        reserved.retain_of(one, |_| false);
        assert_eq!((reserved.bytes_of(one), reserved.len()), (0, 1));
        assert_eq!(reserved.get("x"), Some(other));
        assert_eq!(reserved.bytes_of(other), 1 + NAME_COST_BYTES);
    }
}
