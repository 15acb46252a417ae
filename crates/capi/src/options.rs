//! Options of a put: a name, labels, a time to wait.

use crate::error::CallFailure;
use crate::handles::{name, seconds};
use farrow::{Metadata, ObjectOptions};
use std::ffi::{c_char, c_int};
use std::ptr::null;
use std::time::Duration;

/// Most labels of an object. Each label takes more than one of the 4096 bytes of metadata.
const PAIRS_MAX: usize = 4096;

/// `FarrowPair` of `farrow.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FarrowPair {
    /// A C string.
    pub key: *const c_char,
    /// A C string.
    pub value: *const c_char,
}

/// `FarrowPutOptions` of `farrow.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FarrowPutOptions {
    /// NULL, or a C string.
    pub name: *const c_char,
    /// Labels; not read if there are 0.
    pub metadata: *const FarrowPair,
    /// Number of labels.
    pub metadata_count: usize,
    /// Longest wait for room, in seconds.
    pub wait_seconds: f64,
    /// Not 0: the object takes the place of the one that has its name.
    pub replace: c_int,
    /// Not 0: statistics of a table or record batch are counted and stored.
    pub statistics: c_int,
}

impl FarrowPutOptions {
    /// Only a name, which may be NULL.
    pub(crate) fn named(name: *const c_char) -> Self {
        FarrowPutOptions {
            name,
            metadata: null(),
            metadata_count: 0,
            wait_seconds: 0.0,
            replace: 0,
            statistics: 0,
        }
    }
}

/// The options of one call, checked.
pub(crate) struct CallOptions<'a> {
    name: Option<&'a str>,
    metadata: Metadata,
    wait: Duration,
    replace: bool,
    statistics: bool,
}

impl<'a> CallOptions<'a> {
    /// Reads and checks the options.
    ///
    /// # Safety
    /// `options` is NULL or as the header requires.
    pub(crate) unsafe fn read(options: *const FarrowPutOptions) -> Result<Self, CallFailure> {
        // SAFETY: guaranteed by the caller.
        let Some(options) = (unsafe { options.as_ref() }) else {
            return Ok(CallOptions {
                name: None,
                metadata: Metadata::default(),
                wait: Duration::ZERO,
                replace: false,
                statistics: false,
            });
        };
        // SAFETY: guaranteed by the caller.
        let (name, metadata) =
            unsafe { (name(options.name)?, metadata(options.metadata, options.metadata_count)?) };
        let (wait, replace) = (seconds(options.wait_seconds)?, options.replace != 0);
        let statistics = options.statistics != 0;
        Ok(CallOptions { name, metadata, wait, replace, statistics })
    }

    pub(crate) fn of_object(&self) -> ObjectOptions<'_> {
        let metadata = (!self.metadata.is_empty()).then_some(&self.metadata);
        let Self { name, wait, replace, statistics, .. } = *self;
        ObjectOptions { name, metadata, wait, replace, statistics }
    }
}

/// Borrows an array that C passes.
///
/// # Safety
/// `first` is NULL or points to `count` items that live through the call.
pub(crate) unsafe fn items<'a, T>(
    first: *const T,
    count: usize,
    what: &str,
) -> Result<&'a [T], CallFailure> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(CallFailure::null(what));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(CallFailure::Argument(format!("{count} {what}")));
    }
    // SAFETY: guaranteed by the caller, and the length fits an allocation.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Reads labels that C passes.
///
/// # Safety
/// As [`items`]; the texts are NULL or C strings.
pub(crate) unsafe fn metadata(
    first: *const FarrowPair,
    count: usize,
) -> Result<Metadata, CallFailure> {
    if count > PAIRS_MAX {
        return Err(CallFailure::Argument(format!(
            "{count} pairs of metadata, of {PAIRS_MAX} at most"
        )));
    }
    // SAFETY: guaranteed by the caller.
    let pairs = unsafe { items(first, count, "metadata") }?;
    let mut all = Vec::with_capacity(count);
    for pair in pairs {
        // SAFETY: guaranteed by the caller.
        let (key, value) = unsafe { (name(pair.key)?, name(pair.value)?) };
        all.push((
            key.ok_or_else(|| CallFailure::null("key"))?,
            value.ok_or_else(|| CallFailure::null("value"))?,
        ));
    }
    Metadata::new(all).map_err(|error| CallFailure::Argument(error.to_string()))
}
