//! A node that is its own authority, the choice of authorities, and messages beyond their limits.

use super::*;

/// While a node with unreadable names is lost, no other node can know that a name is free.
#[test]
fn names_that_a_lost_node_may_have_are_not_granted() {
    let (mut naming, _) = alone();
    let lost = number(3);
    naming.set_unread(Unread { lost: Some(lost), ..Unread::default() });
    let results = vec![Err(NameRefusal::Unread { node: lost }), Err(NameRefusal::Taken)];
    let names = ["new", "old"].map(str::to_owned).to_vec();
    assert_eq!(ask(&mut naming, names), [NameOutput::Answer { ticket: 7, results }]);
    naming.set_unread(Unread::default());
    let out = ask(&mut naming, vec!["new".to_owned()]);
    assert_eq!(out, [NameOutput::Answer { ticket: 7, results: vec![Ok(())] }]);
}

fn alone() -> (Naming, View) {
    let world = NamingWorld::new(1, 1, None);
    let view = world.history[0].clone();
    let mut naming = Naming::new(name_of(0), 1, []);
    naming.view_installed(&view, 0, &mut Vec::new());
    naming.lease(true, &mut Vec::new());
    (naming, view)
}

fn ask(naming: &mut Naming, names: Vec<String>) -> Vec<NameOutput> {
    let mut out = Vec::new();
    let request = NameRequest { ticket: 7, names, deadline_ms: 100 };
    naming.ask(request, 0, &|name| name == "old", &mut out);
    out
}

#[test]
fn the_own_authority_answers_at_once() {
    let (mut naming, _) = alone();
    let names = ["new", "old", "new", "", &"x".repeat(513)].map(str::to_owned);
    let results = vec![
        Ok(()),
        Err(NameRefusal::Taken),
        Err(NameRefusal::Taken),
        Err(NameRefusal::Invalid { bytes: 0 }),
        Err(NameRefusal::Invalid { bytes: 513 }),
    ];
    let out = ask(&mut naming, names.to_vec());
    assert_eq!(out, [NameOutput::Answer { ticket: 7, results }]);
    assert!(naming.holds("new") && !naming.holds("old"));
    naming.lease(false, &mut Vec::new());
    assert!(!naming.holds("new"));
    let results = vec![Err(NameRefusal::NoLease)];
    assert_eq!(ask(&mut naming, vec!["a".to_owned()]), [NameOutput::Answer { ticket: 7, results }]);
    naming.lease(true, &mut Vec::new());
    assert!(naming.holds("new"));
    naming.settle(["new"]);
    let results = vec![Ok(())];
    assert_eq!(
        ask(&mut naming, vec!["new".to_owned()]),
        [NameOutput::Answer { ticket: 7, results }]
    );
}

#[test]
fn names_in_flight_have_their_limit() {
    let (mut naming, _) = alone();
    let out = ask(&mut naming, (0..=NAMES_MAX).map(|n| format!("n{n}")).collect());
    let [NameOutput::Answer { results, .. }] = out.as_slice() else { panic!("{}", out.len()) };
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), NAMES_MAX);
    assert_eq!(results.last(), Some(&Err(NameRefusal::TooMany { limit: NAMES_MAX })));
}

/// The score is part of the protocol: another score would be another version of it.
#[test]
fn authorities_are_spread_and_stay_when_others_go() {
    let world = NamingWorld::new(4, 1, None);
    let (four, three) = (world.view(&[0, 1, 2, 3]), world.view(&[0, 1, 3]));
    let mut names = [0; 4];
    for n in 0..4000 {
        let name = format!("table-{n}");
        let authority = authority_of(&four, &name).unwrap();
        names[usize::from(authority.get())] += 1;
        if authority != number(2) {
            assert_eq!(authority_of(&three, &name), Some(authority));
        }
    }
    assert!(names.iter().all(|names| (900..1100).contains(names)), "{names:?}");
    let golden: Vec<u8> =
        (0..8).map(|n| authority_of(&four, &format!("{n}")).unwrap().get()).collect();
    // As computed by a few lines of Python from the documentation of `authority_of`.
    assert_eq!(golden, [1, 0, 0, 3, 1, 3, 3, 1]);
}

/// Whatever a member sends, messages stay within their limits and nothing panics.
#[test]
fn messages_out_of_their_limits_are_dropped() {
    let mut world = NamingWorld::new(2, 1, None);
    world.run_until(500).unwrap();
    let before = world.messages;
    let many = vec!["x".to_owned(); MESSAGE_NAMES_MAX + 1];
    let long = vec!["x".repeat(NAME_BYTES_MAX + 1)];
    for names in [many, long] {
        let list = NameMessageBody::List { part: 0, parts: 1, names: names.clone() };
        let claim = NameMessageBody::Claim { claim: 1, names: names.clone() };
        for body in [list, claim, NameMessageBody::Settle { names }] {
            let View { cluster, epoch, .. } = world.history[0];
            let message =
                NameMessage { cluster, epoch, session: 1, authority: 1, serial: u64::MAX, body };
            world.deliver((1, 1), 0, message).unwrap();
        }
    }
    let View { cluster, epoch, .. } = world.history[0];
    for body in [
        NameMessageBody::List { part: 7, parts: 7, names: Vec::new() },
        NameMessageBody::List { part: 0, parts: u32::MAX, names: Vec::new() },
        NameMessageBody::Listed { part: 9 },
        NameMessageBody::Claimed { claim: 99, verdicts: vec![Verdict::Granted; 3] },
        NameMessageBody::Settled,
    ] {
        let message = NameMessage { cluster, epoch, session: 1, authority: 1, serial: 1, body };
        world.deliver((1, 1), 0, message).unwrap();
    }
    assert_eq!(world.messages, before);
}
