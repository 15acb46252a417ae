//! Early ends of calls: cancelled by another thread, or by a check of the caller.
//!
//! An interrupted call returns [`Error::Interrupted`] within a tenth of a second and leaves
//! everything as it was: the node drops the request, and the client gives back the contents of an
//! answer already under way. The client stays usable.
//!
//! Waits for objects, memory, room in a quota, barriers, flags, spilled objects and huge tables are
//! interruptible, as is the search for a node. Calls that change something in one round trip are
//! not: their outcome would be unknown.

use std::rc::Rc;
use std::sync::Arc;

use farrow_memory::sync::{AtomicBool, Ordering};
use farrow_wire::{RequestBody, SyncAsk};

pub use farrow_wire::interrupt::{
    Interrupt, Suspended, check_on_all_threads, current, scope, suspend,
};

use crate::error::Error;

/// Cancels calls from any thread, or from a signal handler. Clones share their state.
///
/// ```no_run
/// use std::time::Duration;
/// use farrow::{CancelToken, Client, ConnectOptions, Error};
///
/// let client = Client::connect(&ConnectOptions::default())?;
/// let token = CancelToken::new();
/// let of_other_thread = token.clone();
/// std::thread::spawn(move || of_other_thread.cancel());
/// let got = token.run(|| client.get(&"never".into(), Duration::from_secs(3600)));
/// assert!(matches!(got, Err(Error::Interrupted)));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that cancels nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels the calls that run with this token, now and later. It is a single store, so a signal
    /// handler may call it.
    pub fn cancel(&self) {
        // The flag orders no other memory.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets the token, so that calls wait again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Runs calls on this thread that this token can cancel. An enclosing scope stays in effect.
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        let token = self.clone();
        let outer = current();
        let ends_on_signal = outer.as_ref().is_some_and(Interrupt::ends_on_signal);
        let check = move || token.is_cancelled() || outer.as_ref().is_some_and(Interrupt::is_up);
        let interrupt = Interrupt::new(Rc::new(check));
        scope(if ends_on_signal { interrupt.on_signal() } else { interrupt }, body)
    }
}

/// Sleeps, unless the thread is interrupted.
pub(crate) fn pause(length: std::time::Duration) -> Result<(), Error> {
    if farrow_wire::interrupt::pause(length) { Ok(()) } else { Err(Error::Interrupted) }
}

/// Whether the wait for the answer may be interrupted: the request changes nothing or can be
/// withdrawn, or the contents of its answer can be given back.
pub(crate) fn may_interrupt(body: &RequestBody) -> bool {
    match body {
        RequestBody::Grant { .. }
        | RequestBody::Room(_)
        | RequestBody::ReserveObjects { .. }
        | RequestBody::Reserve { .. }
        | RequestBody::Wait { .. }
        | RequestBody::Restore { .. }
        | RequestBody::Fetch { .. }
        | RequestBody::ListAt { .. }
        | RequestBody::FindAt { .. }
        | RequestBody::Import { .. }
        | RequestBody::Evict { .. }
        | RequestBody::Stats
        | RequestBody::Overview { .. }
        | RequestBody::Namespaces
        | RequestBody::Rules
        | RequestBody::Nodes
        | RequestBody::FindLost { .. } => true,
        RequestBody::Sync { ask, .. } => !matches!(ask, SyncAsk::SetFlags { .. }),
        _ => false,
    }
}
