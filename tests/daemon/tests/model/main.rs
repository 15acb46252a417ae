//! 100,000 operations of several clients with many kills, compared with a small model of a store:
//! names and ids to bytes, metadata, pins, and a quota in a namespace. The store must always equal
//! the model, and so must its events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod checks;
#[path = "../common/mod.rs"]
mod common;
mod kills;
mod operations;

use std::collections::{BTreeMap, BTreeSet};

use common::scripted_client::{self, ScriptedClient};
use common::{Daemon, SeededDice, client_in};
use farrow::{Client, Metadata, NamespaceSpec, SubscribeOptions, Subscription};

/// Operations in one run, and of one where objects are limited.
const OPERATIONS: u64 = 100_000;
const OPERATIONS_LIMITED: u64 = 20_000;
/// Operations between two comparisons of everything.
const BETWEEN_CHECKS: u64 = 500;
/// One operation in this many is a kill.
const KILL_ONE_IN: u64 = 400;
const SCRIPTED_CLIENTS: usize = 3;
/// Objects, writers and holds that the driver lets be.
const OBJECTS: usize = 120;
const IN_HAND: usize = 6;
const NAMES: u64 = 60;
/// Objects that may be there where they are limited; less than the driver would let be.
const QUOTA: usize = 90;
const LIMITED: &str = "limited";

/// Not a test by itself: a child process plays a client.
#[test]
fn scripted_client() {
    scripted_client::play();
}

#[derive(Debug, Clone)]
struct ExpectedObject {
    name: Option<String>,
    seed: u64,
    length: u64,
    has_metadata: bool,
    is_pinned: bool,
}

impl ExpectedObject {
    fn new(name: Option<String>, seed: u64, length: u64) -> Self {
        Self { name, seed, length, has_metadata: false, is_pinned: false }
    }

    /// As a scripted client puts it by itself.
    fn put(name: Option<String>, seed: u64, length: u64) -> Self {
        Self { has_metadata: seed.is_multiple_of(3), ..Self::new(name, seed, length) }
    }

    fn metadata(&self) -> Metadata {
        let pairs = self.has_metadata.then(|| ("seed", self.seed.to_string()));
        Metadata::new(pairs).unwrap()
    }
}

#[derive(Debug, Clone)]
struct Creation {
    name: Option<String>,
    length: u64,
}

/// A scripted client and its objects.
struct ScriptedMember {
    scripted_client: ScriptedClient,
    holds: BTreeMap<u64, String>,
    writers: BTreeMap<u64, Creation>,
}

struct DaemonModel {
    daemon: Daemon,
    client: Client,
    namespace: &'static str,
    events: Subscription,
    members: Vec<ScriptedMember>,
    objects: BTreeMap<String, ExpectedObject>,
    /// Names of which the events told that they are there.
    reported: BTreeSet<String>,
    dice: SeededDice,
    next: u64,
    kills: u64,
    gaps: u64,
    refused: u64,
}

impl DaemonModel {
    fn new(memory: &str, arguments: &[&str], seed: u64, namespace: &'static str) -> Self {
        let daemon = Daemon::start(memory, arguments);
        if !namespace.is_empty() {
            let objects_max = Some(QUOTA as u64);
            let name = namespace.to_owned();
            let spec = NamespaceSpec { name, objects_max, ..NamespaceSpec::default() };
            daemon.client().create_namespace(&spec).unwrap();
        }
        let client = client_in(&daemon.socket, namespace);
        // Of objects with a name alone, so that clients go on to seal others by themselves.
        let options = SubscribeOptions { prefix: "n".into(), ..SubscribeOptions::default() };
        let events = client.subscribe(options).unwrap();
        let members =
            (0..SCRIPTED_CLIENTS).map(|_| ScriptedMember::new(&daemon, namespace)).collect();
        let (objects, reported) = Default::default();
        let (dice, next, kills, gaps, refused) = (SeededDice(seed), 1, 0, 0, 0);
        Self {
            daemon,
            client,
            namespace,
            events,
            members,
            objects,
            reported,
            dice,
            next,
            kills,
            gaps,
            refused,
        }
    }

    fn number(&mut self) -> u64 {
        // Apart, since a batch counts on from its seed.
        self.next += 16;
        self.next
    }

