//! Calls of the client without the GIL, ended by a signal if its handler raises.

use crate::errors::raise;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};

/// State of this thread's call.
#[derive(Default)]
struct WaitingCall {
    /// Whether a call that can raise is running.
    is_on: Cell<bool>,
    /// The exception of a signal handler during the call.
    raised: RefCell<Option<PyErr>>,
}

thread_local! {
    static CALL: WaitingCall = const { WaitingCall { is_on: Cell::new(false), raised: RefCell::new(None) } };
}

/// Runs the handlers of pending signals. Python runs them only on the main thread.
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

/// Whether this thread runs a call that a signal handler can end.
pub fn is_waiting() -> bool {
    CALL.with(|call| call.is_on.get())
}

/// Marks a call as running until it is dropped.
struct On<'a> {
    call: &'a WaitingCall,
    was_on: bool,
}

impl Drop for On<'_> {
    fn drop(&mut self) {
        self.call.is_on.set(self.was_on);
    }
}

#[doc = doc!("CancelToken")]
#[pyclass(frozen, module = "farrow._native", name = "CancelToken")]
pub struct PyCancelToken(farrow::CancelToken);

#[pymethods]
impl PyCancelToken {
    #[new]
    fn new() -> Self {
        Self(farrow::CancelToken::new())
    }

    #[doc = doc!("CancelToken.cancel")]
    fn cancel(&self) {
        self.0.cancel();
    }

    #[doc = doc!("CancelToken.run")]
    fn run<'py>(&self, body: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.0.run(|| body.call0())
    }
}

/// Runs a call of the client without the GIL. While it waits, signal handlers run within a tenth of
/// a second. If one raises, the call ends with that exception; otherwise it continues to wait for
/// the rest of its time.
pub fn without_gil<T, F>(py: Python<'_>, call_of_client: F) -> PyResult<T>
where
    F: FnOnce() -> Result<T, farrow::Error> + Send,
    T: Send,
{
    py.detach(|| with_signals(call_of_client))?.map_err(raise)
}

/// Runs a call that looks at `has_raised`, on a thread without the GIL.
///
/// # Errors
///
/// The exception of a signal handler during the call.
pub fn with_signals<R>(work: impl FnOnce() -> R) -> PyResult<R> {
    CALL.with(|call| {
        let on = On { call, was_on: call.is_on.replace(true) };
        let done = work();
        drop(on);
        call.raised.take().map_or(Ok(done), Err)
    })
}
