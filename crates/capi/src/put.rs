//! Putting and writing through C.

use crate::error::{CallFailure, guard};
use crate::handles::{FarrowClient, FarrowObjectId, borrow, place};
use crate::options::{CallOptions, FarrowPutOptions};
use crate::status::FarrowStatus;
use farrow::arrow::ffi::{FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow::arrow_ffi::{Imported, StreamKind};
use farrow::{Error, ObjectKind, Value, Writer};
use std::ffi::{c_char, c_void};

/// An object of bytes that is being written.
#[derive(Debug)]
pub struct FarrowWriter {
    writer: Writer,
}

fn bytes<'a>(data: *const c_void, size: u64) -> Result<&'a [u8], CallFailure> {
    if size == 0 {
        return Ok(&[]);
    }
    let length = usize::try_from(size)
        .ok()
        .filter(|length| *length <= isize::MAX as usize)
        .ok_or_else(|| CallFailure::Argument(format!("{size} B in one piece")))?;
    if data.is_null() {
        return Err(CallFailure::null("data"));
    }
    // SAFETY: by the header, `data` is readable for `size` bytes during the call.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) })
}

/// Puts a value and writes its id.
///
/// # Safety
/// As the header requires for `client`, `options` and `id`.
unsafe fn put(
    client: *const FarrowClient,
    value: &Value<'_>,
    options: *const FarrowPutOptions,
    id: *mut FarrowObjectId,
) -> Result<(), CallFailure> {
    // SAFETY: guaranteed by the caller.
    let (client, options) = unsafe { (borrow(client, "client")?, CallOptions::read(options)?) };
    let sealed = client.get().put_with(value, &options.of_object())?;
    // SAFETY: guaranteed by the caller.
    if let Some(id) = unsafe { id.as_mut() } {
        *id = sealed.into();
    }
    Ok(())
}

fn unfit(kind: i32, what: &str) -> CallFailure {
    CallFailure::Argument(format!("kind {kind} cannot be put as {what}"))
}

/// See `farrow.h`.
///
/// # Safety
/// `data` is readable for `size` bytes; the rest as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_put_bytes(
    client: *const FarrowClient,
    data: *const c_void,
    size: u64,
    text: *const c_char,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    let options = FarrowPutOptions::named(text);
    // SAFETY: guaranteed by the caller; the options live in this frame.
    unsafe { farrow_put_bytes_with(client, data, size, &raw const options, id) }
}

/// See `farrow.h`.
///
/// # Safety
/// `data` is readable for `size` bytes; the rest as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_put_bytes_with(
    client: *const FarrowClient,
    data: *const c_void,
    size: u64,
    options: *const FarrowPutOptions,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    // SAFETY: guaranteed by the caller.
    guard(|| unsafe { put(client, &Value::Bytes(bytes(data, size)?), options, id) })
}

/// See `farrow.h`.
///
/// # Safety
/// Both structures keep the contract of the C Data Interface; the rest as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_put_array(
    client: *const FarrowClient,
    kind: i32,
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
    text: *const c_char,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    let options = FarrowPutOptions::named(text);
    // SAFETY: guaranteed by the caller; the options live in this frame.
    unsafe { farrow_put_array_with(client, kind, array, schema, &raw const options, id) }
}

/// See `farrow.h`.
///
/// # Safety
/// Both structures keep the contract of the C Data Interface; the rest as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_put_array_with(
    client: *const FarrowClient,
    kind: i32,
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
    options: *const FarrowPutOptions,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller; both are moved out, and dropped here on any error.
        let (array, schema) = unsafe {
            let array = place(array, "array").map(|array| FFI_ArrowArray::from_raw(array));
            let schema = place(schema, "schema").map(|schema| FFI_ArrowSchema::from_raw(schema));
            (array?, schema?)
        };
        let is_batch = kind == i32::from(ObjectKind::RecordBatch.as_u8());
        if !is_batch && kind != i32::from(ObjectKind::Array.as_u8()) {
            return Err(unfit(kind, "one array"));
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            let imported = Imported::array(array, &schema, is_batch).map_err(Error::from)?;
            put(client, &Value::from(&imported), options, id)
        }
    })
}

