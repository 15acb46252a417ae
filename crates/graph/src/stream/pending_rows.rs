//! Rows that are in the graph before their features are wanted: offline mode.

use super::engine::FeatureOutput;
use super::engine::{CallOutcome, LEARNT_AT_ONCE, StreamEngine, WorkShare};
use crate::edge::{Adjacency, EvictionFloor, Stamp};
use crate::features::Edges;
use crate::memory::OutOfMemory;
use crate::patterns::Trigger;
use crate::settings::Settings;
use std::collections::VecDeque;

/// Rows without features, each with what had been evicted when it came, were it the last one.
#[derive(Debug)]
pub(crate) struct PendingRows<T> {
    /// Number of arrival that places of floors count from.
    origin: u64,
    /// Number of arrival of the first row that has no features.
    next: u64,
    triggers: VecDeque<Trigger<T>>,
}

/// A trigger whose floor counts from so many places earlier.
fn moved<T: Stamp>(trigger: Trigger<T>, by: i64) -> Trigger<T> {
    let shift = |place: i32| {
        let place = i64::from(place).saturating_add(by);
        place.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
    };
    let floor = EvictionFloor { place: trigger.floor.place.map(shift), ..trigger.floor };
    Trigger { floor, ..trigger }
}

impl<T: Stamp> PendingRows<T> {
    pub(crate) fn len(&self) -> usize {
        self.triggers.len()
    }

    pub(crate) fn restamp<S: Stamp>(self, change: impl Fn(T) -> S) -> PendingRows<S> {
        let triggers = self.triggers.into_iter().map(|Trigger { source, target, time, floor }| {
            let floor = EvictionFloor { time: change(floor.time), place: floor.place };
            Trigger { source, target, time: change(time), floor }
        });
        PendingRows { origin: self.origin, next: self.next, triggers: triggers.collect() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.triggers.capacity() * size_of::<Trigger<T>>()
    }
}

impl<T: Stamp> StreamEngine<T> {
    /// Adds rows as they come; their features are wanted later. Where there is no memory: how many
    /// rows are in, and what was missing.
    pub(crate) fn learn_pending(
        &mut self,
        settings: &Settings,
        edges: &Edges<'_>,
        order: &[u32],
    ) -> Result<(), (usize, OutOfMemory)> {
        // In parts, so that what segments have can leave meanwhile.
        for (number, part) in order.chunks(LEARNT_AT_ONCE).enumerate() {
            let first = self.graph.next();
            let mut ahead = self.ahead.take().unwrap_or_else(|| PendingRows {
                origin: first,
                next: first,
                triggers: VecDeque::new(),
            });
            let bytes = (ahead.len() + part.len()) * size_of::<Trigger<T>>();
            let room = ahead.triggers.try_reserve(part.len()).map_err(|_| OutOfMemory { bytes });
            let added = room.and_then(|()| self.insert(settings, edges, part, None));
            let by = (first - ahead.origin).cast_signed();
            if added.is_ok() {
                ahead.triggers.extend(self.triggers.iter().map(|&one| moved(one, by)));
            }
            self.ahead = Some(ahead).filter(|ahead| !ahead.triggers.is_empty());
            added.map_err(|full| (number * LEARNT_AT_ONCE, full))?;
            self.evict(settings, None);
        }
        Ok(())
    }

    /// Writes the features of the next `rows` rows; behind the last one old edges go.
    pub(crate) fn transform_pending(
        &mut self,
        settings: &Settings,
        rows: usize,
        cells: &mut [f64],
        pool: Option<&rayon::ThreadPool>,
    ) -> CallOutcome {
        let Some(mut ahead) = self.ahead.take() else { return CallOutcome::default() };
        let rows = rows.min(ahead.len());
        let first = ahead.next;
        ahead.next += rows as u64;
        let by = (first - ahead.origin).cast_signed();
        self.triggers.clear();
        self.triggers.extend(ahead.triggers.drain(..rows).map(|one| moved(one, -by)));
        self.graph.show(Some(ahead.next));
        let key = |account| self.graph.key(account);
        let sources: Vec<i64> = self.triggers.iter().map(|one| key(one.source)).collect();
        let targets: Vec<i64> = self.triggers.iter().map(|one| key(one.target)).collect();
        let ends =
            Edges { ids: &[], sources: &sources, targets: &targets, times: &[], columns: &[] };
        let places: Vec<u32> = (0..rows as u32).collect();
        let stride = settings.width();
        let output = FeatureOutput { cells, stride, offset: 0, share: WorkShare::WHOLE };
        let outcome = self.compute(settings, &ends, &places, first, output, None, pool);
        self.graph.show(None);
        if ahead.len() > 0 {
            let oldest = self.triggers.last().map(|one| one.floor.time).unwrap_or_default();
            self.forget(oldest);
            self.ahead = Some(ahead);
        }
        self.evict(settings, pool);
        outcome
    }

    /// Has rows that came ahead stay without features.
    pub(crate) fn drop_pending(&mut self, settings: &Settings) {
        if self.ahead.take().is_some() {
            self.triggers.clear();
            self.evict(settings, None);
        }
    }
}
