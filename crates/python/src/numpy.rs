//! NumPy arrays: their parts for a put, and new arrays over a buffer.
//!
//! Types are described by `farrow/_values/_numpy.py`. Programs use few of them, one after the other,
//! so the last one is remembered here, and a plain array needs no Python code.

use crate::pinned::Pinned;
use arrow_buffer::Buffer;
use farrow::arrow::foreign_buffer;
use farrow::{NdArray, Order};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// The used functions of numpy, once a program has imported it.
pub struct Numpy {
    ndarray: Py<PyAny>,
    generic: Py<PyAny>,
    take_apart: Py<PyAny>,
    type_text: Py<PyAny>,
    build: Py<PyAny>,
    type_of_text: Py<PyAny>,
    last_put: Mutex<Option<PutType>>,
    last_got: Mutex<Option<GotType>>,
}

// Both are only tried to be locked: a child of a fork may inherit a locked one.

/// The type of the last array put, by identity. Only types without fields, which cannot change.
struct PutType {
    dtype: Py<PyAny>,
    text: String,
    item_bytes: u64,
}

/// The type of the last array built, by its text. Only types without fields, as above.
struct GotType {
    text: String,
    dtype: Py<PyAny>,
}

static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();

/// `PyArrayInterface` of numpy's array interface, version 3.
#[repr(C)]
struct ArrayInterface {
    two: c_int,
    dimensions: c_int,
    type_kind: c_char,
    item_bytes: c_int,
    flags: c_int,
    shape: *const ffi::Py_ssize_t,
    strides: *const ffi::Py_ssize_t,
    data: *mut c_void,
}

const C_CONTIGUOUS: c_int = 1;
const F_CONTIGUOUS: c_int = 2;
/// The kind of structured types, whose fields can be renamed in place.
const STRUCTURED: c_char = b'V' as c_char;
/// The kind of Python objects.
const OBJECTS: c_char = b'O' as c_char;

impl Numpy {
    fn import(py: Python<'_>) -> PyResult<Numpy> {
        let numpy = py.import("numpy")?;
        let helper = py.import("farrow._values._numpy")?;
        Ok(Numpy {
            ndarray: numpy.getattr("ndarray")?.unbind(),
            generic: numpy.getattr("generic")?.unbind(),
            take_apart: helper.getattr("take_apart")?.unbind(),
            type_text: helper.getattr("type_text")?.unbind(),
            build: helper.getattr("build")?.unbind(),
            type_of_text: helper.getattr("type_of_text")?.unbind(),
            last_put: Mutex::new(None),
            last_got: Mutex::new(None),
        })
    }

