//! A survey of the objects that cannot leave memory: held, pinned, or in use by the home. It visits
//! every hold, so it is made in parts, between which the home serves others.

use std::collections::{BTreeMap, BTreeSet};

use super::Home;
use super::overview::Picture;
use crate::alloc::space::Run;
use crate::error::StoreError;
use crate::format::entry::EntryState;
use crate::format::ids::Slot;
use crate::tables::slot_set::SlotSet;

/// Objects whose blocks one part of a survey looks up at most.
const SLOTS_IN_PART: usize = 1024;

/// A hold block costs as much as this number of objects, though it has some 500 holds: they are only noted.
const HOLD_BLOCK_COST: usize = 32;

/// Bytes of distinct blocks that sealed objects have.
#[derive(Debug, Default)]
pub(super) struct BlockSum {
    /// Bytes of blocks of one object.
    bytes: u64,
    /// Blocks that several objects share.
    shared: BTreeSet<Run>,
}

impl BlockSum {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.shared.iter().map(|run| run.len()).sum::<u64>()
    }

    fn add(&mut self, run: Run, is_shared: bool) {
        if is_shared {
            self.shared.insert(run);
        } else {
            self.bytes += run.len();
        }
    }
}

/// The next step of a survey.
#[derive(Debug, Clone, Copy)]
enum SurveyStage {
    /// Reads hold blocks, from this one on.
    Holds(u32),
    /// Visits held objects, from this slot on.
    Held(u32),
    /// Visits pinned objects, from this slot on.
    Pinned(u32),
    /// Visits deleted objects that are still held, from this slot on.
    Retiring(u32),
    /// Visits the few objects that the home itself uses.
    InUse,
    /// Visits replicas, from this slot on.
    Replicas(u32),
    Over,
}

/// What the overview shows of holds.
#[derive(Debug)]
pub(super) struct HoldPicture {
    pub(super) picture: Picture,
    /// Held blocks of several objects, which are drawn once.
    drawn: BTreeSet<Run>,
    /// The slots that each client holds.
    pub(super) by_client: BTreeMap<u32, SlotSet>,
}

/// The state of a survey. An object that is held, released, sealed or deleted between two of its
/// parts counts or does not.
#[derive(Debug)]
pub struct HoldSurvey {
    stage: SurveyStage,
    /// Slots that are held, under the slot that the home uses.
    held_slots: SlotSet,
    /// Slots that count as staying.
    staying_slots: SlotSet,
    /// Number of holds.
    pub(super) holds: u64,
    pub(super) held: BlockSum,
    pub(super) pinned: BlockSum,
    /// All that cannot be evicted.
    pub(super) staying: BlockSum,
    /// Replicas that can be evicted.
    pub(super) replicas: BlockSum,
    /// For an overview.
    pub(super) of_holds: Option<HoldPicture>,
}

impl Default for HoldSurvey {
    fn default() -> Self {
        Self {
            stage: SurveyStage::Holds(0),
            held_slots: SlotSet::default(),
            staying_slots: SlotSet::default(),
            holds: 0,
            held: BlockSum::default(),
            pinned: BlockSum::default(),
            staying: BlockSum::default(),
            replicas: BlockSum::default(),
            of_holds: None,
        }
    }
}

impl Home {
    /// A survey for an overview with this number of cells; the default one is for statistics.
    #[must_use]
    pub fn survey_for_overview(&self, cells: u32) -> HoldSurvey {
        let picture = self.empty_picture(cells);
        let (drawn, by_client) = Default::default();
        let of_holds = Some(HoldPicture { picture, drawn, by_client });
        HoldSurvey { of_holds, ..HoldSurvey::default() }
    }

    /// Do one part of a survey. Returns true at its end.
    ///
    /// # Errors
    /// Memory that cannot be read.
    pub fn survey_some(&self, survey: &mut HoldSurvey) -> Result<bool, StoreError> {
        let mut left = SLOTS_IN_PART;
        while left > 0 && !matches!(survey.stage, SurveyStage::Over) {
            survey.stage = self.survey_stage(survey, &mut left)?;
        }
        Ok(matches!(survey.stage, SurveyStage::Over))
    }

