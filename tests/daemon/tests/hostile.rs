//! Clients that send invalid or forged messages, flood or stall: the daemon keeps serving the
//! others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::io::Write;
use std::time::Duration;

use common::raw::RawSocket;
use common::{Daemon, SeededDice, assert_balanced, wait_for};
use farrow::{Error, Value};
use farrow_wire::{
    self as wire, FRAME_BYTES_MAX, Hello, PROTOCOL_VERSION, ReplyBody, Request, RequestBody,
    SealItem, WireError, WireObjectId, WireTarget,
};

fn assert_serves(daemon: &Daemon) {
    let client = daemon.client();
    let id = client.put(&Value::Bytes(b"still here"), None).unwrap();
    let object = client.get(&id.into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], b"still here");
    client.delete(&[id.into()]).unwrap();
    assert_balanced(&client.stats().unwrap());
}

#[test]
fn bytes_that_are_no_messages_cost_the_sender_its_connection() {
    let mut daemon = Daemon::start("8M", &["--no-prepare"]);
    let mut dice = SeededDice(0xbad);
    for round in 0..300 {
        let mut raw =
            if dice.roll(2) == 0 { RawSocket::open(&daemon) } else { RawSocket::joined(&daemon).0 };
        let length = dice.roll(300) as usize;
        let mut noise: Vec<u8> = (0..length).map(|_| dice.roll(256) as u8).collect();
        if dice.roll(2) == 0 && noise.len() >= 4 {
            let claimed = (noise.len() - 4) as u32;
            noise[..4].copy_from_slice(&claimed.to_le_bytes());
        }
        if let Ok(Some(_)) = wire::decode::<Request>(&noise) {
            // A message after all: perhaps the one that ends the node.
            continue;
        }
        // The daemon may close while we write.
        let _ = raw.stream.write_all(&noise);
        if round % 50 == 0 {
            assert_serves(&daemon);
        }
    }
    assert!(daemon.is_running());
    assert_serves(&daemon);
}

#[test]
fn a_frame_that_is_announced_too_long_is_not_waited_for() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let (mut raw, _) = RawSocket::joined(&daemon);
    raw.stream.write_all(&((FRAME_BYTES_MAX as u32 + 1).to_le_bytes())).unwrap();
    assert_eq!(raw.reply(), None);
    assert_serves(&daemon);
}

#[test]
fn other_versions_and_requests_before_hello_are_refused_with_words() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let mut raw = RawSocket::open(&daemon);
    let hello = Hello {
        version: 999,
        resume: None,
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    assert_eq!(
        raw.ask(RequestBody::Hello(hello)),
        Err(WireError::Version { theirs: 999, ours: PROTOCOL_VERSION })
    );
    assert_eq!(raw.reply(), None, "closed");
    let mut raw = RawSocket::open(&daemon);
    assert!(matches!(raw.ask(RequestBody::Stats), Err(WireError::Invalid(_))));
    let mut raw = RawSocket::open(&daemon);
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: Some((1, 2, 3)),
        namespace: String::new(),
        node: String::new(),
        maps_memory: true,
    };
    assert!(matches!(
        raw.ask(RequestBody::Hello(hello)),
        Err(WireError::OtherRegion { old: 1, .. })
    ));
    let (_one, welcome) = RawSocket::joined(&daemon);
    for (slot, nonce) in [(welcome.slot, welcome.nonce), (welcome.slot, 0), (u32::MAX, 7)] {
        let mut raw = RawSocket::open(&daemon);
        let resume = Some((welcome.region_uid, slot, nonce));
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume,
            namespace: String::new(),
            node: String::new(),
            maps_memory: true,
        };
        // Of one process the daemon thinks that it has not heard of the end of its last connection.
        let reported = raw.ask(RequestBody::Hello(hello));
        assert!(
            matches!(reported, Err(WireError::Denied(_) | WireError::NoRemoteSession { .. })),
            "{reported:?}"
        );
    }
    assert_serves(&daemon);
}