    fn length(&mut self) -> u64 {
        [0, 1, 100, 4_000, 30_000, 70_000, 300_000][self.dice.roll(7) as usize]
    }

    fn name(&mut self) -> Option<String> {
        (self.dice.roll(3) > 0).then(|| format!("n{}", self.dice.roll(NAMES)))
    }

    /// Whether a member is writing an object of this name.
    fn is_written(&self, name: Option<&str>) -> bool {
        let mut writers = self.members.iter().flat_map(|member| member.writers.values());
        name.is_some() && writers.any(|one| one.name.as_deref() == name)
    }

    fn is_taken(&self, name: &str) -> bool {
        let is_sealed = self.objects.values().any(|object| object.name.as_deref() == Some(name));
        is_sealed || self.is_written(Some(name))
    }

    /// Whether this number more exceeds the quota. What is being written counts.
    fn is_full(&self, more: usize) -> bool {
        let written: usize = self.members.iter().map(|member| member.writers.len()).sum();
        !self.namespace.is_empty() && self.objects.len() + written + more > QUOTA
    }

    fn is_held(&self, id: &str) -> bool {
        self.members.iter().flat_map(|member| member.holds.values()).any(|held| held == id)
    }

    /// Checks that the store was right to reject an operation.
    fn assert_refused(&mut self, kind: &str, is_taken: bool, more: usize, what: &str) {
        let is_full = self.is_full(more);
        self.refused += u64::from(kind == "QuotaExceeded");
        match kind {
            "AlreadyExists" => assert!(is_taken, "{what}: no object has the name"),
            "QuotaExceeded" => assert!(is_full, "{what}: there was room"),
            _ => assert_eq!(kind, "OutOfMemory", "{what}"),
        }
    }

    fn any_object(&mut self) -> Option<(String, ExpectedObject)> {
        let count = self.objects.len() as u64;
        let nth = if count == 0 { return None } else { self.dice.roll(count) as usize };
        self.objects.iter().nth(nth).map(|(id, object)| (id.clone(), object.clone()))
    }

    fn step(&mut self) {
        if self.dice.roll(KILL_ONE_IN) == 0 {
            return match self.dice.roll(2) {
                0 => self.kill(),
                _ => self.kill_under_way(),
            };
        }
        let who = self.dice.roll(SCRIPTED_CLIENTS as u64) as usize;
        match self.dice.roll(18) {
            0..3 => self.put(who),
            3 => self.put_many(who),
            4 => self.create(who, 1),
            5 => {
                let count = 1 + self.dice.roll(3) as usize;
                self.create(who, count);
            }
            6 | 7 => self.finish(who),
            8..11 => self.hold(who),
            11 | 12 => self.let_go(who),
            13 => self.get_many(who),
            14 => self.pin(who),
            15 if self.dice.roll(8) == 0 => self.evict(),
            15 => self.wait(who),
            _ => self.delete(who),
        }
        if self.objects.len() > OBJECTS {
            self.delete(who);
        }
    }
}

impl ScriptedMember {
    fn new(daemon: &Daemon, namespace: &str) -> Self {
        let scripted_client = ScriptedClient::start_in(&daemon.socket, namespace);
        Self { scripted_client, holds: BTreeMap::new(), writers: BTreeMap::new() }
    }
}

fn play(operations: u64, seed: u64, namespace: &'static str) -> DaemonModel {
    let mut model = DaemonModel::new("24M", &["--no-prepare", "--evict", "none"], seed, namespace);
    for operation in 1..=operations {
        model.step();
        if operation % BETWEEN_CHECKS == 0 {
            model.check();
        }
    }
    assert!(model.kills > operations / KILL_ONE_IN / 2, "{} kills", model.kills);
    model
}

#[test]
fn a_hundred_thousand_operations_and_kills_agree_with_the_model() {
    let model = play(OPERATIONS, 0x000f_a110_0000_0001, "");
    assert!(model.gaps > 0, "no event was ever missed");
    model.end();
}

#[test]
fn where_objects_are_limited_no_more_are_made_and_no_fewer() {
    let model = play(OPERATIONS_LIMITED, 0x000f_a110_0000_0002, LIMITED);
    assert!(model.refused > OPERATIONS_LIMITED / 1000, "{} were refused", model.refused);
    model.end();
}
