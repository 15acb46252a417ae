//! The kinds of patterns.

use crate::edge::Side;

/// The kinds of patterns, in the order of their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PatternKind {
    /// Distinct payers of an account.
    FanIn,
    /// Distinct neighbours that an account pays.
    FanOut,
    /// Payments to an account.
    DegreeIn,
    /// Payments by an account.
    DegreeOut,
    /// Two accounts connected through two or more others.
    ScatterGather,
    /// A cycle of payments in increasing order of time.
    TemporalCycle,
    /// A cycle of limited length, in any order of time.
    SimpleCycle,
    /// An account that several accounts pay and that pays several accounts.
    GatherScatter,
}

impl PatternKind {
    /// How many kinds there are.
    pub const COUNT: usize = 8;
    /// All of them, in the order of their columns.
    pub const ALL: [PatternKind; PatternKind::COUNT] = [
        PatternKind::FanIn,
        PatternKind::FanOut,
        PatternKind::DegreeIn,
        PatternKind::DegreeOut,
        PatternKind::ScatterGather,
        PatternKind::TemporalCycle,
        PatternKind::SimpleCycle,
        PatternKind::GatherScatter,
    ];

    /// The name of the pattern in columns and tables.
    pub fn name(self) -> &'static str {
        match self {
            PatternKind::FanIn => "fan_in",
            PatternKind::FanOut => "fan_out",
            PatternKind::DegreeIn => "degree_in",
            PatternKind::DegreeOut => "degree_out",
            PatternKind::ScatterGather => "scatter-gather",
            PatternKind::TemporalCycle => "temp-cycle",
            PatternKind::SimpleCycle => "lc-cycle",
            PatternKind::GatherScatter => "gather-scatter",
        }
    }

    /// The sides on which triggers of one account are searched together; none for cycles.
    pub(crate) fn sides(self) -> &'static [Side] {
        match self {
            PatternKind::FanIn | PatternKind::DegreeIn => &[Side::In],
            PatternKind::FanOut | PatternKind::DegreeOut => &[Side::Out],
            PatternKind::ScatterGather | PatternKind::GatherScatter => &[Side::In, Side::Out],
            PatternKind::TemporalCycle | PatternKind::SimpleCycle => &[],
        }
    }
}
