//! The moment between a seal and the creator's own hold.
//!
//! A client that builds a table in a pool goes on using its buffers after they were sealed, and
//! holds the object for as long. It learns the object's id only from the answer to the seal, and
//! another client may delete the object before it has published its hold. Until it says that it
//! has, or goes, the home treats the object as held.

use super::Home;
use crate::clients::ClientSlot;
use crate::ids::ObjectId;

impl Home {
    /// Treat an object that was sealed just now as held by its creator.
    pub fn keep_for(&mut self, client: ClientSlot, id: ObjectId) {
        self.kept.insert(id.slot().0, client);
    }

    /// The creator has published its hold. What it did not keep is not touched.
    pub fn confirm(&mut self, client: ClientSlot, id: ObjectId) {
        if self.kept.get(&id.slot().0) == Some(&client) {
            self.kept.remove(&id.slot().0);
        }
    }

    /// A client that went keeps nothing.
    pub(super) fn forget_kept(&mut self, client: ClientSlot) {
        self.kept.retain(|_, owner| *owner != client);
    }
}
