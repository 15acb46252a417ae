//! Connections of clients that use memory of another node.

use super::*;

const SEAT: RemoteSessionId = RemoteSessionId::outgoing(0);

/// A seat of a client of `b` at `a`.
fn seated(a: &mut Node, b: &Node) -> RemoteSessionId {
    b.peers.open_seat(SEAT, &a.address(), PROCESS).unwrap();
    let (seat, from, process) = a.opened();
    assert_eq!((from.as_str(), process, seat.is_incoming()), ("b", PROCESS, true));
    seat
}

/// Sends all of it, waiting for room when there is none.
fn send_all(
    node: &mut Node,
    seat: RemoteSessionId,
    bytes: Vec<u8>,
    piece: usize,
    mut other: impl FnMut(),
) {
    let mut rest = Bytes::from(bytes);
    while !rest.is_empty() {
        let mut next = rest.split_to(piece.min(rest.len()));
        while let Err(back) = node.peers.send(seat, next) {
            next = back;
            other();
            node.wait(Instant::now() + Duration::from_millis(10));
            node.waiting.retain(|event| !matches!(event, PeerEvent::SeatWritable { .. }));
        }
    }
}

#[test]
fn bytes_go_both_ways_in_order_and_the_end_says_whether_the_process_lives() {
    for is_process_gone in [false, true] {
        let (mut a, mut b) = (Node::new("a"), Node::new("b"));
        let seat = seated(&mut a, &b);
        b.peers.send(SEAT, Bytes::from_static(b"hello")).unwrap();
        assert_eq!(a.read(seat, 5), b"hello");
        a.peers.send(seat, Bytes::from_static(b"welcome")).unwrap();
        assert_eq!(b.read(SEAT, 7), b"welcome");
        b.peers.send(SEAT, Bytes::from_static(b"bye")).unwrap();
        b.peers.end_seat(SEAT, is_process_gone);
        assert_eq!(a.read(seat, 3), b"bye");
        assert_eq!(a.ended(seat).0, Some(is_process_gone));
        b.ask_through(&mut a, 1);
        assert!(b.waiting.is_empty(), "who ended it hears no more: {:?}", b.waiting);
    }
}

#[test]
fn the_node_with_the_memory_can_end_a_seat_too() {
    let (mut a, mut b) = (Node::new("a"), Node::new("b"));
    let seat = seated(&mut a, &b);
    let last = pattern(0, 3 << 20);
    a.peers.send(seat, last.clone().into()).unwrap();
    a.peers.end_seat(seat, false);
    assert!(b.read(SEAT, last.len()) == last);
    assert_eq!(b.ended(SEAT).0, Some(false));
    b.peers.send(SEAT, Bytes::from_static(b"too late")).unwrap();
    b.ask_through(&mut a, 1);
    assert!(a.waiting.is_empty(), "{:?}", a.waiting);
}

