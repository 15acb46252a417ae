//! Settings: the features to compute, with their windows and bins.

use crate::error::GraphError;
use crate::kind::PatternKind;

/// Far more than a machine has cores: a larger number is a typing error.
const THREADS_MAX: usize = 1024;

/// How rows of one call see each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Each row gets the patterns that it completes, as if it had arrived alone. Results do not
    /// depend on how the stream is divided into calls.
    Causal,
    /// All rows of a call are added together. A pattern counts for each row of the call that is
    /// part of it.
    Batch,
}

/// Window and bins of one pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternSettings {
    /// The width in units of the timestamps; at least 1.
    pub window: u64,
    /// The increasing upper bounds of the bins; the first is at least 1. A size counts in the first
    /// bin whose bound is not smaller, or else in the last.
    pub bins: Vec<u64>,
}

/// A statistic of the edges on one side of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measure {
    /// Distinct neighbours.
    Fan,
    /// Number of edges.
    Degree,
    /// Edges per neighbour.
    Ratio,
    /// Mean of a column.
    Mean,
    /// Sum of a column.
    Sum,
    /// Smallest value of a column.
    Min,
    /// Largest value of a column.
    Max,
    /// Median of a column; of an even count, the mean of the middle two.
    Median,
    /// Population variance of a column.
    Variance,
    /// Third standardized moment of a column.
    Skewness,
    /// Fourth standardized moment of a column: 3 for a normal distribution.
    Kurtosis,
}

impl Measure {
    /// All of them, in the order of their columns and codes.
    pub const ALL: [Measure; 11] = [
        Measure::Fan,
        Measure::Degree,
        Measure::Ratio,
        Measure::Mean,
        Measure::Sum,
        Measure::Min,
        Measure::Max,
        Measure::Median,
        Measure::Variance,
        Measure::Skewness,
        Measure::Kurtosis,
    ];

    /// The name of the measure in columns.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Fan => "fan",
            Measure::Degree => "degree",
            Measure::Ratio => "ratio",
            Measure::Mean => "mean",
            Measure::Sum => "sum",
            Measure::Min => "min",
            Measure::Max => "max",
            Measure::Median => "median",
            Measure::Variance => "variance",
            Measure::Skewness => "skewness",
            Measure::Kurtosis => "kurtosis",
        }
    }

    pub(crate) fn is_of_column(self) -> bool {
        self >= Measure::Mean
    }
}

/// Statistics of the edges out of and into both ends of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatisticsSettings {
    /// The width of the window in units of the timestamps; at least 1.
    pub window: u64,
    /// The measures; order and repetitions do not matter.
    pub measures: Vec<Measure>,
    /// The measured columns, in the order of the features.
    pub columns: Vec<Column>,
}

/// A column that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The timestamps, which cost no extra memory.
    Time,
    /// The next one of [`crate::Edges::columns`]: 8 bytes for each edge.
    Given,
}

/// All settings of a [`crate::GraphFeatures`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How rows of one call see each other.
    pub mode: Mode,
    /// How long an edge stays in the graph. None: as long as the widest window of a pattern (and,
    /// in causal mode, of the statistics).
    pub time_window: Option<u64>,
    /// The largest number of edges in the graph.
    pub edges_max: Option<usize>,
    /// The time span of each segment, which [`crate::GraphFeatures::freeze`] copies out. None: all
    /// edges stay in this process.
    pub segment: Option<u64>,
    /// Fan in and out.
    pub fan: Option<PatternSettings>,
    /// Degree in and out.
    pub degree: Option<PatternSettings>,
    /// Scatter-gather.
    pub scatter_gather: Option<PatternSettings>,
    /// Temporal cycles.
    pub temporal_cycle: Option<PatternSettings>,
    /// Simple cycles of limited length.
    pub simple_cycle: Option<PatternSettings>,
    /// The largest number of edges in a simple cycle; at least 2. `usize::MAX` excludes no cycle;
    /// [`Settings::work_max`] then ends the searches of dense graphs.
    pub cycle_length_max: usize,
    /// Gather-scatter.
    pub gather_scatter: Option<PatternSettings>,
    /// Statistics of accounts.
    pub statistics: Option<StatisticsSettings>,
    /// Search threads, 1 to 1024. Their number never changes results.
    pub threads: usize,
    /// Edges that the search for one pattern may visit for one trigger. A search that reaches this
    /// limit misses patterns; [`crate::GraphStats::cut_short`] counts such searches.
    pub work_max: u64,
    /// Whether to retain the edge ids, which [`crate::GraphFeatures::patterns`] needs: 8 bytes for
    /// each edge.
    pub keeps_ids: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            mode: Mode::Causal,
            time_window: None,
            edges_max: None,
            segment: None,
            fan: None,
            degree: None,
            scatter_gather: None,
            temporal_cycle: None,
            simple_cycle: None,
            cycle_length_max: 10,
            gather_scatter: None,
            statistics: None,
            threads: 1,
            work_max: u64::MAX,
            keeps_ids: false,
        }
    }
}

