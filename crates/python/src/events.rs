//! `client.subscribe()`: the native stream of `farrow.events.Subscription`.

use crate::errors::{invalid_argument, raise};
use crate::waiting::without_gil;
use farrow::{CloseHandle, EventKind, Next, Registration, Seen, SubscribeOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// Longest single wait. A signal that arrives just before a wait does not end it, so Python's
/// signals are checked at this interval.
const SLICE: Duration = Duration::from_millis(500);

#[doc = doc!("EventStream")]
#[pyclass(frozen, module = "farrow._native", name = "EventStream")]
pub struct EventStream {
    stream: Mutex<farrow::Subscription>,
    close_handle: CloseHandle,
}

/// Python's name of an event kind.
fn name_of(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Sealed => "sealed",
        EventKind::Deleted => "deleted",
        EventKind::Evicted => "evicted",
        EventKind::Spilled => "spilled",
        EventKind::Restored => "restored",
    }
}

fn kind_of(name: &str) -> PyResult<EventKind> {
    let unknown = || invalid_argument(format!("{name:?} is no kind of event"));
    EventKind::ALL.into_iter().find(|kind| name_of(*kind) == name).ok_or_else(unknown)
}

impl EventStream {
    /// A stream of the selected events.
    pub fn new(
        py: Python<'_>,
        client: &farrow::Client,
        prefix: String,
        kinds: Option<Vec<String>>,
        is_from_oldest: bool,
    ) -> PyResult<Self> {
        let kinds = match kinds {
            Some(names) => names.iter().map(|name| kind_of(name)).collect::<PyResult<_>>()?,
            None => EventKind::ALL.to_vec(),
        };
        let options = SubscribeOptions { prefix, kinds, is_from_oldest };
        let stream = without_gil(py, || client.subscribe(options))?;
        Ok(Self { close_handle: stream.close_handle(), stream: Mutex::new(stream) })
    }

    fn stream(&self) -> PyResult<MutexGuard<'_, farrow::Subscription>> {
        match self.stream.try_lock() {
            Ok(stream) => Ok(stream),
            Err(TryLockError::Poisoned(stream)) => Ok(stream.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(invalid_argument("another thread waits for an event of this subscription"))
            }
        }
    }
}

#[pymethods]
impl EventStream {
    #[doc = doc!("EventStream.take")]
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let seen = self.stream()?.try_next().map_err(raise)?;
        seen.map(|seen| tuple(py, seen)).transpose()
    }

    #[doc = doc!("EventStream.next")]
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let timeout = timeout.map_or(Ok(Duration::MAX), crate::client::duration)?;
        let started = std::time::Instant::now();
        loop {
            let left = timeout.saturating_sub(started.elapsed());
            let slice = left.min(SLICE);
            let mut guard = self.stream()?;
            let stream = &mut *guard;
            match py.detach(|| stream.next(slice)).map_err(raise)? {
                Next::Seen(seen) => return tuple(py, seen).map(Some),
                Next::Closed => return Ok(None),
                Next::TimedOut if slice == left => return Ok(None),
                Next::TimedOut | Next::Interrupted => {
                    drop(guard);
                    py.check_signals()?;
                }
            }
        }
    }

    #[doc = doc!("EventStream.is_connected")]
    fn is_connected(&self) -> PyResult<bool> {
        Ok(self.stream()?.is_connected())
    }

    #[doc = doc!("EventStream.arm")]
    fn arm(&self, py: Python<'_>) -> PyResult<(Option<i32>, f64)> {
        let mut guard = self.stream()?;
        let stream = &mut *guard;
        match py.detach(|| stream.arm()).map_err(raise)? {
            Registration::Socket(socket) => Ok((Some(socket.as_raw_fd()), 0.0)),
            Registration::Pause(pause) => Ok((None, pause.as_secs_f64())),
        }
    }

    #[doc = doc!("EventStream.close")]
    fn close(&self) {
        self.close_handle.close();
        // If another thread is waiting in the stream, that thread hangs up when it wakes.
        if let Ok(stream) = self.stream() {
            stream.hang_up();
        }
    }
}

fn tuple(py: Python<'_>, seen: Seen) -> PyResult<Bound<'_, PyTuple>> {
    match seen {
        Seen::Gap { missed } => ("gap", missed).into_pyobject(py),
        Seen::Event(event) => {
            let id = PyBytes::new(py, &event.id.to_bytes());
            let name = Some(event.name).filter(|name| !name.is_empty());
            (name_of(event.kind), id, name, event.size.0, event.at_ns).into_pyobject(py)
        }
    }
}