#[test]
fn lies_about_memory_are_refused_and_change_nothing() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let honest = daemon.client();
    let id = honest.put(&Value::Bytes(&[7; 5000]), Some("honest")).unwrap();
    let (mut raw, _) = RawSocket::joined(&daemon);
    let Ok(ReplyBody::Granted((start, length))) =
        raw.ask(RequestBody::Grant { min: 65536, want: 65536, wait_ms: 0 })
    else {
        panic!("no grant");
    };
    let item = |primary: (u64, u64)| SealItem::bytes(primary, 10);
    let good = item((start, 128));
    let lies = [
        item((start + length, 128)),
        item((start + 1, 128)),
        item((start, 0)),
        item((start, 127)),
        item((0, 4096)),
        item((u64::MAX - 127, 128)),
        item((start, u64::MAX)),
        SealItem { size: 129, ..good.clone() },
        SealItem { size: u64::MAX, ..good.clone() },
        SealItem { kind: 0, ..good.clone() },
        SealItem { kind: 99, ..good.clone() },
        SealItem { descriptor: (start + 256, 64), kind: 6, ..good.clone() },
        SealItem { descriptor: (start, u64::MAX), kind: 6, ..good.clone() },
        SealItem { extra: vec![(start, 128)], ..good.clone() },
        SealItem { extra: vec![(start + 128, 128); 2], kind: 6, ..good.clone() },
        SealItem { name: Some("honest".into()), ..good.clone() },
        SealItem { name: Some(String::new()), ..good.clone() },
        SealItem { name: Some("x".repeat(256)), ..good.clone() },
        SealItem { name: Some("nul\0".into()), ..good.clone() },
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        match raw.ask(RequestBody::Seal { items: vec![lie.clone()] }) {
            Ok(ReplyBody::Sealed(results)) => {
                assert!(results[0].is_err(), "lie {number} was believed: {lie:?}");
            }
            other => panic!("lie {number}: {other:?}"),
        }
    }
    for spans in [vec![(start, length); 2], vec![(0, 128)], vec![(start, u64::MAX)], vec![(1, 1)]] {
        let answer = raw.ask(RequestBody::Release { spans: spans.clone() });
        assert!(answer.is_err(), "{spans:?}: {answer:?}");
    }
    for (min, want) in [(0, 0), (2, 1), (u64::MAX, u64::MAX), (1 << 40, 1 << 40)] {
        assert!(raw.ask(RequestBody::Grant { min, want, wait_ms: 0 }).is_err(), "{min} to {want}");
    }
    assert!(raw.ask(RequestBody::Unreserve { names: vec!["honest".into()] }).is_err());
    let missing =
        vec![WireTarget::Id(WireObjectId { hi: 1, lo: 2 }), WireTarget::Name("nobody".into())];
    assert!(matches!(
        raw.ask(RequestBody::Delete { targets: missing }),
        Ok(ReplyBody::Deleted(results)) if results.iter().all(Result::is_err)
    ));
    // The grant is whole after all this, and the honest object as it was.
    assert!(matches!(
        raw.ask(RequestBody::Seal { items: vec![item((start, length))] }),
        Ok(ReplyBody::Sealed(results)) if results[0].is_ok()
    ));
    let object = honest.get(&id.into(), Duration::ZERO).unwrap();
    assert_eq!(&object.view().unwrap()[..], &[7; 5000]);
    assert_balanced(&honest.stats().unwrap());
    assert_serves(&daemon);
}