    /// Do as much of a stage as fits into a part, for the objects `left` in it.
    fn survey_stage(
        &self,
        survey: &mut HoldSurvey,
        left: &mut usize,
    ) -> Result<SurveyStage, StoreError> {
        let part_of = |slots: &mut dyn Iterator<Item = u32>| slots.take(*left).collect::<Vec<_>>();
        let (slots, same, next): (_, fn(u32) -> SurveyStage, _) = match survey.stage {
            SurveyStage::Holds(from) => return self.survey_holds(survey, from, left),
            SurveyStage::Held(from) => {
                let slots = part_of(&mut survey.held_slots.iter_from(from));
                slots.iter().try_for_each(|slot| self.survey_held(survey, *slot))?;
                // An overview needs no more.
                let is_of_stats = survey.of_holds.is_none();
                (
                    slots,
                    SurveyStage::Held,
                    if is_of_stats { SurveyStage::Pinned(0) } else { SurveyStage::Over },
                )
            }
            SurveyStage::Pinned(from) => {
                let slots = part_of(&mut self.pins.iter_from(Slot(from)).map(|slot| slot.0));
                slots.iter().try_for_each(|slot| self.survey_pinned(survey, *slot))?;
                (slots, SurveyStage::Pinned, SurveyStage::Retiring(0))
            }
            SurveyStage::Retiring(from) => {
                // A held deleted object keeps the blocks that it shares with others.
                let slots = part_of(&mut self.retiring.iter_from(from));
                slots.iter().try_for_each(|slot| self.survey_staying(survey, *slot))?;
                (slots, SurveyStage::Retiring, SurveyStage::InUse)
            }
            SurveyStage::InUse => {
                let retained = self.retained.iter().map(|(slot, _)| slot.0);
                let slots: Vec<u32> = retained.chain(self.spilling.iter().copied()).collect();
                slots.iter().try_for_each(|slot| self.survey_staying(survey, *slot))?;
                survey.staying.shared.extend(self.loading_runs());
                return Ok(SurveyStage::Replicas(0));
            }
            SurveyStage::Replicas(from) => {
                let slots = part_of(&mut self.replicas.range(from..).copied());
                let may_leave = |slot: &&u32| !survey.staying_slots.contains(**slot);
                for slot in slots.iter().filter(may_leave) {
                    self.add_blocks(*slot, &mut survey.replicas)?;
                }
                (slots, SurveyStage::Replicas, SurveyStage::Over)
            }
            SurveyStage::Over => return Ok(SurveyStage::Over),
        };
        let is_full = slots.len() == *left;
        *left -= slots.len();
        match slots.last() {
            Some(last) if is_full => Ok(same(last.saturating_add(1))),
            _ => Ok(next),
        }
    }

    /// A survey at once.
    pub(super) fn survey(&self, mut survey: HoldSurvey) -> Result<HoldSurvey, StoreError> {
        while !self.survey_some(&mut survey)? {}
        Ok(survey)
    }

    fn survey_holds(
        &self,
        survey: &mut HoldSurvey,
        mut from: u32,
        left: &mut usize,
    ) -> Result<SurveyStage, StoreError> {
        while *left > 0 {
            let Some(block) = self.holds.counted_from(from) else {
                return Ok(SurveyStage::Held(0));
            };
            let of_client = survey.of_holds.as_mut().map(|of_holds| {
                let client = self.holds.client_of(block).unwrap_or(u32::MAX);
                of_holds.by_client.entry(client).or_default()
            });
            let slots = &mut survey.held_slots;
            let mut of_client = of_client;
            survey.holds += self.holds.each_held_in(block, |slot| {
                if let Some(of_client) = &mut of_client {
                    of_client.insert(slot);
                }
                slots.insert(self.locals.moved.get(&slot).copied().unwrap_or(slot));
            })?;
            from = block + 1;
            *left = left.saturating_sub(HOLD_BLOCK_COST);
        }
        Ok(SurveyStage::Holds(from))
    }

    fn survey_held(&self, survey: &mut HoldSurvey, slot: u32) -> Result<(), StoreError> {
        for run in self.runs_in(Slot(slot))? {
            let Some(block) = self.blocks.get(run) else { continue };
            let is_shared = block.is_shared();
            if block.sealed > 0 {
                survey.held.add(run, is_shared);
            }
            if let Some(HoldPicture { picture, drawn, .. }) = &mut survey.of_holds
                && (!is_shared || drawn.insert(run))
            {
                picture.add(run, |cell| &mut cell.held);
            }
        }
        self.survey_staying(survey, slot)
    }

    fn survey_pinned(&self, survey: &mut HoldSurvey, slot: u32) -> Result<(), StoreError> {
        self.add_blocks(slot, &mut survey.pinned)?;
        self.survey_staying(survey, slot)
    }

    fn survey_staying(&self, survey: &mut HoldSurvey, slot: u32) -> Result<(), StoreError> {
        let slot = self.locals.moved.get(&slot).copied().unwrap_or(slot);
        match survey.staying_slots.insert(slot) {
            true => self.add_blocks(slot, &mut survey.staying),
            false => Ok(()),
        }
    }

    fn add_blocks(&self, slot: u32, sum: &mut BlockSum) -> Result<(), StoreError> {
        for run in self.runs_in(Slot(slot))? {
            if let Some(block) = self.blocks.get(run).filter(|block| block.sealed > 0) {
                sum.add(run, block.is_shared());
            }
        }
        Ok(())
    }

    /// The blocks of the object in a slot. A hold is input: the slot may have no object in memory.
    fn runs_in(&self, slot: Slot) -> Result<Vec<Run>, StoreError> {
        if let Some(known) = self.locals.known.get(&slot.0) {
            return Ok(known.run.into_iter().collect());
        }
        let is_in_memory = |state| matches!(state, EntryState::Sealed | EntryState::Retiring);
        if slot.0 >= self.directory.used() || !is_in_memory(self.directory.sequence(slot)?.state())
        {
            return Ok(Vec::new());
        }
        let entry = self.directory.entry(slot)?;
        self.runs_of(slot, &entry)
    }
}
