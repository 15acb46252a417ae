//! The C++ half (`cpp/shim.h`), with its errors turned into Python exceptions.

use farrow::arrow::ffi::{FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow_capi::FarrowPool;
use farrow_capi::convert::Exported;
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The pyarrow class of an object: `fs_class` in `shim.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueClass {
    None,
    Table,
    Batch,
    Array,
    Chunked,
    Buffer,
}

unsafe extern "C" {
    fn fs_capi_name(index: c_int) -> *const c_char;
    fn fs_capi_set(index: c_int, signature: *const c_char, function: *mut c_void) -> c_int;
    fn fs_error() -> *const c_char;
    fn fs_so_compiled() -> *const c_char;
    fn fs_so_loaded() -> *const c_char;
    fn fs_classify(object: *mut PyObject) -> c_int;
    fn fs_export_stream(o: *mut PyObject, class: c_int, out: *mut FFI_ArrowArrayStream) -> c_int;
    fn fs_export_array(
        object: *mut PyObject,
        class: c_int,
        array: *mut FFI_ArrowArray,
        schema: *mut FFI_ArrowSchema,
    ) -> c_int;
    fn fs_buffer_view(object: *mut PyObject, data: *mut *const u8, size: *mut i64) -> c_int;
    fn fs_wrap_table(s: *mut FFI_ArrowSchema, a: *mut FFI_ArrowArray, n: i64) -> *mut PyObject;
    fn fs_wrap_chunked(s: *mut FFI_ArrowSchema, a: *mut FFI_ArrowArray, n: i64) -> *mut PyObject;
    fn fs_wrap_batch(schema: *mut FFI_ArrowSchema, batch: *mut FFI_ArrowArray) -> *mut PyObject;
    fn fs_wrap_array(schema: *mut FFI_ArrowSchema, array: *mut FFI_ArrowArray) -> *mut PyObject;
    fn fs_wrap_buffer(
        data: *mut u8,
        size: i64,
        is_mutable: bool,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> *mut PyObject;
    fn fs_wrap_all(
        items: *const RawBytes,
        count: i64,
        release: unsafe extern "C" fn(*mut u64),
        out: *mut *mut PyObject,
    ) -> i64;
    fn fs_wrap_pool(pool: *mut c_void) -> *mut PyObject;
}

/// A C string that the shim returned.
fn text(pointer: *const c_char) -> String {
    // SAFETY: the shim returns strings that end with zero and live until its next call here.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The libarrow series of the build and the loaded one.
pub fn so_versions() -> (String, String) {
    // SAFETY: both only read constants of libarrow.
    unsafe { (text(fs_so_compiled()), text(fs_so_loaded())) }
}

/// The shim's error: a Python exception, or its own text.
fn failure(py: Python<'_>) -> PyErr {
    PyErr::take(py).unwrap_or_else(|| {
        // SAFETY: the text is this thread's, and is copied before the next call.
        crate::errors::invalid_argument(text(unsafe { fs_error() }))
    })
}

fn check(py: Python<'_>, code: c_int) -> PyResult<()> {
    if code == 0 { Ok(()) } else { Err(failure(py)) }
}

fn object(py: Python<'_>, made: *mut PyObject) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the shim returns a new reference, or NULL after an error.
    unsafe { Bound::from_owned_ptr_or_opt(py, made) }.ok_or_else(|| failure(py))
}

/// Give the shim the functions that pyarrow exports to other extensions.
pub fn bind(py: Python<'_>) -> PyResult<()> {
    let exported = py.import("pyarrow.lib")?.getattr("__pyx_capi__")?;
    let exported = exported.cast::<PyDict>()?;
    for index in 0.. {
        // SAFETY: any index is valid; NULL ends the list.
        let Some(name) = NonNull::new(unsafe { fs_capi_name(index) }.cast_mut()) else {
            break;
        };
        let name = text(name.as_ptr());
        let capsule = exported
            .get_item(&name)?
            .ok_or_else(|| PyImportError::new_err(format!("pyarrow.lib exports no {name}")))?;
        // SAFETY: the object is alive; a capsule's own name and pointer are read, and the function
        // is stored only if the name is the signature that the shim was compiled for.
        let code = unsafe {
            let signature = ffi::PyCapsule_GetName(capsule.as_ptr());
            if signature.is_null() {
                return Err(PyErr::fetch(py));
            }
            let function = ffi::PyCapsule_GetPointer(capsule.as_ptr(), signature);
            if function.is_null() {
                return Err(PyErr::fetch(py));
            }
            fs_capi_set(index, signature, function)
        };
        if code != 0 {
            // SAFETY: as in `failure`.
            return Err(PyImportError::new_err(text(unsafe { fs_error() })));
        }
    }
    Ok(())
}

/// Which pyarrow class `value` is.
pub fn classify(value: &Bound<'_, PyAny>) -> ValueClass {
    // SAFETY: the object is alive and `bind` ran when the state was created.
    match unsafe { fs_classify(value.as_ptr()) } {
        1 => ValueClass::Table,
        2 => ValueClass::Batch,
        3 => ValueClass::Array,
        4 => ValueClass::Chunked,
        5 => ValueClass::Buffer,
        _ => ValueClass::None,
    }
}

fn code(class: ValueClass) -> c_int {
    match class {
        ValueClass::None => 0,
        ValueClass::Table => 1,
        ValueClass::Batch => 2,
        ValueClass::Array => 3,
        ValueClass::Chunked => 4,
        ValueClass::Buffer => 5,
    }
}

/// A Table's or ChunkedArray's stream.
pub fn export_stream(
    value: &Bound<'_, PyAny>,
    class: ValueClass,
) -> PyResult<FFI_ArrowArrayStream> {
    let mut stream = FFI_ArrowArrayStream::empty();
    // SAFETY: the object is of the class that `classify` returned; the stream is written on
    // success.
    let done = unsafe { fs_export_stream(value.as_ptr(), code(class), &mut stream) };
    check(value.py(), done)?;
    Ok(stream)
}

/// An Array's or RecordBatch's C structures.
pub fn export_array(
    value: &Bound<'_, PyAny>,
    class: ValueClass,
) -> PyResult<(FFI_ArrowArray, FFI_ArrowSchema)> {
    let (mut array, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
    // SAFETY: the object is of the class that `classify` returned; both are written on success.
    let done = unsafe { fs_export_array(value.as_ptr(), code(class), &mut array, &mut schema) };
    check(value.py(), done)?;
    Ok((array, schema))
}

/// Address and length of a pyarrow.Buffer; valid while `value` is retained.
pub fn buffer_view(value: &Bound<'_, PyAny>) -> PyResult<(*const u8, usize)> {
    let (mut data, mut size) = (ptr::null(), 0i64);
    // SAFETY: the object is a pyarrow.Buffer; both places are written on success.
    let done = unsafe { fs_buffer_view(value.as_ptr(), &mut data, &mut size) };
    check(value.py(), done)?;
    Ok((data, usize::try_from(size).unwrap_or(0)))
}

/// A new pyarrow Table of the batches.
pub fn wrap_table<'py>(py: Python<'py>, mut from: Exported) -> PyResult<Bound<'py, PyAny>> {
    let count = from.arrays.len() as i64;
    // SAFETY: the structures are ours and are moved from; what is left of them drops as empty.
    let made = unsafe { fs_wrap_table(&mut from.schema, from.arrays.as_mut_ptr(), count) };
    object(py, made)
}

/// A new pyarrow ChunkedArray of the arrays.
pub fn wrap_chunked<'py>(py: Python<'py>, mut from: Exported) -> PyResult<Bound<'py, PyAny>> {
    let count = from.arrays.len() as i64;
    // SAFETY: as in `wrap_table`.
    let made = unsafe { fs_wrap_chunked(&mut from.schema, from.arrays.as_mut_ptr(), count) };
    object(py, made)
}

/// A new pyarrow RecordBatch (`is_batch`) or Array of the one array.
pub fn wrap_one<'py>(
    py: Python<'py>,
    mut from: Exported,
    is_batch: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(array) = from.arrays.first_mut() else {
        return Err(PyRuntimeError::new_err("an array object without an array"));
    };
    let wrap = if is_batch { fs_wrap_batch } else { fs_wrap_array };
    // SAFETY: as in `wrap_table`.
    let made = unsafe { wrap(&mut from.schema, array) };
    object(py, made)
}

/// Runs a callback of C++, into which a panic must not unwind; the panic hook has reported it.
fn contained(body: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(body));
}

unsafe extern "C" fn release_owner<T>(owner: *mut c_void) {
    // SAFETY: `owner` came from `Box::into_raw` in `wrap_buffer`, and the shim calls this once.
    contained(|| drop(unsafe { Box::from_raw(owner.cast::<T>()) }));
}

/// A pyarrow.Buffer over `size` bytes at `data`, which `owner` keeps alive.
///
/// # Safety
/// The bytes must stay readable (writable, if `is_mutable`) until `owner` is dropped.
pub unsafe fn wrap_buffer<T: Send + 'static>(
    py: Python<'_>,
    data: *mut u8,
    size: usize,
    is_mutable: bool,
    owner: T,
) -> PyResult<Bound<'_, PyAny>> {
    let size = i64::try_from(size).unwrap_or(0);
    let owner = Box::into_raw(Box::new(owner)).cast::<c_void>();
    // SAFETY: the caller keeps the bytes valid until the owner is dropped, which the buffer does.
    let made = unsafe { fs_wrap_buffer(data, size, is_mutable, owner, release_owner::<T>) };
    object(py, made)
}

unsafe extern "C" fn release_shared<T>(owner: *mut c_void) {
    // SAFETY: `owner` came from `Arc::into_raw` in `wrap_shared`, and the shim calls this once.
    contained(|| drop(unsafe { Arc::from_raw(owner.cast_const().cast::<T>()) }));
}

/// A read-only pyarrow.Buffer over `size` bytes at `data`, which `owner` keeps alive.
///
/// # Safety
/// The bytes must stay readable until the last of the owners is dropped.
pub unsafe fn wrap_shared<T: Send + Sync + 'static>(
    py: Python<'_>,
    data: *const u8,
    size: usize,
    owner: Arc<T>,
) -> PyResult<Bound<'_, PyAny>> {
    let size = i64::try_from(size).unwrap_or(0);
    let owner = Arc::into_raw(owner).cast_mut().cast::<c_void>();
    // SAFETY: as in `wrap_buffer`; an immutable buffer permits no writes.
    let made = unsafe { fs_wrap_buffer(data.cast_mut(), size, false, owner, release_shared::<T>) };
    object(py, made)
}

/// `fs_bytes` in `shim.h`.
#[repr(C)]
struct RawBytes {
    data: *const u8,
    size: i64,
    owner: OwnerWords,
}

/// The storage of an owner that is opaque to C++.
type OwnerWords = [MaybeUninit<u64>; 2];

unsafe extern "C" fn release_words<T>(words: *mut u64) {
    // SAFETY: the words are an owner that `wrap_all` wrote, and the shim calls this once for each.
    contained(|| drop(unsafe { words.cast::<T>().read() }));
}

/// A read-only pyarrow.Buffer for each item: an address, a length, and the owner of the bytes.
///
/// # Safety
/// The bytes must stay readable until their owner is dropped.
pub unsafe fn wrap_all<T: Send + Sync + 'static>(
    py: Python<'_>,
    items: Vec<(*const u8, usize, T)>,
) -> PyResult<Vec<Bound<'_, PyAny>>> {
    const { assert!(size_of::<T>() <= size_of::<OwnerWords>() && align_of::<T>() <= align_of::<u64>()) };
    let raw = |(data, size, owner)| {
        let mut words: OwnerWords = [MaybeUninit::uninit(); 2];
        // SAFETY: an owner fits, as was asserted.
        unsafe { words.as_mut_ptr().cast::<T>().write(owner) };
        RawBytes { data, size: i64::try_from(size).unwrap_or(0), owner: words }
    };
    let mut raw: Vec<RawBytes> = items.into_iter().map(raw).collect();
    let mut made: Vec<*mut PyObject> = vec![ptr::null_mut(); raw.len()];
    let count = raw.len() as i64;
    // SAFETY: both arrays have `count` elements; the caller keeps the bytes valid until the owners
    // are dropped, which the buffers do.
    let taken = unsafe { fs_wrap_all(raw.as_ptr(), count, release_words::<T>, made.as_mut_ptr()) };
    for left in raw.iter_mut().skip(usize::try_from(taken).unwrap_or(0)) {
        // SAFETY: this owner was not taken over, so it is still ours.
        unsafe { release_words::<T>(left.owner.as_mut_ptr().cast()) };
    }
    made.into_iter().map(|one| object(py, one)).collect()
}

/// A pyarrow.MemoryPool over `pool`, which must be leaked.
pub fn wrap_pool<'py>(py: Python<'py>, pool: &'static FarrowPool) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the handle is never freed.
    let made = unsafe { fs_wrap_pool(ptr::from_ref(pool).cast_mut().cast()) };
    object(py, made)
}
