//! Names of the objects that a region left. The hash in an entry is covered by the checksum of the
//! entry, is of 64 bits, and its key is the region's: it is the checksum of the name.
//!
//! An object whose name is damaged is whole. It is retained without a name, under its id.

use std::collections::HashSet;

use farrow_memory::Span;

use super::adopt::Dropped;
use super::settle::{Fate, KeepCandidate};
use crate::books::control::Control;
use crate::books::directory::Directory;
use crate::books::names::name_run;
use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState};
use crate::format::hash::{HashKey, NameHash};
use crate::format::layout::Layout;
use crate::format::options::NAME_GRAIN_BYTES;

/// Reads names, and takes those from their objects that cannot be right.
pub(super) struct NameCheck<'a> {
    control: &'a Control,
    key: HashKey,
    /// Names that were seen.
    hashes: HashSet<NameHash>,
    /// First byte of the name heap, and which of its grains are taken by them.
    first: u64,
    taken: Vec<bool>,
    /// Objects that lost their names, and why.
    pub(super) unnamed: Vec<Dropped>,
}

impl<'a> NameCheck<'a> {
    pub(super) fn new(control: &'a Control, key: HashKey, layout: &Layout) -> Self {
        let grains = layout.names.length.0 / NAME_GRAIN_BYTES;
        let taken = vec![false; usize::try_from(grains).unwrap_or(0)];
        let (first, hashes) = (layout.names.offset.0, HashSet::new());
        Self { control, key, hashes, first, taken, unnamed: Vec::new() }
    }

    /// Looks at the name of each object that stays. Those of damaged names are stored without one.
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
                // It is stored anew with those that were coming back.
                (*entry, *is_torn) = (entry.unnamed(), true);
            }
        }
        Ok(())
    }

    /// What is wrong with a name; none if it is right, and then it is taken.
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
