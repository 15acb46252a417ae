//! Check of object names during adoption. The 64-bit name hash, keyed per region, serves as the
//! checksum of the name; the checksum of the entry covers it.
//!
//! An object with a damaged name is otherwise intact. It stays without a name, under its id.

use std::collections::HashSet;

use farrow_memory::Span;

use super::adopt_report::Dropped;
use super::settle::{Fate, KeepCandidate};
use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState};
use crate::format::hash::{HashKey, NameHash};
use crate::format::layout::Layout;
use crate::format::options::NAME_GRAIN_BYTES;
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::names::name_run;

/// Reads names, and removes invalid ones from their objects.
pub(super) struct NameCheck<'a> {
    control: &'a Control,
    key: HashKey,
    /// Hashes of the valid names so far.
    hashes: HashSet<NameHash>,
    /// First byte of the name heap.
    first: u64,
    /// The grains of the name heap that valid names take.
    taken: Vec<bool>,
    /// Objects that lost their names, with the reason.
    pub(super) unnamed: Vec<Dropped>,
}

impl<'a> NameCheck<'a> {
    pub(super) fn new(control: &'a Control, key: HashKey, layout: &Layout) -> Self {
        let grains = layout.names.length.0 / NAME_GRAIN_BYTES;
        let taken = vec![false; usize::try_from(grains).unwrap_or(0)];
        let (first, hashes) = (layout.names.offset.0, HashSet::new());
        Self { control, key, hashes, first, taken, unnamed: Vec::new() }
    }

    /// Check the name of each object that stays. Objects with damaged names are stored without a
    /// name.
    pub(super) fn check_all(
        &mut self,
        directory: &Directory,
        candidates: &mut [KeepCandidate],
        spilled: &mut [(Entry, bool)],
    ) -> Result<(), StoreError> {
        for candidate in candidates.iter_mut() {
            let is_named = !candidate.name.is_empty() && !candidate.is_local;
            if !is_named || candidate.fate != Fate::Sealed {
                continue;
            }
            if let Some(reason) = self.fault(candidate.name, candidate.name_hash)? {
                self.unnamed.push(Dropped { id: Some(candidate.id), reason });
                (candidate.name, candidate.name_hash) = (Span::default(), NameHash(0));
                let entry = directory.entry(candidate.slot)?;
                directory.replace(&entry.unnamed(), EntryState::Sealed)?;
            }
        }
        for (entry, is_torn) in spilled.iter_mut().filter(|(entry, _)| !entry.name.is_empty()) {
            if let Some(reason) = self.fault(entry.name, NameHash(entry.name_hash))? {
                self.unnamed.push(Dropped { id: Some(entry.id), reason });
                // Stored again together with the interrupted restores.
                (*entry, *is_torn) = (entry.unnamed(), true);
            }
        }
        Ok(())
    }

    /// The fault of a name. If there is none, the name's range is marked as taken.
    fn fault(&mut self, name: Span, hash: NameHash) -> Result<Option<String>, StoreError> {
        let mut bytes = vec![0; name.length.0 as usize];
        self.control.region().refresh(name)?;
        self.control.region().copy_out(name.offset, &mut bytes)?;
        let found = NameHash::of(self.key, &bytes);
        let length = bytes.len();
        if found != hash {
            return Ok(Some(format!(
                "its name is damaged: the {length} B have the hash {:#018x}, its entry says {:#018x}",
                found.0, hash.0
            )));
        }
        if String::from_utf8(bytes).is_err() {
            return Ok(Some(format!("its name of {length} B is not UTF-8")));
        }
        if self.hashes.contains(&hash) {
            return Ok(Some(format!("another object has its name of {length} B")));
        }
        let run = name_run(name);
        let grain = |at: u64| (at.saturating_sub(self.first) / NAME_GRAIN_BYTES) as usize;
        match self.taken.get_mut(grain(run.start)..grain(run.end)) {
            Some(grains) if grains.iter().all(|is_taken| !is_taken) => grains.fill(true),
            _ => return Ok(Some(format!("its name at {name} lies in that of another object"))),
        }
        self.hashes.insert(hash);
        Ok(None)
    }
}
