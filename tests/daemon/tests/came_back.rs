//! A client timed out at a paused daemon, reconnected, and was rejected because its slot was in
//! use: the resumed daemon accepted the new connection before it noticed the end of the old one.
//! The call failed with a denial that had nothing to do with permissions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use common::requested::{OWNER, RequestedNode, hello, is_denied};
use farrow_wire::{ReplyBody, WireError};

#[test]
fn a_client_whose_last_connection_has_not_ended_yet_has_to_come_again() {
    let mut node = RequestedNode::new();
    let (first, welcome) = node.join_as(50, OWNER, None);
    let place = Some((welcome.region_uid, welcome.slot, welcome.nonce));
    let early = node.open(50, OWNER, None);
    let reported = node.ask(early, hello("", place, ""));
    assert!(matches!(reported, Err(WireError::NoRemoteSession { .. })), "{reported:?}");
    // Another process may not take the slot, even with the nonce.
    let other = node.open(51, OWNER, None);
    let reported = node.ask(other, hello("", place, ""));
    assert!(is_denied(&reported), "{reported:?}");
    node.state.closed(early, false, node.now_ms);
    node.state.closed(first, true, node.now_ms);
    let again = node.open(50, OWNER, None);
    let reported = node.ask(again, hello("", place, ""));
    assert!(matches!(reported, Ok(ReplyBody::Welcome(_))), "{reported:?}");
}
