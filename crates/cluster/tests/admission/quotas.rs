//! Limits of bytes and objects of one client and one namespace, and requests that wait for objects.

use farrow_cluster::protocol::Quotas;
use farrow_wire::{NamespaceSpec, QuotaExceeded};

use super::*;

fn limited(clients: u64, bytes: Option<u64>, objects: Option<u32>) -> AdmissionNode {
    let mut node = AdmissionNode::new(clients);
    node.state.set_quotas(Quotas { client_bytes_max: bytes, client_objects_max: objects });
    node
}

/// Clients of one namespace with a limit of `objects_max` objects.
fn limited_namespace(clients: u64, objects_max: u32) -> AdmissionNode {
    let mut node = AdmissionNode::new(0);
    let maker = 99;
    node.join(maker);
    let spec = NamespaceSpec {
        name: "few".to_owned(),
        objects_max: Some(objects_max.into()),
        ..NamespaceSpec::default()
    };
    let seq = node.ask(maker, RequestBody::CreateNamespace(spec));
    assert_eq!(node.answer(maker, seq), Some(Ok(ReplyBody::Done)));
    node.state.closed(SessionId(maker), false, node.now_ms);
    (0..clients).for_each(|client| node.join_in(client, "few"));
    node
}

fn refused(node: &mut AdmissionNode, client: u64, seq: u64) -> (String, u64, u64, u64) {
    match node.answer(client, seq) {
        Some(Err(WireError::QuotaExceeded(QuotaExceeded {
            whose,
            what,
            requested,
            used,
            limit,
            ..
        }))) => {
            assert_eq!(whose, format!("client {client} (process {})", 100 + client));
            (what, requested, used, limit)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_gets_no_more_bytes_than_its_quota_says() {
    let mut node = limited(2, Some(100 * KIB), None);
    // An optional larger grant is cut to the limit; a required one is rejected, waiting or not.
    let ask = RequestBody::Grant { min: 4 * KIB, want: 512 * KIB, wait_ms: 0 };
    let seq = node.ask(0, ask);
    let span = node.granted(0, seq);
    assert_eq!(span.1, 100 * KIB);
    for wait_ms in [0, 60_000] {
        let seq = node.grant(0, 4 * KIB, wait_ms);
        let expected = ("bytes".to_owned(), 4 * KIB, 100 * KIB, 100 * KIB);
        assert_eq!(refused(&mut node, 0, seq), expected);
    }
    // The other has its own.
    let seq = node.grant(1, 100 * KIB, 0);
    node.granted(1, seq);
    // An object counts for its creator until its memory is free again.
    let seal = node.ask(0, RequestBody::Seal { items: vec![SealItem::bytes(span, span.1)] });
    let Some(Ok(ReplyBody::Sealed(sealed))) = node.answer(0, seal) else { panic!() };
    let id = sealed[0].clone().unwrap();
    let seq = node.grant(0, 1, 0);
    assert_eq!(refused(&mut node, 0, seq).2, 100 * KIB);
    node.ask(1, RequestBody::Delete { targets: vec![WireTarget::Id(id)] });
    let seq = node.grant(0, 100 * KIB, 0);
    node.granted(0, seq);
}

#[test]
fn a_client_makes_no_more_objects_than_its_quota_says() {
    let mut node = limited(2, None, Some(3));
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let items = (0..4).map(|n| SealItem::bytes((start + n * 128, 128), 1)).collect();
    let seal = node.ask(0, RequestBody::Seal { items });
    let Some(Ok(ReplyBody::Sealed(sealed))) = node.answer(0, seal) else { panic!() };
    assert_eq!(sealed.iter().filter(|result| result.is_ok()).count(), 3);
    let beyond = sealed[3].clone().unwrap_err();
    assert!(matches!(
        beyond,
        WireError::QuotaExceeded(QuotaExceeded { requested: 1, used: 3, limit: 3, .. })
    ));
    // A client that could not seal the object gets the error before it writes.
    let seq = node.grant(0, 4 * KIB, 60_000);
    assert_eq!(refused(&mut node, 0, seq), ("objects".to_owned(), 1, 3, 3));
    let id = sealed[0].clone().unwrap();
    node.ask(0, RequestBody::Delete { targets: vec![WireTarget::Id(id)] });
    let seq = node.grant(0, 4 * KIB, 0);
    node.granted(0, seq);
}

#[test]
fn a_quota_that_was_used_up_while_a_request_waited_is_reported_when_its_turn_comes() {
    let mut node = AdmissionNode::new(2);
    let [half, _] = full(&mut node);
    node.state.set_quotas(Quotas { client_bytes_max: Some(64 * KIB), client_objects_max: None });
    let first = node.grant(1, 64 * KIB, 60_000);
    let second = node.grant(1, 64 * KIB, 60_000);
    assert!(node.is_waiting(1, first) && node.is_waiting(1, second));
    node.release(0, half);
    node.granted(1, first);
    assert_eq!(refused(&mut node, 1, second), ("bytes".to_owned(), 64 * KIB, 64 * KIB, 64 * KIB));
    assert_eq!(node.state.stats(0).unwrap().waiting, 0);
}

#[test]
fn more_objects_than_the_quota_says_are_refused_before_they_are_written() {
    let mut node = limited(2, None, Some(3));
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let sealed = node.seal(0, (start, 128), false).unwrap();
    let seq = node.reservation(0, 2, 0);
    node.expect_reserved(0, seq);
    // One sealed and two reserved objects are three; impossible requests do not wait.
    for (objects, wait_ms) in [(1, 0), (4, 60_000)] {
        let seq = node.reservation(0, objects, wait_ms);
        let expected = ("objects".to_owned(), u64::from(objects), 3, 3);
        assert_eq!(refused(&mut node, 0, seq), expected);
    }
    // Reserved objects are only for requests with a reservation, even of the same client.
    assert!(matches!(
        node.seal(0, (start + 128, 128), false),
        Err(WireError::QuotaExceeded(QuotaExceeded { requested: 1, used: 3, limit: 3, .. }))
    ));
    // Memory for a reserved object is granted, and the seal uses up the reservation.
    let seq = node.grant(0, 4 * KIB, 0);
    node.granted(0, seq);
    node.seal(0, (start + 128, 128), true).unwrap();
    // A released reservation becomes free; a release without a reservation has no effect.
    node.ask(0, RequestBody::UnreserveObjects { objects: 1 });
    node.ask(0, RequestBody::UnreserveObjects { objects: 7 });
    node.seal(0, (start + 256, 128), false).unwrap();
    assert!(node.seal(0, (start + 384, 128), true).is_err(), "there is no reservation left");
    node.delete(0, sealed);
    node.seal(0, (start + 384, 128), true).unwrap();
    // The other client has its own.
    let seq = node.reservation(1, 3, 0);
    node.expect_reserved(1, seq);
}

#[test]
fn a_failed_seal_leaves_its_reservation() {
    let mut node = limited(1, None, Some(1));
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let seq = node.reservation(0, 1, 0);
    node.expect_reserved(0, seq);
    assert!(node.seal(0, (start + 64, 128), true).is_err());
    assert!(node.seal(0, (start, 128), false).is_err());
    node.seal(0, (start, 128), true).unwrap();
}

#[test]
fn who_waits_for_objects_gets_room_in_order_when_there_is_some() {
    let mut node = limited_namespace(4, 3);
    let seq = node.grant(0, 4 * KIB, 0);
    let (start, _) = node.granted(0, seq);
    let sealed: Vec<WireObjectId> =
        (0..3).map(|n| node.seal(0, (start + n * 128, 128), false).unwrap()).collect();
    let two = node.reservation(1, 2, 1_000);
    let late = node.reservation(2, 1, 500);
    let last = node.reservation(3, 1, 1_000);
    node.delete(0, sealed[0]);
    // It is reserved for the first, which needs two: not for later or non-waiting requests.
    assert!([(1, two), (2, late), (3, last)].iter().all(|(who, seq)| node.is_waiting(*who, *seq)));
    let exceeded = |requested, waiting, waited_ms| {
        WireError::QuotaExceeded(QuotaExceeded {
            whose: "namespace \"few\"".to_owned(),
            what: "objects".to_owned(),
            requested,
            used: 2,
            limit: 3,
            waiting,
            waited_ms,
        })
    };
    assert_eq!(node.seal(0, (start, 128), false), Err(exceeded(1, 3, 0)));
    let seq = node.reservation(0, 1, 0);
    assert_eq!(node.answer(0, seq), Some(Err(exceeded(1, 3, 0))));
    node.pass(499);
    assert!(node.is_waiting(2, late));
    node.pass(1);
    let reported = exceeded(1, 1, 500);
    assert!(reported.to_string().ends_with("in use, 1 request waits before, after waiting 500 ms"));
    assert_eq!(node.answer(2, late), Some(Err(reported)));
    node.delete(0, sealed[1]);
    node.expect_reserved(1, two);
    assert!(node.is_waiting(3, last));
    // When a client ends, its reservations and its position in the queue are freed.
    let removed = node.reservation(1, 3, 60_000);
    node.state.closed(SessionId(1), false, node.now_ms);
    assert_eq!(node.state.next_deadline_ms(), Some(0), "the queue is looked at at once");
    node.turn();
    node.expect_reserved(3, last);
    assert!(node.is_waiting(1, removed));
    let seq = node.reservation(0, 1, 0);
    node.expect_reserved(0, seq);
}

#[test]
fn a_client_at_its_own_limit_delays_no_other_client() {
    let mut node = limited_namespace(3, 10);
    node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(2) });
    let seq = node.reservation(0, 2, 0);
    node.expect_reserved(0, seq);
    let waiting = node.reservation(0, 1, 60_000);
    assert!(node.is_waiting(0, waiting));
    let seq = node.reservation(1, 2, 0);
    node.expect_reserved(1, seq);
    node.ask(0, RequestBody::UnreserveObjects { objects: 1 });
    node.expect_reserved(0, waiting);
}

#[test]
fn objects_that_can_never_be_had_are_refused_at_once_and_delay_no_client() {
    let mut node = limited_namespace(2, 10);
    node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(50) });
    let seq = node.reservation(0, 8, 0);
    node.expect_reserved(0, seq);
    // The client's own limit has no room now, that of its namespace never has.
    let seq = node.reservation(0, 50, 60_000);
    let refused = node.answer(0, seq);
    assert!(
        matches!(refused, Some(Err(WireError::QuotaExceeded(QuotaExceeded { limit: 10, .. })))),
        "{refused:?}"
    );
    let seq = node.reservation(1, 2, 0);
    node.expect_reserved(1, seq);
}

