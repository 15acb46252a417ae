//! `farrow lab`: memory for measurements, the timed loops, and the profile of the machine.
//!
//! `farrow_memory::timing` and `farrow_lab` have the measurements; `python/farrow/lab` evaluates
//! them.

use crate::errors::{farrow_error, invalid_argument};
use crate::plain;
use farrow_lab::LabError;
use farrow_memory::cache::{self, Method};
use farrow_memory::copy::{self, StreamMethod};
use farrow_memory::profile::all_caches::{ALL_CACHES_BYTES_MIN, AllCaches};
use farrow_memory::profile::{Origin, PUBLISH_AGAIN_BYTES_MAX, Profile, Upkeep, WriteWay, file};
use farrow_memory::timing::{
    self, AccessPattern, Job, LineState, Pages, TimedBuffer, TimingError, Work,
};
use farrow_memory::{Address, FabricError, Length};
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time limit of an explicitly requested profile, which gets more rounds than one that a region
/// waits for.
const PROFILE_BUDGET: Duration = Duration::from_millis(200);

pub fn raise(error: TimingError) -> PyErr {
    match error {
        TimingError::NoRoom { .. } => PyMemoryError::new_err(error.to_string()),
        TimingError::Map(_) => farrow_error(error.to_string()),
        error => invalid_argument(error.to_string()),
    }
}

fn raise_region(error: LabError) -> PyErr {
    match error {
        LabError::Fabric(FabricError::NoSpace { .. }) => PyMemoryError::new_err(error.to_string()),
        error => farrow_error(error.to_string()),
    }
}

#[doc = doc!("LabArena")]
#[pyclass(frozen, module = "farrow._native", name = "LabArena")]
pub struct LabArena {
    arena: Mutex<TimedBuffer>,
}

impl LabArena {
    fn of(arena: TimedBuffer) -> Self {
        Self { arena: Mutex::new(arena) }
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut TimedBuffer) -> T) -> T {
        use_it(&mut self.arena.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl LabArena {
    #[doc = doc!("LabArena.private")]
    #[staticmethod]
    #[pyo3(signature = (nbytes, *, huge))]
    fn private(py: Python<'_>, nbytes: u64, huge: bool) -> PyResult<Self> {
        let pages = if huge { Pages::Huge } else { Pages::Small };
        py.detach(|| TimedBuffer::private(Length(nbytes), pages)).map(Self::of).map_err(raise)
    }

    #[doc = doc!("LabArena.region")]
    #[staticmethod]
    fn region(py: Python<'_>, nbytes: u64, directory: PathBuf) -> PyResult<Self> {
        py.detach(|| farrow_lab::region_buffer(&directory, Length(nbytes)))
            .map(Self::of)
            .map_err(raise_region)
    }

    #[doc = doc!("LabArena.over")]
    #[staticmethod]
    fn over(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        // By pyarrow, because the limited API of older Pythons has no buffers.
        let buffer = buffer.py().import("pyarrow")?.call_method1("py_buffer", (buffer,))?;
        let start: usize = buffer.getattr("address")?.extract()?;
        let nbytes: usize = buffer.getattr("size")?.extract()?;
        if nbytes == 0 || !buffer.getattr("is_mutable")?.extract::<bool>()? {
            return Err(PyBufferError::new_err("a writable buffer of bytes is needed"));
        }
        let (start, length) = (Address(start), Length::from(nbytes));
        // SAFETY: pyarrow's buffer keeps the bytes in place, and writable, while it is held; the
        // docstring forbids the caller to use them meanwhile.
        Ok(Self::of(unsafe { TimedBuffer::over(start, length, Box::new(buffer.unbind())) }))
    }

    #[doc = doc!("LabArena.nbytes")]
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.with(|arena| arena.length().0))
    }

    #[doc = doc!("LabArena.huge_bytes")]
    #[getter]
    fn huge_bytes(&self, py: Python<'_>) -> Option<u64> {
        py.detach(|| self.with(|arena| arena.huge_bytes().map(|bytes| bytes.0)))
    }

    #[doc = doc!("LabArena.run")]
    #[pyo3(signature = (work, method="", *, state, nbytes, batch=1, samples=1, threads=1,
                        source=None, width=8, stride=8))]
    #[expect(clippy::too_many_arguments, reason = "all settings, by keyword")]
    fn run(
        &self,
        py: Python<'_>,
        work: &str,
        method: &str,
        state: &str,
        nbytes: u64,
        batch: u32,
        samples: u32,
        threads: usize,
        source: Option<u64>,
        width: u8,
        stride: u32,
    ) -> PyResult<Vec<f64>> {
        let work = work_of(work, method, AccessPattern { width, stride })?;
        let state = [LineState::Uncached, LineState::Cached, LineState::Dirty]
            .into_iter()
            .find(|one| one.as_str() == state)
            .ok_or_else(|| invalid_argument(format!("no state {state:?}")))?;
        let threads = NonZeroUsize::new(threads)
            .ok_or_else(|| invalid_argument("measuring with 0 threads"))?;
        let (range, source) = (Length(nbytes), Length(source.unwrap_or(nbytes)));
        let job = Job { work, state, range, batch, samples, threads, source };
        py.detach(|| self.with(|arena| arena.run(&job))).map_err(raise)
    }
}

