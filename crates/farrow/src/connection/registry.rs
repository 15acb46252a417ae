//! What one process has open: values that others own.

use std::sync::{Arc, Mutex, TryLockError, Weak};
use std::time::{Duration, Instant};

/// How long the list is waited for. Its lock is held for nanoseconds, but a forked child may have
/// inherited it locked, for good.
const PATIENCE: Duration = Duration::from_millis(10);

/// The living values of one kind.
#[derive(Debug)]
pub(crate) struct WeakList<T>(Mutex<Vec<Weak<T>>>);

impl<T> WeakList<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn add(&self, value: &Arc<T>) {
        self.with(|all| {
            all.retain(|one| one.strong_count() > 0);
            all.push(Arc::downgrade(value));
        });
    }

    /// All of them; none if the list is locked for good.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.with(|all| all.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    fn with<R>(&self, work: impl FnOnce(&mut Vec<Weak<T>>) -> R) -> Option<R> {
        let since = Instant::now();
        loop {
            match self.0.try_lock() {
                Ok(mut all) => return Some(work(&mut all)),
                Err(TryLockError::Poisoned(poisoned)) => {
                    return Some(work(&mut poisoned.into_inner()));
                }
                Err(TryLockError::WouldBlock) if since.elapsed() >= PATIENCE => return None,
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }
}
