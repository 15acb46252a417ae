//! Paths from the trigger's target back to its source.

use super::view::{EdgeDirection, OracleView};
use super::{DefinitionFault, Edge, OraclePattern, before};

/// A partial path.
struct Path<'a> {
    accounts: Vec<i64>,
    /// The edges of each hop.
    hops: Vec<Vec<&'a Edge>>,
}

impl<'a> OracleView<'a> {
    /// D5: every hop later than the one before, the last before the trigger.
    pub fn temporal_cycles(&self, trigger: &'a Edge, window: u64) -> Vec<OraclePattern<'a>> {
        let mut start = before(trigger.time, window);
        if self.fault == Some(DefinitionFault::OpenCycles) {
            start += 1;
        }
        let next = |path: &Path<'a>, edge: &Edge| {
            // The first edge of a hop leaves the most choices to later hops.
            let after = path.hops.last().and_then(|hop| hop.first());
            let is_after = after.is_none_or(|one| edge.time > one.time);
            is_after && i128::from(edge.time) >= start && edge.time < trigger.time
        };
        let paths = self.paths(trigger, usize::MAX, &next);
        paths.into_iter().map(|path| closed(trigger, in_order(path))).collect()
    }

    /// D6: in any order, but each hop before the trigger in the order of D7.
    pub fn simple_cycles(&self, trigger: &'a Edge, window: u64) -> Vec<OraclePattern<'a>> {
        let start = before(trigger.time, window);
        let next = |_: &Path<'a>, edge: &Edge| {
            let is_tied =
                edge.time == trigger.time && self.stands_before(edge.target, trigger.target);
            i128::from(edge.time) >= start && (edge.time < trigger.time || is_tied)
        };
        let paths = self.paths(trigger, self.length_max - 1, &next);
        paths.into_iter().map(|path| closed(trigger, path)).collect()
    }

    /// Simple paths of at most `hops_max` hops from the trigger's target to its source. Each hop
    /// has all edges that `allows` accepts after the partial path.
    fn paths(
        &self,
        trigger: &Edge,
        hops_max: usize,
        allows: &dyn Fn(&Path<'a>, &Edge) -> bool,
    ) -> Vec<Path<'a>> {
        let mut done = Vec::new();
        let mut open = vec![Path { accounts: vec![trigger.target], hops: Vec::new() }];
        if trigger.source == trigger.target {
            return done;
        }
        while let Some(path) = open.pop() {
            let Some(&last) = path.accounts.last() else { break };
            if path.hops.len() == hops_max {
                continue;
            }
            for (&account, edges) in self.ends(last, EdgeDirection::Out) {
                let hop: Vec<&Edge> =
                    edges.iter().filter(|one| allows(&path, one)).copied().collect();
                if path.accounts.contains(&account) || hop.is_empty() {
                    continue;
                }
                let accounts = path.accounts.iter().copied().chain([account]).collect();
                let hops = path.hops.iter().cloned().chain([hop]).collect();
                let longer = Path { accounts, hops };
                if account == trigger.source { done.push(longer) } else { open.push(longer) }
            }
        }
        done
    }
}

/// D5: of each hop, only the edges that are part of a choice with increasing times.
fn in_order(mut path: Path<'_>) -> Path<'_> {
    let mut limit = None;
    for hop in path.hops.iter_mut().rev() {
        hop.retain(|one| limit.is_none_or(|limit| one.time < limit));
        limit = hop.last().map(|one| one.time);
    }
    path
}

fn closed<'a>(trigger: &'a Edge, path: Path<'a>) -> OraclePattern<'a> {
    let edges = path.hops.into_iter().flatten().chain([trigger]).collect();
    OraclePattern { size: path.accounts.len(), accounts: path.accounts, edges }
}
