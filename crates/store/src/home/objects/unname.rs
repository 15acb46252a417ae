//! Objects that lose their names and stay: of two nodes that were apart, each may have an object of
//! one name.

use crate::error::StoreError;
use crate::failpoint;
use crate::format::entry::EntryState;
use crate::format::hash::NameHash;
use crate::format::ids::{ObjectId, Slot, Target};
use crate::home::Home;

impl Home {
    /// The full names of this node's own objects, in memory or spilled.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn own_names(&self) -> Result<Vec<String>, StoreError> {
        let mut names = Vec::new();
        for slot in (0..self.directory.used()).map(Slot) {
            let state = self.directory.sequence(slot)?.state();
            if !matches!(state, EntryState::Sealed | EntryState::Spilled) {
                continue;
            }
            let entry = self.directory.entry(slot)?;
            if entry.name.is_empty() || entry.is_replica || self.replaced.contains(&slot.0) {
                continue;
            }
            if let Ok(name) = String::from_utf8(self.name_of(&entry)?) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// This node's own object of this full name, in memory or spilled. A replica is of another node.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn own_named(&self, name: &str) -> Result<Option<ObjectId>, StoreError> {
        let Some(slot) = self.slot_of_name(name)? else { return Ok(None) };
        let entry = self.directory.entry(slot)?;
        Ok(Some(entry.id).filter(|_| !entry.is_replica))
    }

    /// Takes the name from an object, which stays under its id. Readers that hold it notice
    /// nothing. A kill leaves the object, with or without the name.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read or written.
    pub fn unname(&mut self, id: ObjectId) -> Result<(), StoreError> {
        let spilled = self.find_spilled(Target::Id(id))?;
        let is_spilled = spilled.is_some();
        let entry = match spilled {
            Some(entry) => entry,
            None => self.find(Target::Id(id))?,
        };
        if entry.name.is_empty() {
            return Ok(());
        }
        self.names.remove(NameHash(entry.name_hash), entry.id.slot())?;
        failpoint!("unname.unindexed");
        if is_spilled {
            self.directory.replace(&entry.unnamed(), EntryState::Spilled)?;
        } else {
            self.directory.unname(&entry)?;
        }
        failpoint!("unname.unnamed");
        self.names.erase(entry.name)
    }
}
