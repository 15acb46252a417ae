//! Connections of clients that use memory of another node.

use super::*;

const REMOTE_SESSION: RemoteSessionId = RemoteSessionId::outgoing(0);

/// Opens a remote session at `a` for a client of `b`.
fn open_session(a: &mut DrivenNode, b: &DrivenNode) -> RemoteSessionId {
    b.peers.open_remote_session(REMOTE_SESSION, &a.address(), PROCESS).unwrap();
    let (remote_session, from, process) = a.opened();
    assert_eq!((from.as_str(), process, remote_session.is_incoming()), ("b", PROCESS, true));
    remote_session
}

/// Sends all bytes, and waits for room if there is none.
fn send_all(
    node: &mut DrivenNode,
    remote_session: RemoteSessionId,
    bytes: Vec<u8>,
    piece: usize,
    mut other: impl FnMut(),
) {
    let mut rest = Bytes::from(bytes);
    while !rest.is_empty() {
        let mut next = rest.split_to(piece.min(rest.len()));
        while let Err(back) = node.peers.send(remote_session, next) {
            next = back;
            other();
            node.wait(Instant::now() + Duration::from_millis(10));
            node.waiting.retain(|event| !matches!(event, PeerEvent::RemoteSessionWritable { .. }));
        }
    }
}

#[test]
fn bytes_go_both_ways_in_order_and_the_end_says_whether_the_process_lives() {
    for has_process_ended in [false, true] {
        let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
        let remote_session = open_session(&mut a, &b);
        b.peers.send(REMOTE_SESSION, Bytes::from_static(b"hello")).unwrap();
        assert_eq!(a.read(remote_session, 5), b"hello");
        a.peers.send(remote_session, Bytes::from_static(b"welcome")).unwrap();
        assert_eq!(b.read(REMOTE_SESSION, 7), b"welcome");
        b.peers.send(REMOTE_SESSION, Bytes::from_static(b"bye")).unwrap();
        b.peers.end_remote_session(REMOTE_SESSION, has_process_ended);
        assert_eq!(a.read(remote_session, 3), b"bye");
        assert_eq!(a.ended(remote_session).0, Some(has_process_ended));
        b.ask_through(&mut a, 1);
        assert!(b.waiting.is_empty(), "who ended it hears no more: {:?}", b.waiting);
    }
}

#[test]
fn the_node_with_the_memory_can_end_a_remote_session_too() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let remote_session = open_session(&mut a, &b);
    let last = pattern(0, 3 << 20);
    a.peers.send(remote_session, last.clone().into()).unwrap();
    a.peers.end_remote_session(remote_session, false);
    assert!(b.read(REMOTE_SESSION, last.len()) == last);
    assert_eq!(b.ended(REMOTE_SESSION).0, Some(false));
    b.peers.send(REMOTE_SESSION, Bytes::from_static(b"too late")).unwrap();
    b.ask_through(&mut a, 1);
    assert!(a.waiting.is_empty(), "{:?}", a.waiting);
}

#[test]
fn twenty_mebibytes_in_frames_of_all_sizes_arrive_whole() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let remote_session = open_session(&mut a, &b);
    let all = pattern(0, 20 << 20);
    let mut got = Vec::new();
    for (part, piece) in all.chunks(5 << 20).zip([97 << 10, 4 << 20, 5 << 20, 1 << 20]) {
        send_all(&mut b, REMOTE_SESSION, part.to_vec(), piece, || {
            while let Some(at) = a
                .waiting
                .iter()
                .position(|event| matches!(event, PeerEvent::RemoteSessionData { .. }))
            {
                if let PeerEvent::RemoteSessionData { bytes, .. } = a.waiting.remove(at) {
                    got.extend_from_slice(&bytes.bytes);
                }
            }
            a.wait(Instant::now());
        });
    }
    let rest = all.len() - got.len();
    got.extend(a.read(remote_session, rest));
    assert!(got == all);
}

#[test]
fn the_pattern_shows_a_lost_a_doubled_and_a_moved_piece() {
    // The canary of the tests above.
    let whole = pattern(0, 3 << 16);
    let (x, y) = (1 << 16, 2 << 16);
    let lost = [&whole[..x], &whole[y..]].concat();
    let moved = [&whole[..x], &whole[y..], &whole[x..y]].concat();
    let doubled = [&whole[..x], &whole[..x], &whole[y..]].concat();
    assert!(lost != whole && moved != whole && doubled != whole);
}

