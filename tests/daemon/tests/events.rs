//! Subscribers of a real daemon: timely events, also across kills of the daemon; closed by other
//! threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::nodes::DaemonNodes;
use common::{Daemon, PATIENCE};
use farrow::{
    Client, Error, EventKind, Next, ObjectId, ObjectKey, ObjectOptions, Registration, Seen,
    SubscribeOptions, Subscription, Value,
};
use farrow_memory::sync;

fn subscribe(client: &Client, prefix: &str) -> Subscription {
    let options = SubscribeOptions { prefix: prefix.into(), ..SubscribeOptions::default() };
    client.subscribe(options).unwrap()
}

fn next(subscription: &mut Subscription) -> (EventKind, ObjectId, String) {
    loop {
        match subscription.next(PATIENCE).unwrap() {
            Next::Seen(Seen::Event(event)) => return (event.kind, event.id, event.name),
            Next::Interrupted => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn subscribers_are_notified_while_they_wait() {
    let daemon = Daemon::start("4M", &["--no-prepare"]);
    let (one, other) = (daemon.client(), daemon.client());
    let mut all = subscribe(&one, "");
    let mut some = subscribe(&one, "b");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| (next(&mut some), next(&mut some)));
        // Its own connection is not in the way of this one.
        std::thread::sleep(Duration::from_millis(20));
        let a = other.put(&Value::Bytes(b"x"), Some("a")).unwrap();
        let b = other.put(&Value::Bytes(b"x"), Some("b")).unwrap();
        other.delete(&["a".into(), "b".into()]).unwrap();
        let expected = [
            (EventKind::Sealed, a, "a".to_owned()),
            (EventKind::Sealed, b, "b".to_owned()),
            (EventKind::Deleted, a, "a".to_owned()),
            (EventKind::Deleted, b, "b".to_owned()),
        ];
        for one in &expected {
            assert_eq!(next(&mut all), *one);
        }
        let [_, sealed, _, deleted] = expected;
        assert_eq!(waiter.join().unwrap(), (sealed, deleted));
    });
    assert_eq!(all.next(Duration::from_millis(1)).unwrap(), Next::TimedOut);
    assert!(matches!(all.arm().unwrap(), Registration::Socket(_)));
    assert_eq!(all.try_next().unwrap(), None);
    let close_handle = all.close_handle();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            loop {
                match all.next(PATIENCE).unwrap() {
                    Next::Interrupted => {}
                    other => return other,
                }
            }
        });
        close_handle.close();
        assert_eq!(waiter.join().unwrap(), Next::Closed);
    });
    let oldest = SubscribeOptions {
        kinds: vec![EventKind::Deleted],
        is_from_oldest: true,
        ..SubscribeOptions::default()
    };
    assert_eq!(next(&mut one.subscribe(oldest).unwrap()).0, EventKind::Deleted);
}

#[test]
fn a_subscription_goes_on_where_it_was_when_the_daemon_is_killed() {
    let mut daemon = Daemon::start("4M", &["--no-prepare"]);
    let (one, other) = (daemon.client(), daemon.client());
    let mut events = subscribe(&one, "n");
    for round in 0..4 {
        let name = format!("n{round}");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| (next(&mut events), next(&mut events)));
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            daemon.kill9();
            daemon.restart();
            let id = other.put(&Value::Bytes(b"x"), Some(&name)).unwrap();
            other.delete(&[ObjectKey::Id(id)]).unwrap();
            let (sealed, deleted) = waiter.join().unwrap();
            assert_eq!(sealed, (EventKind::Sealed, id, name.clone()));
            assert_eq!(deleted, (EventKind::Deleted, id, name.clone()));
        });
    }
}

#[test]
fn a_subscriber_without_a_node_gives_up_and_says_so() {
    let mut daemon = Daemon::start("4M", &["--no-prepare"]);
    let options = farrow::ConnectOptions {
        timeout: Duration::from_millis(50),
        ..farrow::ConnectOptions::at(&daemon.socket)
    };
    drop(daemon.client());
    let client = Client::connect(&options).unwrap();
    let mut events = subscribe(&client, "");
    assert_eq!(events.next(Duration::from_millis(1)).unwrap(), Next::TimedOut);
    daemon.kill9();
    let error = events.next(PATIENCE).unwrap_err();
    assert!(matches!(error, farrow::Error::Disconnected { .. }), "{error:?}");
    let options = SubscribeOptions { prefix: "x".repeat(256), ..SubscribeOptions::default() };
    let error = client.subscribe(options).unwrap_err();
    assert!(matches!(error, farrow::Error::InvalidArgument(_)), "{error:?}");
}

