//! Calls of the client without the GIL, which a signal ends if its handler raises.

use crate::errors::raise;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};

/// What this thread does.
#[derive(Default)]
struct WaitingCall {
    /// Whether it is in a call that can raise.
    is_on: Cell<bool>,
    /// What a signal handler raised in the call that waits.
    raised: RefCell<Option<PyErr>>,
}

thread_local! {
    static CALL: WaitingCall = const { WaitingCall { is_on: Cell::new(false), raised: RefCell::new(None) } };
}

/// Runs the handlers of signals that came. On other threads than the main one Python runs none.
pub fn has_raised() -> bool {
    CALL.with(|call| {
        if !call.is_on.get() || call.raised.borrow().is_some() {
            return call.is_on.get();
        }
        let Err(error) = Python::attach(|py| py.check_signals()) else {
            return false;
        };
        call.raised.replace(Some(error));
        true
    })
}

/// A call is on until this is dropped.
struct On<'a> {
    call: &'a WaitingCall,
    was_on: bool,
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        self.call.is_on.set(self.was_on);
    }
}

/// Runs a call of the client without the GIL. While it waits, signal handlers run within a tenth
/// of a second: if one raises, the call ends with that exception, otherwise it waits on for the
/// rest of its time.
pub fn without_gil<T, F>(py: Python<'_>, call_of_client: F) -> PyResult<T>
where
    F: FnOnce() -> Result<T, farrow::Error> + Send,
    T: Send,
{
    let (done, raised) = py.detach(|| {
        CALL.with(|call| {
            let on = On { call, was_on: call.is_on.replace(true) };
            let done = call_of_client();
            drop(on);
            (done, call.raised.take())
        })
    });
    match raised {
        Some(error) => Err(error),
        None => done.map_err(raise),
    }
}