#[test]
fn twenty_mebibytes_in_frames_of_all_sizes_arrive_whole() {
    let (mut a, mut b) = (Node::new("a"), Node::new("b"));
    let seat = seated(&mut a, &b);
    let all = pattern(0, 20 << 20);
    let mut got = Vec::new();
    for (part, piece) in all.chunks(5 << 20).zip([97 << 10, 4 << 20, 5 << 20, 1 << 20]) {
        send_all(&mut b, SEAT, part.to_vec(), piece, || {
            while let Some(at) =
                a.waiting.iter().position(|event| matches!(event, PeerEvent::SeatData { .. }))
            {
                if let PeerEvent::SeatData { bytes, .. } = a.waiting.remove(at) {
                    got.extend_from_slice(&bytes.bytes);
                }
            }
            a.wait(Instant::now());
        });
    }
    let rest = all.len() - got.len();
    got.extend(a.read(seat, rest));
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

/// What a node could send on each of some seats until it was told to wait; of the first, how much.
fn fill(node: &Node, seats: &[RemoteSessionId]) -> usize {
    let (mut sent, mut full) = (vec![0; seats.len()], 0);
    let until = Instant::now() + LIMIT;
    // Full for a while: what is under way has come to rest.
    while full < 20 {
        full += 1;
        for (sent, seat) in sent.iter_mut().zip(seats) {
            if node.peers.send(*seat, pattern(*sent, 128 << 10).into()).is_ok() {
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
    let (mut a, mut b) = (Node::new("a"), Node::new("b"));
    let seat = seated(&mut a, &b);
    b.peers.send(SEAT, pattern(0, 0).into()).unwrap();
    let sent = fill(&b, &[SEAT]);
    // Bytes that the event loop has seen, but keeps since its client does not read, still count.
    a.wait(Instant::now() + LIMIT);
    let kept = a.waiting.iter().filter(|event| matches!(event, PeerEvent::SeatData { .. })).count();
    assert!(kept > 0);
    assert!(b.peers.send(SEAT, Bytes::from_static(b"x")).is_err(), "the event loop took nothing");
    // Letters and questions pass by.
    b.peers.tell(&a.address(), Bytes::from_static(b"alive"));
    assert_eq!(a.told().2, &b"alive"[..]);
    b.ask_through(&mut a, 1);
    assert!(a.read(seat, sent) == pattern(0, sent));
    b.next(|event| matches!(event, PeerEvent::SeatWritable { .. }).then_some(()));
    b.peers.send(SEAT, Bytes::from_static(b"more")).unwrap();
    assert_eq!(a.read(seat, 4), b"more");
}

#[test]
fn many_seats_that_nobody_reads_hold_up_neither_letters_nor_questions() {
    let (mut a, mut b) = (Node::new("a"), Node::new("b"));
    let seats: Vec<_> = (0..10).map(RemoteSessionId::outgoing).collect();
    let mut theirs = Vec::new();
    for seat in &seats {
        b.peers.open_seat(*seat, &a.address(), PROCESS).unwrap();
        theirs.push(a.opened().0);
    }
    fill(&b, &seats);
    fill(&a, &theirs);
    b.peers.tell(&a.address(), Bytes::from_static(b"alive"));
    b.peers.ask(1, &a.address(), Bytes::new(), LIMIT).unwrap();
    // Of the seats nothing is taken: their bytes stay in `waiting`.
    let _ = a.told();
    let (token, ..) = a.asked();
    a.peers.answer(token, Bytes::new()).unwrap();
    b.answered(1).unwrap();
}

#[test]
fn a_seat_given_back_while_nobody_reads_is_gone_within_its_grace() {
    let (mut a, b) = (Node::new("a"), Node::new("b"));
    let seat = seated(&mut a, &b);
    fill(&b, &[SEAT]);
    b.peers.end_seat(SEAT, true);
    // The end is behind bytes that are not taken, so the stream is cut.
    a.wait(Instant::now() + LIMIT);
    let kept = std::mem::take(&mut a.waiting);
    assert!(kept.iter().any(|event| matches!(event, PeerEvent::SeatData { .. })));
    std::thread::sleep(Duration::from_millis(1500));
    drop(kept);
    assert_eq!(a.ended(seat).0, None);
}

#[test]
fn a_killed_node_ends_its_seats_and_says_nothing_of_the_process() {
    let (mut a, b) = (Node::new("a"), Node::new("b"));
    let seat = seated(&mut a, &b);
    b.peers.send(SEAT, Bytes::from_static(b"half a requ")).unwrap();
    assert_eq!(a.read(seat, 11), b"half a requ");
    drop(b);
    assert_eq!(a.ended(seat).0, None);
    let mut b = Node::new("b");
    seated(&mut a, &b);
    drop(a);
    assert_eq!(b.ended(SEAT).0, None);
    assert!(b.peers.kept().seats.is_empty());
}

#[test]
fn seats_have_a_limit_on_both_sides_and_their_places_come_back() {
    let (mut few, mut many) = (options("a"), options("b"));
    few.limits.seats_max = 2;
    many.limits.seats_max = 3;
    let (mut a, mut b) = (Node::with(few), Node::with(many));
    for number in 0..3 {
        b.peers.open_seat(RemoteSessionId::outgoing(number), &a.address(), PROCESS).unwrap();
    }
    let third = b.peers.open_seat(RemoteSessionId::outgoing(3), &a.address(), PROCESS);
    assert_eq!(third, Err(PeerError::Busy { what: "seats", max: 3 }));
    let (first, ..) = a.opened();
    a.opened();
    let refused = b.next(|event| match event {
        PeerEvent::SeatEnded { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    assert!(refused.1.contains("ResourceExhausted"), "{refused:?}");
    a.peers.end_seat(first, false);
    b.next(|event| matches!(event, PeerEvent::SeatEnded { .. }).then_some(()));
    let until = Instant::now() + LIMIT;
    for number in 10.. {
        assert!(Instant::now() < until, "the place did not come back");
        let seat = RemoteSessionId::outgoing(number);
        if b.peers.open_seat(seat, &a.address(), PROCESS).is_err() {
            b.wait(Instant::now() + Duration::from_millis(10));
            continue;
        }
        let is_over = |events: &[PeerEvent]| {
            events.iter().any(|event| matches!(event, PeerEvent::SeatOpened { .. }))
        };
        a.wait(Instant::now() + Duration::from_millis(100));
        if is_over(&a.waiting) {
            break;
        }
    }
    assert_eq!(
        b.peers.open_seat(RemoteSessionId::incoming(1), &a.address(), PROCESS),
        Err(PeerError::SeatTaken)
    );
}
