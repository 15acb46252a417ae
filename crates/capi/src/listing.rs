//! Looks at objects through C without holding them: labels, waits, lists.

use crate::error::{CallFailure, guard, guard_or};
use crate::handles::{FarrowClient, FarrowObjectId, borrow, name, place, seconds, target};
use crate::options::{self, FarrowPair};
use crate::status::FarrowStatus;
use farrow::{ListedObject, Metadata};
use std::ffi::{CString, c_char, c_int};
use std::ptr::null;

/// The labels of an object, as C strings, by key.
#[derive(Debug)]
pub struct FarrowMetadata {
    pairs: Vec<(CString, CString)>,
}

/// Converts a text of an object to a C string, which ends at the first zero byte.
fn c_text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(text.get(..end).unwrap_or_default()).unwrap_or_default()
}

impl From<&Metadata> for FarrowMetadata {
    fn from(metadata: &Metadata) -> Self {
        let pairs = metadata.iter().map(|(key, value)| (c_text(key), c_text(value))).collect();
        FarrowMetadata { pairs }
    }
}

/// `FarrowTarget` of `farrow.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FarrowTarget {
    /// NULL, or an id.
    pub id: *const FarrowObjectId,
    /// NULL, or a C string.
    pub name: *const c_char,
}

/// The objects of one listing.
#[derive(Debug)]
pub struct FarrowList {
    items: Vec<ListItem>,
}

#[derive(Debug)]
struct ListItem {
    listed: ListedObject,
    name: Option<CString>,
    metadata: FarrowMetadata,
}

impl From<ListedObject> for ListItem {
    fn from(listed: ListedObject) -> Self {
        let name = listed.name.as_deref().map(c_text);
        ListItem { name, metadata: (&listed.metadata).into(), listed }
    }
}

/// `FarrowListed` of `farrow.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The header documents each.
pub struct FarrowListed {
    pub id: FarrowObjectId,
    pub name: *const c_char,
    pub kind: i32,
    pub creator_pid: u32,
    pub size: u64,
    pub sealed_at_ns: u64,
    pub last_use_ns: u64,
    pub is_pinned: c_int,
    pub is_spilled: c_int,
    pub metadata: *const FarrowMetadata,
}

/// See `farrow.h`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_metadata(
    client: *const FarrowClient,
    id: *const FarrowObjectId,
    text: *const c_char,
    metadata: *mut *mut FarrowMetadata,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, target, place) =
            unsafe { (borrow(client, "client")?, target(id, text)?, place(metadata, "metadata")?) };
        *place = std::ptr::null_mut();
        let found = client.get().metadata(&target)?;
        *place = Box::into_raw(Box::new(FarrowMetadata::from(&found)));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `metadata` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_metadata_count(metadata: *const FarrowMetadata) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { metadata.as_ref() }.map_or(0, |metadata| metadata.pairs.len())
}

/// See `farrow.h`.
///
/// # Safety
/// `metadata` is NULL or a handle, `pair` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_metadata_pair(
    metadata: *const FarrowMetadata,
    index: usize,
    pair: *mut FarrowPair,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (metadata, pair) = unsafe { (borrow(metadata, "metadata")?, place(pair, "pair")?) };
        let (key, value) = at(&metadata.pairs, index, "pairs")?;
        *pair = FarrowPair { key: key.as_ptr(), value: value.as_ptr() };
        Ok(())
    })
}

fn at<'a, T>(all: &'a [T], index: usize, what: &str) -> Result<&'a T, CallFailure> {
    let outside = || CallFailure::Argument(format!("index {index} of {} {what}", all.len()));
    all.get(index).ok_or_else(outside)
}