fn work_of(work: &str, method: &str, pattern: AccessPattern) -> PyResult<Work> {
    let found = match work {
        "publish" => Method::of_name(method).map(Work::Publish),
        "publish again" => Method::of_name(method).map(Work::PublishAgain),
        "refresh" => Method::of_name(method).map(Work::Refresh),
        "write" => WriteWay::of_key(method).map(Work::Write),
        "copy" => StreamMethod::of_key(method).map(Work::Copy),
        "fill" => StreamMethod::of_key(method).map(Work::Fill),
        "load" => Some(Work::Load(pattern)),
        "store" => Some(Work::Store(pattern)),
        _ => None,
    };
    found.ok_or_else(|| invalid_argument(format!("no way to {work:?} by {method:?}")))
}

#[doc = doc!("lab_methods")]
#[pyfunction]
pub fn lab_methods(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let names =
        |methods: Vec<Method>| -> Vec<&str> { methods.into_iter().map(Method::as_str).collect() };
    let all = cache::methods_available();
    let refresh = all.iter().copied().filter(|method| method.can_refresh()).collect();
    let write: Vec<&str> = WriteWay::all().into_iter().map(WriteWay::key).collect();
    let copy: Vec<&str> = copy::methods_available().into_iter().map(StreamMethod::key).collect();
    let facts = json!({
        "line_bytes": cache::line_bytes(),
        "clock_ns": timing::clock_ns(),
        "publish_again_bytes_max": PUBLISH_AGAIN_BYTES_MAX.0,
        "source_bytes": timing::SOURCE_BYTES_USUAL.0,
        "publish": names(all),
        "refresh": names(refresh),
        "write": write,
        "copy": copy,
    });
    plain::to_python(py, &facts)
}

#[doc = doc!("lab_fit")]
#[pyfunction]
pub fn lab_fit(points: Vec<(f64, f64)>) -> Option<(f64, f64, f64)> {
    farrow_lab::fit(&points).map(|model| (model.fixed_ns, model.line_ns, model.error))
}

#[doc = doc!("lab_profile")]
#[pyfunction]
#[pyo3(signature = (*, measure=false, keep=false))]
pub fn lab_profile(py: Python<'_>, measure: bool, keep: bool) -> PyResult<Bound<'_, PyAny>> {
    let facts = py.detach(|| {
        let path = file::path();
        let (profile, is_retained) = if measure {
            let keep = path.as_deref().filter(|_| keep);
            let (profile, is_retained) = Profile::measure(PROFILE_BUDGET, keep);
            (Arc::new(profile), is_retained)
        } else {
            (Profile::of_machine(), false)
        };
        as_json(&profile, path, is_retained)
    });
    plain::to_python(py, &facts)
}

/// The cost of writing back all caches at once, and the lengths from which it pays, or the reason
/// why it is impossible.
fn all_caches(profile: &Profile) -> Value {
    let caches = match AllCaches::of_machine() {
        Ok(caches) => caches,
        Err(error) => return json!({"why_not": error.to_string()}),
    };
    let from = |upkeep| {
        let lengths = (0..64).map(|power| Length(1 << power));
        let is_worth = |length: &Length| {
            profile.estimate(upkeep, *length).is_some_and(|lines| caches.is_cheaper(lines))
        };
        let found = lengths.filter(|length| *length >= ALL_CACHES_BYTES_MIN).find(is_worth);
        found.map(|length| length.0)
    };
    json!({
        "ns": caches.cost().as_nanos() as u64,
        "publish_from_bytes": from(Upkeep::Publish),
        "refresh_from_bytes": from(Upkeep::Refresh),
    })
}

fn as_json(profile: &Profile, path: Option<PathBuf>, is_retained: bool) -> Value {
    let steps: Vec<Value> = profile
        .steps()
        .map(|(bytes, step)| {
            json!({
                "bytes": bytes.0,
                "publish": step.publish.0.as_str(),
                "publish_ns": step.publish.1,
                "refresh": step.refresh.0.as_str(),
                "refresh_ns": step.refresh.1,
                "write": step.write.0.key(),
                "write_ns": step.write.1,
            })
        })
        .collect();
    let plan = profile.copy_plan();
    let seconds = match profile.origin() {
        Origin::Measured(time) => Some(time.as_secs_f64()),
        _ => None,
    };
    json!({
        "origin": profile.origin().as_str(),
        "measured_seconds": seconds,
        "machine": file::machine(),
        "path": path.map(|path| path.to_string_lossy().into_owned()),
        "kept": is_retained,
        "copy": plan.method.key(),
        "copy_from_bytes": (plan.stream_bytes_min.0 < u64::MAX).then_some(plan.stream_bytes_min.0),
        "all_caches": all_caches(profile),
        "steps": steps,
    })
}