    /// numpy, if it was imported, which is the case if any array exists.
    pub fn loaded(py: Python<'_>) -> PyResult<Option<&'static Numpy>> {
        if let Some(numpy) = NUMPY.get(py) {
            return Ok(Some(numpy));
        }
        let modules = py.import("sys")?.getattr("modules")?;
        if !modules.contains("numpy")? {
            return Ok(None);
        }
        NUMPY.get_or_try_init(py, || Numpy::import(py)).map(Some)
    }

    /// numpy, imported now if necessary.
    pub fn get(py: Python<'_>) -> PyResult<&'static Numpy> {
        NUMPY.get_or_try_init(py, || Numpy::import(py))
    }

    pub fn is_array(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.is_instance(self.ndarray.bind(object.py()))
    }

    pub fn is_scalar(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        object.is_instance(self.generic.bind(object.py()))
    }

    /// Type, shape and items of a plain contiguous array, without Python code. None: the object is
    /// something else, or needs [`Self::take_apart`].
    pub fn take_array(object: &Bound<'_, PyAny>) -> PyResult<Option<(NdArray, Buffer)>> {
        let py = object.py();
        let Some(numpy) = NUMPY.get(py).filter(|numpy| object.get_type().is(&numpy.ndarray)) else {
            return Ok(None);
        };
        let capsule = object.getattr(intern!(py, "__array_struct__"))?;
        // SAFETY: the GIL is held; a wrong object or name gives null and an exception.
        let interface = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        let Some(interface) = NonNull::new(interface.cast::<ArrayInterface>()) else {
            return Err(PyErr::fetch(py));
        };
        // SAFETY: numpy made the structure, which lives as long as the capsule.
        let interface = unsafe { interface.as_ref() };
        if interface.two != 2
            || interface.flags & (C_CONTIGUOUS | F_CONTIGUOUS) == 0
            || [STRUCTURED, OBJECTS].contains(&interface.type_kind)
        {
            return Ok(None);
        }
        let is_fortran = interface.flags & C_CONTIGUOUS == 0;
        let axes = usize::try_from(interface.dimensions).unwrap_or(0);
        let shape = if axes == 0 {
            &[]
        } else {
            // SAFETY: the structure has a length for each of its dimensions.
            unsafe { std::slice::from_raw_parts(interface.shape, axes) }
        };
        let shape = shape.iter().map(|length| length.unsigned_abs() as u64).collect();
        let (dtype, item_bytes) = numpy.described(&object.getattr(intern!(py, "dtype"))?)?;
        let order = if is_fortran { Order::F } else { Order::C };
        let shape = NdArray { dtype, item_bytes, shape, order };
        let size = shape.items().and_then(|items| items.checked_mul(item_bytes));
        let Some(size) = size.and_then(|size| usize::try_from(size).ok()) else {
            return Ok(None);
        };
        Ok(Some(with_items(object, shape, interface.data.cast(), size)))
    }

    /// Text and item size of a type without fields.
    fn described(&self, dtype: &Bound<'_, PyAny>) -> PyResult<(String, u64)> {
        let py = dtype.py();
        let known = self.last_put.try_lock().ok().and_then(|last| {
            let last = last.as_ref().filter(|last| dtype.is(&last.dtype))?;
            Some((last.text.clone(), last.item_bytes))
        });
        if let Some(known) = known {
            return Ok(known);
        }
        let text: String = self.type_text.bind(py).call1((dtype,))?.extract()?;
        let item_bytes = dtype.getattr(intern!(py, "itemsize"))?.extract()?;
        if let Ok(mut last) = self.last_put.try_lock() {
            *last = Some(PutType { dtype: dtype.clone().unbind(), text: text.clone(), item_bytes });
        }
        Ok((text, item_bytes))
    }

    /// Type, shape and items of any array that can be put.
    pub fn take_apart(&self, array: &Bound<'_, PyAny>) -> PyResult<(NdArray, Buffer)> {
        from_parts(&self.take_apart.bind(array.py()).call1((array,))?)
    }

    /// An array over a pyarrow buffer.
    pub fn build<'py>(
        &self,
        buffer: &Bound<'py, PyAny>,
        array: &NdArray,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = buffer.py();
        let shape = PyTuple::new(py, &array.shape)?;
        if array.order == Order::C
            && let Some(dtype) = self.last_type(py, &array.dtype)
        {
            return self.ndarray.bind(py).call1((shape, dtype, buffer));
        }
        let is_fortran = array.order == Order::F;
        let built = self.build.bind(py).call1((buffer, &array.dtype, shape, is_fortran))?;
        if built.get_type().is(&self.ndarray) && !array.dtype.starts_with('[') {
            let dtype = self.type_of_text.bind(py).call1((&array.dtype,))?.unbind();
            if let Ok(mut last) = self.last_got.try_lock() {
                *last = Some(GotType { text: array.dtype.clone(), dtype });
            }
        }
        Ok(built)
    }

    /// The type of this text, if it is that of the last array.
    fn last_type<'py>(&self, py: Python<'py>, text: &str) -> Option<Bound<'py, PyAny>> {
        let last = self.last_got.try_lock().ok()?;
        let last = last.as_ref().filter(|last| last.text == text)?;
        Some(last.dtype.bind(py).clone())
    }
}

/// An array from the result of `take_apart` or `take_apart_tensor`; its items are retained.
pub fn from_parts(parts: &Bound<'_, PyAny>) -> PyResult<(NdArray, Buffer)> {
    let (dtype, item_bytes, shape, is_fortran, keep, address, size): (
        String,
        u64,
        Vec<u64>,
        bool,
        Bound<'_, PyAny>,
        usize,
        usize,
    ) = parts.extract()?;
    let order = if is_fortran { Order::F } else { Order::C };
    let shape = NdArray { dtype, item_bytes, shape, order };
    Ok(with_items(&keep, shape, address as *mut u8, size))
}

/// The items of an array, which is retained with them.
fn with_items(
    keep: &Bound<'_, PyAny>,
    shape: NdArray,
    address: *mut u8,
    size: usize,
) -> (NdArray, Buffer) {
    let Some(address) = NonNull::new(address).filter(|_| size > 0) else {
        return (shape, Buffer::from_vec(Vec::<u128>::new()));
    };
    let keep = Arc::new(Pinned::new(keep, address.as_ptr(), size));
    // SAFETY: the array is retained, and with it its items; see `Pinned::bytes` for writers.
    (shape, unsafe { foreign_buffer(address, size, keep) })
}
