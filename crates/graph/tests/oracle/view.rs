//! The view of the graph that the definitions use.

use super::{Edge, Fault, Shape};
use farrow_graph::{Mode, PatternKind, Settings};
use std::collections::{BTreeMap, HashMap};

/// Edges by the account at their other end; those of one pair in order of time, then arrival.
pub type Ends<'a> = BTreeMap<i64, Vec<&'a Edge>>;

/// The two directions in which edges are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Out,
    In,
}

#[derive(Debug)]
pub struct View<'a> {
    out: BTreeMap<i64, Ends<'a>>,
    into: BTreeMap<i64, Ends<'a>>,
    none: Ends<'a>,
    appeared: &'a HashMap<i64, usize>,
    pub length_max: usize,
    pub is_causal: bool,
    pub fault: Option<Fault>,
}

impl Way {
    pub fn back(self) -> Way {
        match self {
            Way::Out => Way::In,
            Way::In => Way::Out,
        }
    }
}

impl<'a> View<'a> {
    pub fn new(
        edges: &'a [Edge],
        appeared: &'a HashMap<i64, usize>,
        settings: &Settings,
        fault: Option<Fault>,
    ) -> View<'a> {
        let mut sorted: Vec<&Edge> = edges.iter().collect();
        sorted.sort_by_key(|one| (one.time, one.number));
        let mut view = View {
            out: BTreeMap::new(),
            into: BTreeMap::new(),
            none: Ends::new(),
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

    pub fn ends(&self, account: i64, way: Way) -> &Ends<'a> {
        let all = match way {
            Way::Out => &self.out,
            Way::In => &self.into,
        };
        all.get(&account).unwrap_or(&self.none)
    }

    /// D7: whether `account` is before `than` in the order of edges of one instant.
    pub fn stands_before(&self, account: i64, than: i64) -> bool {
        if self.fault == Some(Fault::NoTies) {
            false
        } else if self.is_causal {
            account < than
        } else {
            self.appeared.get(&account) < self.appeared.get(&than)
        }
    }

    /// The patterns that a trigger completes.
    pub fn shapes(&self, kind: PatternKind, trigger: &'a Edge, window: u64) -> Vec<Shape<'a>> {
        match kind {
            PatternKind::FanIn => self.fan(trigger, Way::In, window),
            PatternKind::FanOut => self.fan(trigger, Way::Out, window),
            PatternKind::DegreeIn => self.degree(trigger, Way::In, window),
            PatternKind::DegreeOut => self.degree(trigger, Way::Out, window),
            PatternKind::ScatterGather => self.scatter_gather(trigger, window),
            PatternKind::TemporalCycle => self.temporal_cycles(trigger, window),
            PatternKind::SimpleCycle => self.simple_cycles(trigger, window),
            PatternKind::GatherScatter => self.gather_scatter(trigger, window),
        }
    }
}
