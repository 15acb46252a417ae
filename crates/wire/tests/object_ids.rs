//! The bytes of object ids in messages, as nodes and clients of other builds write and read them:
//! the two halves one after the other.
#![allow(clippy::unwrap_used)] // a failure is the result

use std::fmt::Debug;

use farrow_wire::{
    DrainStep, ImportStep, Inheritance, LazyObject, ListedItem, ReplyBody, RequestBody,
    WireObjectId, WireTarget, decode, encode,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

fn first() -> WireObjectId {
    WireObjectId { hi: 300, lo: 5 }
}

fn second() -> WireObjectId {
    WireObjectId { hi: 1, lo: 1 << 32 }
}

/// The halves of the first: 300 takes two bytes, with the lower seven bits in front.
const FIRST: [u8; 3] = [0xac, 2, 5];
const SECOND: [u8; 6] = [1, 0x80, 0x80, 0x80, 0x80, 0x10];

fn check<T>(message: &T, parts: &[&[u8]])
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let mut frame = Vec::new();
    encode(message, &mut frame).unwrap();
    assert_eq!(frame[4..], parts.concat(), "{message:?}");
    let (read, used) = decode::<T>(&frame).unwrap().unwrap();
    assert_eq!((&read, used), (message, frame.len()));
}

#[test]
fn requests_have_the_known_bytes() {
    let ids = || vec![first(), second()];
    check(&RequestBody::Confirm { ids: ids() }, &[&[6, 2], &FIRST, &SECOND]);
    check(&RequestBody::EndLeases { ids: ids() }, &[&[43, 2], &FIRST, &SECOND]);
    check(&RequestBody::Restore { id: first() }, &[&[24], &FIRST]);
    let import = RequestBody::Import { origin: first(), step: ImportStep::Abandon, wait_ms: 7 };
    check(&import, &[&[41], &FIRST, &[2, 7]]);
    let node = || "b".to_owned();
    let step = DrainStep::Move { id: first(), node: node() };
    check(&RequestBody::Drain(step), &[&[47, 3], &FIRST, b"\x01b"]);
    let (id, staged, absent) = (first(), second(), "a".to_owned());
    let step = DrainStep::MoveAs { id, node: node(), staged, absent };
    check(&RequestBody::Drain(step), &[&[47, 4], &FIRST, b"\x01b", &SECOND, b"\x01a"]);
}

#[test]
fn targets_have_the_known_bytes() {
    let targets = vec![WireTarget::Id(first()), WireTarget::Name("a".to_owned())];
    check(&RequestBody::Delete { targets }, &[&[8, 2, 0], &FIRST, &[1, 1], b"a"]);
    assert_eq!(
        WireTarget::Id(WireObjectId { hi: 0x1a, lo: 0x2b }).to_string(),
        "000000000000001a000000000000002b"
    );
}

#[test]
fn replies_have_the_known_bytes() {
    check(
        &ReplyBody::Sealed(vec![Ok(first()), Ok(second())]),
        &[&[3, 2, 0], &FIRST, &[0], &SECOND],
    );
    check(&ReplyBody::Fetched(Some(first())), &[&[20, 1], &FIRST]);
    check(&ReplyBody::FetchedPart(second()), &[&[22], &SECOND]);
    check(&LazyObject { id: first(), ..LazyObject::default() }, &[&FIRST, &[0; 6]]);
    check(&ListedItem { id: first(), ..ListedItem::default() }, &[&FIRST, &[0; 10]]);
    let inheritance = Inheritance { retained: vec![(9, first())], ..Inheritance::default() };
    check(&inheritance, &[&[0, 1, 9], &FIRST, &[0; 3]]);
}
