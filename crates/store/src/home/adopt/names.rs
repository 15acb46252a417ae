//! Check of object names during adoption. The 64-bit name hash, keyed per region, serves as the
//! checksum of the name; the checksum of the entry covers it.
//!
//! An object with a damaged name is otherwise intact. It stays without a name, under its id. Of two
//! objects with one name, the later one replaced the other, whose deletion a kill prevented.

use std::cmp::Reverse;
use std::collections::HashMap;

use farrow_memory::Span;

use super::report::Dropped;
use super::settle::{Fate, KeepCandidate};
use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState};
use crate::format::hash::{HashKey, NameHash};
use crate::format::ids::ObjectId;
use crate::format::layout::Layout;
use crate::format::options::NAME_GRAIN_BYTES;
use crate::tables::control::Control;
use crate::tables::directory::Directory;
use crate::tables::names::name_run;

/// Reads names, and removes invalid ones from their objects.
pub(super) struct NameCheck<'a> {
    control: &'a Control,
    key: HashKey,
    /// Hashes of the valid names so far, and when their objects were sealed.
    hashes: HashMap<NameHash, u64>,
    /// First byte of the name heap.
    first: u64,
    /// The grains of the name heap that valid names take.
    taken: Vec<bool>,
    /// Objects that lost their names, with the reason.
    pub(super) unnamed: Vec<Dropped>,
    /// Objects whose names later objects have.
    pub(super) replaced: Vec<ObjectId>,
}

/// A name to check.
struct AdoptedName {
    id: ObjectId,
    name: Span,
    hash: NameHash,
    sealed_at_ns: u64,
    owner: NameOwner,
}

/// Index of the object with a name.
enum NameOwner {
    Candidate(usize),
    Spilled(usize),
}

impl<'a> NameCheck<'a> {
    pub(super) fn new(control: &'a Control, key: HashKey, layout: &Layout) -> Self {
        let grains = layout.names.length.0 / NAME_GRAIN_BYTES;
        let taken = vec![false; usize::try_from(grains).unwrap_or(0)];
        let (first, hashes) = (layout.names.offset.0, HashMap::new());
        let (unnamed, replaced) = Default::default();
        Self { control, key, hashes, first, taken, unnamed, replaced }
    }

    /// Check the name of each object that stays. Objects with damaged names are stored without a
    /// name.
    pub(super) fn check_all(
        &mut self,
        directory: &Directory,
        candidates: &mut [KeepCandidate],
        spilled: &mut [(Entry, bool)],
    ) -> Result<(), StoreError> {
        for claim in claims(candidates, spilled) {
            let Some(reason) = self.fault(&claim)? else { continue };
            self.unnamed.push(Dropped { id: Some(claim.id), reason });
            match claim.owner {
                NameOwner::Candidate(index) => {
                    let Some(candidate) = candidates.get_mut(index) else { continue };
                    (candidate.name, candidate.name_hash) = (Span::default(), NameHash(0));
                    let entry = directory.entry(candidate.slot)?;
                    directory.replace(&entry.unnamed(), EntryState::Sealed)?;
                }
                NameOwner::Spilled(index) => {
                    if let Some((entry, is_torn)) = spilled.get_mut(index) {
                        // Stored again together with the interrupted restores.
                        (*entry, *is_torn) = (entry.unnamed(), true);
                    }
                }
            }
        }
        Ok(())
    }

    /// The fault of a name. If there is none, the name's range is marked as taken.
    fn fault(&mut self, claim: &AdoptedName) -> Result<Option<String>, StoreError> {
        let AdoptedName { id, name, hash, sealed_at_ns, .. } = *claim;
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
        let later_ns = self.hashes.get(&hash).copied();
        if later_ns == Some(sealed_at_ns) {
            return Ok(Some(format!("another object has its name of {length} B")));
        }
        let run = name_run(name);
        let grain = |at: u64| (at.saturating_sub(self.first) / NAME_GRAIN_BYTES) as usize;
        match self.taken.get_mut(grain(run.start)..grain(run.end)) {
            Some(grains) if grains.iter().all(|is_taken| !is_taken) => grains.fill(true),
            _ => return Ok(Some(format!("its name at {name} lies in that of another object"))),
        }
        match later_ns {
            Some(_) => self.replaced.push(id),
            None => drop(self.hashes.insert(hash, sealed_at_ns)),
        }
        Ok(None)
    }
}

/// All names of objects that stay, those of later objects first.
fn claims(candidates: &[KeepCandidate], spilled: &[(Entry, bool)]) -> Vec<AdoptedName> {
    let is_named =
        |one: &&KeepCandidate| !one.name.is_empty() && !one.is_local && one.fate == Fate::Sealed;
    let of_candidates = (0..).zip(candidates).filter(|(_, one)| is_named(one));
    let of_candidates = of_candidates.map(|(index, one)| AdoptedName {
        id: one.id,
        name: one.name,
        hash: one.name_hash,
        sealed_at_ns: one.sealed_at_ns,
        owner: NameOwner::Candidate(index),
    });
    let of_spilled = (0..).zip(spilled).filter(|(_, (entry, _))| !entry.name.is_empty());
    let of_spilled = of_spilled.map(|(index, (entry, _))| AdoptedName {
        id: entry.id,
        name: entry.name,
        hash: NameHash(entry.name_hash),
        sealed_at_ns: entry.sealed_at_ns,
        owner: NameOwner::Spilled(index),
    });
    let mut claims: Vec<AdoptedName> = of_candidates.chain(of_spilled).collect();
    claims.sort_by_key(|one| Reverse(one.sealed_at_ns));
    claims
}
