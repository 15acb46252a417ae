//! pyarrow's values: which class one is, its C structures, and new values of C structures.
//!
//! [`cdata`] does this with every pyarrow by the Arrow C Data Interface. The bridge ([`library`],
//! [`bridge`]) does it faster by the C++ ABI of one libarrow, and has the memory pool besides. It is
//! used where this installation has one for the imported pyarrow.

mod bridge;
mod cdata;
mod class;
mod exporter;
mod library;
mod owner;

use crate::errors::raise;
use crate::incoming::kinds;
use bridge::Bridge;
use cdata::CData;
use farrow::arrow_ffi::{Exported, Imported, StreamKind};
use farrow_capi::FarrowPool;
use library::PyarrowVersion;
use pyo3::exceptions::PyImportError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

pub use class::ValueClass;
pub use exporter::export as export_memory;
pub use owner::RawOwner;

/// The imported pyarrow.
pub struct Pyarrow {
    version: PyarrowVersion,
    /// Or why there is none.
    bridge: Result<Bridge, String>,
    cdata: CData,
}

impl Pyarrow {
    /// pyarrow, imported now if necessary.
    pub fn get(py: Python<'_>) -> PyResult<&'static Pyarrow> {
        static PYARROW: PyOnceLock<Pyarrow> = PyOnceLock::new();
        PYARROW.get_or_try_init(py, || {
            let version = PyarrowVersion::read(py)?;
            let bridge = library::load(py, &version);
            Ok(Pyarrow { version, bridge, cdata: CData::new(py)? })
        })
    }

    /// The libarrow series of the bridge in use; None without a bridge.
    pub fn bridge_series(&self) -> Option<&str> {
        self.bridge.is_ok().then_some(self.version.so_version.as_str())
    }

    /// Which pyarrow class `value` is.
    pub fn classify(&self, value: &Bound<'_, PyAny>) -> PyResult<ValueClass> {
        match &self.bridge {
            Ok(bridge) => Ok(bridge.classify(value)),
            Err(_) => self.cdata.classify(value),
        }
    }

    /// A Table, RecordBatch, Array or ChunkedArray, for the client. None for the other classes.
    pub fn import(
        &self,
        value: &Bound<'_, PyAny>,
        class: ValueClass,
    ) -> PyResult<Option<Imported>> {
        let is_arrow = !matches!(class, ValueClass::None | ValueClass::Buffer);
        if is_arrow && self.bridge.is_err() {
            let check = intern!(value.py(), "check_names");
            kinds(value.py())?.call_method1(check, (value,))?;
        }
        let imported = match (class, &self.bridge) {
            (ValueClass::None | ValueClass::Buffer, _) => return Ok(None),
            (ValueClass::Table | ValueClass::Chunked, Ok(bridge)) => {
                let stream = bridge.export_stream(value, class)?;
                let is_table = class == ValueClass::Table;
                let kind = if is_table { StreamKind::Table } else { StreamKind::Chunked };
                // SAFETY: libarrow made the structure.
                unsafe { Imported::stream(stream, kind) }.map_err(raise)
            }
            (ValueClass::Batch | ValueClass::Array, Ok(bridge)) => {
                let (array, schema) = bridge.export_array(value, class)?;
                // SAFETY: as above.
                unsafe { Imported::array(array, &schema, class == ValueClass::Batch) }
                    .map_err(raise)
            }
            (ValueClass::Table, Err(_)) => self.cdata.import_table(value),
            (ValueClass::Chunked, Err(_)) => self.cdata.import_chunked(value),
            (ValueClass::Batch, Err(_)) => self.cdata.import_one(value, true),
            (ValueClass::Array, Err(_)) => self.cdata.import_one(value, false),
        };
        imported.map(Some)
    }

    /// Address and length of a pyarrow.Buffer; valid while `value` is retained.
    pub fn buffer_view(&self, value: &Bound<'_, PyAny>) -> PyResult<(*const u8, usize)> {
        match &self.bridge {
            Ok(bridge) => bridge.buffer_view(value),
            Err(_) => CData::buffer_view(value),
        }
    }

    /// A new pyarrow Table of the batches.
    pub fn wrap_table<'py>(&self, py: Python<'py>, from: Exported) -> PyResult<Bound<'py, PyAny>> {
        match &self.bridge {
            Ok(bridge) => bridge.wrap_table(py, from),
            Err(_) => self.cdata.wrapped(py, |cdata| cdata.wrap_table(py, from)),
        }
    }

    /// A new pyarrow ChunkedArray of the arrays.
    pub fn wrap_chunked<'py>(
        &self,
        py: Python<'py>,
        from: Exported,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.bridge {
            Ok(bridge) => bridge.wrap_chunked(py, from),
            Err(_) => self.cdata.wrapped(py, |cdata| cdata.wrap_chunked(py, from)),
        }
    }

    /// A new pyarrow RecordBatch (`is_batch`) or Array of the one array.
    pub fn wrap_one<'py>(
        &self,
        py: Python<'py>,
        from: Exported,
        is_batch: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.bridge {
            Ok(bridge) => bridge.wrap_one(py, from, is_batch),
            Err(_) => self.cdata.wrapped(py, |cdata| cdata.wrap_one(py, from, is_batch)),
        }
    }

    /// A read-only pyarrow.Buffer over the bytes: an address and a length.
    ///
    /// # Safety
    /// The bytes must stay readable until `owner` is dropped.
    pub unsafe fn wrap_buffer<'py>(
        &self,
        py: Python<'py>,
        bytes: (*const u8, usize),
        owner: RawOwner,
    ) -> PyResult<Bound<'py, PyAny>> {
        match &self.bridge {
            // SAFETY: guaranteed by the caller.
            Ok(bridge) => unsafe { bridge.wrap_buffer(py, bytes, owner) },
            // SAFETY: guaranteed by the caller.
            Err(_) => unsafe { self.cdata.wrap_buffer(py, bytes, owner) },
        }
    }

    /// A read-only pyarrow.Buffer for each item: an address, a length, and the owner of the bytes.
    ///
    /// # Safety
    /// The bytes must stay readable until their owner is dropped.
    pub unsafe fn wrap_all<'py, T: Send + Sync + 'static>(
        &self,
        py: Python<'py>,
        items: Vec<(*const u8, usize, T)>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if let Ok(bridge) = &self.bridge {
            // SAFETY: guaranteed by the caller.
            return unsafe { bridge.wrap_all(py, items) };
        }
        let wrap = |(data, size, owner)| {
            // SAFETY: guaranteed by the caller.
            unsafe { self.cdata.wrap_buffer(py, (data, size), RawOwner::boxed(owner)) }
        };
        items.into_iter().map(wrap).collect()
    }

    /// Checks that there is a memory pool for this pyarrow.
    ///
    /// # Errors
    /// An `ImportError` that says what to install.
    pub fn check_pool(&self) -> PyResult<&Bridge> {
        self.bridge.as_ref().map_err(|reason| {
            let PyarrowVersion { package, so_version } = &self.version;
            PyImportError::new_err(format!(
                "farrow has no memory pool for pyarrow {package} (libarrow.so.{so_version}): \
                 {reason}. Install a pyarrow for which it has one, or install farrow from its sources \
                 beside this pyarrow (pip install .). All other calls work without a pool"
            ))
        })
    }

    /// A pyarrow.MemoryPool over `pool`, which must be leaked.
    pub fn wrap_pool<'py>(
        &self,
        py: Python<'py>,
        pool: &'static FarrowPool,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_pool()?.wrap_pool(py, pool)
    }
}
