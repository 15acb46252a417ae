//! Errors of a graph.

/// The reason why a call was rejected or failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A contradictory setting.
    #[error("{parameter} {reason}")]
    Setting {
        /// The name of the setting.
        parameter: String,
        /// The reason why it is invalid.
        reason: String,
    },
    /// Columns have different lengths.
    #[error("column {column} has {rows} rows, but the edge ids have {expected}")]
    Rows {
        /// The column.
        column: &'static str,
        /// The length of the column.
        rows: usize,
        /// The length of the ids.
        expected: usize,
    },
    /// The number of measured columns differs from the settings.
    #[error("{given} measured columns were given, but the statistics are of {expected}")]
    Columns {
        /// Columns of the call.
        given: usize,
        /// As in [`crate::StatisticsSettings::columns`].
        expected: usize,
    },
    /// A measured value is not finite. It would spoil the sums of its account.
    #[error("measured column {column} is {value} in row {row}; it must be finite")]
    NotFinite {
        /// The index of the column among the measured ones.
        column: usize,
        /// The row of the call.
        row: usize,
        /// The value.
        value: f64,
    },
    /// The graph would hold too many edges.
    #[error("{added} rows on top of {alive} edges are more than a graph holds ({most})")]
    TooMany {
        /// Rows of the call.
        added: usize,
        /// Edges that are alive, and removed ones that still have a record.
        alive: usize,
        /// The limit.
        most: usize,
    },
    /// The buffer for the result has the wrong length.
    #[error("the result needs {expected} values, but there is room for {given}")]
    Room {
        /// The length of the buffer.
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
        /// The size of the allocation that failed.
        bytes: usize,
        /// How many of the call's first rows are in the graph now. 0 means that nothing changed. A
        /// call with many thousand rows is added in parts; a later part may fail if another thread
        /// takes the memory.
        taken: usize,
    },
    /// An [`crate::CallInterrupt`] ended the call.
    #[error("the call of {rows} rows was interrupted; {taken} of them were added")]
    Interrupted {
        /// Rows of the call.
        rows: usize,
        /// How many of the call's first rows are in the graph now. 0 means that nothing changed.
        /// In causal mode, a call with more than 4,096 rows is done in parts, and the parts before
        /// the interrupted one stay.
        taken: usize,
    },
    /// A segment is malformed, or belongs to another graph.
    #[error("{what} are {given}, where {expected} are possible")]
    Segment {
        /// The mismatched part.
        what: &'static str,
        /// The value found.
        given: u64,
        /// A valid value.
        expected: u64,
    },
    /// Edges of a segment could not be read.
    #[error("the edges from time {base} on are out of reach: {reason}")]
    Lost {
        /// Time of the segment's first edge.
        base: i64,
        /// The reason that the row source gave.
        reason: String,
    },
    /// Pending rows, which have no features yet, would be visible to other rows.
    #[error("{rows} rows that were learned ahead have no features yet")]
    Pending {
        /// How many rows are pending.
        rows: usize,
    },
    /// Provisional rows, which may be rolled back, would be visible to other rows.
    #[error("{rows} rows are neither accepted nor taken back yet")]
    Provisional {
        /// How many rows are provisional.
        rows: u64,
    },
    /// A pattern lists the ids of its edges, but the settings do not retain ids.
    #[error("patterns need the ids of older edges: set keeps_ids")]
    NoIds,
    /// Threads could not be started.
    #[error("{threads} threads could not be started: {reason}")]
    Threads {
        /// The number in the settings.
        threads: usize,
        /// The reason that the system gave.
        reason: String,
    },
}