#[test]
fn limits_of_a_batch_are_retained() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let (mut raw, _) = RawSocket::joined(&daemon);
    let targets = vec![WireTarget::Id(WireObjectId::default()); wire::BATCH_ITEMS_MAX + 1];
    assert!(matches!(
        raw.ask(RequestBody::Delete { targets: targets.clone() }),
        Err(WireError::TooMany { .. })
    ));
    assert!(matches!(
        raw.ask(RequestBody::Wait { targets, count: 1, timeout_ms: 1 }),
        Err(WireError::TooMany { .. })
    ));
    // Waits that are never answered are limited too.
    let mut frames = Vec::new();
    for seq in 0..2000 {
        let targets = vec![WireTarget::Name(format!("never {seq}"))];
        let body = RequestBody::Wait { targets, count: 1, timeout_ms: 3_600_000 };
        wire::encode(&Request { seq: 10 + seq, body }, &mut frames).unwrap();
    }
    raw.stream.write_all(&frames).unwrap();
    let refused = raw.reply().unwrap();
    assert!(matches!(refused.body, Err(WireError::TooMany { .. })), "{refused:?}");
    assert_serves(&daemon);
}

#[test]
fn one_that_never_reads_its_answers_stops_being_served_and_harms_no_client() {
    let daemon = Daemon::start("8M", &["--no-prepare"]);
    let (raw, _) = RawSocket::joined(&daemon);
    let mut frame = Vec::new();
    wire::encode(&Request { seq: 1, body: RequestBody::Stats }, &mut frame).unwrap();
    raw.stream.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // Fills both directions until the daemon takes no more.
    let mut stalls = 0;
    while stalls < 20 && sent < 64 << 20 {
        match (&raw.stream).write(&frame.repeat(100)) {
            Ok(count) => {
                sent += count;
                // A partial write has cut a frame; the daemon must live with that as well.
                stalls = 0;
            }
            Err(_) => {
                stalls += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    assert!(sent < 64 << 20, "the daemon takes requests without end");
    assert_serves(&daemon);
}

#[test]
fn a_full_client_table_says_so_and_a_place_is_free_again() {
    let daemon = Daemon::start("8M", &["--no-prepare", "--clients-max", "3"]);
    let mut clients: Vec<_> = (0..3).map(|_| daemon.client()).collect();
    let options = farrow::ConnectOptions::at(&daemon.socket);
    let error = farrow::Client::connect(&options).unwrap_err();
    assert!(matches!(&error, Error::TooMany { what, max: 3 } if what == "clients"), "{error}");
    clients.pop();
    wait_for("a free place", || farrow::Client::connect(&options).ok()).unwrap();
    // Connections that say nothing take no place, and are closed after a while.
    let _silent: Vec<RawSocket> = (0..20).map(|_| RawSocket::open(&daemon)).collect();
    drop(clients);
    wait_for("a client", || farrow::Client::connect(&options).ok()).unwrap();
}

#[test]
fn a_data_file_that_was_cut_short_does_not_kill_the_daemon() {
    // A process of the same user can do that to a file in a tmpfs; clients that map it may die
    // of it, the daemon must not: it looks at the holds of clients in there.
    let mut daemon = Daemon::start("8M", &["--no-prepare"]);
    let (mut raw, _) = RawSocket::joined(&daemon);
    let Ok(ReplyBody::Granted(primary)) =
        raw.ask(RequestBody::Grant { min: 4096, want: 4096, wait_ms: 0 })
    else {
        panic!("no grant");
    };
    let item = SealItem { name: Some("x".into()), ..SealItem::bytes(primary, 10) };
    assert!(raw.ask(RequestBody::Seal { items: vec![item] }).is_ok());
    let data = std::fs::read_dir(daemon.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|end| end == "data"))
        .unwrap();
    std::fs::File::options().write(true).open(data).unwrap().set_len(0).unwrap();
    let targets = vec![WireTarget::Name("x".into())];
    // Whatever it answers, it answers.
    let _ = raw.ask(RequestBody::Delete { targets });
    let _ = raw.ask(RequestBody::Stats);
    let _ = raw.ask(RequestBody::HoldBlock);
    let _ = raw.ask(RequestBody::Reclaim);
    drop(raw);
    let (mut raw, _) = RawSocket::joined(&daemon);
    let _ = raw.ask(RequestBody::Stats);
    assert!(daemon.is_running());
}
