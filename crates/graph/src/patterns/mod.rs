//! The patterns: each search finds the patterns that triggers of a batch complete.

mod breadth_first;
mod credits;
mod hubs;
mod legs;
mod reach;
mod scatter_gather;
mod search_context;
mod search_state;
mod simple_cycle;
mod star;
mod temporal_cycle;
mod trigger;
mod trigger_groups;

use crate::edge::Side;
use crate::kind::PatternKind;
pub(crate) use credits::{Credits, MatchCollector, PatternMatch};
pub(crate) use hubs::Hubs;
pub(crate) use search_context::{SearchContext, SearchSettings, is_before};
pub(crate) use search_state::SearchState;
pub(crate) use trigger::Trigger;
pub(crate) use trigger_groups::{CHUNK, TriggerGroups};

use crate::edge::{Adjacency, Stamp};
use crate::settings::PatternSettings;
use search_context::PatternSearch;
use star::Star;

/// The tables of one worker, reused for each search.
#[derive(Debug)]
pub(crate) struct SearchScratch<T> {
    star: star::StarScratch<T>,
    scatter_gather: scatter_gather::ScatterGatherScratch<T>,
    temporal_cycle: temporal_cycle::TemporalCycleScratch<T>,
    simple_cycle: simple_cycle::SimpleCycleScratch,
    /// The triggers that may close a cycle.
    closing: Vec<u32>,
    pub credits: Credits,
}

impl<T: Stamp> Default for SearchScratch<T> {
    fn default() -> SearchScratch<T> {
        SearchScratch {
            star: star::StarScratch::default(),
            scatter_gather: scatter_gather::ScatterGatherScratch::default(),
            temporal_cycle: temporal_cycle::TemporalCycleScratch::default(),
            simple_cycle: simple_cycle::SimpleCycleScratch::default(),
            closing: Vec::new(),
            credits: Credits::default(),
        }
    }
}

impl<T: Stamp> SearchScratch<T> {
    /// Prepares for a call.
    pub(crate) fn start(&mut self, rows: usize, width: usize, collector: Option<MatchCollector>) {
        self.scatter_gather.start();
        self.credits.reset(rows, width);
        self.credits.collector = collector;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.star.bytes()
            + self.scatter_gather.bytes()
            + self.temporal_cycle.bytes()
            + self.simple_cycle.bytes()
            + self.closing.capacity() * size_of::<u32>()
            + self.credits.bytes()
    }
}

/// One enabled pattern.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchPlan<'a> {
    pub kind: PatternKind,
    pub pattern: &'a PatternSettings,
    /// The column of its first bin.
    pub column: usize,
    pub length_max: usize,
    pub work_max: u64,
}

/// Finds one kind of pattern for triggers that share an account on `side`. Kinds without sides
/// accept any triggers.
pub(crate) fn find<T: Stamp, G: Adjacency<T>>(
    context: &SearchContext<'_, T, G>,
    plan: SearchPlan<'_>,
    side: Option<Side>,
    places: &[u32],
    scratch: &mut SearchScratch<T>,
) {
    let SearchPlan { kind, pattern, column, length_max, work_max } = plan;
    let settings = SearchSettings { window: pattern.window, bins: &pattern.bins, column, work_max };
    let search = PatternSearch { context, settings };
    let credits = &mut scratch.credits;
    let side = side.unwrap_or(Side::In);
    match kind {
        PatternKind::FanIn
        | PatternKind::FanOut
        | PatternKind::DegreeIn
        | PatternKind::DegreeOut => {
            let by_neighbour = matches!(kind, PatternKind::FanIn | PatternKind::FanOut);
            let star = Star { kind, side, by_neighbour };
            star::star(&search, star, places, &mut scratch.star, credits);
        }
        PatternKind::GatherScatter => {
            star::gather_scatter(&search, side, places, &mut scratch.star, credits);
        }
        PatternKind::ScatterGather => {
            let scratch = &mut scratch.scatter_gather;
            scatter_gather::scatter_gather(&search, side, places, scratch, credits);
        }
        PatternKind::TemporalCycle | PatternKind::SimpleCycle => {
            context.closing(places, settings.window, &mut scratch.closing);
            for &place in &scratch.closing {
                if context.is_interrupted() {
                    return;
                }
                if kind == PatternKind::TemporalCycle {
                    let scratch = &mut scratch.temporal_cycle;
                    temporal_cycle::temporal_cycle(&search, place, scratch, credits);
                } else {
                    let scratch = &mut scratch.simple_cycle;
                    simple_cycle::simple_cycle(&search, length_max, place, scratch, credits);
                }
            }
        }
    }
}
