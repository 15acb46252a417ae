//! A pool of threads that help with large copies.
//!
//! Starting a thread, or waking one on a sleeping CPU, takes about 50 us. Ending a thread takes
//! about as long. Both together are a fortieth of a copy of 100 MB. A helper that has finished
//! therefore polls for more work, then blocks, and exits if no work arrives. A forked child has
//! none of its parent's threads and starts its own.

use std::os::unix::thread::JoinHandleExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process::process_id;
use crate::sync::{AtomicBool, Ordering};

/// How long an idle helper polls for more work. A program that puts objects in a loop makes its
/// next copy within this time.
const LOOK_MAX: Duration = Duration::from_micros(100);

/// How long an idle helper then blocks before it exits.
const WAIT_MAX: Duration = Duration::from_secs(1);

type CopyTask = Box<dyn FnOnce() + Send>;

/// A thread that runs tasks for its current owner, and exits after this handle is dropped.
pub(crate) struct Helper {
    tasks: Sender<CopyTask>,
    thread: JoinHandle<()>,
    /// The thread is running or polling, and need not be woken.
    is_awake: Arc<AtomicBool>,
    /// The CPU that the thread's affinity excludes.
    away_from: Option<usize>,
}

/// Helpers without an owner.
struct Idle {
    process: u32,
    helpers: Vec<Helper>,
}

static IDLE: Mutex<Idle> = Mutex::new(Idle { process: 0, helpers: Vec::new() });

impl Helper {
    /// Takes an idle helper, or starts a new one.
    pub(super) fn hire() -> std::io::Result<Self> {
        match idle_of_this_process(|helpers| helpers.pop()).flatten() {
            Some(helper) => Ok(helper),
            None => Self::start(),
        }
    }

    fn start() -> std::io::Result<Self> {
        let (tasks, waiting) = mpsc::channel();
        let is_awake = Arc::new(AtomicBool::new(true));
        let awake = Arc::clone(&is_awake);
        let thread = thread::Builder::new()
            .name("farrow-copy".to_owned())
            .spawn(move || work(&waiting, &awake))?;
        Ok(Self { tasks, thread, is_awake, away_from: None })
    }

    /// Runs a task on an idle helper that need not be woken, or else in the calling thread. The
    /// task must not unwind.
    pub(crate) fn do_beside(task: impl FnOnce() + Send + 'static) {
        let is_awake = |helper: &Self| helper.is_awake.load(Ordering::Relaxed);
        let helper = idle_of_this_process(|helpers| {
            let place = helpers.iter().position(is_awake);
            place.map(|place| helpers.swap_remove(place))
        });
        let Some(helper) = helper.flatten() else { return task() };
        if let Err(mpsc::SendError(task)) = helper.tasks.send(Box::new(task)) {
            task();
        }
        helper.leave();
    }

    /// Sends the helper a task, which must not unwind. Returns false if the thread has exited.
    ///
    /// # Safety
    /// Everything the task borrows lives until the task has run.
    pub(super) unsafe fn run(&self, task: Box<dyn FnOnce() + Send + '_>) -> bool {
        // SAFETY: only the lifetime changes, and the caller guarantees it.
        let task = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, CopyTask>(task) };
        self.tasks.send(task).is_ok()
    }

    /// Restricts the helper to CPUs other than the caller's (`place.here`). If all CPUs are briefly
    /// busy, Linux starts a thread on the CPU of its creator and leaves it there for longer than a
    /// copy takes. On two CPUs, in more than half of all copies of 100 MB, both threads shared one
    /// CPU while the other was idle.
    pub(super) fn keep_away(&mut self, place: &CpuPlacement) {
        if self.away_from == Some(place.here) {
            return;
        }
        // SAFETY: the thread has not exited: it exits only after the handle is dropped or, while
        // idle, after it has removed itself from the list. The size is that of the set.
        let code = unsafe {
            let size = size_of_val(&place.elsewhere);
            libc::pthread_setaffinity_np(
                self.thread.as_pthread_t(),
                size,
                &raw const place.elsewhere,
            )
        };
        self.away_from = (code == 0).then_some(place.here);
        if code != 0 {
            tracing::debug!(code, "a helper stays where the system put it");
        }
    }

    /// Returns the helper to the list of idle helpers.
    pub(super) fn leave(self) {
        let mut helper = Some(self);
        // If another thread has locked the list, the helper exits instead.
        idle_of_this_process(|helpers| helpers.extend(helper.take()));
    }
}

