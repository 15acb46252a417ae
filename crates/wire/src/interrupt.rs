//! Ends the waits of a thread early: for a signal handler that raises, or for another thread that
//! cancels.
//!
//! A binding runs a call inside [`scope`], or sets one check for [all
//! threads](check_on_all_threads). While the call waits, its thread runs the check about twenty
//! times a second, with no lock held. A check may therefore run user code, even code that calls the
//! same client. Code that waits while it holds a lock does so under [`suspend`].

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Shortest interval between two checks. A check of Python takes the GIL, which costs about a
/// microsecond without contention.
const CHECK_PAUSE: Duration = Duration::from_millis(10);

/// A pause is divided into pieces of this length, with a check after each.
const PAUSE_PIECE: Duration = Duration::from_millis(20);

/// Decides whether a call ends early.
#[derive(Clone)]
pub struct Interrupt {
    check: SignalCheck,
    ends_on_signal: bool,
}

#[derive(Clone)]
enum SignalCheck {
    OfScope(Rc<dyn Fn() -> bool>),
    OfAll(fn() -> bool),
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupt")
            .field("ends_on_signal", &self.ends_on_signal)
            .finish_non_exhaustive()
    }
}

impl Interrupt {
    /// Ends the call when `check` returns true. The check runs on the thread that waits.
    pub fn new(check: Rc<dyn Fn() -> bool>) -> Self {
        Self { check: SignalCheck::OfScope(check), ends_on_signal: false }
    }

    /// Also ends the call when a signal handler runs on the thread that waits, as a system call
    /// ends with `EINTR`.
    #[must_use]
    pub fn on_signal(mut self) -> Self {
        self.ends_on_signal = true;
        self
    }

    /// Whether a signal that was handled on the waiting thread ends the call.
    pub fn ends_on_signal(&self) -> bool {
        self.ends_on_signal
    }

    /// Runs the check. Once it returned true, every further wait of the scope ends at once.
    pub fn is_up(&self) -> bool {
        match &self.check {
            SignalCheck::OfAll(check) => return check(),
            SignalCheck::OfScope(check) if !HAS_ENDED.get() && check() => self.end(),
            SignalCheck::OfScope(_) => {}
        }
        HAS_ENDED.get()
    }

    pub(crate) fn end(&self) {
        HAS_ENDED.set(true);
    }
}

/// The interrupt of a thread.
enum Current {
    /// The check for all threads, if one is set.
    OfAll,
    Nothing,
    OfScope(Interrupt),
}

static OF_ALL: OnceLock<fn() -> bool> = OnceLock::new();

thread_local! {
    /// Destroyed before the destructors of a program that call Farrow at the end of the thread: no
    /// check runs there.
    static CURRENT: RefCell<Current> = const { RefCell::new(Current::OfAll) };
    /// Whether the call of the innermost scope is to end.
    static HAS_ENDED: Cell<bool> = const { Cell::new(false) };
}

/// Restores the previous interrupt of the thread.
struct RestoreGuard {
    earlier: Current,
    had_ended: bool,
    /// The guard must stay on its thread.
    _thread: PhantomData<Rc<()>>,
}

impl RestoreGuard {
    fn replace(with: Current) -> Self {
        let had_ended = HAS_ENDED.replace(false);
        let earlier = CURRENT.try_with(|current| current.replace(with)).unwrap_or(Current::OfAll);
        Self { earlier, had_ended, _thread: PhantomData }
    }
}

impl Drop for RestoreGuard {
    fn drop(&mut self) {
        let earlier = std::mem::replace(&mut self.earlier, Current::OfAll);
        let _ = CURRENT.try_with(|current| current.replace(earlier));
        HAS_ENDED.set(self.had_ended);
    }
}

/// Runs `body`; its waits end early when `interrupt` requires it.
pub fn scope<T>(interrupt: Interrupt, body: impl FnOnce() -> T) -> T {
    let _restore = RestoreGuard::replace(Current::OfScope(interrupt));
    body()
}

