//! Real processes that die, as by `kill -9`, at each failpoint where shared state changes: the
//! daemon, then a client. No acknowledged object is lost and no byte leaks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result
#![allow(clippy::print_stdout)] // children tell by it

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{Daemon, assert_balanced, bytes_of, client_at, failpoint, this_test_again, wait_for};
use farrow::{
    Client, Error, NamespaceSpec, ObjectId, ObjectKey, ObjectOptions, SubscribeOptions, Value,
};
use farrow_store::failpoints;

const NOW: Duration = Duration::ZERO;

/// Passed for certain only where there are several nodes, where an object loses its name to a
/// member, where an entry was forged, where memory held another region before, after many thousands of names, after a grant of huge pages, where the
/// node lends more or less memory, or in a race: the tests of the store kill there.
const ELSEWHERE: [&str; 15] = [
    "cluster.keep.filled",
    "cluster.publish.filled",
    "carve.suffix",
    "create.tables",
    "evict.held",
    "index.filled",
    "index.turned",
    "index.zeroed",
    "lend.recorded",
    "local.refused",
    "unname.unindexed",
    "unname.unnamed",
    "unname.word",
    "withdraw.extended",
    "withdraw.recorded",
];

/// A client that says on standard output what is sealed, once it is, and what is to go, before.
struct ReportingClient<'a> {
    socket: &'a Path,
    round: u64,
    count: u64,
}

impl ReportingClient<'_> {
    fn put(
        &mut self,
        client: &Client,
        name: Option<&str>,
        length: usize,
    ) -> Result<ObjectId, Error> {
        let seed = self.round * 10_000 + self.count;
        self.count += 1;
        let id = client.put(&Value::Bytes(&bytes_of(seed, length)), name)?;
        println!("\nsealed {id} {seed} {length}");
        Ok(id)
    }

    /// Puts in the place of the object that has the name.
    fn replace(&mut self, client: &Client, name: &str, old: ObjectId) -> Result<ObjectId, Error> {
        let seed = self.round * 10_000 + self.count;
        self.count += 1;
        println!("\ngone {old}");
        let options = ObjectOptions { replace: true, ..ObjectOptions::named(Some(name)) };
        let id = client.put_with(&Value::Bytes(&bytes_of(seed, 4_000)), &options)?;
        println!("\nsealed {id} {seed} 4000");
        Ok(id)
    }

    fn delete(&self, client: &Client, ids: &[ObjectId]) -> Result<(), Error> {
        ids.iter().for_each(|id| println!("\ngone {id}"));
        client.delete(&ids.iter().map(|id| ObjectKey::Id(*id)).collect::<Vec<_>>())
    }

    /// Everything that clients and daemon do with the region, until the daemon is gone.
    fn do_all(&mut self) -> Result<(), Error> {
        let client = client_at(self.socket);
        let round = self.round;
        let name = |what: &str| format!("{what}{round}");
        let events = client.subscribe(SubscribeOptions::default())?;
        client.create_namespace(&NamespaceSpec {
            name: name("n"),
            bytes_max: None,
            objects_max: None,
            writers: None,
        })?;
        client.drop_namespace(&name("n"))?;
        let first = self.put(&client, Some(&name("first")), 5_000)?;
        let second = self.put(&client, Some(&name("second")), 300_000)?;
        let held = client.get(&first.into(), NOW)?;
        client.pin(&[second.into()])?;
        client.unpin(&[second.into()])?;
        let writer = client.create(100_000, Some(&name("written")))?;
        writer.memory().write_at(0, &bytes_of(0, 100_000))?;
        let written = writer.seal()?;
        println!("\nsealed {written} 0 100000");
        drop(client.create(50_000, Some(&name("dropped")))?);
        let replaced = self.put(&client, Some(&name("replaced")), 3_000)?;
        self.replace(&client, &name("replaced"), replaced)?;
        // Without a subscription to all, clients seal by themselves.
        events.hang_up();
        drop(events);
        let other = client_at(self.socket);
        let mut own = Vec::new();
        for length in [10, 100, 4_000, 4_000, 4_000, 9_000] {
            own.push(self.put(&other, None, length)?);
        }
        self.delete(&other, &own[..1])?;
        self.delete(&client, &own[1..2])?;
        // A further page of holds; and what is deleted while it is held.
        let many: Result<Vec<_>, _> = (0..600).map(|_| self.put(&other, None, 1)).collect();
        let many = many?;
        let all: Result<Vec<_>, _> =
            many.iter().map(|id| client.get(&ObjectKey::Id(*id), NOW)).collect();
        let all = all?;
        self.delete(&client, &many)?;
        drop(all);
        self.delete(&client, &[first])?;
        drop(held);
        // Out of memory and back; one that went is deleted.
        client.evict(1 << 20)?;
        client.get(&second.into(), NOW)?;
        client.evict(1 << 20)?;
        self.delete(&client, &[written])?;
        // What a client that goes has sealed by itself becomes the daemon's.
        drop(other);
        for id in own.iter().skip(2) {
            client.pin(&[ObjectKey::Id(*id)])?;
        }
        self.delete(&client, &own[5..])?;
        let last = client_at(self.socket);
        let its = [self.put(&last, None, 10)?, self.put(&last, None, 20)?];
        drop(last);
        // Its page goes with the last of its objects, once it has gone itself. After a restart it
        // may not go before this process.
        for _ in 0..2_000 {
            if client.stats()?.node.clients == 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.delete(&client, &its)?;
        // For so much, what is retained for later has to go back.
        match client.create(15 << 20, None) {
            Ok(_) | Err(Error::OutOfMemory(_)) => {}
            Err(error) => return Err(error),
        }
        client.stats().map(drop)
    }
}