/// Applies `change` to the list of idle helpers, unless another thread has locked it. It never
/// waits: if a thread held the lock during a fork, the lock is never released in the child.
fn idle_of_this_process<R>(change: impl FnOnce(&mut Vec<Helper>) -> R) -> Option<R> {
    let mut idle = match IDLE.try_lock() {
        Ok(idle) => idle,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    if idle.process != process_id() {
        idle.process = process_id();
        // These belong to the parent. Their channels may be in an inconsistent state.
        std::mem::forget(std::mem::take(&mut idle.helpers));
    }
    Some(change(&mut idle.helpers))
}

/// Main loop of a helper.
fn work(tasks: &Receiver<CopyTask>, is_awake: &AtomicBool) {
    let mut until = Instant::now() + LOOK_MAX;
    loop {
        let task = match tasks.try_recv() {
            Err(TryRecvError::Empty) if Instant::now() < until => {
                thread::yield_now();
                continue;
            }
            Err(TryRecvError::Empty) => {
                is_awake.store(false, Ordering::Relaxed);
                let found = tasks.recv_timeout(WAIT_MAX);
                is_awake.store(true, Ordering::Relaxed);
                found
            }
            found => found.map_err(|_| RecvTimeoutError::Disconnected),
        };
        match task {
            Ok(task) => {
                task();
                until = Instant::now() + LOOK_MAX;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if is_off_the_list() => return,
            // Another thread has just taken the helper.
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Removes the calling helper from the list. Returns whether it was there.
fn is_off_the_list() -> bool {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let own = thread::current().id();
    let place = idle.helpers.iter().position(|helper| helper.thread.thread().id() == own);
    place.map(|place| idle.helpers.swap_remove(place)).is_some()
}

/// The CPU that a thread runs on, and the other CPUs that it may use.
pub(super) struct CpuPlacement {
    here: usize,
    elsewhere: libc::cpu_set_t,
}

impl CpuPlacement {
    /// For the calling thread. `None` if there are no other CPUs, or if the system cannot tell.
    pub(super) fn of_caller() -> Option<Self> {
        // SAFETY: a bit set, for which all zeros (the empty set) is valid.
        let mut elsewhere: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes a set of that size to a local variable; 0 is this thread.
        let known =
            unsafe { libc::sched_getaffinity(0, size_of_val(&elsewhere), &raw mut elsewhere) } == 0;
        // SAFETY: takes no pointer and returns a number.
        let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        if !known || here >= libc::CPU_SETSIZE as usize {
            return None;
        }
        // SAFETY: the index is inside the set.
        unsafe { libc::CPU_CLR(here, &mut elsewhere) };
        // SAFETY: only counts bits.
        (unsafe { libc::CPU_COUNT(&elsewhere) } > 0).then_some(Self { here, elsewhere })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus_of(helper: &Helper) -> libc::cpu_set_t {
        // SAFETY: a bit set, for which all zeros (the empty set) is valid.
        let mut found: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes a set of that size to a local variable; the thread has not exited.
        let code = unsafe {
            let size = size_of_val(&found);
            libc::pthread_getaffinity_np(helper.thread.as_pthread_t(), size, &raw mut found)
        };
        assert_eq!(code, 0);
        found
    }

    #[test]
    fn helpers_are_sent_to_other_cpus() {
        let Some(place) = CpuPlacement::of_caller() else { return };
        let mut helper = Helper::start().unwrap();
        helper.keep_away(&place);
        // SAFETY: only compares bits.
        assert!(unsafe { libc::CPU_EQUAL(&cpus_of(&helper), &place.elsewhere) });
    }

    #[test]
    fn a_helper_does_what_it_is_given_one_after_the_other_and_ends() {
        let helper = Helper::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            // SAFETY: the task borrows nothing.
            assert!(unsafe { helper.run(Box::new(move || sender.send(number).unwrap())) });
        }
        drop(sender);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        let Helper { tasks, thread, .. } = helper;
        drop(tasks);
        thread.join().unwrap();
    }

    #[test]
    fn what_is_done_beside_is_done_by_one_that_is_awake_or_here() {
        let (sender, receiver) = mpsc::channel();
        for turn in 0..20 {
            if turn % 2 == 1 {
                Helper::start().unwrap().leave();
            }
            let sender = sender.clone();
            Helper::do_beside(move || sender.send(turn).unwrap());
            assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(turn));
        }
    }

    #[test]
    fn one_that_waited_in_vain_takes_itself_off_the_list() {
        let helper = Helper::start().unwrap();
        let own = helper.thread.thread().id();
        let is_there = || {
            let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
            idle.helpers.iter().any(|helper| helper.thread.thread().id() == own)
        };
        let until = Instant::now() + 10 * WAIT_MAX;
        // Retry, since another test may have locked the list.
        let mut waiting = Some(helper);
        while let Some(helper) = waiting.take() {
            let mut helper = Some(helper);
            idle_of_this_process(|helpers| helpers.extend(helper.take()));
            waiting = helper;
        }
        while is_there() {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(20));
        }
    }
}
