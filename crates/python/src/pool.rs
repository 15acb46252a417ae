//! `client.memory_pool()`: a `pyarrow.MemoryPool` over the client's memory.

use crate::errors::raise;
use crate::pyarrow::Pyarrow;
use farrow::Pool;
use farrow_capi::FarrowPool;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};

/// The expected buffers of a pool.
#[derive(FromPyObject)]
pub enum Expect {
    /// Total bytes.
    Bytes(u64),
    /// Bytes of each buffer.
    Sizes(Vec<u64>),
}

impl Expect {
    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => *bytes,
            Self::Sizes(sizes) => sizes.iter().fold(0, |sum, size| sum.saturating_add(*size)),
        }
    }
}

/// As [`new`], with reserved room.
pub fn expecting(
    py: Python<'_>,
    pool: Pool,
    is_strict: bool,
    expect: &Expect,
) -> PyResult<Py<PyAny>> {
    let sizes = match expect {
        Expect::Bytes(bytes) => std::slice::from_ref(bytes),
        Expect::Sizes(sizes) => sizes,
    };
    Pyarrow::get(py)?.check_pool()?;
    py.detach(|| pool.expect(sizes)).map_err(raise)?;
    new(py, pool, is_strict)
}

/// A new pyarrow pool over `pool`.
///
/// pyarrow's buffers, and `pyarrow.set_memory_pool`, keep bare pointers to it, so the few hundred
/// bytes of the C++ pool and its handle are never freed. The client is: when the Python object is
/// collected, the handle is retired, and it releases the client with its last allocation.
pub fn new(py: Python<'_>, pool: Pool, is_strict: bool) -> PyResult<Py<PyAny>> {
    Pyarrow::get(py)?.check_pool()?;
    let handle: &'static FarrowPool = Box::leak(Box::new(FarrowPool::new(pool, is_strict)));
    let wrapped = Pyarrow::get(py)?.wrap_pool(py, handle)?;
    let retire = PyCFunction::new_closure(
        py,
        Some(c"retire"),
        None,
        move |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| handle.retire(),
    )?;
    let finalizer = py.import("weakref")?.getattr("finalize")?.call1((&wrapped, retire))?;
    // Threads may still allocate while the interpreter ends.
    finalizer.setattr("atexit", false)?;
    Ok(wrapped.unbind())
}
