//! Subscribers of a real daemon: told in time, across kills of the daemon, closed from elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::time::Duration;

use common::{Daemon, PATIENCE};
use farrow::{
    Armed, Client, EventKind, Next, ObjectId, Seen, SubscribeOptions, Subscription, Target, Value,
};

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
fn subscribers_are_told_while_they_wait() {
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
    assert!(matches!(all.arm().unwrap(), Armed::Socket(_)));
    assert_eq!(all.try_next().unwrap(), None);
    let closer = all.closer();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            loop {
                match all.next(PATIENCE).unwrap() {
                    Next::Interrupted => {}
                    other => return other,
                }
            }
        });
        closer.close();
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
            other.delete(&[Target::Id(id)]).unwrap();
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
