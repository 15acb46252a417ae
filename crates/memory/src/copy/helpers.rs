//! Threads that help with large copies, and wait a moment for the next one.
//!
//! To start a thread, or to wake one whose CPU has fallen asleep, takes some 50 us, and to take one
//! down as long: of a copy of 100 MB that is a part in forty. So who is done looks for more to do,
//! then waits, and ends when nothing came. A forked child has none of its parent's threads, and
//! makes its own.

use std::os::unix::thread::JoinHandleExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process::process_id;
use crate::sync::{AtomicBool, Ordering};

/// So long a helper that is done looks for more: who puts one object after the other is back sooner.
const LOOK_MAX: Duration = Duration::from_micros(100);

/// So long it waits then.
const WAIT_MAX: Duration = Duration::from_secs(1);

type CopyTask = Box<dyn FnOnce() + Send>;

/// A thread that waits for tasks of whoever hired it, and ends when it is dropped.
pub(crate) struct Helper {
    tasks: Sender<CopyTask>,
    thread: JoinHandle<()>,
    /// It looks for something to do, and need not be woken.
    is_awake: Arc<AtomicBool>,
    /// Of whom it keeps away.
    away_from: Option<usize>,
}

/// Those that nobody has hired.
struct Idle {
    process: u32,
    helpers: Vec<Helper>,
}

static IDLE: Mutex<Idle> = Mutex::new(Idle { process: 0, helpers: Vec::new() });

impl Helper {
    /// One that waits, or a new one.
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

    /// Has a task that does not unwind done by one that need not be woken, or else here.
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

    /// Has it do a task that does not unwind; false if it cannot.
    ///
    /// # Safety
    /// What the task borrows lives until it has run.
    pub(super) unsafe fn run(&self, task: Box<dyn FnOnce() + Send + '_>) -> bool {
        // SAFETY: the same but for the lifetime, for which the caller vouches.
        let task = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, CopyTask>(task) };
        self.tasks.send(task).is_ok()
    }

    /// Moves it to other CPUs than `place` names. Where all are busy for a moment, be it with the last
    /// copy's rest, Linux starts a thread on the CPU of whoever starts it, and leaves it there for
    /// longer than a copy takes: so two threads shared one CPU in more than half of all copies of
    /// 100 MB, on two CPUs of which one was idle.
    pub(super) fn keep_away(&mut self, place: &CpuPlacement) {
        if self.away_from == Some(place.here) {
            return;
        }
        // SAFETY: a thread that has not ended, as it ends only when it is dropped or, while idle,
        // takes itself off the list; and a set of that size.
        let code = unsafe {
            let size = size_of_val(&place.others);
            libc::pthread_setaffinity_np(self.thread.as_pthread_t(), size, &raw const place.others)
        };
        self.away_from = (code == 0).then_some(place.here);
        if code != 0 {
            tracing::debug!(code, "a helper stays where the system put it");
        }
    }

    /// Lets it wait for whoever comes next.
    pub(super) fn leave(self) {
        let mut helper = Some(self);
        // Where somebody else looks into the list just now, it ends.
        idle_of_this_process(|helpers| helpers.extend(helper.take()));
    }
}

/// Has `change` made to the list of idle helpers, unless another thread is at it: a thread that was
/// when its process forked holds the lock for ever in the child.
fn idle_of_this_process<R>(change: impl FnOnce(&mut Vec<Helper>) -> R) -> Option<R> {
    let mut idle = match IDLE.try_lock() {
        Ok(idle) => idle,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    if idle.process != process_id() {
        idle.process = process_id();
        // The parent's. Their channels may be in the middle of something.
        std::mem::forget(std::mem::take(&mut idle.helpers));
    }
    Some(change(&mut idle.helpers))
}

/// What a helper does.
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
            // Somebody has hired it just now.
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Takes the calling helper off the list, if it is there.
fn is_off_the_list() -> bool {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let own = thread::current().id();
    let place = idle.helpers.iter().position(|helper| helper.thread.thread().id() == own);
    place.map(|place| idle.helpers.swap_remove(place)).is_some()
}

/// The CPU that a thread runs on, and the others that it may use.
pub(super) struct CpuPlacement {
    here: usize,
    others: libc::cpu_set_t,
}

impl CpuPlacement {
    /// Of the calling thread. None: there are no others, or nobody knows.
    pub(super) fn of_caller() -> Option<Self> {
        // SAFETY: a set of bits, of which none is a set too.
        let mut others: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes a set of that size to what is ours; 0 is this thread.
        let known =
            unsafe { libc::sched_getaffinity(0, size_of_val(&others), &raw mut others) } == 0;
        // SAFETY: asks for a number.
        let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        if !known || here >= libc::CPU_SETSIZE as usize {
            return None;
        }
        // SAFETY: inside of the set.
        unsafe { libc::CPU_CLR(here, &mut others) };
        // SAFETY: counts bits.
        (unsafe { libc::CPU_COUNT(&others) } > 0).then_some(Self { here, others })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus_of(helper: &Helper) -> libc::cpu_set_t {
        // SAFETY: a set of bits, of which none is a set too.
        let mut found: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes a set of that size to what is ours; the thread waits.
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
        // SAFETY: compares bits.
        assert!(unsafe { libc::CPU_EQUAL(&cpus_of(&helper), &place.others) });
    }

    #[test]
    fn a_helper_does_what_it_is_given_one_after_the_other_and_ends() {
        let helper = Helper::start().unwrap();
        let (sender, receiver) = mpsc::channel();
        for number in 0..100 {
            let sender = sender.clone();
            // SAFETY: it borrows nothing.
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
        // Another test may look into the list.
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