#[test]
fn a_request_that_no_longer_waits_for_objects_delays_no_other_client() {
    for is_cancelled in [true, false] {
        let mut node = limited_namespace(3, 10);
        node.state.set_quotas(Quotas { client_bytes_max: None, client_objects_max: Some(8) });
        // One waits for its own limit, the other for that of the namespace.
        let seq = node.reservation(0, 8, 0);
        node.expect_reserved(0, seq);
        let own = node.reservation(0, 1, 60_000);
        let common = node.reservation(1, 3, 60_000);
        assert!(node.is_waiting(0, own) && node.is_waiting(1, common));
        let mut actions = Vec::new();
        if is_cancelled {
            let cancel = Request { seq: 900, body: RequestBody::Cancel { seq: common } };
            node.state.handle(SessionId(1), cancel, node.now_ms, 7, &mut actions);
        } else {
            node.state.closed(SessionId(1), false, node.now_ms);
        }
        // In the same turn of the loop: two objects are left.
        let grant = RequestBody::Grant { min: 4 * KIB, want: 4 * KIB, wait_ms: 0 };
        let grant = Request { seq: 901, body: grant };
        node.state.handle(SessionId(2), grant, node.now_ms, 7, &mut actions);
        node.take(actions);
        node.granted(2, 901);
        assert!(node.is_waiting(0, own));
    }
}

