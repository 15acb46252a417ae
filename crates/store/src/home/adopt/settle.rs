//! Ownership of bytes that two records claim.
//!
//! A kill leaves one kind of overlap: a range that became part of an object and is still in its
//! creator's grants, or in two grants while one was being split. Any other overlap means that a
//! process wrote to memory it does not own. It is settled so that no byte has two owners.
//! Precedence: the control section, which only the home writes; lists in the data section; entries
//! written by clients. Within a kind the older claim wins.

use std::collections::BTreeSet;

use farrow_memory::{Offset, Span};

use super::report::Dropped;
use crate::alloc::blocks::{Block, ClientAccount};
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::format::hash::NameHash;
use crate::format::ids::{ObjectId, Slot};
use crate::format::layout::Layout;
use crate::format::options::BLOCK_BYTES;
use crate::tables::control::Control;
use crate::tables::grants::{FoundGrant, Grants};

/// Rounds of settling, each of which drops the losers of the one before. Two suffice except for
/// objects that share blocks; more indicate severe damage.
const ROUNDS_MAX: u32 = 8;

/// The outcome of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::home) enum Fate {
    Sealed,
    Retiring,
    Removed,
    /// Sealed and not registered yet: its block is part of its client's grant.
    Later,
}

/// An object that may stay.
#[derive(Clone, Debug)]
pub(in crate::home) struct KeepCandidate {
    pub(in crate::home) id: ObjectId,
    pub(in crate::home) slot: Slot,
    pub(in crate::home) primary: Run,
    pub(in crate::home) extra: Box<[Run]>,
    pub(in crate::home) name: Span,
    pub(in crate::home) name_hash: NameHash,
    pub(in crate::home) sealed_at_ns: u64,
    pub(in crate::home) creator: u32,
    /// The account of its client, or that of disconnected clients.
    pub(in crate::home) account: ClientAccount,
    /// Whether a client wrote its entry.
    pub(in crate::home) is_local: bool,
    /// Whether its creator may go on using memory that became part of it: plain bytes that it wrote in
    /// place, or blocks of its pool. What was copied into an object is unused without a hold.
    pub(in crate::home) is_in_place: bool,
    pub(in crate::home) fate: Fate,
}

impl KeepCandidate {
    /// Drop all but the primary block, and the object with it. It retires instead of being freed at
    /// once, because it may be held.
    pub(in crate::home) fn retire(&mut self, reason: &str, dropped: &mut Vec<Dropped>) {
        if self.fate == Fate::Sealed {
            dropped.push(Dropped { id: Some(self.id), reason: reason.to_owned() });
        }
        self.extra = Box::default();
        self.fate = Fate::Retiring;
    }
}

/// A claim on a range. Ordered by range, then by precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RangeClaim {
    run: Run,
    weight: (ClaimSource, u64, u32),
    index: usize,
}

/// The source of a claim, in order of precedence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ClaimSource {
    Directory,
    List,
    ClientEntry,
}

/// Make the grant records disjoint, and drop those without a joined client.
pub(super) fn settle_grants(
    control: &Control,
    layout: &Layout,
    clients: &BTreeSet<u32>,
    dropped: &mut Vec<Dropped>,
) -> Result<Vec<FoundGrant>, StoreError> {
    let mut found = Grants::read(control, layout)?;
    let mut report = |found: &FoundGrant, reason: &str| {
        let reason = format!("grant {} of client {}: {reason}", found.record, found.client);
        dropped.push(Dropped { id: None, reason });
    };
    let mut changed = BTreeSet::new();
    for grant in &mut found {
        let Run { start, end } = grant.run;
        let span = Span::between(Offset(start), Offset(end)).unwrap_or_default();
        let is_good = !span.is_empty()
            && span.is_aligned(BLOCK_BYTES)
            && layout.heap.contains(span)
            && (clients.contains(&grant.client) || grant.is_withdrawn(layout));
        if !is_good {
            report(grant, "no such client, or not a range of the heap");
            grant.run = Run { start: 0, end: 0 };
            changed.insert(grant.record);
        }
    }
    found.sort_by_key(|grant| grant.run);
    for i in 1..found.len() {
        let (before, from) = found.split_at_mut(i);
        let (Some(first), Some(second)) = (before.last_mut(), from.first_mut()) else {
            continue;
        };
        if first.run.len() == 0 || first.run.end <= second.run.start {
            continue;
        }
        if first.client == second.client && second.run.end <= first.run.end {
            // An interrupted split: the new record was written, the old one not yet cut.
            first.run.end = second.run.start;
            changed.insert(first.record);
        } else {
            report(second, "overlaps another grant");
            second.run.start = first.run.end.min(second.run.end);
            changed.insert(second.record);
        }
    }
    for grant in found.iter().filter(|grant| changed.contains(&grant.record)) {
        Grants::mend(control, layout, *grant)?;
    }
    found.retain(|grant| grant.run.len() > 0);
    found.sort_by_key(|grant| grant.run);
    Ok(found)
}

