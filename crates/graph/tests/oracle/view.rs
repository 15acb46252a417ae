//! The view of the graph that the definitions use.

use super::{DefinitionFault, Edge, OraclePattern};
use farrow_graph::{Mode, PatternKind, Settings};
use std::collections::{BTreeMap, HashMap};

/// Edges by the account at their other end; those of one pair in order of time, then arrival.
pub type EdgesByEnd<'a> = BTreeMap<i64, Vec<&'a Edge>>;

/// The two directions in which edges are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeDirection {
    Out,
    In,
}

#[derive(Debug)]
pub struct OracleView<'a> {
    out: BTreeMap<i64, EdgesByEnd<'a>>,
    into: BTreeMap<i64, EdgesByEnd<'a>>,
    none: EdgesByEnd<'a>,
    appeared: &'a HashMap<i64, usize>,
    pub length_max: usize,
    pub is_causal: bool,
    pub fault: Option<DefinitionFault>,
}

impl EdgeDirection {
    pub fn back(self) -> EdgeDirection {
        match self {
            EdgeDirection::Out => EdgeDirection::In,
            EdgeDirection::In => EdgeDirection::Out,
        }
    }
}

impl<'a> OracleView<'a> {
    pub fn new(
        edges: &'a [Edge],
        appeared: &'a HashMap<i64, usize>,
        settings: &Settings,
        fault: Option<DefinitionFault>,
    ) -> OracleView<'a> {
        let mut sorted: Vec<&Edge> = edges.iter().collect();
        sorted.sort_by_key(|one| (one.time, one.number));
        let mut view = OracleView {
            out: BTreeMap::new(),
            into: BTreeMap::new(),
            none: EdgesByEnd::new(),
            appeared,
            length_max: settings.cycle_length_max,
            is_causal: settings.mode == Mode::Causal,
            fault,
        };
        for edge in sorted {
            let Edge { source, target, .. } = *edge;
            view.out.entry(source).or_default().entry(target).or_default().push(edge);
            view.into.entry(target).or_default().entry(source).or_default().push(edge);
        }
        view
    }

    pub fn ends(&self, account: i64, way: EdgeDirection) -> &EdgesByEnd<'a> {
        let all = match way {
            EdgeDirection::Out => &self.out,
            EdgeDirection::In => &self.into,
        };
        all.get(&account).unwrap_or(&self.none)
    }

    /// D7: whether `account` is before `than` in the order of edges of one instant.
    pub fn stands_before(&self, account: i64, than: i64) -> bool {
        if self.fault == Some(DefinitionFault::NoTies) {
            false
        } else if self.is_causal {
            account < than
        } else {
            self.appeared.get(&account) < self.appeared.get(&than)
        }
    }

    /// The patterns that a trigger completes.
    pub fn shapes(
        &self,
        kind: PatternKind,
        trigger: &'a Edge,
        window: u64,
    ) -> Vec<OraclePattern<'a>> {
        match kind {
            PatternKind::FanIn => self.fan(trigger, EdgeDirection::In, window),
            PatternKind::FanOut => self.fan(trigger, EdgeDirection::Out, window),
            PatternKind::DegreeIn => self.degree(trigger, EdgeDirection::In, window),
            PatternKind::DegreeOut => self.degree(trigger, EdgeDirection::Out, window),
            PatternKind::ScatterGather => self.scatter_gather(trigger, window),
            PatternKind::TemporalCycle => self.temporal_cycles(trigger, window),
            PatternKind::SimpleCycle => self.simple_cycles(trigger, window),
            PatternKind::GatherScatter => self.gather_scatter(trigger, window),
        }
    }
}