/// See `farrow.h`.
///
/// # Safety
/// `metadata` is NULL or a handle, `key` NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_metadata_value(
    metadata: *const FarrowMetadata,
    key: *const c_char,
) -> *const c_char {
    guard_or(null(), || {
        // SAFETY: guaranteed by the caller.
        let (metadata, key) = unsafe { (metadata.as_ref(), name(key)) };
        let (Some(metadata), Ok(Some(key))) = (metadata, key) else {
            return null();
        };
        let mut pairs = metadata.pairs.iter();
        let found = pairs.find(|(one, _)| one.as_bytes() == key.as_bytes());
        found.map_or(null(), |(_, value)| value.as_ptr())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `metadata` is NULL or a handle of `farrow_metadata` that is no longer in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_metadata_free(metadata: *mut FarrowMetadata) {
    if !metadata.is_null() {
        // SAFETY: the handle came from `Box::into_raw` in farrow_metadata.
        guard_or((), || drop(unsafe { Box::from_raw(metadata) }));
    }
}

/// See `farrow.h`.
///
/// # Safety
/// `targets` has `count` items and `is_sealed` has room for `count`; the rest as the header
/// requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_wait(
    client: *const FarrowClient,
    targets: *const FarrowTarget,
    count: usize,
    enough: usize,
    timeout_seconds: f64,
    is_sealed: *mut c_int,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, targets) =
            unsafe { (borrow(client, "client")?, options::items(targets, count, "targets")?) };
        if enough > count {
            return Err(CallFailure::Argument(format!("{enough} of {count} targets")));
        }
        if is_sealed.is_null() && count > 0 {
            return Err(CallFailure::null("is_sealed"));
        }
        // SAFETY: guaranteed by the caller.
        let wanted = targets.iter().map(|one| unsafe { target(one.id, one.name) });
        let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
        let found = client.get().wait(&wanted, enough, seconds(timeout_seconds)?)?;
        for (index, one) in found.into_iter().enumerate().take(count) {
            // SAFETY: by the header, `is_sealed` has room for `count` items.
            unsafe { is_sealed.add(index).write(c_int::from(one)) };
        }
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// As the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_list(
    client: *const FarrowClient,
    prefix: *const c_char,
    labels: *const FarrowPair,
    label_count: usize,
    list: *mut *mut FarrowList,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (client, prefix, labels, place) = unsafe {
            (
                borrow(client, "client")?,
                name(prefix)?,
                options::metadata(labels, label_count)?,
                place(list, "list")?,
            )
        };
        *place = std::ptr::null_mut();
        let found = client.get().list_where(prefix.unwrap_or_default(), &labels)?;
        let items = found.into_iter().map(ListItem::from).collect();
        *place = Box::into_raw(Box::new(FarrowList { items }));
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `list` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_list_count(list: *const FarrowList) -> usize {
    // SAFETY: guaranteed by the caller.
    unsafe { list.as_ref() }.map_or(0, |list| list.items.len())
}

/// See `farrow.h`.
///
/// # Safety
/// `list` is NULL or a handle, `listed` NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_list_item(
    list: *const FarrowList,
    index: usize,
    listed: *mut FarrowListed,
) -> FarrowStatus {
    guard(|| {
        // SAFETY: guaranteed by the caller.
        let (list, place) = unsafe { (borrow(list, "list")?, place(listed, "listed")?) };
        let item = at(&list.items, index, "objects")?;
        let listed = &item.listed;
        *place = FarrowListed {
            id: listed.id.into(),
            name: item.name.as_ref().map_or(null(), |name| name.as_ptr()),
            kind: i32::from(listed.kind.as_u8()),
            creator_pid: listed.creator_pid,
            size: listed.bytes,
            sealed_at_ns: listed.sealed_at_ns,
            last_use_ns: listed.last_use_ns,
            is_pinned: c_int::from(listed.is_pinned),
            is_spilled: c_int::from(listed.is_spilled),
            metadata: &raw const item.metadata,
        };
        Ok(())
    })
}

/// See `farrow.h`.
///
/// # Safety
/// `list` is NULL or a handle that is no longer in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farrow_list_free(list: *mut FarrowList) {
    if !list.is_null() {
        // SAFETY: the handle came from `Box::into_raw` in farrow_list.
        guard_or((), || drop(unsafe { Box::from_raw(list) }));
    }
}
