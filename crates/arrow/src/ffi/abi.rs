//! The structures of the Arrow C Data Interface with accessible fields. In arrow-rs the fields
//! are private, and its accessors panic on bad input and lose metadata.
//! Source: <https://arrow.apache.org/docs/format/CDataInterface.html#structure-definitions>

use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use std::ffi::{c_char, c_void};

/// `struct ArrowSchema`.
#[repr(C)]
pub(super) struct CSchema {
    pub format: *const c_char,
    pub name: *const c_char,
    pub metadata: *const c_char,
    pub flags: i64,
    pub n_children: i64,
    pub children: *mut *mut FFI_ArrowSchema,
    pub dictionary: *mut FFI_ArrowSchema,
    pub release: Option<unsafe extern "C" fn(*mut FFI_ArrowSchema)>,
    pub private_data: *mut c_void,
}

/// `struct ArrowArray`.
#[repr(C)]
pub(super) struct CArray {
    pub length: i64,
    pub null_count: i64,
    pub offset: i64,
    pub n_buffers: i64,
    pub n_children: i64,
    pub buffers: *mut *const c_void,
    pub children: *mut *mut FFI_ArrowArray,
    pub dictionary: *mut FFI_ArrowArray,
    pub release: Option<unsafe extern "C" fn(*mut FFI_ArrowArray)>,
    pub private_data: *mut c_void,
}

const _: () = assert!(size_of::<CSchema>() == size_of::<FFI_ArrowSchema>());
const _: () = assert!(align_of::<CSchema>() == align_of::<FFI_ArrowSchema>());
const _: () = assert!(size_of::<CArray>() == size_of::<FFI_ArrowArray>());
const _: () = assert!(align_of::<CArray>() == align_of::<FFI_ArrowArray>());

/// The fields of a schema.
pub(super) fn schema_fields(schema: &FFI_ArrowSchema) -> &CSchema {
    // SAFETY: both are `repr(C)` with the layout that the C Data Interface fixes.
    unsafe { &*std::ptr::from_ref(schema).cast::<CSchema>() }
}

/// The fields of an array.
pub(super) fn array_fields(array: &FFI_ArrowArray) -> &CArray {
    // SAFETY: both are `repr(C)` with the layout that the C Data Interface fixes.
    unsafe { &*std::ptr::from_ref(array).cast::<CArray>() }
}

/// Sets every null count above 0 to "unknown" (-1) in an array that was just exported.
pub(super) fn forget_null_counts(array: &mut FFI_ArrowArray) {
    // SAFETY: both are `repr(C)` with the layout that the C Data Interface fixes.
    let fields = unsafe { &mut *std::ptr::from_mut(array).cast::<CArray>() };
    if fields.null_count > 0 {
        fields.null_count = -1;
    }
    let children = usize::try_from(fields.n_children).unwrap_or(0);
    for child in 0..children {
        // SAFETY: arrow-rs has built an array of `n_children` pointers to arrays that it owns.
        forget_null_counts(unsafe { &mut **fields.children.add(child) });
    }
    // SAFETY: null, or an array that arrow-rs has built and owns.
    if let Some(dictionary) = unsafe { fields.dictionary.as_mut() } {
        forget_null_counts(dictionary);
    }
}
