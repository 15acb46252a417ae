//! Python objects as values to put: the kind and the bytes of each.

use crate::errors::{invalid_argument, raise, unsupported};
use crate::numpy::{self, Numpy};
use crate::pinned::Pinned;
use crate::pyarrow::{Pyarrow, ValueClass};
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use farrow::arrow::ffi::import_schema as ffi_schema;
use farrow::arrow::ffi::{FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow::arrow::foreign_buffer;
use farrow::arrow_ffi::{Imported, StreamKind};
use farrow::{NdArray, SchemaNode, Value};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyCapsule, PyMemoryView, PyModule, PyTuple, PyType};
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

/// The bytes of a pyarrow buffer, which is retained while they are used. They must not change.
pub fn pinned_buffer(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let pyarrow = Pyarrow::get(object.py())?;
    if pyarrow.classify(object)? != ValueClass::Buffer {
        return Err(PyTypeError::new_err(format!("{object} is no pyarrow.Buffer")));
    }
    let (data, size) = pyarrow.buffer_view(object)?;
    let Some(address) = NonNull::new(data.cast_mut()).filter(|_| size > 0) else {
        return Ok(Buffer::from_vec(Vec::<u8>::new()));
    };
    let keep = Arc::new(Pinned::new(object, data, size));
    // SAFETY: the buffer is retained, and with it its bytes, which the caller does not change.
    Ok(unsafe { foreign_buffer(address, size, keep) })
}

/// A Python object, converted for a put without the GIL.
pub enum Incoming {
    /// Bytes-like.
    Bytes(Pinned),
    /// A numpy array: type and shape, and the items.
    NdArray(Box<(NdArray, Buffer)>),
    /// An Arrow value. Boxed, because long sequences of bytes values are common.
    Arrow(Box<Imported>),
}

impl Incoming {
    /// The argument for the client.
    pub fn value(&self) -> Value<'_> {
        match self {
            Incoming::Bytes(bytes) => Value::Bytes(bytes.bytes()),
            Incoming::NdArray(array) => Value::NdArray { shape: &array.0, data: &array.1 },
            Incoming::Arrow(imported) => Value::from(&**imported),
        }
    }

    /// Converts `object` by its kind. The most frequent kinds come first.
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Incoming> {
        if let Some(array) = Numpy::take_array(object)? {
            return Ok(Incoming::NdArray(Box::new(array)));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            let bytes = bytes.as_bytes();
            return Ok(Incoming::Bytes(Pinned::new(object, bytes.as_ptr(), bytes.len())));
        }
        let pyarrow = Pyarrow::get(object.py())?;
        let class = pyarrow.classify(object)?;
        if class == ValueClass::Buffer {
            let (data, size) = pyarrow.buffer_view(object)?;
            return Ok(Incoming::Bytes(Pinned::new(object, data, size)));
        }
        match pyarrow.import(object, class)? {
            Some(imported) => Ok(Incoming::Arrow(Box::new(imported))),
            None => foreign(object),
        }
    }
}

/// Tries numpy, capsules, then the buffer protocol.
fn foreign(object: &Bound<'_, PyAny>) -> PyResult<Incoming> {
    let py = object.py();
    if let Some(numpy) = Numpy::loaded(py)? {
        if numpy.is_array(object)? {
            return Ok(Incoming::NdArray(Box::new(numpy.take_apart(object)?)));
        }
        if numpy.is_scalar(object)? {
            return Err(unsupported("a numpy scalar: put numpy.asarray(it), or its bytes"));
        }
    }
    if object.is_instance_of::<PyType>() {
        return Err(unsupported_object(object));
    }
    if let Some(export) = object.getattr_opt(intern!(py, "__arrow_c_array__"))? {
        return foreign_array(object, &export.call0()?);
    }
    if let Some(export) = object.getattr_opt(intern!(py, "__arrow_c_stream__"))? {
        let stream = export.call0().or_else(|error| {
            kinds(py)?.call_method1(intern!(py, "explain_export"), (object, error.value(py)))?;
            Err(error)
        });
        return foreign_stream(object, &stream?);
    }
    bytes_like(object)
}

/// A tabular struct array is a record batch; every other array is an array.
fn foreign_array(object: &Bound<'_, PyAny>, pair: &Bound<'_, PyAny>) -> PyResult<Incoming> {
    let pair = pair.cast::<PyTuple>()?;
    let (schema, data) = (pair.get_item(0)?, pair.get_item(1)?);
    // SAFETY: capsules of these names hold these structures (Arrow PyCapsule interface); the
    // array is moved out, which leaves a released structure for the capsule's destructor.
    let (array_moved, schema_moved) = unsafe {
        (
            FFI_ArrowArray::from_raw(capsule(&data, c"arrow_array")?),
            FFI_ArrowSchema::from_raw(capsule(&schema, c"arrow_schema")?),
        )
    };
    // arrow-rs panics when it reads the format of a consumed structure.
    // SAFETY: a library that implements the Arrow PyCapsule interface made the structure.
    let field = unsafe { ffi_schema(&schema_moved) };
    let field = field.map_err(|error| invalid_argument(error.to_string()))?;
    let is_batch = matches!(field.data_type(), DataType::Struct(_)) && is_tabular(object)?;
    // SAFETY: as above.
    let imported = unsafe { Imported::array_as(array_moved, field, is_batch) };
    Ok(Incoming::Arrow(Box::new(imported.map_err(raise)?)))
}

