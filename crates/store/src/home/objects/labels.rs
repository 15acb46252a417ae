//! Labels of pinned objects, which a restarted daemon reads to resume what it knew of them.

use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState};
use crate::format::ids::{ObjectId, Slot};
use crate::format::metadata::{METADATA_BYTES_MAX, Metadata};
use crate::home::Home;
use crate::tables::clients::ClientSlot;

/// A pinned object without a name, and one of its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledObject {
    /// Its id.
    pub id: ObjectId,
    /// The client that made it; `None` if that client has left.
    pub creator: Option<ClientSlot>,
    /// The value of the label.
    pub value: String,
}

impl Home {
    /// The pinned objects without a name whose metadata has `key`. Metadata that its creator did not
    /// seal, or that does not decode, has no labels.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn pinned_with_label(&self, key: &str) -> Result<Vec<LabelledObject>, StoreError> {
        let mut found = Vec::new();
        let pinned: Vec<Slot> = self.pins.iter_from(Slot(0)).collect();
        for slot in pinned {
            if self.directory.sequence(slot)?.state() != EntryState::Sealed {
                continue;
            }
            let entry = self.directory.entry(slot)?;
            if entry.name.length.0 > 0 {
                continue;
            }
            let Some(metadata) = self.labels_of(&entry)? else { continue };
            if let Some(value) = metadata.get(key) {
                let (id, value) = (entry.id, value.to_owned());
                found.push(LabelledObject { id, creator: self.creator_of(&entry), value });
            }
        }
        Ok(found)
    }

    fn labels_of(&self, entry: &Entry) -> Result<Option<Metadata>, StoreError> {
        if entry.metadata_bytes == 0 || entry.metadata_bytes > METADATA_BYTES_MAX {
            return Ok(None);
        }
        let Some(span) = entry.metadata() else { return Ok(None) };
        let mut bytes = vec![0; span.length.0 as usize];
        self.region().refresh(span)?;
        self.region().copy_out_by_call(span.offset, &mut bytes)?;
        if crc32c::crc32c(&bytes) != entry.metadata_crc {
            return Ok(None);
        }
        Ok(Metadata::decode(&bytes).ok())
    }

    /// A slot may belong to another client by now.
    fn creator_of(&self, entry: &Entry) -> Option<ClientSlot> {
        let client = ClientSlot(entry.creator);
        let record = self.client(client).ok()?;
        (record.pid == entry.creator_pid).then_some(client)
    }
}
