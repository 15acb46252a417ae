//! The thread that writes and reads files. It runs one job after the other, and removes files
//! between others, so a file is never removed before an earlier job has used it.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farrow_memory::{Region, sync};
use farrow_store::ObjectId;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::sweep::Sweep;
use super::{SpillStore, SpillTarget, make_folder, open_url};
use crate::protocol::{SpillDone, SpillJob, WriteFault};

/// Interval at which a long job checks whether it should stop.
const LOOK: Duration = Duration::from_millis(50);

/// Finished jobs that one turn of the event loop handles: each may seal, free or move an object.
const DONE_PER_TURN: usize = 16;

/// Files that are removed at once: a restore that arrives meanwhile waits for them.
const FORGOTTEN_AT_A_TIME: usize = 16;

/// Other jobs after which some files are removed although more jobs wait.
const JOBS_PER_REMOVAL: u32 = 16;

/// Time limit on a bucket's answer when a node starts.
const PROBE_MAX: Duration = Duration::from_secs(20);

/// Time limit on removing the files when a region ends.
const PURGE_MAX: Duration = Duration::from_secs(10);

/// Time limit of one step, which handles a piece at most.
const STEP_MAX: Duration = Duration::from_secs(30);

/// Stops the worker.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    flag: Arc<sync::AtomicBool>,
    pub(super) step_max: Duration,
}

impl Default for Stop {
    fn default() -> Self {
        Self { flag: Arc::default(), step_max: STEP_MAX }
    }
}

impl Stop {
    fn is_set(&self) -> bool {
        self.flag.load(sync::Ordering::Relaxed)
    }

    /// Waits for one step of a job, for a limited time, or until the worker should stop.
    pub(super) async fn step<T, E: Error + 'static>(
        &self,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, WriteFault> {
        let until = Instant::now() + self.step_max;
        let mut step = std::pin::pin!(step);
        loop {
            if self.is_set() {
                return Err(fault("the node is shutting down".to_owned()));
            }
            match tokio::time::timeout(LOOK, step.as_mut()).await {
                Ok(done) => {
                    return done.map_err(|error| WriteFault {
                        is_full: is_full(&error),
                        reason: error.to_string(),
                    });
                }
                Err(_) if Instant::now() >= until => {
                    return Err(fault(format!(
                        "timed out after {} s waiting for the disk",
                        self.step_max.as_secs()
                    )));
                }
                Err(_) => {}
            }
        }
    }
}

/// A failure other than lack of space.
pub(super) fn fault(reason: String) -> WriteFault {
    WriteFault { is_full: false, reason }
}

/// Whether the storage was full.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
            return matches!(io.kind(), StorageFull | QuotaExceeded | FileTooLarge);
        }
        next = error.source();
    }
    false
}

/// Files of objects that do not exist any more.
struct OldFiles {
    /// `None`: they are removed.
    sweep: Option<Sweep>,
    /// Files of objects that exist.
    retained: BTreeSet<String>,
}

impl OldFiles {
    fn new(store: &SpillStore, retained: BTreeSet<String>) -> Self {
        let sweep = Sweep::new(store).inspect_err(|error| {
            tracing::warn!(%error, "old spill files are left");
        });
        Self { sweep: sweep.ok(), retained }
    }
}

/// What the thread does next.
enum NextStep {
    Job(SpillJob),
    /// Remove these files.
    Forget(Vec<ObjectId>),
}

/// The jobs that wait. Files are removed when no other job waits or after some jobs, and before a write
/// that lacks their space: a bucket takes some 30 ms for
/// each, and a client may delete thousands of objects at once.
struct JobQueue {
    incoming: UnboundedReceiver<SpillJob>,
    jobs: VecDeque<SpillJob>,
    forgotten: BTreeSet<ObjectId>,
    /// Jobs that were served since files were removed.
    served: u32,
}

impl JobQueue {
    fn new(incoming: UnboundedReceiver<SpillJob>) -> Self {
        Self { incoming, jobs: VecDeque::new(), forgotten: BTreeSet::new(), served: 0 }
    }

