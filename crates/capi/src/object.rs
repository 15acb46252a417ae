//! Held objects through C.

use crate::error::{CallFailure, guard, guard_or};
use crate::handles::{FarrowClient, FarrowObjectId, borrow, place, seconds, target};
use crate::status::FarrowStatus;
use farrow::arrow::ffi::{self, FFI_ArrowArray, FFI_ArrowArrayStream, FFI_ArrowSchema};
use farrow::{Object, ObjectBytes, ObjectKind, arrow_ffi};
use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

/// A sealed object that is held.
#[derive(Debug)]
pub struct FarrowObject {
    object: Object,
    /// The bytes, once requested: pointers into them are valid as long as this value.
    bytes: OnceLock<ObjectBytes>,
}

/// See `farrow.h`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_get(
    client: *const FarrowClient,
    id: *const FarrowObjectId,
    text: *const c_char,
    timeout_seconds: f64,
    object: *mut *mut FarrowObject,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, target, place) =
            unsafe { (borrow(client, "client")?, target(id, text)?, place(object, "object")?) };
        *place = std::ptr::null_mut();
        let object = client.get().get(&target, seconds(timeout_seconds)?)?;
        *place = Box::into_raw(Box::new(FarrowObject { object, bytes: OnceLock::new() }));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `object` is an object handle, `id` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_object_id(
    object: *const FarrowObject,
    id: *mut FarrowObjectId,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (object, id) = unsafe { (borrow(object, "object")?, place(id, "id")?) };
        *id = object.object.id().into();
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `object` is an object handle, `kind` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_object_kind(
    object: *const FarrowObject,
    kind: *mut i32,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (object, kind) = unsafe { (borrow(object, "object")?, place(kind, "kind")?) };
        *kind = i32::from(object.object.kind().as_u8());
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `object` is an object handle, `data` and `size` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_object_bytes(
    object: *const FarrowObject,
    data: *mut *const c_void,
    size: *mut u64,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (object, data, size) =
            unsafe { (borrow(object, "object")?, place(data, "data")?, place(size, "size")?) };
        let view = object.object.view()?;
        let bytes = object.bytes.get_or_init(|| view);
        *data = bytes.as_ptr().cast();
        *size = bytes.len() as u64;
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `object` is an object handle; the other pointers are writable and contain no live structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_object_array(
    object: *const FarrowObject,
    array: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> FarrowStatus {
    guard(|| {
        if array.is_null() || schema.is_null() {
            return Err(CallFailure::null("array or schema"));
        }
        // SAFETY: guaranteed by the caller.
        let object = unsafe { borrow(object, "object") }?;
        let kind = object.object.kind();
        if !matches!(kind, ObjectKind::Array | ObjectKind::RecordBatch) {
            return Err(CallFailure::Argument(format!("a {} is not one array", kind.as_str())));
        }
        let mut exported = arrow_ffi::export(&arrow_ffi::rebuild(&object.object)?)?;
        let Some(only) = exported.arrays.pop() else {
            return Err(CallFailure::Argument("an array object without an array".into()));
        };
        // SAFETY: guaranteed by the caller; the previous contents are not dropped.
        unsafe {
            array.write(only);
            schema.write(exported.schema);
        }
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `object` is an object handle; `stream` is writable and contains no live stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_object_stream(
    object: *const FarrowObject,
    stream: *mut FFI_ArrowArrayStream,
) -> FarrowStatus {
    guard(|| {
        if stream.is_null() {
            return Err(CallFailure::null("stream"));
        }
        // SAFETY: guaranteed by the caller.
        let object = unsafe { borrow(object, "object") }?;
        let exported = ffi::export_stream(&arrow_ffi::rebuild(&object.object)?)
            .map_err(|error| farrow::Error::InvalidDescriptor(error.to_string()))?;
        // SAFETY: guaranteed by the caller; the previous contents are not dropped.
        unsafe { stream.write(exported) };
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `object` is NULL or a handle that is no longer in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_object_release(object: *mut FarrowObject) {
    if !object.is_null() {
        // SAFETY: the handle came from `Box::into_raw` in farrow_get.
        guard_or((), || drop(unsafe { Box::from_raw(object) }));
    }
}