/// Find the blocks of all objects, disjoint and in order. Objects that must be dropped lose theirs.
pub(super) fn settle_blocks(
    candidates: &mut [KeepCandidate],
    grants: &[FoundGrant],
    dropped: &mut Vec<Dropped>,
) -> Result<Vec<(u64, Block)>, StoreError> {
    for candidate in candidates.iter_mut() {
        let is_of_another_client =
            |run: &Run| overlapping(grants, *run).any(|grant| grant.client != candidate.creator);
        if candidate.extra.iter().any(is_of_another_client) {
            candidate.retire("an extra block is granted to another client", dropped);
        } else if candidate.is_local && is_of_another_client(&candidate.primary) {
            candidate.retire("its block is granted to another client", dropped);
            candidate.fate = Fate::Removed;
        } else if candidate.is_local
            && candidate.fate == Fate::Retiring
            && overlapping(grants, candidate.primary).next().is_some()
        {
            // Its block was taken off the grants before its life became that of a deleted object:
            // since then its client has written another one into the entry.
            candidate.fate = Fate::Removed;
        }
    }
    for _ in 0..ROUNDS_MAX {
        let claims = sorted_claims(candidates);
        let losers = losers(&claims);
        if losers.is_empty() {
            return Ok(join(&claims, candidates));
        }
        for (index, is_primary) in losers {
            let Some(candidate) = candidates.get_mut(index) else {
                continue;
            };
            candidate.retire("its blocks overlap those of another object", dropped);
            if is_primary {
                candidate.fate = Fate::Removed;
            }
        }
    }
    Err(StoreError::Inconsistent("objects overlap in too many ways".to_owned()))
}

/// Grants that overlap `run`.
pub(super) fn overlapping(grants: &[FoundGrant], run: Run) -> impl Iterator<Item = &FoundGrant> {
    let first = grants.partition_point(|grant| grant.run.end <= run.start);
    let from = grants.get(first..).unwrap_or_default();
    from.iter().take_while(move |grant| grant.run.start < run.end)
}

fn sorted_claims(candidates: &[KeepCandidate]) -> Vec<RangeClaim> {
    let mut claims = Vec::with_capacity(candidates.len());
    for (index, candidate) in candidates.iter().enumerate() {
        if matches!(candidate.fate, Fate::Removed | Fate::Later) {
            continue;
        }
        let weight = |source| (source, candidate.sealed_at_ns, candidate.slot.0);
        let source =
            if candidate.is_local { ClaimSource::ClientEntry } else { ClaimSource::Directory };
        claims.push(RangeClaim { run: candidate.primary, weight: weight(source), index });
        let extra = candidate.extra.iter();
        claims.extend(extra.map(|run| RangeClaim {
            run: *run,
            weight: weight(ClaimSource::List),
            index,
        }));
    }
    claims.sort_unstable();
    claims
}

/// Candidates that lose a range to a claim of higher precedence, and whether it is their primary
/// block. Claims of the same range share it.
fn losers(claims: &[RangeClaim]) -> BTreeSet<(usize, bool)> {
    let mut losers = BTreeSet::new();
    let mut groups = claims.chunk_by(|a, b| a.run == b.run);
    let Some(mut retained) = groups.next() else {
        return losers;
    };
    for group in groups {
        let (Some(first), Some(second)) = (retained.first(), group.first()) else {
            continue;
        };
        if second.run.start >= first.run.end {
            retained = group;
            continue;
        }
        let loser = if first.weight <= second.weight { group } else { retained };
        losers.extend(loser.iter().map(|claim| (claim.index, claim.weight.0 != ClaimSource::List)));
        if first.weight > second.weight {
            retained = group;
        }
    }
    losers
}