/// While this value exists, no wait of this thread runs a check.
pub struct Suspended(#[expect(dead_code, reason = "held for its end")] RestoreGuard);

/// Suspends checks: for code that waits while it holds a lock, or whose outcome would be unknown
/// after an interrupt.
pub fn suspend() -> Suspended {
    Suspended(RestoreGuard::replace(Current::Nothing))
}

/// Ends waits outside of scopes on all threads, without the cost of a scope for each call. Once the
/// check returned true, it must return true until the call of its thread has ended. Only the first
/// check is set.
pub fn check_on_all_threads(check: fn() -> bool) {
    let _ = OF_ALL.set(check);
}

/// The interrupt of the innermost scope of this thread, or of all threads.
pub fn current() -> Option<Interrupt> {
    let of_thread = |current: &RefCell<Current>| match &*current.borrow() {
        Current::OfScope(interrupt) => Some(interrupt.clone()),
        Current::Nothing => None,
        Current::OfAll => {
            let check = SignalCheck::OfAll(*OF_ALL.get()?);
            Some(Interrupt { check, ends_on_signal: false })
        }
    };
    CURRENT.try_with(of_thread).ok().flatten()
}

/// Sleeps. Returns false if an interrupt ended the sleep.
pub fn pause(length: Duration) -> bool {
    let Some(interrupt) = current() else {
        std::thread::sleep(length);
        return true;
    };
    let until = Instant::now() + length;
    loop {
        if interrupt.is_up() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        let piece = left.min(PAUSE_PIECE);
        if interrupt.ends_on_signal() && !sleep_until_signal(piece) {
            interrupt.end();
        } else if !interrupt.ends_on_signal() {
            std::thread::sleep(piece);
        }
    }
}

/// Sleeps. Returns false if a signal handler ran: it ends `poll` even where it restarts other
/// system calls.
pub(crate) fn sleep_until_signal(length: Duration) -> bool {
    let nanoseconds = i64::from(length.subsec_nanos());
    let seconds = i64::try_from(length.as_secs()).unwrap_or(i64::MAX);
    let timeout = rustix::time::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    rustix::event::poll(&mut [], Some(&timeout)) != Err(rustix::io::Errno::INTR)
}

/// The time of the last check.
pub(crate) struct Pace(Instant);

impl Pace {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Returns true at most once per interval, however often the thread wakes.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.0.elapsed() >= CHECK_PAUSE;
        if is_due {
            self.0 = Instant::now();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_ends_with_its_body_and_scopes_nest() {
        let never = || Interrupt::new(Rc::new(|| false));
        assert!(current().is_none());
        scope(never().on_signal(), || {
            scope(never(), || assert!(!current().unwrap().ends_on_signal()));
            assert!(current().unwrap().ends_on_signal());
            let quiet = suspend();
            assert!(current().is_none());
            drop(quiet);
            assert!(current().is_some());
        });
        assert!(current().is_none());
    }

    #[test]
    fn a_scope_whose_body_panics_is_left() {
        let caught = std::panic::catch_unwind(|| {
            scope(Interrupt::new(Rc::new(|| true)), || panic!("on purpose"))
        });
        assert!(caught.is_err() && current().is_none());
    }

    /// Calls into this module after `CURRENT` of its thread is destroyed.
    struct LooksAtThreadEnd(std::sync::mpsc::Sender<bool>);

    impl Drop for LooksAtThreadEnd {
        fn drop(&mut self) {
            // A panic here would end the process.
            let caught = std::panic::catch_unwind(|| {
                let _quiet = suspend();
                scope(Interrupt::new(Rc::new(|| true)), || pause(Duration::from_millis(1)))
            });
            let _ = self.0.send(caught.unwrap_or(false));
        }
    }

    #[test]
    fn destructors_of_a_thread_may_wait() {
        thread_local! {
            static LATE: RefCell<Option<LooksAtThreadEnd>> = const { RefCell::new(None) };
        }
        let (sender, outcome) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // What is used first is destroyed last.
            LATE.set(Some(LooksAtThreadEnd(sender)));
            drop(suspend());
        });
        thread.join().unwrap();
        assert_eq!(outcome.recv(), Ok(true));
    }

    #[test]
    fn after_the_check_said_so_once_every_wait_of_the_scope_ends() {
        let requested = Rc::new(Cell::new(0));
        let count = Rc::clone(&requested);
        let check = move || {
            count.set(count.get() + 1);
            count.get() == 2
        };
        scope(Interrupt::new(Rc::new(check)), || {
            assert!(!pause(Duration::from_secs(60)));
            assert!(!pause(Duration::from_secs(60)));
        });
        assert_eq!(requested.get(), 2);
    }
}
