//! Ends a call from C while it waits.

use crate::error::guard;
use crate::status::FarrowStatus;
use farrow::interrupt::{Interrupt, scope, suspend};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::rc::Rc;

/// `FarrowInterruptCheck` of `farrow.h`.
pub type InterruptCheck = unsafe extern "C" fn(data: *mut c_void) -> c_int;

/// The setting of a thread.
#[derive(Clone, Copy)]
struct ThreadInterrupt {
    check: Option<InterruptCheck>,
    data: *mut c_void,
    ends_on_signal: bool,
}

thread_local! {
    static SETTING: Cell<Option<ThreadInterrupt>> = const { Cell::new(None) };
    /// Whether the check runs.
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
}

/// See `farrow.h`.
///
/// # Safety
/// `check` is NULL or a function that may be called with `data` by this thread until another one is
/// set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_set_interrupt(
    check: Option<InterruptCheck>,
    data: *mut c_void,
    on_signal: c_int,
) -> FarrowStatus {
    guard(|| {
        let ends_on_signal = on_signal != 0;
        let is_set = check.is_some() || ends_on_signal;
        SETTING.set(is_set.then_some(ThreadInterrupt { check, data, ends_on_signal }));
        Ok(())
    })
}

/// Runs a call with the interrupt of its thread. A call of the check itself has none: the check
/// would run inside itself, again and again.
pub(crate) fn interruptible<T>(body: impl FnOnce() -> T) -> T {
    let Some(ThreadInterrupt { check, data, ends_on_signal }) = SETTING.get() else {
        return body();
    };
    if IS_ASKING.get() {
        return body();
    }
    let ask = move || {
        let Some(check) = check else { return false };
        let _quiet = suspend();
        IS_ASKING.set(true);
        // SAFETY: the thread guaranteed this when it set both, and the same thread calls.
        let has_ended = unsafe { check(data) != 0 };
        IS_ASKING.set(false);
        has_ended
    };
    let interrupt = Interrupt::new(Rc::new(ask));
    scope(if ends_on_signal { interrupt.on_signal() } else { interrupt }, body)
}
