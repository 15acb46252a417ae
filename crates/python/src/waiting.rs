//! Calls of the client without the GIL, which a signal ends if its handler raises.

use crate::errors::raise;
use farrow::interrupt::{Interrupt, scope};
use pyo3::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

thread_local! {
    /// What a signal handler raised in the call that waits on this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Made once a thread: a call costs one count up and one down.
    static SIGNALS: Rc<dyn Fn() -> bool> = Rc::new(has_raised);
}

/// Runs the handlers of signals that came. On other threads than the main one Python runs none.
fn has_raised() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
}

/// Runs a call of the client without the GIL. While it waits, signal handlers run within a tenth
/// of a second: if one raises, the call ends with that exception, otherwise it waits on for the
/// rest of its time.
pub fn without_gil<T, F>(py: Python<'_>, call: F) -> PyResult<T>
where
    F: FnOnce() -> Result<T, farrow::Error> + Send,
    T: Send,
{
    let (done, raised) = py.detach(|| {
        let done = scope(Interrupt::new(SIGNALS.with(Rc::clone)), call);
        (done, RAISED.take())
    });
    match raised {
        Some(error) => Err(error),
        None => done.map_err(raise),
    }
}