/// Set in the environment of a child that plays clients.
const STORY_SOCKET: &str = "FARROW_TEST_STORY_SOCKET";
const STORY_ROUND: &str = "FARROW_TEST_STORY_ROUND";

/// Not a test by itself: what a child process does while its daemon dies.
#[test]
fn story() {
    let Ok(socket) = std::env::var(STORY_SOCKET) else {
        return;
    };
    let round = std::env::var(STORY_ROUND).unwrap().parse().unwrap();
    let mut event_sender = ReportingClient { socket: Path::new(&socket), round, count: 0 };
    if event_sender.do_all().is_ok() {
        println!("\nend");
    }
}

/// What children said is there, by id: bytes of which seed.
#[derive(Default)]
struct ReportedObjects {
    retained: BTreeMap<ObjectId, (u64, usize)>,
    round: u64,
}

impl ReportedObjects {
    /// Whether the daemon died in a story; it runs again then, to die at the next place, if any.
    fn run(&mut self, daemon: &mut Daemon, place: &str, next: Option<&str>) -> bool {
        self.round += 1;
        let mut child = this_test_again("story")
            .env(STORY_SOCKET, &daemon.socket)
            .env(STORY_ROUND, self.round.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let reading = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines();
            lines.map_while(Result::ok).collect::<Vec<_>>()
        });
        let has_died = wait_for("the daemon or the child to end", || {
            let has_died = !daemon.is_running();
            (has_died || child.try_wait().unwrap().is_some()).then_some(has_died)
        });
        let has_died = has_died.unwrap_or_else(|| panic!("{place}: a hang"));
        if has_died {
            assert_eq!(daemon.wait_end().signal(), Some(6), "{place}");
            daemon.set_failpoint(next.map(|next| (next, 1)));
            daemon.restart();
            if next.is_some() {
                // It would wait for a daemon that lives.
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let lines = reading.join().unwrap();
        assert!(
            has_died || lines.iter().any(|line| line == "end"),
            "{place}: failed without a kill"
        );
        for line in lines {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["sealed", id, seed, length] => {
                    let numbers = (seed.parse().unwrap(), length.parse().unwrap());
                    self.retained.insert(id.parse().unwrap(), numbers);
                }
                ["gone", id] => drop(self.retained.remove(&id.parse().unwrap()).is_some()),
                _ => {}
            }
        }
        has_died
    }

    /// All that was acknowledged is there, and all memory comes back.
    fn finish(&self, client: &Client, place: &str) {
        let stats = wait_for("the next daemon", || client.stats().ok()).unwrap();
        assert_balanced(&stats);
        for (id, (seed, length)) in &self.retained {
            let object = client.get(&ObjectKey::Id(*id), NOW);
            let object = object.unwrap_or_else(|error| panic!("{place}: lost: {error}"));
            assert_eq!(&object.view().unwrap()[..], &bytes_of(*seed, *length)[..], "{place}");
        }
        let all = client.list("").unwrap().into_iter().map(|listed| listed.id.into());
        client.delete(&all.collect::<Vec<ObjectKey>>()).unwrap();
        wait_for("all memory", || {
            let node = client.stats().unwrap().node;
            (node.free == node.capacity).then_some(())
        })
        .unwrap_or_else(|| panic!("{place}: bytes leaked: {:?}", client.stats().unwrap()));
    }
}

