//! `farrow_graph` computes features of a stream of transactions: the patterns that each one
//! completes in the graph of earlier ones, and statistics of both accounts.
//!
//! It reads no files, and knows neither Python nor other machines. The bindings and the command
//! pass rows as slices, and segments as Arrow buffers in any memory.
//! `docs/reference/graph-definitions.md` defines each feature.
//!
//! | module | contents |
//! | --- | --- |
//! | `edge/` | edges, timestamps, visibility, and the interface that searches use |
//! | `accounts/` | the small numbers of accounts, and maps keyed by them |
//! | `store/` | the newest edges: adjacency lists in an arena, and edges in order of arrival |
//! | `segment/` | immutable parts of a graph, their indexes, and freezing |
//! | `statistics/` | moments and sliding windows of one account |
//! | `patterns/` | the searches, one file for each pattern |
//! | `stream/` | one stream: the newest edges and segments as one graph, insertion, eviction,
//! rollback |
//! | `features/` | the features of one call, and the public interface |

#![forbid(unsafe_code)]

mod accounts;
mod edge;
mod error;
mod features;
mod interrupt;
mod kind;
mod memory;
mod patterns;
mod segment;
mod settings;
mod statistics;
mod store;
mod stream;
mod threads;

pub use error::GraphError;
pub use features::{Evidence, GraphFeatures, GraphStats, Pattern};
pub use interrupt::CallInterrupt;
pub use kind::PatternKind;
pub use segment::{
    FrozenSpan, ListKind, RowRequest, RowSource, Segment, SegmentBuffers, SegmentBuffersMut,
    SegmentInfo, SegmentPlan, SegmentRow, SegmentSizes, row_counts, row_of,
};
pub use settings::{Column, Measure, Mode, PatternSettings, Settings, StatisticsSettings};
pub use stream::{Edges, GraphState, LateEdges, WorkShare};
