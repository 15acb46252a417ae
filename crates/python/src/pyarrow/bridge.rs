//! The functions of a loaded bridge (`cpp/bridge.h`), with its errors turned into Python exceptions.

use super::class::ValueClass;
use crate::errors::invalid_argument;
use farrow::arrow::ffi::{FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow::arrow_ffi::Exported;
use farrow_capi::{FarrowPool, pool};
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::owner::{RawOwner, Release, contained};

/// The sources of which a bridge must be built: a hash from the build script.
const BUILD: &str = env!("FARROW_BRIDGE_BUILD");

/// `fb_pool_calls` in `bridge.h`.
#[repr(C)]
struct PoolCalls {
    close: unsafe extern "C" fn(*mut FarrowPool),
    allocate: unsafe extern "C" fn(*const FarrowPool, u64, u64) -> *mut u8,
    reallocate: unsafe extern "C" fn(*const FarrowPool, *mut u8, u64, u64, u64) -> *mut u8,
    free: unsafe extern "C" fn(*const FarrowPool, *mut u8, u64, u64),
    contains: unsafe extern "C" fn(*const FarrowPool, *const c_void) -> c_int,
    is_strict: unsafe extern "C" fn(*const FarrowPool) -> c_int,
    note_spill: unsafe extern "C" fn(*const FarrowPool, u64),
}

static POOL_CALLS: PoolCalls = PoolCalls {
    close: pool::farrow_pool_close,
    allocate: pool::farrow_pool_allocate,
    reallocate: pool::farrow_pool_reallocate,
    free: pool::farrow_pool_free,
    contains: pool::farrow_pool_contains,
    is_strict: pool::farrow_pool_is_strict,
    note_spill: pool::farrow_pool_note_spill,
};

type WrapMany =
    unsafe extern "C" fn(*mut FFI_ArrowSchema, *mut FFI_ArrowArray, i64) -> *mut PyObject;
type WrapOne = unsafe extern "C" fn(*mut FFI_ArrowSchema, *mut FFI_ArrowArray) -> *mut PyObject;

/// `fb_calls` in `bridge.h`.
#[repr(C)]
struct Calls {
    build: *const c_char,
    so_compiled: *const c_char,
    so_loaded: unsafe extern "C" fn() -> *const c_char,
    error: unsafe extern "C" fn() -> *const c_char,
    set_pool_calls: unsafe extern "C" fn(*const PoolCalls),
    capi_name: unsafe extern "C" fn(c_int) -> *const c_char,
    capi_set: unsafe extern "C" fn(c_int, *const c_char, *mut c_void) -> c_int,
    classify: unsafe extern "C" fn(*mut PyObject) -> c_int,
    export_stream: unsafe extern "C" fn(*mut PyObject, c_int, *mut FFI_ArrowArrayStream) -> c_int,
    export_array: unsafe extern "C" fn(
        *mut PyObject,
        c_int,
        *mut FFI_ArrowArray,
        *mut FFI_ArrowSchema,
    ) -> c_int,
    buffer_view: unsafe extern "C" fn(*mut PyObject, *mut *const u8, *mut i64) -> c_int,
    wrap_table: WrapMany,
    wrap_chunked: WrapMany,
    wrap_batch: WrapOne,
    wrap_array: WrapOne,
    wrap_buffer: unsafe extern "C" fn(*const u8, i64, *mut c_void, Release) -> *mut PyObject,
    wrap_all: unsafe extern "C" fn(
        *const RawBytes,
        i64,
        unsafe extern "C" fn(*mut u64),
        *mut *mut PyObject,
    ) -> i64,
    wrap_pool: unsafe extern "C" fn(*mut c_void) -> *mut PyObject,
}

// SAFETY: a constant of the library, of functions that need the GIL and strings that never change.
unsafe impl Sync for Calls {}

/// A loaded bridge. It is never unloaded.
#[derive(Clone, Copy)]
pub struct Bridge {
    calls: &'static Calls,
}

/// A C string of a bridge.
fn text(pointer: *const c_char) -> String {
    // SAFETY: a bridge returns strings that end with zero and live until its next call here.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

impl Bridge {
    /// The bridge of a loaded library, if it was built of the same sources as this extension.
    ///
    /// # Safety
    /// `entry` is the function `farrow_bridge` of a bridge, which stays loaded.
    pub unsafe fn new(entry: *mut c_void) -> Result<Bridge, String> {
        // SAFETY: guaranteed by the caller; the function returns a constant.
        let calls =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> *const Calls>(entry)() };
        // SAFETY: the first field of the constant is the build in all versions of it.
        let build = text(unsafe { (*calls.cast::<*const c_char>()).cast() });
        if build != BUILD {
            return Err(format!("was built with other sources ({build}, expected {BUILD})"));
        }
        // SAFETY: the sources are the same, so the structure is.
        let calls = unsafe { &*calls };
        // SAFETY: both only read constants of libarrow.
        let (compiled, loaded) = unsafe { (text(calls.so_compiled), text((calls.so_loaded)())) };
        if compiled != loaded {
            return Err(format!("needs libarrow.so.{compiled}, got libarrow.so.{loaded}"));
        }
        // SAFETY: the table is a constant of the same layout.
        unsafe { (calls.set_pool_calls)(&POOL_CALLS) };
        Ok(Bridge { calls })
    }

    /// The bridge's error: a Python exception, or its own text.
    fn failure(self, py: Python<'_>) -> PyErr {
        PyErr::take(py).unwrap_or_else(|| {
            // SAFETY: the text is this thread's, and is copied before the next call.
            invalid_argument(text(unsafe { (self.calls.error)() }))
        })
    }

    fn check(self, py: Python<'_>, code: c_int) -> PyResult<()> {
        if code == 0 { Ok(()) } else { Err(self.failure(py)) }
    }

    fn object(self, py: Python<'_>, made: *mut PyObject) -> PyResult<Bound<'_, PyAny>> {
        // SAFETY: a bridge returns a new reference, or NULL after an error.
        unsafe { Bound::from_owned_ptr_or_opt(py, made) }.ok_or_else(|| self.failure(py))
    }

    /// Gives the bridge the functions that pyarrow exports to other extensions.
    pub fn bind(self, py: Python<'_>) -> PyResult<()> {
        let exported = py.import("pyarrow.lib")?.getattr("__pyx_capi__")?;
        let exported = exported.cast::<PyDict>()?;
        for index in 0.. {
            // SAFETY: any index is valid; NULL ends the list.
            let Some(name) = NonNull::new(unsafe { (self.calls.capi_name)(index) }.cast_mut())
            else {
                break;
            };
            let name = text(name.as_ptr());
            let capsule = exported
                .get_item(&name)?
                .ok_or_else(|| PyImportError::new_err(format!("pyarrow.lib exports no {name}")))?;
            // SAFETY: the object is alive; a capsule's own name and pointer are read, and the function
            // is stored only if the name is the signature that the bridge was compiled for.
            let code = unsafe {
                let signature = ffi::PyCapsule_GetName(capsule.as_ptr());
                if signature.is_null() {
                    return Err(PyErr::fetch(py));
                }
                let function = ffi::PyCapsule_GetPointer(capsule.as_ptr(), signature);
                if function.is_null() {
                    return Err(PyErr::fetch(py));
                }
                (self.calls.capi_set)(index, signature, function)
            };
            if code != 0 {
                // SAFETY: as in `failure`.
                return Err(PyImportError::new_err(text(unsafe { (self.calls.error)() })));
            }
        }
        Ok(())
    }

    /// Which pyarrow class `value` is.
    pub fn classify(self, value: &Bound<'_, PyAny>) -> ValueClass {
        // SAFETY: the object is alive and `bind` ran before.
        match unsafe { (self.calls.classify)(value.as_ptr()) } {
            1 => ValueClass::Table,
            2 => ValueClass::Batch,
            3 => ValueClass::Array,
            4 => ValueClass::Chunked,
            5 => ValueClass::Buffer,
            _ => ValueClass::None,
        }
    }

    /// A Table's or ChunkedArray's stream.
    pub fn export_stream(
        self,
        value: &Bound<'_, PyAny>,
        class: ValueClass,
    ) -> PyResult<FFI_ArrowArrayStream> {
        let mut stream = FFI_ArrowArrayStream::empty();
        // SAFETY: the object is of the class that `classify` returned; the stream is written on
        // success.
        let done =
            unsafe { (self.calls.export_stream)(value.as_ptr(), class_code(class), &mut stream) };
        self.check(value.py(), done)?;
        Ok(stream)
    }

    /// An Array's or RecordBatch's C structures.
    pub fn export_array(
        self,
        value: &Bound<'_, PyAny>,
        class: ValueClass,
    ) -> PyResult<(FFI_ArrowArray, FFI_ArrowSchema)> {
        let (mut array, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
        // SAFETY: the object is of the class that `classify` returned; both are written on success.
        let done = unsafe {
            (self.calls.export_array)(value.as_ptr(), class_code(class), &mut array, &mut schema)
        };
        self.check(value.py(), done)?;
        Ok((array, schema))
    }

    /// Address and length of a pyarrow.Buffer; valid while `value` is retained.
    pub fn buffer_view(self, value: &Bound<'_, PyAny>) -> PyResult<(*const u8, usize)> {
        let (mut data, mut size) = (ptr::null(), 0i64);
        // SAFETY: the object is a pyarrow.Buffer; both places are written on success.
        let done = unsafe { (self.calls.buffer_view)(value.as_ptr(), &mut data, &mut size) };
        self.check(value.py(), done)?;
        Ok((data, usize::try_from(size).unwrap_or(0)))
    }

    /// A new pyarrow Table of the batches.
    pub fn wrap_table<'py>(self, py: Python<'py>, from: Exported) -> PyResult<Bound<'py, PyAny>> {
        self.wrap_many(py, from, self.calls.wrap_table)
    }

    /// A new pyarrow ChunkedArray of the arrays.
    pub fn wrap_chunked<'py>(self, py: Python<'py>, from: Exported) -> PyResult<Bound<'py, PyAny>> {
        self.wrap_many(py, from, self.calls.wrap_chunked)
    }

    fn wrap_many<'py>(
        self,
        py: Python<'py>,
        mut from: Exported,
        wrap: WrapMany,
    ) -> PyResult<Bound<'py, PyAny>> {
        let count = from.arrays.len() as i64;
        // SAFETY: the structures are ours and are moved from; what is left of them drops as empty.
        let made = unsafe { wrap(&mut from.schema, from.arrays.as_mut_ptr(), count) };
        self.object(py, made)
    }

    /// A new pyarrow RecordBatch (`is_batch`) or Array of the one array.
    pub fn wrap_one<'py>(
        self,
        py: Python<'py>,
        mut from: Exported,
        is_batch: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Some(array) = from.arrays.first_mut() else {
            return Err(PyRuntimeError::new_err("an array object without an array"));
        };
        let wrap = if is_batch { self.calls.wrap_batch } else { self.calls.wrap_array };
        // SAFETY: as in `wrap_many`.
        let made = unsafe { wrap(&mut from.schema, array) };
        self.object(py, made)
    }

    /// A read-only pyarrow.Buffer over the bytes: an address and a length.
    ///
    /// # Safety
    /// The bytes must stay readable until `owner` is dropped.
    pub unsafe fn wrap_buffer(
        self,
        py: Python<'_>,
        bytes: (*const u8, usize),
        owner: RawOwner,
    ) -> PyResult<Bound<'_, PyAny>> {
        let size = i64::try_from(bytes.1).unwrap_or(0);
        let (owner, release) = owner.into_parts();
        // SAFETY: the caller keeps the bytes valid until the owner is dropped.
        let made = unsafe { (self.calls.wrap_buffer)(bytes.0, size, owner, release) };
        self.object(py, made)
    }

    /// A read-only pyarrow.Buffer for each item: an address, a length, and the owner of the bytes.
    ///
    /// # Safety
    /// The bytes must stay readable until their owner is dropped.
    pub unsafe fn wrap_all<T: Send + Sync + 'static>(
        self,
        py: Python<'_>,
        items: Vec<(*const u8, usize, T)>,
    ) -> PyResult<Vec<Bound<'_, PyAny>>> {
        const {
            assert!(size_of::<T>() <= size_of::<OwnerWords>());
            assert!(align_of::<T>() <= align_of::<u64>());
        };
        let raw = |(data, size, owner)| {
            let mut words: OwnerWords = [MaybeUninit::uninit(); 2];
            // SAFETY: an owner fits, as was asserted.
            unsafe { words.as_mut_ptr().cast::<T>().write(owner) };
            RawBytes { data, size: i64::try_from(size).unwrap_or(0), owner: words }
        };
        let mut raw: Vec<RawBytes> = items.into_iter().map(raw).collect();
        let mut made: Vec<*mut PyObject> = vec![ptr::null_mut(); raw.len()];
        let count = raw.len() as i64;
        // SAFETY: both arrays have `count` elements; the caller keeps the bytes valid until the
        // owners are dropped, which the buffers do.
        let taken = unsafe {
            (self.calls.wrap_all)(raw.as_ptr(), count, release_words::<T>, made.as_mut_ptr())
        };
        for left in raw.iter_mut().skip(usize::try_from(taken).unwrap_or(0)) {
            // SAFETY: this owner was not taken over, so it is still ours.
            unsafe { release_words::<T>(left.owner.as_mut_ptr().cast()) };
        }
        made.into_iter().map(|one| self.object(py, one)).collect()
    }

    /// A pyarrow.MemoryPool over `pool`, which must be leaked.
    pub fn wrap_pool<'py>(
        self,
        py: Python<'py>,
        pool: &'static FarrowPool,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the handle is never freed.
        let made = unsafe { (self.calls.wrap_pool)(ptr::from_ref(pool).cast_mut().cast()) };
        self.object(py, made)
    }
}

/// `fb_class` in `bridge.h`.
fn class_code(class: ValueClass) -> c_int {
    match class {
        ValueClass::None => 0,
        ValueClass::Table => 1,
        ValueClass::Batch => 2,
        ValueClass::Array => 3,
        ValueClass::Chunked => 4,
        ValueClass::Buffer => 5,
    }
}

/// `fb_bytes` in `bridge.h`.
#[repr(C)]
struct RawBytes {
    data: *const u8,
    size: i64,
    owner: OwnerWords,
}

/// The storage of an owner that is opaque to C++.
type OwnerWords = [MaybeUninit<u64>; 2];

unsafe extern "C" fn release_words<T>(words: *mut u64) {
    // SAFETY: the words are an owner that `wrap_all` wrote, and the bridge calls this once for each.
    contained(|| drop(unsafe { words.cast::<T>().read() }));
}