    fn add(&mut self, job: SpillJob) {
        match job {
            SpillJob::Forget { id } => {
                self.forgotten.insert(id);
            }
            job => {
                if let SpillJob::Write { head, .. } = &job {
                    // The new file takes the place of the one that was to be removed.
                    self.forgotten.remove(&head.id);
                }
                self.jobs.push_back(job);
            }
        }
    }

    /// Waits for something to do, and removes old files meanwhile. `None`: there will be no more.
    async fn next(
        &mut self,
        old: &mut OldFiles,
        store: &SpillStore,
        stop: &Stop,
    ) -> Option<NextStep> {
        loop {
            while let Ok(job) = self.incoming.try_recv() {
                self.add(job);
            }
            let may_forget = !self.forgotten.is_empty() && !stop.is_set();
            if !(may_forget && (self.served >= JOBS_PER_REMOVAL || self.is_full(store)))
                && let Some(job) = self.jobs.pop_front()
            {
                self.served = self.served.saturating_add(1);
                return Some(NextStep::Job(job));
            }
            if may_forget {
                self.served = 0;
                let some = (0..FORGOTTEN_AT_A_TIME).map_while(|_| self.forgotten.pop_first());
                return Some(NextStep::Forget(some.collect()));
            }
            let job = self.receive(old, store, stop).await?;
            self.add(job);
        }
    }

    /// Whether the next job is to write an object for which the folder has no space: the files to
    /// remove may be what it waits for.
    fn is_full(&self, store: &SpillStore) -> bool {
        match self.jobs.front() {
            Some(SpillJob::Write { head, spare_bytes, .. }) => {
                store.check_space(head.file_bytes(), *spare_bytes).is_err()
            }
            _ => false,
        }
    }

    async fn receive(
        &mut self,
        old: &mut OldFiles,
        store: &SpillStore,
        stop: &Stop,
    ) -> Option<SpillJob> {
        while let Some(sweep) = &mut old.sweep {
            let step = tokio::select! {
                biased;
                job = self.incoming.recv() => return job,
                step = sweep.step(store, &old.retained, stop) => step,
            };
            match step {
                Ok(true) => {}
                Ok(false) => old.sweep = None,
                Err(error) => {
                    tracing::warn!(error.reason, "old spill files are left");
                    old.sweep = None;
                }
            }
        }
        self.incoming.recv().await
    }
}

/// Removes files, all at once. None is left to a later job: that could write one of them again.
async fn forget_all(store: &SpillStore, ids: &[ObjectId], stop: &Stop) {
    let forget = |id: ObjectId| async move {
        if let Err(error) = store.forget(id, stop).await {
            tracing::debug!(%id, error.reason, "a spill file cannot be removed");
        }
    };
    ids.iter().copied().map(forget).collect::<FuturesUnordered<_>>().count().await;
}

