//! Functions of the `farrow` command: run a node, survey the machine, time a copy.

use crate::errors::invalid_argument;
use crate::lab;
use crate::plain;
use farrow::NodeStats;
use farrow_cluster::node::{MemoryChoice, memory_choice};
use farrow_memory::copy::CopyPlan;
use farrow_memory::survey::{Survey, TmpfsSurvey};
use farrow_memory::timing::{Pages, TimedBuffer};
use farrow_memory::{Length, WINDOW_BASE};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The address window is probed for a region of this size: larger than most.
const WINDOW_PROBE_BYTES: u64 = 1 << 40;

#[doc = doc!("node_main")]
#[pyfunction]
pub fn node_main(py: Python<'_>, args: Vec<OsString>) -> i32 {
    py.detach(|| farrow_cluster::farrowd::main(args))
}

#[doc = doc!("stats_units")]
#[pyfunction]
pub fn stats_units() -> BTreeMap<&'static str, &'static str> {
    NodeStats::FIELDS.iter().map(|field| (field.name, field.unit.as_str())).collect()
}

#[doc = doc!("survey")]
#[pyfunction]
pub fn survey(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let (survey, choice) =
        py.detach(|| (Survey::take(WINDOW_BASE, Length(WINDOW_PROBE_BYTES)), memory_choice()));
    plain::to_python(py, &as_json(&survey, &choice))
}

#[doc = doc!("leftovers")]
#[pyfunction]
#[pyo3(signature = (dirs, *, remove = false))]
pub fn leftovers(py: Python<'_>, dirs: Vec<PathBuf>, remove: bool) -> PyResult<Bound<'_, PyAny>> {
    let found = py.detach(|| {
        let found = farrow_cluster::leftovers::find(&dirs).into_iter().map(|one| {
            let error = if remove { one.remove().err() } else { None };
            json!({
                "kind": one.kind.as_str(),
                "path": one.path.to_string_lossy(),
                "bytes": one.bytes,
                "error": error.map(|error| error.to_string()),
            })
        });
        Value::from(found.collect::<Vec<_>>())
    });
    plain::to_python(py, &found)
}

fn bytes(length: Option<Length>) -> Option<u64> {
    length.map(|length| length.0)
}

fn as_json(survey: &Survey, choice: &MemoryChoice) -> Value {
    let cpu = &survey.cpu;
    let names = |list: Vec<String>| Value::from(list);
    json!({
        "architecture": survey.architecture,
        "kernel": survey.kernel,
        "cores": survey.cores,
        "page_bytes": survey.page_bytes,
        "cpu": {
            "line_bytes": cpu.line_bytes,
            "publish": cpu.publish.as_str(),
            "refresh": cpu.refresh.as_str(),
            "maintenance_available":
                names(cpu.maintenance_available.iter().map(|m| m.as_str().into()).collect()),
            "stream": cpu.stream.as_str(),
            "stream_available":
                names(cpu.stream_available.iter().map(|m| m.as_str().into()).collect()),
        },
        "memory": {
            "total_bytes": bytes(survey.memory.total),
            "available_bytes": bytes(survey.memory.available),
        },
        "huge_pages": {
            "page_bytes": bytes(survey.huge.page),
            "enabled": survey.huge.enabled,
            "shmem_enabled": survey.huge.shmem_enabled,
        },
        "node_memory": {
            "path": choice.dir.as_ref().map_or_else(
                || "a tmpfs of the node's own, without a path".into(),
                |dir| dir.to_string_lossy(),
            ),
            "huge_pages": choice.has_huge_pages,
        },
        "tmpfs": survey.tmpfs.iter().map(tmpfs).collect::<Vec<_>>(),
        "limits": {
            "address_space": survey.limits.address_space,
            "open_files": survey.limits.open_files,
            "locked_memory": survey.limits.locked_memory,
            "max_map_count": survey.limits.maps_max,
            "maps": survey.limits.maps,
        },
        "window": {
            "base": survey.window.base.0,
            "length_bytes": survey.window.length.0,
            "free": survey.window.is_free,
        },
    })
}

fn tmpfs(tmpfs: &TmpfsSurvey) -> Value {
    json!({
        "path": tmpfs.dir.to_string_lossy(),
        "size_bytes": bytes(tmpfs.size),
        "free_bytes": bytes(tmpfs.free),
        "huge": tmpfs.huge,
        "of_node": tmpfs.is_of_node,
    })
}

#[doc = doc!("CopyBuffers")]
#[pyclass(module = "farrow._native", frozen)]
pub struct CopyBuffers {
    from: TimedBuffer,
    into: Mutex<TimedBuffer>,
    length: Length,
}

#[pymethods]
impl CopyBuffers {
    #[new]
    fn new(py: Python<'_>, nbytes: usize) -> PyResult<Self> {
        if nbytes == 0 {
            return Err(invalid_argument("a copy of 0 bytes"));
        }
        let length = Length(nbytes as u64);
        // Huge pages: a node has them where it can, and a copy between small pages is slower.
        let buffer = || TimedBuffer::private(length, Pages::Huge);
        let made = py.detach(|| buffer().and_then(|from| Ok((from, buffer()?))));
        let (from, into) = made.map_err(lab::raise)?;
        Ok(Self { from, into: Mutex::new(into), length })
    }

    #[doc = doc!("CopyBuffers.copy")]
    fn copy(&self, py: Python<'_>) -> f64 {
        py.detach(|| {
            let mut into = self.into.lock().unwrap_or_else(PoisonError::into_inner);
            into.copy_from(&self.from, self.length, CopyPlan::automatic()).as_secs_f64()
        })
    }
}
