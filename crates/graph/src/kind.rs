//! The kinds of patterns.

use crate::edge::Side;

/// The kinds of patterns, in the order of their columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Distinct payers of an account.
    FanIn,
    /// Distinct neighbours that an account pays.
    FanOut,
    /// Payments to an account.
    DegreeIn,
    /// Payments by an account.
    DegreeOut,
    /// Two accounts joined through two or more others.
    ScatterGather,
    /// A cycle of payments in increasing order of time.
    TemporalCycle,
    /// A cycle of limited length, in any order of time.
    SimpleCycle,
    /// An account that gathers from several and scatters to several.
    GatherScatter,
}

impl Kind {
    /// How many kinds there are.
    pub const COUNT: usize = 8;
    /// All of them, in the order of their columns.
    pub const ALL: [Kind; Kind::COUNT] = [
        Kind::FanIn,
        Kind::FanOut,
        Kind::DegreeIn,
        Kind::DegreeOut,
        Kind::ScatterGather,
        Kind::TemporalCycle,
        Kind::SimpleCycle,
        Kind::GatherScatter,
    ];

    /// The name of the pattern in columns and tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::FanIn => "fan_in",
            Kind::FanOut => "fan_out",
            Kind::DegreeIn => "degree_in",
            Kind::DegreeOut => "degree_out",
            Kind::ScatterGather => "scatter-gather",
            Kind::TemporalCycle => "temp-cycle",
            Kind::SimpleCycle => "lc-cycle",
            Kind::GatherScatter => "gather-scatter",
        }
    }

    /// The sides on which triggers of one account are searched together; none for cycles.
    pub(crate) fn sides(self) -> &'static [Side] {
        match self {
            Kind::FanIn | Kind::DegreeIn => &[Side::In],
            Kind::FanOut | Kind::DegreeOut => &[Side::Out],
            Kind::ScatterGather | Kind::GatherScatter => &[Side::In, Side::Out],
            Kind::TemporalCycle | Kind::SimpleCycle => &[],
        }
    }
}