/// Fills some remote sessions until each is blocked. Returns the number of bytes sent on the first.
fn fill(node: &DrivenNode, remote_sessions: &[RemoteSessionId]) -> usize {
    let (mut sent, mut full) = (vec![0; remote_sessions.len()], 0);
    let until = Instant::now() + LIMIT;
    // Full for a while, so the bytes in flight have arrived.
    while full < 20 {
        full += 1;
        for (sent, remote_session) in sent.iter_mut().zip(remote_sessions) {
            if node.peers.send(*remote_session, pattern(*sent, 128 << 10).into()).is_ok() {
                (*sent, full) = (*sent + (128 << 10), 0);
            }
            assert!(Instant::now() < until && *sent < 64 << 20, "{sent} B and no end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    sent[0]
}

#[test]
fn who_keeps_bytes_stops_the_sender_and_nothing_else_and_nothing_is_lost() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let remote_session = open_session(&mut a, &b);
    b.peers.send(REMOTE_SESSION, pattern(0, 0).into()).unwrap();
    let sent = fill(&b, &[REMOTE_SESSION]);
    // Bytes that the event loop keeps because its client does not read still count.
    a.wait(Instant::now() + LIMIT);
    let retained = a
        .waiting
        .iter()
        .filter(|event| matches!(event, PeerEvent::RemoteSessionData { .. }))
        .count();
    assert!(retained > 0);
    assert!(
        b.peers.send(REMOTE_SESSION, Bytes::from_static(b"x")).is_err(),
        "the event loop took nothing"
    );
    // Messages and requests are not blocked.
    b.peers.send_message(&a.address(), Bytes::from_static(b"alive"));
    assert_eq!(a.reported().2, &b"alive"[..]);
    b.ask_through(&mut a, 1);
    assert!(a.read(remote_session, sent) == pattern(0, sent));
    b.next(|event| matches!(event, PeerEvent::RemoteSessionWritable { .. }).then_some(()));
    b.peers.send(REMOTE_SESSION, Bytes::from_static(b"more")).unwrap();
    assert_eq!(a.read(remote_session, 4), b"more");
}

#[test]
fn many_remote_sessions_that_no_client_reads_hold_up_neither_messages_nor_questions() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let remote_sessions: Vec<_> = (0..10).map(RemoteSessionId::outgoing).collect();
    let mut theirs = Vec::new();
    for remote_session in &remote_sessions {
        b.peers.open_remote_session(*remote_session, &a.address(), PROCESS).unwrap();
        theirs.push(a.opened().0);
    }
    fill(&b, &remote_sessions);
    fill(&a, &theirs);
    b.peers.send_message(&a.address(), Bytes::from_static(b"alive"));
    b.peers.ask(1, &a.address(), Bytes::new(), LIMIT).unwrap();
    // No bytes of the remote sessions are taken: they stay in `waiting`.
    let _ = a.reported();
    let (token, ..) = a.requested();
    a.peers.answer(token, Bytes::new()).unwrap();
    b.answered(1).unwrap();
}

#[test]
fn a_remote_session_given_back_while_no_client_reads_ends_within_its_grace() {
    let (mut a, b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let remote_session = open_session(&mut a, &b);
    fill(&b, &[REMOTE_SESSION]);
    b.peers.end_remote_session(REMOTE_SESSION, true);
    // The end is queued after bytes that are not taken, so the stream is cut.
    a.wait(Instant::now() + LIMIT);
    let retained = std::mem::take(&mut a.waiting);
    assert!(retained.iter().any(|event| matches!(event, PeerEvent::RemoteSessionData { .. })));
    std::thread::sleep(Duration::from_millis(1500));
    drop(retained);
    assert_eq!(a.ended(remote_session).0, None);
}

#[test]
fn a_killed_node_ends_its_remote_sessions_and_says_nothing_of_the_process() {
    let (mut a, b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let remote_session = open_session(&mut a, &b);
    b.peers.send(REMOTE_SESSION, Bytes::from_static(b"half a requ")).unwrap();
    assert_eq!(a.read(remote_session, 11), b"half a requ");
    drop(b);
    assert_eq!(a.ended(remote_session).0, None);
    let mut b = DrivenNode::new("b");
    open_session(&mut a, &b);
    drop(a);
    assert_eq!(b.ended(REMOTE_SESSION).0, None);
    assert!(b.peers.retained().remote_sessions.is_empty());
}

#[test]
fn remote_sessions_have_a_limit_on_both_sides_and_their_places_come_back() {
    let (mut few, mut many) = (options("a"), options("b"));
    few.limits.remote_sessions_max = 2;
    many.limits.remote_sessions_max = 3;
    let (mut a, mut b) = (DrivenNode::with(few), DrivenNode::with(many));
    for number in 0..3 {
        b.peers
            .open_remote_session(RemoteSessionId::outgoing(number), &a.address(), PROCESS)
            .unwrap();
    }
    let third = b.peers.open_remote_session(RemoteSessionId::outgoing(3), &a.address(), PROCESS);
    assert_eq!(third, Err(PeerError::Busy { what: "remote sessions", max: 3 }));
    let (first, ..) = a.opened();
    a.opened();
    let refused = b.next(|event| match event {
        PeerEvent::RemoteSessionEnded { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(refused.1.contains("ResourceExhausted"), "{refused:?}");
    a.peers.end_remote_session(first, false);
    b.next(|event| matches!(event, PeerEvent::RemoteSessionEnded { .. }).then_some(()));
    let until = Instant::now() + LIMIT;
    for number in 10.. {
        assert!(Instant::now() < until, "the place did not come back");
        let remote_session = RemoteSessionId::outgoing(number);
        if b.peers.open_remote_session(remote_session, &a.address(), PROCESS).is_err() {
            b.wait(Instant::now() + Duration::from_millis(10));
            continue;
        }
        let is_over = |events: &[PeerEvent]| {
            events.iter().any(|event| matches!(event, PeerEvent::RemoteSessionOpened { .. }))
        };
        a.wait(Instant::now() + Duration::from_millis(100));
        if is_over(&a.waiting) {
            break;
        }
    }
    assert_eq!(
        b.peers.open_remote_session(RemoteSessionId::incoming(1), &a.address(), PROCESS),
        Err(PeerError::RemoteSessionTaken)
    );
}