#[test]
fn a_daemon_that_dies_at_any_place_loses_nothing_and_leaks_nothing() {
    let mut missed = BTreeSet::new();
    for place in failpoints::ALL {
        let spill = tempfile::tempdir().unwrap();
        let flags = ["--no-prepare", "--spill", spill.path().to_str().unwrap()];
        let mut reported = ReportedObjects::default();
        let start =
            |place| Daemon::start_by(&["/usr/bin/env", &failpoint(place, 1)], "16M", &flags);
        let mut daemon = if place.starts_with("adopt.") {
            // One dies before: in the middle of a client's leaving, so that there is one to finish.
            let mut daemon = start("client.leave.state");
            assert!(reported.run(&mut daemon, place, Some(place)));
            daemon
        } else {
            start(place)
        };
        if !reported.run(&mut daemon, place, None) {
            missed.insert(*place);
            daemon.kill9();
            daemon.set_failpoint(None);
            daemon.restart();
        }
        reported.finish(&daemon.client(), place);
    }
    assert!(missed.is_subset(&BTreeSet::from(ELSEWHERE)), "{missed:?}");
}

/// Set in the environment of a child that plays a client.
const CHILD_SOCKET: &str = "FARROW_TEST_DYING_CHILD_SOCKET";

/// Objects that the child holds and lets go: more than one line of a page of holds.
const SHARED: u64 = 100;

/// Not a test by itself: what a child process runs until it dies at its failpoint. Says on standard
/// output what it sealed, once it is sealed.
#[test]
fn dying_client() {
    let Ok(socket) = std::env::var(CHILD_SOCKET) else {
        return;
    };
    assert!(failpoints::arm(|| {}));
    let client = client_at(Path::new(&socket));
    let out = std::io::stdout();
    for number in 0..SHARED {
        let name = format!("shared{number}");
        let held = client.get(&name.as_str().into(), NOW).unwrap();
        let id = client.put(&Value::Bytes(&bytes_of(1000 + number, 700)), None).unwrap();
        writeln!(out.lock(), "\nsealed {id} {}", 1000 + number).unwrap();
        let writer = client.create(5_000, Some(&format!("open{number}"))).unwrap();
        if number % 2 == 0 {
            std::mem::forget((held, writer));
        }
    }
}

#[test]
fn a_client_that_dies_at_any_place_leaves_nothing_but_what_it_sealed() {
    let daemon = Daemon::start("16M", &["--no-prepare"]);
    let client = daemon.client();
    for number in 0..SHARED {
        client.put(&Value::Bytes(&[1; 300]), Some(&format!("shared{number}"))).unwrap();
    }
    let before = client.stats().unwrap().node;
    for (place, nth) in failpoints::OF_CLIENTS.iter().flat_map(|place| [(*place, 1), (*place, 30)])
    {
        let said = format!("{place}:{nth}");
        let out = this_test_again("dying_client")
            .env(CHILD_SOCKET, &daemon.socket)
            .env(failpoints::VARIABLE, said)
            .stderr(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(out.status.signal(), Some(6), "{place}:{nth} was not passed");
        let sealed = String::from_utf8(out.stdout).unwrap();
        let sealed: Vec<(ObjectId, u64)> = sealed.lines().filter_map(line).collect();
        wait_for("its place to come back", || {
            let node = client.stats().unwrap().node;
            let is_back = node.granted == before.granted && node.holds == before.holds;
            (node.clients == 1 && is_back).then_some(())
        })
        .unwrap_or_else(|| panic!("{place}:{nth}: {:?}", client.stats().unwrap()));
        assert_balanced(&client.stats().unwrap());
        for (id, seed) in &sealed {
            let object = client.get(&ObjectKey::Id(*id), NOW);
            let object = object.unwrap_or_else(|error| panic!("{place}:{nth}: lost: {error}"));
            assert_eq!(&object.view().unwrap()[..], &bytes_of(*seed, 700)[..], "{place}:{nth}");
        }
        let own = client.list("").unwrap().into_iter().filter(|listed| listed.name.is_none());
        let own: Vec<ObjectKey> = own.map(|listed| listed.id.into()).collect();
        // What it sealed last it may not have been able to say.
        assert!((sealed.len()..=sealed.len() + 1).contains(&own.len()), "{place}:{nth}");
        client.delete(&own).unwrap();
        let node = client.stats().unwrap().node;
        assert_eq!(node.free, before.free, "{place}:{nth}: bytes leaked: {node:?}");
    }
}

/// What the child said that it sealed.
fn line(line: &str) -> Option<(ObjectId, u64)> {
    let mut words = line.strip_prefix("sealed ")?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}
