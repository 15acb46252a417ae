//! What can go wrong.

/// Why a call did nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A setting that makes no sense.
    #[error("{parameter} {reason}")]
    Setting {
        /// Which one.
        parameter: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Columns of different lengths.
    #[error("column {column} has {rows} rows, but the edge ids have {expected}")]
    Rows {
        /// Which column.
        column: &'static str,
        /// Its length.
        rows: usize,
        /// The length of the ids.
        expected: usize,
    },
    /// Another number of measured columns than the settings say.
    #[error("{given} measured columns were given, but the statistics are of {expected}")]
    Columns {
        /// As given.
        given: usize,
        /// As in [`crate::StatisticsSettings::columns`].
        expected: usize,
    },
    /// A value of which no statistics can be made: it would stay in the sums of its account.
    #[error("measured column {column} is {value} in row {row}; it must be finite")]
    NotFinite {
        /// Its number among the measured columns.
        column: usize,
        /// The row of the call.
        row: usize,
        /// As given.
        value: f64,
    },
    /// More edges than one graph holds.
    #[error("{added} rows on top of {alive} edges are more than a graph holds ({most})")]
    TooMany {
        /// Rows of the call.
        added: usize,
        /// Edges that are alive, and those that wait for older ones to go.
        alive: usize,
        /// The limit.
        most: usize,
    },
    /// Room for the result is of the wrong size.
    #[error("the result needs {expected} values, but there is room for {given}")]
    Room {
        /// As given.
        given: usize,
        /// Rows times columns.
        expected: usize,
    },
    /// There is no memory for the result.
    #[error("there is no memory for a result of {bytes} B")]
    Memory {
        /// Rows times columns times 8.
        bytes: usize,
    },
    /// There is no memory for the graph to grow by these rows.
    #[error(
        "there is no memory for {rows} rows ({bytes} B were asked for); {taken} of them were added"
    )]
    OutOfMemory {
        /// Rows of the call.
        rows: usize,
        /// What was asked for in vain.
        bytes: usize,
        /// Rows at the beginning of the call that are in the graph now. 0 means that nothing has
        /// changed: more may be there only in a call of many thousand rows, which is taken in
        /// parts, when another part of the process took memory meanwhile.
        taken: usize,
    },
    /// A segment that is not one, or not of this graph.
    #[error("{what} are {given}, where {expected} are possible")]
    Segment {
        /// What does not fit.
        what: &'static str,
        /// As given.
        given: u64,
        /// What would fit.
        expected: u64,
    },
    /// Edges of a segment could not be read.
    #[error("the edges from time {base} on are out of reach: {reason}")]
    Lost {
        /// Time of the segment's first edge.
        base: i64,
        /// What was heard.
        reason: String,
    },
    /// Rows that were learned ahead have no features yet: other rows would see them.
    #[error("{rows} rows that were learned ahead have no features yet")]
    Pending {
        /// So many.
        rows: usize,
    },
    /// Rows of a call are provisional: other rows would see them.
    #[error("{rows} rows are neither kept nor taken back yet")]
    Provisional {
        /// So many.
        rows: u64,
    },
    /// Patterns can be named by their edges only where ids are kept.
    #[error("patterns need the ids of older edges: set keeps_ids")]
    NoIds,
    /// Threads could not be started.
    #[error("{threads} threads could not be started: {reason}")]
    Threads {
        /// As in the settings.
        threads: usize,
        /// What the system said.
        reason: String,
    },
}
