//! Patterns around one account or between two.

use super::view::{EdgeDirection, EdgesByEnd, OracleView};
use super::{DefinitionFault, Edge, OraclePattern, before};

/// A middle account between near and far, with its edges at both.
type Middle<'v, 'a> = (i64, [&'v Vec<&'a Edge>; 2]);

impl<'a> OracleView<'a> {
    /// D1: neighbours at the trigger's target (in) or source (out).
    pub fn fan(&self, trigger: &Edge, way: EdgeDirection, window: u64) -> Vec<OraclePattern<'a>> {
        let centre = end(trigger, way);
        let star = self.star(centre, way, trigger.time, window);
        let edges: Vec<&Edge> = star.values().flatten().copied().collect();
        at_least_two(OraclePattern { size: star.len(), accounts: vec![centre], edges })
    }

    /// D2: as `fan`, but measured in edges.
    pub fn degree(
        &self,
        trigger: &Edge,
        way: EdgeDirection,
        window: u64,
    ) -> Vec<OraclePattern<'a>> {
        let centre = end(trigger, way);
        let star = self.star(centre, way, trigger.time, window);
        let edges: Vec<&Edge> = star.values().flatten().copied().collect();
        at_least_two(OraclePattern { size: edges.len(), accounts: vec![centre], edges })
    }

    /// Edges of an account in the window that is open at its old end, without self-loops.
    fn star(&self, centre: i64, way: EdgeDirection, time: i64, window: u64) -> EdgesByEnd<'a> {
        let start = before(time, window);
        let is_inside = |one: &&&Edge| {
            let at = i128::from(one.time);
            let is_young = if self.fault == Some(DefinitionFault::ClosedStars) {
                at >= start
            } else {
                at > start
            };
            is_young && one.time <= time
        };
        let others = self.ends(centre, way).iter().filter(|(other, _)| **other != centre);
        let inside = others.map(|(&other, edges)| {
            (other, edges.iter().filter(is_inside).copied().collect::<Vec<_>>())
        });
        inside.filter(|(_, edges)| !edges.is_empty()).collect()
    }

    /// D4b: the trigger's target, then its source, as the centre.
    pub fn gather_scatter(&self, trigger: &Edge, window: u64) -> Vec<OraclePattern<'a>> {
        if trigger.source == trigger.target {
            return Vec::new();
        }
        let centres = [trigger.target, trigger.source].into_iter();
        let shapes = centres.flat_map(|centre| {
            let gathered = self.star(centre, EdgeDirection::In, trigger.time, window);
            let scattered = self.star(centre, EdgeDirection::Out, trigger.time, window);
            let size = gathered.len().min(scattered.len());
            let edges = gathered.values().chain(scattered.values()).flatten().copied().collect();
            at_least_two(OraclePattern { size, accounts: vec![centre], edges })
        });
        shapes.collect()
    }

    /// D4: the trigger gathers, then it scatters.
    pub fn scatter_gather(&self, trigger: &Edge, window: u64) -> Vec<OraclePattern<'a>> {
        let start = before(trigger.time, window);
        let mut shapes = Vec::new();
        for way in [EdgeDirection::In, EdgeDirection::Out] {
            let (near, middle) = (end(trigger, way), end(trigger, way.back()));
            for (&far, legs) in self.ends(middle, way) {
                if far != near && far != middle && is_live(legs, start) {
                    let legs = self.legs(near, far, way, (start, trigger.time));
                    shapes.extend(legs.and_then(|legs| joined(near, far, way, &legs, start)));
                }
            }
        }
        shapes
    }

    /// D4: the middle accounts between near and far with their legs at both, or nothing if one of
    /// them has a leg that is later than the trigger.
    fn legs(
        &self,
        near: i64,
        far: i64,
        way: EdgeDirection,
        (start, time): (i128, i64),
    ) -> Option<Vec<Middle<'_, 'a>>> {
        let mut middles = Vec::new();
        for (&middle, at_near) in self.ends(near, way) {
            let Some(at_far) = self.ends(far, way.back()).get(&middle) else { continue };
            if middle == near || !is_live(at_near, start) {
                continue;
            }
            let is_late = newest(at_near) > i128::from(time) || newest(at_far) > i128::from(time);
            if is_late && self.fault != Some(DefinitionFault::LateLegs) {
                return None;
            }
            if is_live(at_far, start) {
                middles.push((middle, [at_near, at_far]));
            }
        }
        Some(middles)
    }
}

/// The centre of a star in this direction.
fn end(trigger: &Edge, way: EdgeDirection) -> i64 {
    match way {
        EdgeDirection::In => trigger.target,
        EdgeDirection::Out => trigger.source,
    }
}

/// D3: a size below two is not a pattern.
fn at_least_two(shape: OraclePattern<'_>) -> Vec<OraclePattern<'_>> {
    if shape.size < 2 { Vec::new() } else { vec![shape] }
}

fn newest(legs: &[&Edge]) -> i128 {
    legs.last().map_or(i128::MIN, |one| i128::from(one.time))
}

/// D4: a pair of accounts is live if an edge between them is in the window, closed at its old end.
fn is_live(legs: &[&Edge], start: i128) -> bool {
    newest(legs) >= start
}

fn joined<'a>(
    near: i64,
    far: i64,
    way: EdgeDirection,
    middles: &[Middle<'_, 'a>],
    start: i128,
) -> Option<OraclePattern<'a>> {
    if middles.len() < 2 {
        return None;
    }
    let (scatters, gathers) = if way == EdgeDirection::In { (far, near) } else { (near, far) };
    let between = middles.iter().map(|(middle, _)| *middle);
    let legs = middles.iter().flat_map(|(_, legs)| legs.iter().copied().flatten().copied());
    Some(OraclePattern {
        size: middles.len(),
        accounts: [scatters, gathers].into_iter().chain(between).collect(),
        edges: legs.filter(|one| i128::from(one.time) >= start).collect(),
    })
}
