//! `ArrowSchema` to and from [`SchemaNode`], byte for byte.

use super::abi::{CSchema, schema_fields};
use super::contained;
use crate::error::{ImportError, SchemaError};
use crate::schema::{DEPTH_MAX, FLAGS_KNOWN, Pairs, SchemaNode, SchemaParts};
use arrow_schema::ffi::FFI_ArrowSchema;
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr;

/// Reads a schema. The structure is borrowed, not released.
///
/// # Safety
/// `schema` must satisfy the contract of the C Data Interface: its pointers are valid.
///
/// # Errors
/// [`ImportError`] if it is already released, or its type does not exist.
pub unsafe fn import_schema(schema: &FFI_ArrowSchema) -> Result<SchemaNode, ImportError> {
    // SAFETY: guaranteed by the caller.
    unsafe { import(schema, 0) }
}

/// # Safety
/// As [`import_schema`].
unsafe fn import(schema: &FFI_ArrowSchema, depth: usize) -> Result<SchemaNode, ImportError> {
    if depth > DEPTH_MAX {
        return Err(SchemaError::TooDeep { max: DEPTH_MAX }.into());
    }
    let fields = schema_fields(schema);
    if fields.release.is_none() || fields.format.is_null() {
        return Err(ImportError::Null { what: "an ArrowSchema" });
    }
    // SAFETY: the format is a C string, by contract.
    let format = unsafe { CStr::from_ptr(fields.format) };
    let format = format.to_str().map_err(|_| SchemaError::BadText { what: "a format string" })?;
    let name = (!fields.name.is_null()).then(|| {
        // SAFETY: a name that is not null is a C string, by contract.
        unsafe { CStr::from_ptr(fields.name) }.to_bytes().into()
    });
    let mut parts = SchemaParts {
        format: format.into(),
        name,
        flags: (fields.flags & i64::from(FLAGS_KNOWN)) as u8,
        ..Default::default()
    };
    // SAFETY: metadata that is not null has the encoding of the contract.
    parts.metadata = unsafe { import_metadata(fields.metadata) }?;
    for index in 0..usize::try_from(fields.n_children).unwrap_or(0) {
        if fields.children.is_null() {
            return Err(ImportError::Null { what: "the children of an ArrowSchema" });
        }
        // SAFETY: there are `n_children` pointers, each null or to a schema, by contract.
        let child = unsafe { (*fields.children.add(index)).as_ref() };
        let child = child.ok_or(ImportError::Null { what: "a child of an ArrowSchema" })?;
        // SAFETY: the caller's guarantee covers the children.
        parts.children.push(unsafe { import(child, depth + 1) }?);
    }
    // SAFETY: the dictionary is null or a schema, by contract.
    if let Some(dictionary) = unsafe { fields.dictionary.as_ref() } {
        // SAFETY: the caller's guarantee covers the dictionary.
        parts.dictionary = Some(Box::new(unsafe { import(dictionary, depth + 1) }?));
    }
    Ok(SchemaNode::new(parts)?)
}

/// # Safety
/// `metadata` must be null or have the encoding of the C Data Interface.
unsafe fn import_metadata(metadata: *const c_char) -> Result<Pairs, ImportError> {
    let mut pairs = Vec::new();
    if metadata.is_null() {
        return Ok(pairs);
    }
    let mut at = metadata.cast::<u8>();
    // SAFETY: by contract, the encoding is a count, then that number of keys and values.
    for _ in 0..unsafe { take_number(&mut at) }? {
        // SAFETY: likewise.
        pairs.push(unsafe { (take_text(&mut at)?, take_text(&mut at)?) });
    }
    Ok(pairs)
}

/// # Safety
/// Four readable bytes must follow.
unsafe fn take_number(at: &mut *const u8) -> Result<usize, ImportError> {
    // SAFETY: guaranteed by the caller; the bytes need no alignment.
    let value = unsafe { at.cast::<i32>().read_unaligned() };
    // SAFETY: the end of the four bytes is within, or just after, the same allocation.
    *at = unsafe { at.add(4) };
    usize::try_from(value).map_err(|_| SchemaError::BadText { what: "metadata" }.into())
}

/// # Safety
/// A length and that number of bytes must follow.
unsafe fn take_text(at: &mut *const u8) -> Result<Box<[u8]>, ImportError> {
    // SAFETY: guaranteed by the caller.
    let length = unsafe { take_number(at) }?;
    // SAFETY: likewise.
    let text = unsafe { std::slice::from_raw_parts(*at, length) };
    // SAFETY: the end of the text is within, or just after, the same allocation.
    *at = unsafe { at.add(length) };
    Ok(text.into())
}

/// Private data of an exported schema.
struct Owned {
    format: CString,
    name: CString,
    metadata: Vec<u8>,
    children: Vec<*mut FFI_ArrowSchema>,
    dictionary: *mut FFI_ArrowSchema,
}

impl Drop for Owned {
    fn drop(&mut self) {
        for child in self.children.drain(..).chain([self.dictionary]) {
            if !child.is_null() {
                // SAFETY: from `Box::into_raw` in `export_schema`, and dropped only here. A
                // child that the consumer moved away has no release callback and frees nothing.
                drop(unsafe { Box::from_raw(child) });
            }
        }
    }
}

