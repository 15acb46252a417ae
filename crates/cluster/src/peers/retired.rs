//! Connections to or from one peer that are used for no new call, since this node has another
//! certificate now. Each ends with its last call.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farrow_memory::sync::{AtomicU64, Ordering};

/// Number of retired connections. A remote session can last as long as a client, and a node has few
/// connections to a peer (`connections_per_node_max`).
const RETIRED_MAX: usize = 2;

/// Time that calls have on a retired connection. Several can be retired at once, when both nodes have
/// another certificate, and all but those with remote sessions end within this time.
pub(super) const CALLS_MAX: Duration = Duration::from_secs(2);

static OPENED: AtomicU64 = AtomicU64::new(0);

/// A number for a connection that is opened now.
pub(super) fn next_number() -> u64 {
    OPENED.fetch_add(1, Ordering::Relaxed)
}

/// The retired connections that are still open, by their numbers.
#[derive(Debug, Default)]
pub(super) struct RetiredConnections(Mutex<BTreeSet<u64>>);

impl RetiredConnections {
    /// Retires a connection. Returns when it is to end, with its calls: as the oldest of too many.
    pub(super) async fn overdue(&self, number: u64) {
        let one = RetiredConnection { all: self, number };
        self.change(|all| all.insert(number));
        loop {
            tokio::time::sleep(CALLS_MAX).await;
            if one.is_beyond_limit() {
                return;
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeSet<u64>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection in the list, until this is dropped.
struct RetiredConnection<'a> {
    all: &'a RetiredConnections,
    number: u64,
}

impl RetiredConnection<'_> {
    fn is_beyond_limit(&self) -> bool {
        self.all.change(|all| all.range(self.number..).count() > RETIRED_MAX)
    }
}

impl Drop for RetiredConnection<'_> {
    fn drop(&mut self) {
        self.all.change(|all| all.remove(&self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_connection_that_is_still_open_ends() {
        let retired = RetiredConnections::default();
        let within = |number| tokio::time::timeout(2 * CALLS_MAX, retired.overdue(number));
        // In another order than that of their age.
        let (third, first, second) = tokio::join!(within(3), within(1), within(2));
        assert!(first.is_ok() && second.is_err() && third.is_err());
        // One that has ended since counts no more.
        assert!(within(4).await.is_err());
        assert!(retired.change(|all| all.is_empty()));
    }
}
