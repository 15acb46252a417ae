//! Division of one call's work among threads.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder, Yield};
use std::sync::{Arc, Mutex, PoisonError};

/// With fewer rows, an insertion or removal takes less time than waking another thread.
pub(crate) const HELPED_MIN: usize = if cfg!(debug_assertions) { 2 } else { 512 };

/// How often a finished thread polls the others before it sleeps. Most of them finish in less time
/// than a wake-up takes.
const LOOKS: usize = 4000;

/// All threads of a graph except the caller's.
#[derive(Debug)]
pub(crate) struct WorkerThreads {
    count: usize,
    pool: Option<ThreadPool>,
    /// The process that has these threads. A forked child has none of them.
    process: u32,
}

impl WorkerThreads {
    pub(crate) fn new(count: usize) -> Result<WorkerThreads, ThreadPoolBuildError> {
        Ok(WorkerThreads { count, pool: started(count)?, process: std::process::id() })
    }

    /// The pool of this process; None: the caller works alone.
    pub(crate) fn pool(&mut self) -> Option<&ThreadPool> {
        if self.count > 0 && self.process != std::process::id() {
            self.leave();
            // Results do not depend on threads, so a child that gets none works without.
            self.pool = started(self.count).ok().flatten();
            self.process = std::process::id();
        }
        self.pool.as_ref()
    }

    /// Gives up another process' threads. Their locks may be taken here for good, so nothing of them
    /// is dropped.
    fn leave(&mut self) {
        if let Some(pool) = self.pool.take() {
            std::mem::forget(pool);
        }
    }
}

impl Drop for WorkerThreads {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            self.leave();
        }
    }
}

fn started(count: usize) -> Result<Option<ThreadPool>, ThreadPoolBuildError> {
    (count > 0).then(|| ThreadPoolBuilder::new().num_threads(count).build()).transpose()
}

/// Keeps one thread of a pool awake during a call. The call needs the thread several times, each
/// time for less than a wake-up takes.
#[derive(Debug)]
pub(crate) struct KeepAwake {
    /// The thread holds the other reference.
    _shared: Arc<()>,
}

impl KeepAwake {
    /// A guard for a call that has a pool and enough rows.
    pub(crate) fn during(pool: Option<&ThreadPool>, rows: usize) -> Option<KeepAwake> {
        pool.filter(|_| rows >= HELPED_MIN).map(KeepAwake::new)
    }

    fn new(pool: &ThreadPool) -> KeepAwake {
        let shared = Arc::new(());
        let other = Arc::clone(&shared);
        pool.spawn(move || {
            while Arc::strong_count(&other) > 1 {
                if rayon::yield_now() != Some(Yield::Executed) {
                    std::thread::yield_now();
                }
            }
        });
        KeepAwake { _shared: shared }
    }
}

/// Runs `own` here and each of `tasks` on a thread of the pool, and waits for all.
pub(crate) fn together<'scope, W: FnOnce() + Send + 'scope>(
    pool: &ThreadPool,
    tasks: impl ExactSizeIterator<Item = W>,
    own: impl FnOnce(),
) {
    // Declared outside the scope, because its tasks refer to it.
    let left = Mutex::new(tasks.len());
    let left = &left;
    let count = || *left.lock().unwrap_or_else(PoisonError::into_inner);
    pool.in_place_scope(|scope| {
        for other in tasks {
            scope.spawn(move |_| {
                other();
                *left.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
            });
        }
        own();
        for _ in 0..LOOKS {
            if count() == 0 {
                break;
            }
            std::hint::spin_loop();
        }
    });
}

/// Runs both closures on two threads if there are enough rows, otherwise in sequence.
pub(crate) fn both(
    pool: Option<&ThreadPool>,
    rows: usize,
    one: impl FnOnce() + Send,
    other: impl FnOnce(),
) {
    match pool {
        Some(pool) if rows >= HELPED_MIN => together(pool, std::iter::once(one), other),
        _ => {
            one();
            other();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KeepAwake, together};

    #[test]
    fn all_work_is_done_whether_a_thread_is_awake_or_not() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        for is_awake in [false, true, true] {
            let awake = is_awake.then(|| KeepAwake::new(&pool));
            let mut done = [0; 5];
            let (own, tasks) = done.split_first_mut().unwrap();
            let tasks = tasks.iter_mut().map(|one| move || *one += 1);
            together(&pool, tasks, || *own += 1);
            assert_eq!(done, [1; 5]);
            drop(awake);
        }
    }
}