/// Writes a schema.
///
/// # Errors
/// [`SchemaError::BadText`] if a name holds a NUL byte or metadata exceeds 2 GiB.
pub fn export_schema(node: &SchemaNode) -> Result<FFI_ArrowSchema, SchemaError> {
    let text = |bytes: &[u8], what: &'static str| {
        CString::new(bytes).map_err(|_| SchemaError::BadText { what })
    };
    let mut owned = Box::new(Owned {
        format: text(node.format().as_bytes(), "a format string")?,
        name: text(node.name().unwrap_or_default(), "a field name")?,
        metadata: export_metadata(node)?,
        children: Vec::with_capacity(node.children().len()),
        dictionary: ptr::null_mut(),
    });
    for child in node.children() {
        owned.children.push(Box::into_raw(Box::new(export_schema(child)?)));
    }
    if let Some(dictionary) = node.dictionary() {
        owned.dictionary = Box::into_raw(Box::new(export_schema(dictionary)?));
    }
    let has_metadata = !owned.metadata.is_empty();
    let fields = CSchema {
        format: owned.format.as_ptr(),
        name: owned.name.as_ptr(),
        metadata: if has_metadata { owned.metadata.as_ptr().cast() } else { ptr::null() },
        flags: node.flags().into(),
        n_children: owned.children.len() as i64,
        children: owned.children.as_mut_ptr(),
        dictionary: owned.dictionary,
        release: Some(release),
        private_data: ptr::null_mut(),
    };
    let fields = CSchema { private_data: Box::into_raw(owned).cast::<c_void>(), ..fields };
    // SAFETY: both are `repr(C)` with the same layout (checked in `abi`); `CSchema` has no
    // destructor, so ownership passes to the result.
    Ok(unsafe { std::mem::transmute::<CSchema, FFI_ArrowSchema>(fields) })
}

fn export_metadata(node: &SchemaNode) -> Result<Vec<u8>, SchemaError> {
    let number = |value: usize| {
        let value = i32::try_from(value).map_err(|_| SchemaError::BadText { what: "metadata" })?;
        Ok::<_, SchemaError>(value.to_ne_bytes())
    };
    let mut bytes = Vec::new();
    if node.metadata().len() > 0 {
        bytes.extend(number(node.metadata().len())?);
        for (key, value) in node.metadata() {
            for text in [key, value] {
                bytes.extend(number(text.len())?);
                bytes.extend(text);
            }
        }
    }
    Ok(bytes)
}

/// Release callback of exported schemas.
///
/// # Safety
/// The consumer calls this once, with a structure from `export_schema`.
unsafe extern "C" fn release(schema: *mut FFI_ArrowSchema) {
    // SAFETY: by contract the pointer is the structure, or null.
    let Some(fields) = (unsafe { schema.cast::<CSchema>().as_mut() }) else { return };
    if fields.release.take().is_none() {
        return;
    }
    // SAFETY: `private_data` is from `Box::into_raw` in `export_schema`. `release` was not yet
    // null, so this is the first and only call.
    contained(|| drop(unsafe { Box::from_raw(fields.private_data.cast::<Owned>()) }));
    fields.private_data = ptr::null_mut();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dissociated::Export;
    use crate::{ArrowObject, ExportError, Kind};
    use arrow_schema::Field;

    /// Story: arrow-rs drops the metadata and order of dictionary values, and rejects metadata
    /// that is not UTF-8. pyarrow produces both.
    #[test]
    fn everything_survives_the_round_trip() {
        let leaf = |name: &str, dictionary: Option<SchemaNode>| {
            SchemaNode::new(SchemaParts {
                format: if dictionary.is_some() { "c".into() } else { "u".into() },
                name: Some(name.as_bytes().into()),
                flags: 3,
                metadata: vec![
                    (b"k\xff".as_slice().into(), b"\x00\x80".as_slice().into()),
                    (b"k\xff".as_slice().into(), b"".as_slice().into()),
                ],
                dictionary: dictionary.map(Box::new),
                ..Default::default()
            })
            .unwrap()
        };
        let node = leaf("outer", Some(leaf("\u{e9}", Some(leaf("", None)))));
        let exported = export_schema(&node).unwrap();
        // SAFETY: just exported by this module.
        let back = unsafe { import_schema(&exported) }.unwrap();
        assert_eq!(node, back);
        // IPC supports only UTF-8 text: the metadata is rejected rather than changed.
        let object =
            ArrowObject { kind: Kind::ChunkedArray, schema: back.clone().into(), batches: vec![] };
        let error = Export::new(&object, &mut |_, _| None).unwrap_err();
        assert!(matches!(error, ExportError::NotExpressible { .. }));
        assert!(back.dictionary().unwrap().metadata().eq(node.dictionary().unwrap().metadata()));
    }

    #[test]
    fn arrow_reads_what_we_write() {
        for data_type in crate::testing::sample_types() {
            let field = Field::new("f", data_type, true);
            let exported = export_schema(&SchemaNode::try_from(&field).unwrap()).unwrap();
            // arrow-rs cannot read a union of no types.
            if !exported.format().ends_with(':') || exported.format().starts_with("ts") {
                assert_eq!(Field::try_from(&exported).unwrap(), field);
            }
            let theirs = FFI_ArrowSchema::try_from(&field).unwrap();
            // SAFETY: just exported by arrow-rs.
            let ours = unsafe { import_schema(&theirs) }.unwrap();
            assert_eq!(ours.to_field(), field);
        }
    }
}
