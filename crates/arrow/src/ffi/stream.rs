//! Chunked arrays and tables as `ArrowArrayStream`.

use super::{
    FFI_ArrowArrayStream, contained, export_schema, import_array, import_schema, struct_of_batch,
};
use crate::ArrowObject;
use crate::error::{ImportError, SchemaError};
use crate::schema::SchemaNode;
use arrow_data::ArrayData;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

/// `EINVAL`, which is 22 on all common systems.
const EINVAL: c_int = 22;

/// The error message for the consumer if a callback panics.
const PANICKED: &str = "a defect of Farrow: panic while an array was exported";

/// Private data of an exported stream.
struct ExportedStream {
    schema: Arc<SchemaNode>,
    arrays: std::vec::IntoIter<ArrayData>,
    last_error: Option<CString>,
}

/// Exports an object as a stream of its batches: struct arrays for record batches and tables,
/// arrays of the field's type otherwise.
///
/// # Errors
/// [`SchemaError`] if the schema cannot be exported, rather than a failure in the consumer.
pub fn export_stream(object: &ArrowObject) -> Result<FFI_ArrowArrayStream, SchemaError> {
    export_schema(&object.schema)?;
    let arrays: Vec<ArrayData> = match object.kind.is_tabular() {
        true => object.batches.iter().map(|b| struct_of_batch(&object.schema, b)).collect(),
        false => object.batches.iter().flat_map(|batch| batch.columns.iter().cloned()).collect(),
    };
    let stream = Box::new(ExportedStream {
        schema: Arc::clone(&object.schema),
        arrays: arrays.into_iter(),
        last_error: None,
    });
    let private_data = Box::into_raw(stream).cast();
    // SAFETY: the callbacks below satisfy the contract. `private_data` is an `ExportedStream`
    // that only `release` frees.
    Ok(unsafe {
        FFI_ArrowArrayStream::new_unchecked(
            Some(get_schema),
            Some(get_next),
            Some(get_last_error),
            Some(release),
            private_data,
        )
    })
}

/// # Safety
/// `stream` must be null, or from `export_stream` and not released.
unsafe fn state<'a>(stream: *mut FFI_ArrowArrayStream) -> Option<&'a mut ExportedStream> {
    // SAFETY: guaranteed by the caller; the C Stream Interface forbids concurrent calls.
    unsafe { stream.as_ref()?.private_data().cast::<ExportedStream>().as_mut() }
}

/// # Safety
/// The consumer calls this according to the C Stream Interface.
unsafe extern "C" fn get_schema(
    stream: *mut FFI_ArrowArrayStream,
    out: *mut FFI_ArrowSchema,
) -> c_int {
    // SAFETY: the consumer passes the stream.
    let Some(state) = (unsafe { state(stream) }) else { return EINVAL };
    let exported = contained(|| export_schema(&state.schema).map_err(|error| error.to_string()));
    match exported.unwrap_or_else(|| Err(PANICKED.to_owned())) {
        Ok(schema) => {
            // SAFETY: the consumer passes writable, uninitialized memory for a schema.
            unsafe { out.write(schema) };
            0
        }
        Err(error) => {
            state.last_error = CString::new(error).ok();
            EINVAL
        }
    }
}

/// # Safety
/// The consumer calls this according to the C Stream Interface.
unsafe extern "C" fn get_next(
    stream: *mut FFI_ArrowArrayStream,
    out: *mut FFI_ArrowArray,
) -> c_int {
    // SAFETY: the consumer passes the stream.
    let Some(state) = (unsafe { state(stream) }) else { return EINVAL };
    let next = contained(|| {
        let next = state.arrays.next();
        next.map_or_else(FFI_ArrowArray::empty, |array| super::export_array(&array))
    });
    let Some(next) = next else {
        state.last_error = CString::new(PANICKED).ok();
        return EINVAL;
    };
    // SAFETY: the consumer passes writable, uninitialized memory for an array.
    unsafe { out.write(next) };
    0
}

/// # Safety
/// The consumer calls this according to the C Stream Interface.
unsafe extern "C" fn get_last_error(stream: *mut FFI_ArrowArrayStream) -> *const c_char {
    // SAFETY: the consumer passes the stream.
    let error = unsafe { state(stream) }.and_then(|state| state.last_error.as_deref());
    error.map_or(std::ptr::null(), CStr::as_ptr)
}

/// # Safety
/// The consumer calls this once, according to the C Stream Interface.
unsafe extern "C" fn release(stream: *mut FFI_ArrowArrayStream) {
    // SAFETY: the consumer passes the stream.
    let Some(stream) = (unsafe { stream.as_mut() }) else { return };
    // SAFETY: the callback and its private data are cleared together.
    let private = unsafe {
        stream.set_release(None);
        stream.set_private_data(std::ptr::null_mut())
    };
    if !private.is_null() {
        // SAFETY: from `Box::into_raw` in `export_stream`, and freed only here.
        contained(|| drop(unsafe { Box::from_raw(private.cast::<ExportedStream>()) }));
    }
}

/// Reads a stream to its end: the schema, and each array (a struct for record batches; see
/// [`super::batch_of_struct`]).
///
/// # Safety
/// `stream` and all its schemas and arrays must satisfy the contract of the C interfaces.
///
/// # Errors
/// [`ImportError::Stream`] if the producer fails; other [`ImportError`]s as for schemas and
/// arrays.
pub unsafe fn import_stream(
    mut stream: FFI_ArrowArrayStream,
) -> Result<(SchemaNode, Vec<ArrayData>), ImportError> {
    let (Some(get_schema), Some(get_next), Some(_)) =
        (stream.get_schema(), stream.get_next(), stream.release())
    else {
        return Err(ImportError::Null { what: "an ArrowArrayStream" });
    };
    let mut schema = FFI_ArrowSchema::empty();
    // SAFETY: the producer's callback is called with the producer's stream.
    let code = unsafe { get_schema(&raw mut stream, &raw mut schema) };
    if code != 0 {
        // SAFETY: guaranteed by the caller.
        return Err(unsafe { producer_error(&mut stream, code) });
    }
    // SAFETY: the producer guarantees a valid schema.
    let schema = unsafe { import_schema(&schema) }?;
    let mut arrays = Vec::new();
    loop {
        let mut array = FFI_ArrowArray::empty();
        // SAFETY: as above.
        let code = unsafe { get_next(&raw mut stream, &raw mut array) };
        if code != 0 {
            // SAFETY: guaranteed by the caller.
            return Err(unsafe { producer_error(&mut stream, code) });
        }
        if array.is_released() {
            return Ok((schema, arrays));
        }
        // SAFETY: the producer guarantees arrays of its schema.
        arrays.push(unsafe { import_array(array, &schema) }?);
    }
}

/// # Safety
/// `stream` must be a valid stream.
unsafe fn producer_error(stream: &mut FFI_ArrowArrayStream, code: c_int) -> ImportError {
    let message = stream.get_last_error().map(|get_last_error| {
        // SAFETY: the producer's callback is called with the producer's stream.
        unsafe { get_last_error(stream) }
    });
    let message = match message {
        // SAFETY: a message that is not null is a C string, valid until the next call.
        Some(text) if !text.is_null() => unsafe { CStr::from_ptr(text) }.to_string_lossy(),
        _ => "no message".into(),
    };
    ImportError::Stream { code, message: message.into_owned() }
}
