//! The last error of each thread, and the guard that every function of the interface runs in.

use crate::FarrowStatus;
use crate::interrupt::interruptible;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a call from C failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallFailure {
    /// An error of the client.
    #[error(transparent)]
    Farrow(#[from] farrow::Error),
    /// The caller passed an invalid argument.
    #[error("{0}")]
    Argument(String),
}

impl CallFailure {
    /// The error for a NULL in the argument `what`.
    pub(crate) fn null(what: &str) -> CallFailure {
        CallFailure::Argument(format!("{what} is NULL"))
    }

    fn status(&self) -> FarrowStatus {
        match self {
            CallFailure::Farrow(error) => error.into(),
            CallFailure::Argument(_) => FarrowStatus::InvalidArgument,
        }
    }
}

thread_local! {
    /// Destroyed before the destructors of a program that call Farrow at the end of the thread:
    /// errors there have a status only.
    static LAST: RefCell<(FarrowStatus, CString)> =
        RefCell::new((FarrowStatus::Ok, CString::default()));
}

fn remember(status: FarrowStatus, text: &str) {
    // A text from outside may contain zero bytes, which a C string cannot.
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    let _ = LAST.try_with(|last| *last.borrow_mut() = (status, text));
}

/// Runs the body of a C function: catches panics and stores the error for the thread.
pub(crate) fn guard(body: impl FnOnce() -> Result<(), CallFailure>) -> FarrowStatus {
    match catch_unwind(AssertUnwindSafe(|| interruptible(body))) {
        Ok(Ok(())) => FarrowStatus::Ok,
        Ok(Err(failure)) => {
            let status = failure.status();
            remember(status, &failure.to_string());
            status
        }
        Err(panic) => {
            remember(FarrowStatus::Panic, &panic_text(panic.as_ref()));
            FarrowStatus::Panic
        }
    }
}

/// Like [`guard`] for functions that return a value and have no error of their own.
pub(crate) fn guard_or<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => value,
        Err(panic) => {
            remember(FarrowStatus::Panic, &panic_text(panic.as_ref()));
            otherwise
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("of unknown kind");
    format!("a defect of Farrow: panic {what}")
}

/// The status of this thread's last error.
#[unsafe(no_mangle)]
pub extern "C" fn farrow_last_error_code() -> FarrowStatus {
    LAST.try_with(|last| last.borrow().0).unwrap_or(FarrowStatus::Ok)
}

/// The text of this thread's last error; "" if there was none. It is valid until the next error.
#[unsafe(no_mangle)]
pub extern "C" fn farrow_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic)] // on purpose
    fn a_panic_is_a_status_with_its_text_and_the_next_call_works() {
        assert_eq!(guard(|| panic!("on {}", "purpose")), FarrowStatus::Panic);
        // SAFETY: the text is never NULL and ends with a zero byte.
        let text = unsafe { std::ffi::CStr::from_ptr(farrow_last_error()) };
        assert_eq!(text.to_str(), Ok("a defect of Farrow: panic on purpose"));
        assert_eq!(guard_or(7, || panic!("again")), 7);
        assert_eq!(farrow_last_error_code(), FarrowStatus::Panic);
        assert_eq!(guard(|| Ok(())), FarrowStatus::Ok);
    }

    /// Fails a call after `LAST` of its thread is destroyed.
    struct FailsAtThreadEnd(std::sync::mpsc::Sender<FarrowStatus>);

    impl Drop for FailsAtThreadEnd {
        fn drop(&mut self) {
            // A panic here would end the process.
            let caught = catch_unwind(|| guard(|| Err(CallFailure::null("client"))));
            let _ = self.0.send(caught.unwrap_or(FarrowStatus::Panic));
        }
    }

    #[test]
    fn a_call_of_a_destructor_fails_with_its_status() {
        thread_local! {
            static LATE: RefCell<Option<FailsAtThreadEnd>> = const { RefCell::new(None) };
        }
        let (sender, outcome) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // What is used first is destroyed last.
            LATE.set(Some(FailsAtThreadEnd(sender)));
            assert_eq!(guard(|| Err(CallFailure::null("first"))), FarrowStatus::InvalidArgument);
        });
        assert!(thread.join().is_ok());
        assert_eq!(outcome.recv(), Ok(FarrowStatus::InvalidArgument));
    }
}