fn foreign_stream(object: &Bound<'_, PyAny>, from: &Bound<'_, PyAny>) -> PyResult<Incoming> {
    let py = object.py();
    kinds(py)?.call_method1(intern!(py, "check_stream"), (object,))?;
    // SAFETY: as above, for `arrow_array_stream`.
    let moved = unsafe {
        FFI_ArrowArrayStream::from_raw(capsule::<FFI_ArrowArrayStream>(
            from,
            c"arrow_array_stream",
        )?)
    };
    // A stream of structs is a table, unless it is a column of structs. The class is checked,
    // because a dataframe's own attributes may be its columns.
    let is_column = object.get_type().getattr_opt(intern!(py, "dtype"))?.is_some();
    let kind = if is_column { StreamKind::Chunked } else { StreamKind::ByType };
    // Producers written in Python (dataframe libraries, scanners) take the GIL as they need it.
    // SAFETY: a library that implements the Arrow PyCapsule interface made the structure.
    let imported = py.detach(|| unsafe { Imported::stream(moved, kind) });
    Ok(Incoming::Arrow(Box::new(imported.map_err(raise)?)))
}

/// Whether a struct array is tabular: record batches have columns or a schema.
fn is_tabular(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    for name in [intern!(py, "columns"), intern!(py, "column_names"), intern!(py, "num_columns")] {
        if object.get_type().getattr_opt(name)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The schema of anything with `__arrow_c_schema__`.
pub fn schema(object: &Bound<'_, PyAny>) -> PyResult<SchemaNode> {
    let py = object.py();
    let Some(export) = object.getattr_opt(intern!(py, "__arrow_c_schema__"))? else {
        let name = object.get_type().fully_qualified_name()?;
        return Err(unsupported(format!("no schema: {name} has no __arrow_c_schema__")));
    };
    py.import(intern!(py, "farrow._values._kinds"))?.call_method1("check_schema", (object,))?;
    let exported = export.call0()?;
    // SAFETY: a capsule of this name holds this structure, until it is collected.
    let node = unsafe { ffi_schema(&*capsule(&exported, c"arrow_schema")?) };
    node.map_err(|error| invalid_argument(error.to_string()))
}

/// The structure in a capsule.
fn capsule<T>(object: &Bound<'_, PyAny>, name: &CStr) -> PyResult<*mut T> {
    let capsule = object.cast::<PyCapsule>()?;
    // SAFETY: the object is a capsule; Python checks that it has this name.
    let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) };
    if pointer.is_null() { Err(PyErr::fetch(object.py())) } else { Ok(pointer.cast()) }
}

/// Tensors, and objects that export their bytes. `get` returns bytes for these: an object that
/// would lose its kind is rejected.
fn bytes_like(object: &Bound<'_, PyAny>) -> PyResult<Incoming> {
    let py = object.py();
    if !object.is_instance_of::<PyByteArray>() {
        let kinds = kinds(py)?;
        if kinds.call_method1(intern!(py, "is_tensor"), (object,))?.is_truthy()? {
            let parts = kinds.call_method1(intern!(py, "take_apart_tensor"), (object,))?;
            return Ok(Incoming::NdArray(Box::new(numpy::from_parts(&parts)?)));
        }
        kinds.call_method1(intern!(py, "check_bytes"), (object,))?;
    }
    bytes_of(object)?.map(Incoming::Bytes).ok_or_else(|| unsupported_object(object))
}

/// The module that knows the kinds of foreign objects.
pub fn kinds(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static KINDS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = KINDS
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("farrow._values._kinds")?.unbind()))?;
    Ok(module.bind(py))
}

/// The bytes of an object with a buffer; None for other objects.
pub fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Pinned>> {
    static PY_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    if let Ok(view) = object.cast::<PyMemoryView>()
        && !view.getattr(intern!(py, "c_contiguous"))?.is_truthy()?
    {
        return bytes_of(&view.call_method0(intern!(py, "tobytes"))?);
    }
    let py_buffer = PY_BUFFER.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("pyarrow")?.getattr("py_buffer")?.unbind())
    })?;
    match py_buffer.bind(py).call1((object,)) {
        Ok(buffer) => {
            let (data, size) = Pyarrow::get(py)?.buffer_view(&buffer)?;
            Ok(Some(Pinned::new(&buffer, data, size)))
        }
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Ok(None),
        Err(error)
            if error.is_instance_of::<PyBufferError>(py)
                || error.is_instance_of::<PyValueError>(py) =>
        {
            Err(invalid_argument(format!("this buffer cannot be copied: {error}")))
        }
        Err(error) => Err(error),
    }
}

fn unsupported_object(object: &Bound<'_, PyAny>) -> PyErr {
    let name = object.get_type().fully_qualified_name();
    let name = name.map_or_else(|_| "an object".to_owned(), |name| name.to_string());
    unsupported(format!(
        "cannot put {name}: it is no pyarrow value, has no __arrow_c_array__ or \
         __arrow_c_stream__, and is neither a numpy array nor bytes-like. farrow.put_object stores \
         any object by pickle"
    ))
}
