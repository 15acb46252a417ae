//! A Python object that exports writable memory of ours, for memoryviews.
//!
//! PyO3 has the buffer protocol only for Python 3.11 and later, where it became part of the stable
//! ABI. The two slots and `Py_buffer` have the same numbers and layout in Python 3.10.

use super::owner::RawOwner;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;

// `typeslots.h` and `object.h` (`pybuffer.h` from Python 3.11 on).
const PY_BF_GETBUFFER: c_int = 1;
const PYBUF_FORMAT: c_int = 0x4;
const PYBUF_ND: c_int = 0x8;
const PYBUF_STRIDES: c_int = 0x10 | PYBUF_ND;

/// `Py_buffer`.
#[repr(C)]
struct PyBuffer {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *const c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

/// An instance. Python fills it with zeros: an instance that Python code created has no bytes.
#[repr(C)]
struct BufferExporter {
    base: PyObject,
    data: *mut u8,
    size: ffi::Py_ssize_t,
    /// A leaked box, or NULL.
    owner: *mut RawOwner,
}

unsafe extern "C" fn get_buffer(object: *mut PyObject, view: *mut PyBuffer, flags: c_int) -> c_int {
    // SAFETY: Python holds the GIL and passes an instance and a structure to fill. The instance
    // keeps the bytes, and the view keeps the instance.
    unsafe {
        let exporter = object.cast::<BufferExporter>();
        if view.is_null() {
            let text = c"no view of a memory buffer to fill";
            ffi::PyErr_SetString(ffi::PyExc_BufferError, text.as_ptr());
            return -1;
        }
        ffi::Py_INCREF(object);
        view.write(PyBuffer {
            buf: (*exporter).data.cast(),
            obj: object,
            len: (*exporter).size,
            itemsize: 1,
            readonly: 0,
            ndim: 1,
            format: if flags & PYBUF_FORMAT != 0 { c"B".as_ptr() } else { ptr::null() },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        if flags & PYBUF_ND != 0 {
            (*view).shape = &raw mut (*view).len;
        }
        if flags & PYBUF_STRIDES == PYBUF_STRIDES {
            (*view).strides = &raw mut (*view).itemsize;
        }
    }
    0
}

unsafe extern "C" fn deallocate(object: *mut PyObject) {
    // SAFETY: Python calls this once, for an instance without references, with the GIL. An
    // instance of a heap type has a reference to its type.
    unsafe {
        let owner = (*object.cast::<BufferExporter>()).owner;
        let class = ffi::Py_TYPE(object);
        ffi::PyObject_Free(object.cast());
        ffi::Py_DECREF(class.cast());
        if !owner.is_null() {
            drop(Box::from_raw(owner));
        }
    }
}

/// The class `farrow._native.Memory`.
fn class(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || {
        let mut slots = [
            ffi::PyType_Slot { slot: PY_BF_GETBUFFER, pfunc: get_buffer as *mut c_void },
            ffi::PyType_Slot { slot: ffi::Py_tp_dealloc, pfunc: deallocate as *mut c_void },
            ffi::PyType_Slot { slot: 0, pfunc: ptr::null_mut() },
        ];
        let mut spec = ffi::PyType_Spec {
            name: c"farrow._native.Memory".as_ptr(),
            basicsize: c_int::try_from(size_of::<BufferExporter>())?,
            itemsize: 0,
            flags: ffi::Py_TPFLAGS_DEFAULT as c_uint,
            slots: slots.as_mut_ptr(),
        };
        // SAFETY: Python copies the specification; the functions have the types of their slots.
        let class = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec))? };
        Ok::<_, PyErr>(class.cast_into::<PyType>()?.unbind())
    })?;
    Ok(class.bind(py))
}

/// A Python object that exports `size` writable bytes at `data`.
///
/// # Safety
/// The bytes must stay readable and writable until `owner` is dropped.
pub unsafe fn export<'py>(
    py: Python<'py>,
    data: *mut u8,
    size: usize,
    owner: RawOwner,
) -> PyResult<Bound<'py, PyAny>> {
    const { assert!(offset_of!(BufferExporter, base) == 0) };
    let size = ffi::Py_ssize_t::try_from(size)
        .map_err(|_| PyBufferError::new_err(format!("a buffer of {size} bytes")))?;
    let class = class(py)?.as_type_ptr();
    // SAFETY: the class is alive; the new instance has the layout of `BufferExporter`.
    unsafe {
        let object = Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(class, 0))?;
        let exporter = object.as_ptr().cast::<BufferExporter>();
        (*exporter).data = data;
        (*exporter).size = size;
        (*exporter).owner = Box::into_raw(Box::new(owner));
        Ok(object)
    }
}