/// The event loop's handle on the thread.
#[derive(Debug)]
pub(crate) struct Worker {
    jobs: Option<UnboundedSender<SpillJob>>,
    done: Receiver<SpillDone>,
    /// Readable when a job is finished.
    pub(crate) wake: UnixStream,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread. While it has no jobs, it removes files of objects that are not among
    /// `retained`.
    pub(crate) fn start(
        store: SpillStore,
        region: Arc<Region>,
        retained: &[ObjectId],
    ) -> io::Result<Self> {
        let runtime = runtime()?;
        let (wake, event_sender) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        event_sender.set_nonblocking(true)?;
        let ((jobs, incoming), (sender, done)) = (unbounded_channel::<SpillJob>(), channel());
        let stop = Stop::default();
        let retained = retained.iter().map(ToString::to_string).collect();
        let is_stopped = stop.clone();
        let work = move || {
            let (mut old, mut queue) = (OldFiles::new(&store, retained), JobQueue::new(incoming));
            loop {
                let next = queue.next(&mut old, &store, &is_stopped);
                let job = match runtime.block_on(next) {
                    None => break,
                    Some(NextStep::Job(job)) => job,
                    Some(NextStep::Forget(ids)) => {
                        // Files of theirs that were not found yet are old.
                        for id in &ids {
                            old.retained.remove(&id.to_string());
                        }
                        runtime.block_on(forget_all(&store, &ids, &is_stopped));
                        continue;
                    }
                };
                let _span = tracing::debug_span!("spill", ?job).entered();
                if let SpillJob::Write { head, .. } = &job {
                    old.retained.insert(head.id.to_string());
                }
                let done = runtime.block_on(run(&store, &region, job, &is_stopped));
                if let Some(done) = done
                    && sender.send(done).is_err()
                {
                    break;
                }
                // If the pipe is full, the event loop wakes anyway.
                let _ = (&event_sender).write(&[1]);
            }
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("farrow-spill".into()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), done, wake, stop, thread: Some(thread) })
    }

    /// Queues a job. The node limits their number, except of files to remove.
    pub(crate) fn push(&self, job: SpillJob) {
        if let Some(jobs) = &self.jobs
            && jobs.send(job).is_err()
        {
            tracing::error!("the spill thread has ended");
        }
    }

    /// A limited number of finished jobs, and whether there may be more.
    pub(crate) fn finished(&self) -> (Vec<SpillDone>, bool) {
        let mut bytes = [0; 64];
        while io::Read::read(&mut &self.wake, &mut bytes).is_ok_and(|count| count > 0) {}
        let done: Vec<SpillDone> = self.done.try_iter().take(DONE_PER_TURN).collect();
        let has_more = done.len() == DONE_PER_TURN;
        (done, has_more)
    }
}

impl Drop for Worker {
    /// After this, the thread does not access the region.
    fn drop(&mut self) {
        self.stop.flag.store(true, sync::Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

impl SpillTarget {
    /// Checks that the folder can be created or the bucket answers, so that a node that cannot
    /// spill does not start. Costs one request.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let url = match self {
            Self::Folder(dir) => return make_folder(dir),
            Self::Url(url) => url,
        };
        let (store, prefix) = open_url(url).map_err(io::Error::other)?;
        let runtime = runtime()?;
        let look = async {
            let mut files = store.list(Some(&prefix));
            tokio::time::timeout(PROBE_MAX, files.next()).await
        };
        let found = runtime.block_on(look);
        runtime.shutdown_background();
        match found {
            Ok(Some(Err(error))) => Err(io::Error::other(error)),
            Ok(_) => Ok(()),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl SpillStore {
    /// Removes all files of a region that no longer exists. The error says how many were removed
    /// from a bucket.
    pub(crate) fn purge(&self) -> io::Result<()> {
        let (runtime, count) = (runtime()?, Cell::new(0));
        let all = async { tokio::time::timeout(PURGE_MAX, self.remove_all(&count)).await };
        let purged = runtime.block_on(all);
        runtime.shutdown_background();
        let count = count.get();
        let (kind, reason) = match purged {
            Ok(Ok(())) => return self.forget_owner(),
            Ok(Err(error)) => (io::ErrorKind::Other, error.reason),
            Err(_) => {
                (io::ErrorKind::TimedOut, format!("timed out after {} s", PURGE_MAX.as_secs()))
            }
        };
        Err(io::Error::new(kind, format!("{reason}; {count} files were removed")))
    }
}

async fn run(store: &SpillStore, region: &Region, job: SpillJob, stop: &Stop) -> Option<SpillDone> {
    Some(match job {
        SpillJob::Write { head, parts, spare_bytes, is_copied } => {
            let written = async {
                if is_copied && store.is_written(&head, stop).await? {
                    return Ok(());
                }
                store.check_space(head.file_bytes(), spare_bytes)?;
                store.write(region, &head, &parts, stop).await
            };
            SpillDone::Written { id: head.id, result: written.await }
        }
        SpillJob::Look { id } => {
            let result = store.look(id, stop).await.map_err(|fault| fault.reason);
            SpillDone::Looked { id, result }
        }
        SpillJob::Load { head, blocks } => {
            let loaded = store.load(region, &head, &blocks, stop).await;
            let result = loaded.map_err(|fault| fault.reason);
            SpillDone::Loaded { id: head.id, result }
        }
        SpillJob::Forget { id } => {
            forget_all(store, &[id], stop).await;
            return None;
        }
    })
}
