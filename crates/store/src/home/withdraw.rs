//! Memory that the node does not lend at present: ranges of the heap that are withdrawn.
//!
//! A withdrawn range has a record in the grant table, with an owner that no client has. So the next
//! home finds it, whenever this one is killed. The caller gives its pages back to the kernel after
//! the record exists, and allocates them again before the record is removed.

use std::sync::Arc;

use farrow_memory::{Length, Region, Section, Span};

use super::Home;
use crate::alloc::eviction::{Evicted, EvictionPolicy};
use crate::alloc::space::{Run, SpaceAllocator};
use crate::alloc::victim_order::VictimScope;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::header::RegionHeader;
use crate::format::ids::ObjectId;
use crate::format::layout::Layout;
use crate::format::options::HUGE_GRANT_BYTES;
use crate::tables::control::Control;
use crate::tables::grants::{Grants, WITHDRAWN, span_of};

/// Part of the grant records that withdrawn ranges leave to clients.
const RECORDS_LEFT_PART: u32 = 2;

impl Home {
    /// Bytes of the heap that are lent: all but the withdrawn ranges.
    #[must_use]
    pub fn capacity(&self) -> Length {
        Length(self.capacity_max().0.saturating_sub(self.grants.bytes_of(WITHDRAWN)))
    }

    /// Bytes of the whole heap.
    #[must_use]
    pub fn capacity_max(&self) -> Length {
        self.layout().heap.length
    }

    /// The withdrawn ranges, in order.
    pub fn withdrawn(&self) -> impl Iterator<Item = Span> + '_ {
        self.grants.of(WITHDRAWN).map(span_of)
    }

    /// The ranges of data that are in use or can be granted: all but the withdrawn ones.
    #[must_use]
    pub fn lent(&self) -> Vec<Span> {
        lent_of(self.layout(), self.grants.of(WITHDRAWN))
    }

    /// Withdraw free pages, up to this many bytes. Returns their ranges; the caller gives their
    /// pages back to the kernel. Fewer bytes are withdrawn if fewer are free.
    ///
    /// # Errors
    /// [`StoreError::TooManyGrants`] if the free memory lies in more parts than their records
    /// would leave too few for clients. Ranges withdrawn before stay so.
    pub fn withdraw_pages(&mut self, bytes: Length) -> Result<Vec<Span>, StoreError> {
        let page = self.layout().page.0;
        let mut left = bytes.0 - bytes.0 % page;
        let mut spans = Vec::new();
        while left > 0
            && let Some(run) = last_pages(&self.space, left)
        {
            let records = self.grants.check_records_left(RECORDS_LEFT_PART);
            if let Err(error) = records {
                return if spans.is_empty() { Err(error) } else { Ok(spans) };
            }
            if !self.space.claim(run) {
                return Err(StoreError::Inconsistent(format!("{} is not free", span_of(run))));
            }
            self.grants.extend(WITHDRAWN, run)?;
            failpoint!("withdraw.recorded");
            left -= run.len();
            spans.push(span_of(run));
        }
        Ok(spans)
    }

    /// The end of the last withdrawn range, at most this long, which [`Home::lend`] would lend.
    #[must_use]
    pub fn next_to_lend(&self, bytes_max: Length) -> Option<Span> {
        let last = self.grants.of(WITHDRAWN).last()?;
        let page = self.layout().page.0;
        let length = (bytes_max.0 - bytes_max.0 % page).min(last.len());
        (length > 0).then(|| span_of(Run { start: last.end - length, end: last.end }))
    }

    /// Lend a part of a withdrawn range again, whose pages the caller has allocated.
    ///
    /// # Errors
    /// [`StoreError::NotYours`] if it is not withdrawn.
    pub fn lend(&mut self, span: Span) -> Result<(), StoreError> {
        let run = Run { start: span.offset.0, end: span.offset.0.saturating_add(span.length.0) };
        let carving = self.grants.plan(WITHDRAWN, &[run])?;
        self.grants.carve(WITHDRAWN, &carving)?;
        failpoint!("lend.recorded");
        self.free_run(run)
    }

    /// Free bytes in whole pages, which can be withdrawn.
    #[must_use]
    pub fn free_page_bytes(&self) -> Length {
        Length(self.space.interior_bytes())
    }

    /// The objects to evict, in the order of `policy`, so that this many bytes can be withdrawn.
    /// Empty if they are free already. `None`: evicting all candidates would not be enough.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn victims_for_pages(
        &mut self,
        policy: &dyn EvictionPolicy,
        bytes: Length,
    ) -> Result<Option<Vec<ObjectId>>, StoreError> {
        if self.space.interior_bytes() >= bytes.0 {
            return Ok(Some(Vec::new()));
        }
        let (choices, is_enough) =
            self.choose(policy, VictimScope::All, None, &mut |home, _, _| {
                home.space.interior_bytes() >= bytes.0
            })?;
        let ids = choices.into_iter().map(|choice| choice.candidate.id);
        Ok(is_enough.then(|| ids.collect()))
    }

    /// Evict objects in the order of `policy` until this many bytes can be withdrawn. Evicts
    /// nothing if evicting all candidates would not be enough.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn evict_for_pages(
        &mut self,
        policy: &dyn EvictionPolicy,
        bytes: Length,
    ) -> Result<Evicted, StoreError> {
        let mut evicted = Evicted::default();
        if let Some(victims) = self.victims_for_pages(policy, bytes)? {
            for id in victims {
                if let Some(freed) = self.evict_by(policy, id)? {
                    evicted.objects += 1;
                    evicted.bytes.0 += freed.0;
                }
            }
        }
        Ok(evicted)
    }
}

