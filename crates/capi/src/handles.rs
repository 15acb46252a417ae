//! The client handle, and the names, ids and times that C passes.

use crate::error::{CallFailure, guard, guard_or};
use crate::library;
use crate::status::FarrowStatus;
use farrow::{Client, ConnectOptions, ObjectId, ObjectKey, SpawnCommand};
use farrow_memory::Span;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

/// A connection to one node.
#[derive(Debug)]
pub struct FarrowClient {
    client: Client,
}

impl FarrowClient {
    /// The client itself.
    pub fn get(&self) -> &Client {
        &self.client
    }
}

/// `FarrowObjectId` of `farrow.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarrowObjectId {
    /// As [`ObjectId::to_bytes`].
    pub bytes: [u8; 16],
}

impl From<ObjectId> for FarrowObjectId {
    fn from(id: ObjectId) -> Self {
        FarrowObjectId { bytes: id.to_bytes() }
    }
}

/// Dereferences a handle pointer.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that lives through the call.
pub(crate) unsafe fn borrow<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, CallFailure> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or_else(|| CallFailure::null(what))
}

/// Dereferences a pointer to an output.
///
/// # Safety
/// `pointer` is NULL or points to a writable `T` with no other user during the call.
pub(crate) unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, CallFailure> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or_else(|| CallFailure::null(what))
}

/// Reads a name; NULL: none.
///
/// # Safety
/// `text` is NULL or a C string.
pub(crate) unsafe fn name<'a>(text: *const c_char) -> Result<Option<&'a str>, CallFailure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|error| CallFailure::Argument(format!("name: {error}")))?;
    Ok(Some(text))
}

/// Reads an id or a name; the other one is NULL.
///
/// # Safety
/// `id` is NULL or readable; `text` is NULL or a C string.
pub(crate) unsafe fn target(
    id: *const FarrowObjectId,
    text: *const c_char,
) -> Result<ObjectKey, CallFailure> {
    // SAFETY: guaranteed by the caller.
    match unsafe { (id.as_ref(), name(text)?) } {
        (Some(id), None) => Ok(ObjectKey::Id(ObjectId::from_bytes(id.bytes))),
        (None, Some(name)) => Ok(ObjectKey::Name(name.to_owned())),
        (Some(_), Some(_)) => Err(CallFailure::Argument("both an id and a name".into())),
        (None, None) => Err(CallFailure::Argument("neither an id nor a name".into())),
    }
}

/// Converts seconds from C to a duration.
pub(crate) fn seconds(seconds: f64) -> Result<Duration, CallFailure> {
    // Longer times are capped at a hundred years.
    let text = || CallFailure::Argument(format!("a timeout of {seconds} s"));
    if seconds.is_nan() {
        return Err(text());
    }
    Duration::try_from_secs_f64(seconds.min(3.2e9)).map_err(|_| text())
}

/// See `farrow.h`.
///
/// # Safety
/// `socket` is NULL or a C string; `client` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_connect(
    socket: *const c_char,
    timeout_seconds: f64,
    client: *mut *mut FarrowClient,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let client = unsafe { place(client, "client") }?;
        *client = std::ptr::null_mut();
        let socket = (!socket.is_null()).then(|| {
            // SAFETY: guaranteed by the caller.
            PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(socket) }.to_bytes()))
        });
        let timeout = seconds(timeout_seconds)?;
        let spawn =
            if socket.is_none() { SpawnCommand::installed(library::programs()) } else { None };
        let options = ConnectOptions { socket, timeout, spawn, ..ConnectOptions::default() };
        let connected = Client::connect(&options)?;
        *client = Box::into_raw(Box::new(FarrowClient { client: connected }));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is a client handle, `node` a C string, `at` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_client_at(
    client: *const FarrowClient,
    node: *const c_char,
    at: *mut *mut FarrowClient,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, node, at) =
            unsafe { (borrow(client, "client")?, name(node)?, place(at, "at")?) };
        *at = std::ptr::null_mut();
        let node = node.ok_or_else(|| CallFailure::null("node"))?;
        let client = client.get().at(node)?;
        *at = Box::into_raw(Box::new(FarrowClient { client }));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is NULL or a handle that is no longer in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_close(client: *mut FarrowClient) {
    if !client.is_null() {
        // SAFETY: the handle came from `Box::into_raw` and is returned here.
        guard_or((), || drop(unsafe { Box::from_raw(client) }));
    }
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is a client handle, `id` and `text` are as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_contains(
    client: *const FarrowClient,
    id: *const FarrowObjectId,
    text: *const c_char,
    is_sealed: *mut c_int,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, target, is_sealed) = unsafe {
            (borrow(client, "client")?, target(id, text)?, place(is_sealed, "is_sealed")?)
        };
        *is_sealed = c_int::from(client.get().contains(&target)?);
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is a client handle, `id` and `text` are as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_delete(
    client: *const FarrowClient,
    id: *const FarrowObjectId,
    text: *const c_char,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, target) = unsafe { (borrow(client, "client")?, target(id, text)?) };
        Ok(client.get().delete(&[target])?)
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `id` is readable, `text` has room for 33 bytes; either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_id_to_hex(id: *const FarrowObjectId, text: *mut c_char) {
    guard_or((), || {
        // SAFETY: guaranteed by the caller.
        let (id, place) = unsafe { (id.as_ref(), text.cast::<[u8; 33]>().as_mut()) };
        if let (Some(id), Some(place)) = (id, place) {
            let digits = ObjectId::from_bytes(id.bytes).to_string();
            for (to, from) in place.iter_mut().zip(digits.bytes().chain([0])) {
                *to = from;
            }
        }
    });
}

/// Finds the span of the region at an address.
///
/// # Safety
/// `client` is NULL or a client handle.
unsafe fn range<'a>(
    client: *const FarrowClient,
    data: *const c_void,
    size: u64,
) -> Result<(&'a Client, Span), CallFailure> {
    // SAFETY: guaranteed by the caller.
    let client = unsafe { borrow(client, "client") }?.get();
    let outside = || CallFailure::Argument(format!("{size} B at {data:p} are not in the region"));
    let length = usize::try_from(size).map_err(|_| outside())?;
    let offset = client.locate(data.cast(), length).ok_or_else(outside)?;
    Ok((client, Span { offset, length: farrow::Length(size) }))
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is a client handle; `data` is not dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_publish(
    client: *const FarrowClient,
    data: *const c_void,
    size: u64,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, span) = unsafe { range(client, data, size) }?;
        Ok(client.region().publish(span).map_err(farrow::Error::from)?)
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `client` is a client handle; `data` is not dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_refresh(
    client: *const FarrowClient,
    data: *const c_void,
    size: u64,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, span) = unsafe { range(client, data, size) }?;
        Ok(client.region().refresh(span).map_err(farrow::Error::from)?)
    })
}
