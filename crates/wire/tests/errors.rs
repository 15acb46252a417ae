//! The bytes, the text and the label of every error of the protocol, as nodes and clients of other
//! builds write and read them.
//!
//! `tests/python/objects/test_error_attributes.py` sends the same bytes to a client.
#![allow(clippy::unwrap_used)] // a failure is the result

use farrow_wire::{WireError, decode, encode};
use serde::Deserialize;

/// Number of variants of [`WireError`], which are numbered by their order.
const VARIANTS: u8 = 27;

/// An error as it is known.
#[derive(Deserialize)]
struct Golden {
    kind: String,
    /// In hexadecimal.
    bytes: String,
    text: String,
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes(), body].concat()
}

#[test]
fn errors_have_the_known_bytes_and_texts() {
    let all: Vec<Golden> = serde_json::from_str(include_str!("errors.json")).unwrap();
    let mut numbers = Vec::new();
    for Golden { kind, bytes, text } in all {
        let byte = |at| u8::from_str_radix(&bytes[at..at + 2], 16).unwrap();
        let body: Vec<u8> = (0..bytes.len()).step_by(2).map(byte).collect();
        let frame = framed(&body);
        let (error, used) = decode::<WireError>(&frame).unwrap().unwrap();
        assert_eq!((error.kind(), error.to_string(), used), (&*kind, text, frame.len()));
        let mut written = Vec::new();
        encode(&error, &mut written).unwrap();
        assert_eq!(written, frame, "{kind}");
        numbers.push(body[0]);
    }
    numbers.dedup();
    assert_eq!(numbers, (0..VARIANTS).collect::<Vec<_>>(), "all variants, in their order");
    let unknown = decode::<WireError>(&framed(&[VARIANTS]));
    assert!(unknown.is_err(), "a variant that is not among the known ones: {unknown:?}");
}