#[test]
fn reservations_outlive_a_daemon_that_is_followed_in_good_order() {
    let mut node = limited_namespace(2, 4);
    let seq = node.reservation(0, 3, 0);
    node.expect_reserved(0, seq);
    assert_eq!(node.state.inheritance().unwrap().reserved_objects, [(0, 3)]);
    // The client reports its reservations after it reconnects.
    node.ask(0, RequestBody::ReservedObjects { objects: 1 });
    let seq = node.reservation(1, 3, 0);
    node.expect_reserved(1, seq);
    // Reservations that others took meanwhile are lost.
    node.ask(0, RequestBody::ReservedObjects { objects: 3 });
    assert_eq!(node.state.inheritance().unwrap().reserved_objects, [(0, 1), (1, 3)]);
}

#[test]
fn the_queue_for_objects_has_limits_and_an_end() {
    let mut node = limited_namespace(20, 1);
    let seq = node.reservation(0, 1, 0);
    node.expect_reserved(0, seq);
    let mut refused = 0;
    for client in 1..20 {
        for count in 1..=65 {
            let seq = node.reservation(client, 1, 60_000);
            match node.answer(client, seq) {
                None => assert!(count <= 64),
                Some(Err(WireError::TooMany { max: 64 | 1024, .. })) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(refused, 19 * 65 - 1024);
    let mut actions = Vec::new();
    node.state.stop(&mut actions);
    assert_eq!(actions.len(), 1024);
}
