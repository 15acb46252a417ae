//! The early end of a call, at the wish of its caller.

use std::fmt::Debug;

/// Reports to a running call whether to end without a result.
///
/// ```
/// use farrow_graph::{Edges, GraphError, GraphFeatures, CallInterrupt, PatternSettings, Settings};
/// use std::sync::Arc;
/// #[derive(Debug)]
/// struct Always;
/// impl CallInterrupt for Always {
///     fn is_set(&self) -> bool {
///         true
///     }
/// }
/// let fan = PatternSettings { window: 10, bins: vec![2, 3] };
/// let mut features = GraphFeatures::new(Settings { fan: Some(fan), ..Settings::default() })?;
/// features.set_interrupt(Arc::new(Always));
/// let edges = Edges { ids: &[0], sources: &[1], targets: &[9], times: &[1], columns: &[] };
/// let ended = features.transform(&edges);
/// assert_eq!(ended, Err(GraphError::Interrupted { rows: 1, taken: 0 }));
/// assert_eq!(features.stats().edges, 0);
/// # Ok::<(), GraphError>(())
/// ```
pub trait CallInterrupt: Debug + Send + Sync {
    /// Whether the call must end. A call looks several thousand times a second, from all of its
    /// threads. Once true, the result stays true until the call has ended.
    fn is_set(&self) -> bool;
}

/// Whether an optional interrupt is set.
#[inline]
pub(crate) fn is_set(interrupt: Option<&dyn CallInterrupt>) -> bool {
    interrupt.is_some_and(CallInterrupt::is_set)
}