/// A subscriber at another node was refused: its first message could not say for which node it was.
#[test]
fn events_of_another_node_come_until_it_is_lost() {
    let mut nodes = DaemonNodes::start(3, "16MiB", &["--lease-ms", "1000", "--no-prepare"]);
    let (on_a, on_b) = (nodes.client(0), nodes.client(1));
    let at_b = on_a.at("b").unwrap();
    let (mut far, mut own) = (subscribe(&at_b, "n"), subscribe(&on_a, ""));
    assert_eq!(far.next(Duration::from_millis(1)).unwrap(), Next::TimedOut);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| (next(&mut far), next(&mut far)));
        std::thread::sleep(Duration::from_millis(20));
        let id = on_b.put(&Value::Bytes(b"x"), Some("n")).unwrap();
        on_b.put(&Value::Bytes(b"x"), Some("other")).unwrap();
        on_a.delete(&["n".into()]).unwrap();
        let event = |kind| (kind, id, "n".to_owned());
        let expected = (event(EventKind::Sealed), event(EventKind::Deleted));
        assert_eq!(waiter.join().unwrap(), expected);
    });
    assert_eq!(own.try_next().unwrap(), None, "nothing happened in the memory of a");

    // Its next daemon goes on, within the lease: what was published before is told too.
    nodes.daemons[1].kill9();
    nodes.daemons[1].restart();
    nodes.settle(3);
    let on_b = nodes.client(1);
    on_b.put(&Value::Bytes(b"x"), Some("n2")).unwrap();
    assert_eq!(next(&mut far).2, "n2");

    // The ring is read where it lies; who falls behind is told how much was missed.
    let mut slow = subscribe(&at_b, "");
    for round in 0..20 {
        let names: Vec<String> = (0..200).map(|number| format!("{round}.{number}")).collect();
        for name in &names {
            on_b.put(&Value::Bytes(b"x"), Some(name)).unwrap();
        }
        let targets: Vec<ObjectKey> = names.iter().map(|name| name.as_str().into()).collect();
        on_b.delete(&targets).unwrap();
    }
    for behind in [&mut slow, &mut far] {
        let Some(Seen::Gap { missed }) = behind.try_next().unwrap() else { panic!("no gap") };
        assert!(missed > 0);
        while behind.try_next().unwrap().is_some() {}
    }

    // Lost: events that were published come first, then the end.
    on_b.put(&Value::Bytes(b"x"), Some("n3")).unwrap();
    let waits = at_b.clone();
    let waiting = std::thread::spawn(move || waits.wait(&["never".into()], 1, PATIENCE));
    nodes.daemons[1].kill9();
    assert_eq!(next(&mut far).2, "n3");
    let ended = loop {
        match far.next(PATIENCE) {
            Ok(Next::Interrupted) => {}
            other => break other,
        }
    };
    assert!(matches!(&ended, Err(Error::NodeLost { node, .. }) if node == "b"), "{ended:?}");
    let waited = waiting.join().unwrap();
    assert!(matches!(&waited, Err(Error::NodeLost { node, .. }) if node == "b"), "{waited:?}");
}

#[test]
fn who_may_not_read_there_hears_of_nothing() {
    let nodes = DaemonNodes::start(2, "16MiB", &["--lease-ms", "20000", "--no-prepare"]);
    let (on_a, on_b) = (nodes.client(0), nodes.client(1));
    let at_b = on_a.at("b").unwrap();
    let mut far = subscribe(&at_b, "");
    on_b.permit(&":a:write".parse().unwrap()).unwrap();
    on_b.put(&Value::Bytes(b"x"), Some("n")).unwrap();
    // What lies in memory that it maps it can read (SECURITY.md); it is not woken.
    assert!(matches!(far.try_next(), Ok(Some(Seen::Event(_)))));
    let refused = far.next(PATIENCE);
    assert!(matches!(refused, Err(Error::NotPermitted(_))), "{refused:?}");
    on_b.permit(&":a:none".parse().unwrap()).unwrap();
    // Who asks for all has to be known to the node from the first moment, so it is refused then.
    let refused = at_b.subscribe(SubscribeOptions::default());
    assert!(matches!(refused, Err(Error::NotPermitted(_))), "{refused:?}");
    let refused = subscribe(&at_b, "n").next(PATIENCE);
    assert!(matches!(refused, Err(Error::NotPermitted(_))), "{refused:?}");
}

/// Objects of one batch.
const BATCH: usize = 2_000;
const ROUNDS: u64 = 20;

/// A batch asked once whether anybody watches all objects. A subscription in the middle of its seals
/// missed all the rest of it.
#[test]
fn a_subscription_in_the_middle_of_a_batch_sees_the_rest_of_it() {
    let daemon = Daemon::start("64M", &["--no-prepare"]);
    let (client, other) = (daemon.client(), daemon.client());
    let values = vec![(Value::Bytes(b"small"), ObjectOptions::default()); BATCH];
    let has_begun = sync::AtomicBool::new(false);
    for round in 0..ROUNDS {
        has_begun.store(false, sync::Ordering::Relaxed);
        let (ids, listed, reported) = std::thread::scope(|scope| {
            let batch = scope.spawn(|| {
                has_begun.store(true, sync::Ordering::Relaxed);
                client.put_many(&values).unwrap()
            });
            while !has_begun.load(sync::Ordering::Relaxed) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(round * 100));
            let mut all = subscribe(&other, "");
            let listed = other.list("").unwrap().len();
            let mut reported = 0;
            while !batch.is_finished() {
                reported += sealed(&mut all);
            }
            let ids = batch.join().unwrap();
            reported += sealed(&mut all);
            (ids, listed, reported)
        });
        // One object may be sealed at the very moment of the subscription.
        assert!(
            listed + reported + 1 >= ids.len(),
            "{listed} listed, {reported} told in round {round}"
        );
        let targets: Vec<ObjectKey> = ids.into_iter().map(Into::into).collect();
        client.delete(&targets).unwrap();
    }
}

/// Seals that were told and not read yet, and those that were told and lost.
fn sealed(events: &mut Subscription) -> usize {
    let mut count = 0;
    while let Some(seen) = events.try_next().unwrap() {
        count += match seen {
            Seen::Event(event) => usize::from(event.kind == EventKind::Sealed),
            Seen::Gap { missed } => missed as usize,
        };
    }
    count
}