/// See `farrow.h`.
///
/// # Safety
/// The stream keeps the contract of the C Stream Interface; the rest as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_put_stream(
    client: *const FarrowClient,
    kind: i32,
    stream: *mut FFI_ArrowArrayStream,
    text: *const c_char,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    let options = FarrowPutOptions::named(text);
    // SAFETY: guaranteed by the caller; the options live in this frame.
    unsafe { farrow_put_stream_with(client, kind, stream, &raw const options, id) }
}

/// See `farrow.h`.
///
/// # Safety
/// The stream keeps the contract of the C Stream Interface; the rest as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_put_stream_with(
    client: *const FarrowClient,
    kind: i32,
    stream: *mut FFI_ArrowArrayStream,
    options: *const FarrowPutOptions,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller; it is moved out, and dropped here on any error.
        let stream = unsafe {
            place(stream, "stream")?;
            FFI_ArrowArrayStream::from_raw(stream)
        };
        let kind = if kind == i32::from(ObjectKind::Table.as_u8()) {
            StreamKind::Table
        } else if kind == i32::from(ObjectKind::ChunkedArray.as_u8()) {
            StreamKind::Chunked
        } else {
            return Err(unfit(kind, "a stream"));
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let imported = Imported::stream(stream, kind).map_err(Error::from)?;
            put(client, &Value::from(&imported), options, id)
        }
    })
}

/// See `farrow.h`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_create(
    client: *const FarrowClient,
    size: u64,
    text: *const c_char,
    writer: *mut *mut FarrowWriter,
) -> FarrowStatus {
    let options = FarrowPutOptions::named(text);
    // SAFETY: guaranteed by the caller; the options live in this frame.
    unsafe { farrow_create_with(client, size, &raw const options, writer) }
}

/// See `farrow.h`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_create_with(
    client: *const FarrowClient,
    size: u64,
    options: *const FarrowPutOptions,
    writer: *mut *mut FarrowWriter,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, options, place) = unsafe {
            (borrow(client, "client")?, CallOptions::read(options)?, place(writer, "writer")?)
        };
        *place = std::ptr::null_mut();
        let writer = client.get().create_with(size, &options.of_object())?;
        *place = Box::into_raw(Box::new(FarrowWriter { writer }));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `writer` is NULL or a writer handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_writer_data(writer: *const FarrowWriter) -> *mut c_void {
    // SAFETY: guaranteed by the caller.
    let writer = unsafe { writer.as_ref() };
    writer.map_or(std::ptr::null_mut(), |writer| writer.writer.memory().as_mut_ptr().cast())
}

/// See `farrow.h`.
///
/// # Safety
/// `writer` is NULL or a writer handle; `data` is readable for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_writer_write(
    writer: *const FarrowWriter,
    offset: u64,
    data: *const c_void,
    size: u64,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let writer = unsafe { writer.as_ref() }.ok_or_else(|| CallFailure::null("writer"))?;
        Ok(writer.writer.memory().write_at(offset, bytes(data, size)?)?)
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `writer` is NULL or a writer handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_writer_size(writer: *const FarrowWriter) -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { writer.as_ref() }.map_or(0, |writer| writer.writer.memory().len())
}

/// Consumes a writer handle.
///
/// # Safety
/// `writer` is NULL or a handle that is no longer in use.
unsafe fn take(writer: *mut FarrowWriter) -> Result<Writer, CallFailure> {
    if writer.is_null() {
        return Err(CallFailure::null("writer"));
    }
    // SAFETY: the handle came from `Box::into_raw` in farrow_create.
    Ok(unsafe { Box::from_raw(writer) }.writer)
}

/// See `farrow.h`.
///
/// # Safety
/// `writer` is NULL or a handle that is no longer in use; `id` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_writer_seal(
    writer: *mut FarrowWriter,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let sealed = unsafe { take(writer) }?.seal()?;
        // SAFETY: guaranteed by the caller.
        if let Some(id) = unsafe { id.as_mut() } {
            *id = sealed.into();
        }
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `writer` is NULL or a handle that is no longer in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_writer_abort(writer: *mut FarrowWriter) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { take(writer) }?.abort();
        Ok(())
    })
}
