//! Threads that perform blocking jobs. Each peer has a pool of its own, so that one that hangs
//! delays no job for another.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time without a job after which a thread ends.
const IDLE: Duration = Duration::from_secs(10);

/// Counts the threads of several pools.
#[derive(Default)]
pub(super) struct WaitGroup {
    count: Mutex<usize>,
    changed: Condvar,
}

impl WaitGroup {
    fn count(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all threads have ended. Their pools are closed, so each ends after its jobs.
    pub(super) fn wait(&self) {
        let mut count = self.count();
        while *count > 0 {
            count = self.changed.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One thread of a group.
pub(super) struct WaitGuard(Arc<WaitGroup>);

impl WaitGuard {
    pub(super) fn of(group: &Arc<WaitGroup>) -> Self {
        *group.count() += 1;
        Self(Arc::clone(group))
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        *self.0.count() -= 1;
        self.0.changed.notify_all();
    }
}

struct WorkerPoolState<J> {
    jobs: VecDeque<J>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

struct WorkerPoolShared<J> {
    state: Mutex<WorkerPoolState<J>>,
    changed: Condvar,
    work: Box<dyn Fn(J) + Send + Sync>,
}

impl<J> WorkerPoolShared<J> {
    fn lock(&self) -> MutexGuard<'_, WorkerPoolState<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None`: the thread ends.
    fn next(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let waited = self.changed.wait_timeout(state, IDLE);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

/// A queue, and the threads that work on it. They start when there is a job for them. A dropped
/// pool completes its jobs, without anyone waiting for it: see [`WaitGroup::wait`].
pub(super) struct WorkerPool<J: Send + 'static> {
    shared: Arc<WorkerPoolShared<J>>,
    group: Arc<WaitGroup>,
    threads_max: usize,
}

impl<J: Send + 'static> WorkerPool<J> {
    pub(super) fn new(
        group: &Arc<WaitGroup>,
        threads_max: usize,
        work: impl Fn(J) + Send + Sync + 'static,
    ) -> Self {
        let state =
            WorkerPoolState { jobs: VecDeque::new(), threads: 0, idle: 0, is_closed: false };
        let (state, work) = (Mutex::new(state), Box::new(work));
        let shared = Arc::new(WorkerPoolShared { state, changed: Condvar::new(), work });
        Self { shared, group: Arc::clone(group), threads_max }
    }

    /// Queues a job. Callers limit the number of jobs.
    ///
    /// # Errors
    /// No thread could be started. The job is returned.
    pub(super) fn push(&self, job: J) -> Result<(), (J, io::Error)> {
        let mut state = self.shared.lock();
        if state.idle <= state.jobs.len() && state.threads < self.threads_max {
            match self.start() {
                Ok(()) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err((job, error)),
                // Another thread takes it later.
                Err(error) => tracing::warn!(%error, "a network thread cannot be started"),
            }
        }
        state.jobs.push_back(job);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn start(&self) -> io::Result<()> {
        let (shared, guard) = (Arc::clone(&self.shared), WaitGuard::of(&self.group));
        let work = move || {
            let _guard = guard;
            while let Some(job) = shared.next() {
                (shared.work)(job);
            }
            // Before the thread counts as ended: it may own what its jobs use.
            drop(shared);
        };
        std::thread::Builder::new().name("farrow-net".into()).spawn(work).map(drop)
    }
}

impl<J: Send + 'static> Drop for WorkerPool<J> {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Jobs that last until the test sends a word for each.
    fn pool(group: &Arc<WaitGroup>, threads: usize) -> (WorkerPool<Receiver<u32>>, Receiver<u32>) {
        let (done, ended) = channel();
        let work = move |job: Receiver<u32>| {
            let _ = done.send(job.recv_timeout(LONG).unwrap_or(u32::MAX));
        };
        (WorkerPool::new(group, threads, work), ended)
    }

    /// Regression test: four threads opened objects at all peers. A peer that hung occupied all of
    /// them, so that no object of any peer was opened, and its own removal waited behind its jobs.
    #[test]
    fn a_peer_that_hangs_delays_no_other_and_the_end_waits_for_all() {
        let group = Arc::default();
        let (hanging, hung_ended) = pool(&group, 2);
        let (other, ended) = pool(&group, 2);
        let (release, jobs): (Vec<_>, Vec<_>) = (0..5).map(|_| channel()).unzip();
        for job in jobs {
            assert!(hanging.push(job).is_ok());
        }
        assert_eq!(*group.count(), 2, "no more threads than allowed");
        let (finish, job) = channel();
        assert!(other.push(job).is_ok());
        finish.send(7).unwrap();
        assert_eq!(ended.recv_timeout(LONG), Ok(7));

        drop((hanging, other));
        for (number, one) in release.into_iter().enumerate() {
            one.send(number as u32).unwrap();
        }
        group.wait();
        let mut all: Vec<u32> = hung_ended.try_iter().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4], "a closed pool completes its jobs");
        assert_eq!(*group.count(), 0);
    }
}