/// Build blocks from claims that are either equal or disjoint.
fn join(claims: &[RangeClaim], candidates: &[KeepCandidate]) -> Vec<(u64, Block)> {
    let mut blocks: Vec<(u64, Block)> = Vec::with_capacity(claims.len());
    for claim in claims {
        let Some(candidate) = candidates.get(claim.index) else {
            continue;
        };
        let is_sealed = candidate.fate == Fate::Sealed;
        if blocks.last().is_none_or(|(start, _)| *start != claim.run.start) {
            let owner = candidate.account;
            let block = Block { end: claim.run.end, sealed: 0, retiring: 0, objects: 0, owner };
            blocks.push((claim.run.start, block));
        }
        if let Some((_, block)) = blocks.last_mut() {
            let is_primary = claim.weight.0 != ClaimSource::List;
            block.objects += u32::from(is_sealed && is_primary);
            if is_sealed {
                block.sealed += 1;
            } else {
                block.retiring += 1;
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, end: u64) -> Run {
        Run { start: start * 128, end: end * 128 }
    }

    fn candidate(slot: u32, age: u64, primary: Run, extra: &[Run]) -> KeepCandidate {
        KeepCandidate {
            id: ObjectId { hi: 1, lo: slot.into() },
            slot: Slot(slot),
            primary,
            extra: extra.into(),
            name: Span::default(),
            name_hash: NameHash(0),
            sealed_at_ns: age,
            creator: 0,
            account: ClientAccount::default(),
            is_local: false,
            is_in_place: false,
            fate: Fate::Sealed,
        }
    }

    fn settle(candidates: &mut [KeepCandidate]) -> (Vec<(u64, u32, u32)>, usize) {
        let mut dropped = Vec::new();
        let blocks = settle_blocks(candidates, &[], &mut dropped).unwrap();
        let blocks = blocks.iter().map(|(s, b)| (s / 128, b.sealed, b.retiring)).collect();
        (blocks, dropped.len())
    }

    #[test]
    fn equal_blocks_are_shared() {
        let mut all = [
            candidate(0, 1, run(0, 1), &[run(4, 8)]),
            candidate(1, 2, run(1, 2), &[run(4, 8), run(8, 9)]),
        ];
        let expected = vec![(0, 1, 0), (1, 1, 0), (4, 2, 0), (8, 1, 0)];
        assert_eq!(settle(&mut all), (expected, 0));
    }

    #[test]
    fn a_primary_block_wins_over_a_list_and_the_older_list_over_the_younger() {
        let mut all = [
            candidate(0, 1, run(0, 1), &[run(9, 11)]),
            candidate(1, 2, run(10, 12), &[]),
            candidate(2, 3, run(2, 3), &[run(20, 24)]),
            candidate(3, 4, run(3, 4), &[run(22, 30)]),
        ];
        let (blocks, dropped) = settle(&mut all);
        assert_eq!(blocks, [(0, 0, 1), (2, 1, 0), (3, 0, 1), (10, 1, 0), (20, 1, 0)]);
        assert_eq!(dropped, 2);
        let fates: Vec<Fate> = all.iter().map(|candidate| candidate.fate).collect();
        assert_eq!(fates, [Fate::Retiring, Fate::Sealed, Fate::Sealed, Fate::Retiring]);
    }

    #[test]
    fn of_two_primary_blocks_the_younger_goes() {
        let mut all = [candidate(0, 2, run(0, 4), &[]), candidate(1, 1, run(2, 6), &[])];
        assert_eq!(settle(&mut all), (vec![(2, 1, 0)], 1));
        assert_eq!(all[0].fate, Fate::Removed);
    }

    #[test]
    fn one_that_overlaps_itself_keeps_its_primary_block_only() {
        let mut all = [candidate(0, 1, run(0, 4), &[run(2, 6), run(8, 9)])];
        assert_eq!(settle(&mut all), (vec![(0, 0, 1)], 1));
    }

    #[test]
    fn a_list_that_claims_anothers_grant_loses() {
        let grant = FoundGrant { record: 0, client: 7, run: run(8, 16) };
        let mut all = [candidate(0, 1, run(0, 1), &[run(15, 17)])];
        let mut dropped = Vec::new();
        let blocks = settle_blocks(&mut all, &[grant], &mut dropped).unwrap();
        assert_eq!((blocks.len(), dropped.len()), (1, 1));
        all[0] = candidate(0, 1, run(0, 1), &[run(15, 17)]);
        all[0].creator = 7;
        assert_eq!(settle_blocks(&mut all, &[grant], &mut dropped).unwrap().len(), 2);
    }
}
