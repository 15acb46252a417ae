//! The features of pending rows.

use super::batch::CallOutcome;
use crate::edge::{Adjacency, Stamp};
use crate::interrupt::CallInterrupt;
use crate::settings::Settings;
use crate::stream::{
    CallContext, Edges, FeatureOutput, FeatureRequest, PartFailure, StreamEngine, WorkShare,
};
use rayon::ThreadPool;

impl<T: Stamp> StreamEngine<T> {
    /// Writes the features of the next `rows` pending rows. After the last one, eviction resumes.
    /// After an interrupt, all of them are pending again.
    pub(crate) fn transform_pending(
        &mut self,
        settings: &Settings,
        rows: usize,
        cells: &mut [f64],
        pool: Option<&ThreadPool>,
        interrupt: Option<&dyn CallInterrupt>,
    ) -> Result<CallOutcome, PartFailure> {
        let Some(mut pending) = self.pending.take() else { return Ok(CallOutcome::default()) };
        let rows = rows.min(pending.len());
        let first = pending.next();
        self.batch.triggers.clear();
        self.batch.triggers.extend(pending.take(rows));
        self.graph.show(Some(pending.next()));
        let key = |account| self.graph.key(account);
        let triggers = &self.batch.triggers;
        let sources: Vec<i64> = triggers.iter().map(|one| key(one.source)).collect();
        let targets: Vec<i64> = triggers.iter().map(|one| key(one.target)).collect();
        let (sources, targets) = (sources.as_slice(), targets.as_slice());
        let edges = &Edges { ids: &[], sources, targets, times: &[], columns: &[] };
        let places: Vec<u32> = (0..rows as u32).collect();
        let call = CallContext { settings, pool, edges, order: &places, interrupt };
        let (stride, share) = (settings.width(), WorkShare::WHOLE);
        let output = FeatureOutput { cells, stride, offset: 0, share };
        let request = FeatureRequest { places: &places, output, patterns_max: None };
        let outcome = self.compute(&call, request, first);
        self.graph.show(None);
        if call.is_interrupted() {
            pending.put_back(&self.batch.triggers);
            self.pending = Some(pending);
            self.drop_carried();
            return Err(PartFailure::Interrupted);
        }
        if !pending.is_empty() {
            let oldest = self.batch.triggers.last().map(|one| one.floor.time).unwrap_or_default();
            self.forget(oldest);
            self.pending = Some(pending);
        }
        if self.rollback.is_none() {
            self.evict(settings, pool);
        }
        Ok(outcome)
    }
}
