//! `farrow.Writer`: an object of bytes that is written in place.

use crate::errors::{invalid_argument, raise};
use crate::incoming::bytes_of;
use crate::pyarrow::{RawOwner, export_memory};
use crate::reference::ObjectRef;
use crate::waiting::without_gil;
use farrow_memory::sync::{AtomicU64, Ordering};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The life-cycle stage of a writer.
enum WriterStage {
    Writing(farrow::Writer),
    Sealed(ObjectRef),
    Aborted,
}

#[doc = doc!("Writer")]
#[pyclass(frozen, module = "farrow", name = "Writer")]
pub struct PyWriter {
    state: Mutex<WriterStage>,
    view: Mutex<Option<Py<PyMemoryView>>>,
    bytes: u64,
    /// Offset of the next write without an offset.
    position: AtomicU64,
    name: Option<String>,
}

impl PyWriter {
    /// A writer that Python owns.
    pub fn new(writer: farrow::Writer, name: Option<String>) -> PyWriter {
        let bytes = writer.memory().len();
        let (state, view) = (Mutex::new(WriterStage::Writing(writer)), Mutex::new(None));
        PyWriter { state, view, bytes, position: AtomicU64::new(0), name }
    }

    fn state(&self) -> MutexGuard<'_, WriterStage> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> MutexGuard<'_, Option<Py<PyMemoryView>>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory that is being written.
    fn memory(&self) -> PyResult<Arc<farrow::WriterMemory>> {
        match &*self.state() {
            WriterStage::Writing(writer) => Ok(Arc::clone(writer.memory())),
            WriterStage::Sealed(_) => Err(invalid_argument("the writer is sealed")),
            WriterStage::Aborted => Err(invalid_argument("the writer is aborted")),
        }
    }

    /// Releases Python's view, so that a late write raises instead of faulting. Views derived from
    /// it (numpy arrays, slices) retain the memory, which stays mapped read-only.
    fn release_view(&self, py: Python<'_>) -> PyResult<()> {
        let Some(view) = self.view().take() else {
            return Ok(());
        };
        match view.bind(py).call_method0("release") {
            Err(error) if !error.is_instance_of::<PyBufferError>(py) => Err(error),
            _ => Ok(()),
        }
    }
}

#[pymethods]
impl PyWriter {
    #[doc = doc!("Writer.buffer")]
    #[getter]
    fn buffer<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyMemoryView>> {
        if let Some(view) = &*self.view() {
            return Ok(view.bind(py).clone());
        }
        let memory = self.memory()?;
        let data = memory.as_mut_ptr();
        let size = usize::try_from(self.bytes).unwrap_or(0);
        // SAFETY: the memory of a writer stays mapped until its last owner is dropped, and the
        // buffer owns it; it is writable until seal or abort, which take the view back.
        let exporter = unsafe { export_memory(py, data, size, RawOwner::boxed(memory))? };
        let view = PyMemoryView::from(&exporter)?;
        *self.view() = Some(view.clone().unbind());
        Ok(view)
    }

    #[doc = doc!("Writer.write")]
    #[pyo3(signature = (data, at=None))]
    fn write(&self, data: &Bound<'_, PyAny>, at: Option<u64>) -> PyResult<u64> {
        let Some(pinned) = bytes_of(data)? else {
            let name = data.get_type().fully_qualified_name()?;
            return Err(PyTypeError::new_err(format!("bytes can be written, not {name}")));
        };
        let memory = self.memory()?;
        let start = at.unwrap_or_else(|| self.position.load(Ordering::Relaxed));
        let length = pinned.bytes().len() as u64;
        data.py().detach(|| memory.write_at(start, pinned.bytes())).map_err(raise)?;
        self.position.store(start + length, Ordering::Relaxed);
        Ok(length)
    }

    #[doc = doc!("Writer.nbytes")]
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes
    }

    #[doc = doc!("Writer.seal")]
    fn seal(&self, py: Python<'_>) -> PyResult<ObjectRef> {
        let writer = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, WriterStage::Aborted) {
                WriterStage::Writing(writer) => writer,
                WriterStage::Sealed(reference) => {
                    *state = WriterStage::Sealed(reference.clone());
                    return Ok(reference);
                }
                WriterStage::Aborted => return Err(invalid_argument("the writer is aborted")),
            }
        };
        self.release_view(py)?;
        let id = without_gil(py, || writer.seal())?;
        let reference = ObjectRef { id, name: self.name.clone() };
        *self.state() = WriterStage::Sealed(reference.clone());
        Ok(reference)
    }

    #[doc = doc!("Writer.abort")]
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let writer = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, WriterStage::Aborted) {
                WriterStage::Writing(writer) => writer,
                other => {
                    *state = other;
                    return Ok(());
                }
            }
        };
        self.release_view(py)?;
        py.detach(|| writer.abort());
        Ok(())
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        exc_type: &Bound<'_, PyAny>,
        _exc: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let is_open = matches!(&*self.state(), WriterStage::Writing(_));
        if exc_type.is_none() && is_open {
            self.seal(py)?;
        } else {
            self.abort(py)?;
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let state = match &*self.state() {
            WriterStage::Writing(_) => "writing".into(),
            WriterStage::Sealed(reference) => format!("sealed as {}", reference.id),
            WriterStage::Aborted => "aborted".to_owned(),
        };
        format!("<farrow.Writer {} bytes, {state}>", self.bytes)
    }
}
