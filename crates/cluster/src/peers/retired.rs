//! Connections to or from one peer that are used for no new call, since this node has other certificate
//! files now. Each ends with its last call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

/// Number of retired connections. A remote session can last as long as a client, and a node has few
/// connections to a peer (`connections_per_node_max`).
const RETIRED_MAX: usize = 2;

/// Time that calls still have on a connection that is to end. Several can be retired at once, when both
/// nodes have other files.
const CALLS_MAX: Duration = Duration::from_secs(2);

/// Returns when a retired connection is to end.
pub(super) async fn overdue(end: &Notify) {
    end.notified().await;
    tokio::time::sleep(CALLS_MAX).await;
}

/// Retired connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct RetiredConnections(Mutex<VecDeque<Weak<Notify>>>);

impl RetiredConnections {
    /// Adds a connection, which is to end when the result is notified. Ends the oldest one beyond the
    /// limit.
    pub(super) fn add(&self) -> Arc<Notify> {
        let end = Arc::new(Notify::new());
        self.add_known(Arc::downgrade(&end));
        end
    }

    /// As [`Self::add`], of a connection that has its notification already.
    pub(super) fn add_known(&self, end: Weak<Notify>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push_back(end);
        if all.len() > RETIRED_MAX
            && let Some(oldest) = all.pop_front().and_then(|oldest| oldest.upgrade())
        {
            oldest.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_connection_that_is_still_open_ends() {
        let retired = RetiredConnections::default();
        let first = retired.add();
        drop(retired.add());
        let _second = retired.add();
        let mut waiting = Box::pin(first.notified());
        assert!(is_pending(&mut waiting).await);
        let _third = retired.add();
        waiting.await;
    }

    async fn is_pending<F: Future<Output = ()> + Unpin>(future: &mut F) -> bool {
        tokio::select! {
            biased;
            () = future => false,
            () = std::future::ready(()) => true,
        }
    }
}