/// The ranges of data that the home of a region uses, by its records. For the pages that must be
/// allocated before the region is opened.
///
/// # Errors
/// [`StoreError::Format`] if this is not a region.
pub fn lent_spans(region: &Arc<Region>) -> Result<Vec<Span>, StoreError> {
    let layout = RegionHeader::read(region)?.layout;
    let control = Control::new(Arc::clone(region));
    let mut withdrawn: Vec<Run> = Grants::read(&control, &layout)?
        .into_iter()
        .filter(|found| found.is_withdrawn(&layout))
        .map(|found| found.run)
        .collect();
    withdrawn.sort_unstable();
    // Records that overlap are settled later; until then their pages are allocated.
    let is_apart = withdrawn.is_sorted_by(|one, next| one.end <= next.start);
    Ok(lent_of(&layout, if is_apart { withdrawn } else { Vec::new() }.into_iter()))
}

/// The data section without these ranges, which are disjoint and in order.
fn lent_of(layout: &Layout, withdrawn: impl Iterator<Item = Run>) -> Vec<Span> {
    let data = layout.geometry.span_of(Section::Data);
    let end = data.offset.0 + data.length.0;
    let mut at = data.offset.0;
    let mut spans = Vec::new();
    for run in withdrawn.chain([Run { start: end, end }]) {
        if at < run.start {
            spans.push(span_of(Run { start: at, end: run.start }));
        }
        at = run.end;
    }
    spans
}

/// The last pages of the longest free run, at most `bytes`. Whole huge pages, if there are any in
/// it: the kernel has a part of one back only after a split.
fn last_pages(space: &SpaceAllocator, bytes: u64) -> Option<Run> {
    let run = space.longest_interior()?;
    let huge = HUGE_GRANT_BYTES;
    let (first, last) = (run.start.checked_next_multiple_of(huge)?, run.end - run.end % huge);
    if bytes >= huge && first < last {
        let length = (bytes - bytes % huge).min(last - first);
        return Some(Run { start: last - length, end: last });
    }
    Some(Run { start: run.end - bytes.min(run.len()), end: run.end })
}
