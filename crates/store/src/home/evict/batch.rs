//! Evictions of several objects, each of which may leave without the others.

use farrow_memory::Length;

use super::Marked;
use crate::alloc::eviction::EvictionPolicy;
use crate::error::StoreError;
use crate::events::EventKind;
use crate::failpoint;
use crate::format::entry::Entry;
use crate::format::ids::ObjectId;
use crate::hazard::{self, Scan};
use crate::home::Home;
use crate::tables::slot_set::SlotSet;

/// Objects that one scan of the holds is for. A scan reads the words of all holds, some thousands;
/// meanwhile readers do not find these objects.
pub(super) const BATCH_MAX: usize = 256;

/// Called with each object that left, and the bytes that became free.
type Report<'a> = dyn FnMut(ObjectId, Length) + 'a;

impl Home {
    /// Evict those of the objects that may leave, with one scan of the holds. Returns false if one
    /// stays.
    ///
    /// # Errors
    /// [`StoreError::NotFound`]; memory that cannot be read. Objects before that one have left.
    pub(super) fn evict_batch(
        &mut self,
        policy: &dyn EvictionPolicy,
        ids: &[ObjectId],
        report: &mut Report<'_>,
    ) -> Result<bool, StoreError> {
        let mut leaving = Vec::with_capacity(ids.len());
        let mut have_all_left = true;
        for id in ids {
            let mut marked = self.mark_leaving(*id);
            if matches!(marked, Ok(Marked::Stays)) && !leaving.is_empty() {
                // An object that its client sealed takes a slot of the directory. Those before it
                // give theirs back.
                have_all_left &= self.let_leave(policy, std::mem::take(&mut leaving), report)?;
                marked = self.mark_leaving(*id);
            }
            match marked {
                Ok(Marked::Leaving(entry)) => leaving.push((*id, entry)),
                Ok(Marked::Deleted(bytes)) if !bytes.is_zero() => report(*id, bytes),
                Ok(Marked::Deleted(_) | Marked::Stays) => have_all_left = false,
                Err(error) => {
                    self.let_leave(policy, leaving, report)?;
                    return Err(error);
                }
            }
        }
        Ok(self.let_leave(policy, leaving, report)? && have_all_left)
    }

    /// Of objects that are marked as leaving, evict those that neither a hold nor `policy` protects.
    /// The rest is sealed as before; returns false if there is any.
    fn let_leave(
        &mut self,
        policy: &dyn EvictionPolicy,
        leaving: Vec<(ObjectId, Entry)>,
        report: &mut Report<'_>,
    ) -> Result<bool, StoreError> {
        if leaving.is_empty() {
            return Ok(true);
        }
        let slots: SlotSet = leaving.iter().map(|(_, entry)| entry.id.slot().0).collect();
        let scanned = hazard::claims_left(&Scan(|| self.held_of(&slots)));
        failpoint!("evict.scanned");
        let may_leave = |entry: &Entry| {
            let is_free = |held: &SlotSet| !held.contains(entry.id.slot().0);
            scanned.as_ref().is_ok_and(is_free)
                && policy.may_leave(entry.id, self.former_id(entry.id))
        };
        let (free, rest): (Vec<_>, Vec<_>) =
            leaving.into_iter().partition(|(_, entry)| may_leave(entry));
        let rest: Vec<Entry> = rest.into_iter().map(|(_, entry)| entry).collect();
        self.stay(&rest)?;
        scanned?;
        for (id, entry) in free {
            self.retire(&entry, EventKind::Evicted)?;
            report(id, Length(self.free_object(entry.id.slot())?));
        }
        Ok(rest.is_empty())
    }
}