impl Settings {
    pub(crate) fn pattern(&self, kind: PatternKind) -> Option<&PatternSettings> {
        match kind {
            PatternKind::FanIn | PatternKind::FanOut => self.fan.as_ref(),
            PatternKind::DegreeIn | PatternKind::DegreeOut => self.degree.as_ref(),
            PatternKind::ScatterGather => self.scatter_gather.as_ref(),
            PatternKind::TemporalCycle => self.temporal_cycle.as_ref(),
            PatternKind::SimpleCycle => self.simple_cycle.as_ref(),
            PatternKind::GatherScatter => self.gather_scatter.as_ref(),
        }
    }

    /// The number of columns with counts.
    pub(crate) fn histogram_width(&self) -> usize {
        PatternKind::ALL
            .iter()
            .filter_map(|&kind| self.pattern(kind))
            .map(|one| one.bins.len())
            .sum()
    }

    /// The number of columns that a call adds to its rows. The bins of the patterns are first, in
    /// the order of [`PatternKind::ALL`]. Then follow the statistics: source out, source in, target
    /// out, target in.
    pub fn width(&self) -> usize {
        self.histogram_width() + 4 * self.statistics.as_ref().map_or(0, StatisticsSettings::width)
    }

    /// How long an edge stays in the graph.
    pub(crate) fn horizon(&self) -> u64 {
        let patterns = PatternKind::ALL.iter().filter_map(|&kind| self.pattern(kind));
        // The specification (B3) leaves the statistics out in batch mode.
        let is_causal = self.mode == Mode::Causal;
        let statistics = self.statistics.as_ref().filter(|_| is_causal).map(|one| one.window);
        let longest = patterns.map(|one| one.window).chain(statistics).max();
        self.time_window.or(longest).unwrap_or(1)
    }

    /// Checks that the settings are consistent.
    ///
    /// # Errors
    /// [`GraphError::Setting`] with the setting and the reason.
    pub fn check(&self) -> Result<(), GraphError> {
        let wrong = |parameter: &str, reason: String| {
            Err(GraphError::Setting { parameter: parameter.to_owned(), reason })
        };
        for kind in PatternKind::ALL {
            let Some(PatternSettings { window, bins }) = self.pattern(kind) else { continue };
            let name = kind.name();
            if *window == 0 {
                return wrong(&format!("window of {name}"), "is 0; at least 1 is needed".into());
            }
            if bins.first().is_none_or(|&first| first < 1) || !bins.is_sorted_by(|a, b| a < b) {
                let reason = format!("are {bins:?}; one or more are needed, increasing, from 1 on");
                return wrong(&format!("bins of {name}"), reason);
            }
        }
        if self.time_window == Some(0) {
            return wrong("time_window", "is 0; at least 1 is needed".into());
        }
        if self.edges_max == Some(0) {
            return wrong("edges_max", "is 0; at least 1 is needed".into());
        }
        if self.segment == Some(0) {
            return wrong("segment", "is 0; at least 1 is needed".into());
        }
        if self.segment.is_some() && self.edges_max.is_some() {
            let reason = "cannot be limited where there are segments: they go as a whole";
            return wrong("edges_max", reason.into());
        }
        if self.cycle_length_max < 2 {
            let reason = format!("is {}; at least 2 is needed", self.cycle_length_max);
            return wrong("cycle_length_max", reason);
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            let reason = format!("is {}; 1 to {THREADS_MAX} are possible", self.threads);
            return wrong("threads", reason);
        }
        if self.statistics.as_ref().is_some_and(|one| one.window == 0) {
            return wrong("window of the statistics", "is 0; at least 1 is needed".into());
        }
        let has_window = PatternKind::ALL.iter().any(|&kind| self.pattern(kind).is_some())
            || (self.statistics.is_some() && self.mode == Mode::Causal);
        if self.time_window.is_none() && !has_window {
            return wrong("time_window", "is needed where no pattern has a window".into());
        }
        Ok(())
    }
}

impl StatisticsSettings {
    /// The number of columns that each call passes.
    pub(crate) fn given(&self) -> usize {
        self.columns.iter().filter(|&&column| column == Column::Given).count()
    }

    /// The number of columns for one side of one account.
    pub(crate) fn width(&self) -> usize {
        let has = |measure: &Measure| self.measures.contains(measure);
        let of_column = |measure: &&Measure| measure.is_of_column();
        let wanted: Vec<Measure> = Measure::ALL.into_iter().filter(has).collect();
        let per_column = wanted.iter().filter(of_column).count();
        wanted.len() - per_column + per_column * self.columns.len()
    }
}
