//! Messages and requests between two well-behaved nodes.

use super::*;

#[test]
fn a_message_arrives_with_who_and_which_life() {
    let (a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    a.peers.send_message(&b.address(), Bytes::from_static(b"alive"));
    assert_eq!(b.reported(), ("a".parse().unwrap(), 7, Bytes::from_static(b"alive")));
    a.peers.set_incarnation(8);
    a.peers.send_message(&b.address(), Bytes::new());
    assert_eq!(b.reported().1, 8);
}

#[test]
fn a_question_of_four_mebibytes_gets_an_answer_of_four_mebibytes() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let (there, back) = (pattern(0, ASK_BYTES_MAX), pattern(9, ASK_BYTES_MAX));
    a.peers.ask(1, &b.address(), there.clone().into(), LIMIT).unwrap();
    let (token, from, body) = b.requested();
    assert_eq!((from.as_str(), body == there), ("a", true));
    b.peers.answer(token, back.clone().into()).unwrap();
    let answer = a.answered(1).unwrap();
    assert_eq!((answer.from, answer.body == back), (None, true));
}

#[test]
fn what_is_too_long_is_refused_here() {
    let (a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    let long = Bytes::from(vec![0; ASK_BYTES_MAX + 1]);
    let too_large = PeerError::TooLarge { bytes: ASK_BYTES_MAX + 1, max: ASK_BYTES_MAX };
    assert_eq!(a.peers.ask(1, &b.address(), long.clone(), LIMIT), Err(too_large.clone()));
    a.peers.ask(2, &b.address(), Bytes::new(), LIMIT).unwrap();
    let (token, ..) = b.requested();
    assert_eq!(b.peers.answer(token, long), Err(too_large));
}

#[test]
fn a_question_without_an_answer_ends_at_its_deadline_on_both_sides() {
    let (mut a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    a.peers.ask(1, &b.address(), Bytes::new(), Duration::from_millis(300)).unwrap();
    let (token, ..) = b.requested();
    assert_eq!(a.answered(1), Err(PeerError::Deadline { deadline_ms: 300 }));
    let until = Instant::now() + LIMIT;
    while b.peers.retained().requests.contains_key(&token) {
        assert!(Instant::now() < until, "the question is kept for good");
        b.wait(Instant::now() + Duration::from_millis(10));
    }
    b.peers.answer(token, Bytes::from_static(b"late")).unwrap();
    a.ask_through(&mut b, 2);
}

#[test]
fn no_listener_at_the_address_is_reported_at_once_and_to_every_asker() {
    let mut a = DrivenNode::new("a");
    let removed = DrivenNode::new("b").address();
    for token in 0..3 {
        a.peers.ask(token, &removed, Bytes::new(), LIMIT).unwrap();
    }
    for token in 0..3 {
        let error = a.answered(token).unwrap_err();
        assert!(matches!(error, PeerError::Unreachable { .. }), "{error}");
    }
    a.peers.send_message(&removed, Bytes::new());
}

/// Regression test: the 33rd question to a node at a time was refused. A delete of forty objects
/// there deleted 32 of them.
#[test]
fn more_questions_than_are_allowed_wait_and_many_more_are_refused() {
    let mut options = options("a");
    options.limits.asks_max = 2;
    options.limits.asks_waiting_bytes_max = 2 * 512 + 100;
    let (mut a, mut b) = (DrivenNode::with(options), DrivenNode::new("b"));
    for token in 0..4 {
        a.peers.ask(token, &b.address(), Bytes::new(), LIMIT).unwrap();
    }
    let busy = PeerError::Busy { what: "questions", max: 2 };
    assert_eq!(a.peers.ask(4, &b.address(), Bytes::new(), LIMIT), Err(busy));
    let mut answered = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let (token, ..) = b.requested();
        b.peers.answer(token, Bytes::new()).unwrap();
        let (token, is_answered) = a
            .next(|event| match event {
                PeerEvent::Response { token, result } => Some((*token, result.is_ok())),
                _ => None,
            })
            .1;
        assert!(is_answered && answered.insert(token));
    }
    assert_eq!(answered, (0..4).collect());
    // A question whose turn does not come ends at its deadline.
    for (token, limit) in [(5, LIMIT), (6, LIMIT), (7, Duration::from_millis(50))] {
        a.peers.ask(token, &b.address(), Bytes::new(), limit).unwrap();
    }
    let error = a.answered(7).unwrap_err();
    assert!(matches!(error, PeerError::Deadline { deadline_ms: 50 }), "{error}");
}

#[test]
fn the_end_waits_for_no_client() {
    let (a, mut b) = (DrivenNode::new("a"), DrivenNode::new("b"));
    a.peers.ask(1, &b.address(), Bytes::new(), LIMIT).unwrap();
    a.peers.open_remote_session(RemoteSessionId::outgoing(1), &b.address(), PROCESS).unwrap();
    b.requested();
    let (remote_session, ..) = b.opened();
    drop(a);
    assert_eq!(b.ended(remote_session).0, None);
}

#[test]
fn plain_text_is_for_loopback_and_only_when_asked_for() {
    let start = |options| Peers::start(options).map(|_| ()).unwrap_err();
    let mut no = options("a");
    no.is_plaintext_allowed = false;
    let error = start(no);
    assert!(matches!(error, StartError::NoCertificates), "{error}");
    assert!(error.to_string().contains("--plaintext"), "{error}");
    let mut wide = options("a");
    wide.listen = "0.0.0.0:0".parse().unwrap();
    let error = start(wide);
    assert!(matches!(error, StartError::PlaintextOffLoopback { .. }), "{error}");
    assert!(error.to_string().contains("--certs"), "{error}");
    let mut a = DrivenNode::new("a");
    a.peers.ask(1, &"192.0.2.1:7000".parse().unwrap(), Bytes::new(), LIMIT).unwrap();
    let error = a.answered(1).unwrap_err();
    assert!(matches!(error, PeerError::NotSecured { .. }), "{error}");
    a.peers
        .open_remote_session(
            RemoteSessionId::outgoing(1),
            &"192.0.2.1:7000".parse().unwrap(),
            PROCESS,
        )
        .unwrap();
    assert_eq!(a.ended(RemoteSessionId::outgoing(1)).0, None);
}
