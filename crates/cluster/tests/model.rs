//! 100,000 operations of several clients and as many kills as there is time for, against a small
//! model of what a store is: names and ids to bytes. Whatever the model has, the store has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::player::{self, Answer, Player};
use common::{Daemon, Dice, assert_balanced, bytes_of, wait_for};
use farrow::{Client, Target};

/// Operations in one run.
const OPERATIONS: u64 = 100_000;
/// Operations between two comparisons of everything.
const BETWEEN_CHECKS: u64 = 500;
/// One operation in so many is a kill.
const KILL_ONE_IN: u64 = 400;
const PLAYERS: usize = 3;
/// Objects, writers and holds that the driver lets be.
const OBJECTS: usize = 120;
const IN_HAND: usize = 6;
const NAMES: u64 = 60;

/// Not a test by itself: a child process plays a client.
#[test]
fn player() {
    player::play();
}

#[derive(Debug, Clone)]
struct Object {
    name: Option<String>,
    seed: u64,
    length: u64,
}

#[derive(Debug, Clone)]
struct Creation {
    name: Option<String>,
    length: u64,
}

/// A player and what it has in hand.
struct Member {
    player: Player,
    holds: BTreeMap<u64, Object>,
    writers: BTreeMap<u64, Creation>,
}

struct Model {
    daemon: Daemon,
    client: Client,
    members: Vec<Member>,
    objects: BTreeMap<String, Object>,
    dice: Dice,
    next: u64,
    kills: u64,
}

impl Model {
    fn new(memory: &str, arguments: &[&str], seed: u64) -> Self {
        let daemon = Daemon::start(memory, arguments);
        let client = daemon.client();
        let members = (0..PLAYERS).map(|_| Member::new(&daemon)).collect();
        let dice = Dice(seed);
        Self { daemon, client, members, objects: BTreeMap::new(), dice, next: 1, kills: 0 }
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

    fn is_taken(&self, name: &str) -> bool {
        let is_sealed = self.objects.values().any(|object| object.name.as_deref() == Some(name));
        let mut writers = self.members.iter().flat_map(|member| member.writers.values());
        is_sealed || writers.any(|one| one.name.as_deref() == Some(name))
    }

    fn any_object(&mut self) -> Option<(String, Object)> {
        let count = self.objects.len() as u64;
        let nth = if count == 0 { return None } else { self.dice.roll(count) as usize };
        self.objects.iter().nth(nth).map(|(id, object)| (id.clone(), object.clone()))
    }

    fn step(&mut self) {
        if self.dice.roll(KILL_ONE_IN) == 0 {
            return self.kill();
        }
        let who = self.dice.roll(PLAYERS as u64) as usize;
        match self.dice.roll(12) {
            0..3 => self.put(who),
            3 => self.put_many(who),
            4 => self.create(who),
            5 => self.finish(who),
            6..9 => self.hold(who),
            9 | 10 => self.let_go(who),
            _ => self.delete(who),
        }
        if self.objects.len() > OBJECTS {
            self.delete(who);
        }
    }

    fn put(&mut self, who: usize) {
        let (name, seed, length) = (self.name(), self.number(), self.length());
        let label = name.clone().unwrap_or("-".into());
        let answer = self.members[who].player.ask(&format!("put {label} {seed} {length}"));
        self.sealed(name, seed, length, answer);
    }

    /// Compares an answer with what must be, and notes the object.
    fn sealed(&mut self, name: Option<String>, seed: u64, length: u64, answer: Answer) {
        let is_taken = name.as_deref().is_some_and(|name| self.is_taken(name));
        match answer {
            Answer::Done(id) => {
                assert!(!is_taken, "{name:?} was given twice");
                let known = self.objects.insert(id, Object { name, seed, length });
                assert!(known.is_none(), "an id was given twice");
            }
            Answer::Refused(kind) if is_taken && kind == "AlreadyExists" => {}
            Answer::Refused(kind) => assert_eq!(kind, "OutOfMemory", "{name:?} {length}"),
        }
    }

    fn put_many(&mut self, who: usize) {
        let (seed, length) = (self.number(), self.length());
        let names: Vec<Option<String>> = (0..1 + self.dice.roll(5)).map(|_| self.name()).collect();
        let labels: Vec<&str> = names.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
        let command = format!("put_many {seed} {length} {}", labels.join(" "));
        let given: Vec<&String> = names.iter().flatten().collect();
        let is_double = given.iter().collect::<BTreeSet<_>>().len() < given.len();
        let is_taken = is_double || given.iter().any(|name| self.is_taken(name));
        match self.members[who].player.ask(&command) {
            Answer::Done(ids) => {
                assert!(!is_taken, "{command}: a name was given twice");
                for (number, (id, name)) in ids.split(' ').zip(names).enumerate() {
                    let object = Object { name, seed: seed + number as u64, length };
                    assert!(self.objects.insert(id.to_owned(), object).is_none());
                }
            }
            Answer::Refused(kind) if is_taken && kind == "AlreadyExists" => {}
            Answer::Refused(kind) => assert_eq!(kind, "OutOfMemory", "{command}"),
        }
    }

    fn create(&mut self, who: usize) {
        if self.members[who].writers.len() >= IN_HAND {
            return self.finish(who);
        }
        let (name, key, length) = (self.name(), self.number(), self.length());
        let label = name.clone().unwrap_or("-".into());
        let is_taken = name.as_deref().is_some_and(|name| self.is_taken(name));
        match self.members[who].player.ask(&format!("create {key} {label} {length}")) {
            Answer::Done(_) => {
                assert!(!is_taken, "{name:?} was given twice");
                let creation = Creation { name, length };
                self.members[who].writers.insert(key, creation);
            }
            Answer::Refused(kind) if is_taken && kind == "AlreadyExists" => {}
            Answer::Refused(kind) => assert_eq!(kind, "OutOfMemory", "{name:?} {length}"),
        }
    }

    /// Seals or aborts what is being written.
    fn finish(&mut self, who: usize) {
        let seed = self.number();
        let Some((key, creation)) = self.members[who].writers.pop_first() else {
            return;
        };
        let player = &mut self.members[who].player;
        if self.dice.roll(3) == 0 {
            assert_eq!(player.ask(&format!("abort {key}")), Answer::Done(String::new()));
            return;
        }
        let answer = player.ask(&format!("seal {key} {seed}"));
        self.sealed(creation.name, seed, creation.length, answer);
    }

    fn hold(&mut self, who: usize) {
        if self.members[who].holds.len() >= IN_HAND {
            return self.let_go(who);
        }
        let key = self.number();
        let Some((id, object)) = self.any_object() else {
            return;
        };
        let is_by_name = self.dice.roll(2) == 0;
        let what = object.name.clone().filter(|_| is_by_name).unwrap_or(id);
        let command = format!("hold {key} {what} {} {}", object.seed, object.length);
        let answer = self.members[who].player.ask(&command);
        assert_eq!(answer, Answer::Done(String::new()), "{command}: {object:?} is lost");
        self.members[who].holds.insert(key, object);
    }

    fn let_go(&mut self, who: usize) {
        let verb = if self.dice.roll(3) == 0 { "check" } else { "drop" };
        let member = &mut self.members[who];
        if let Some(key) = member.holds.keys().next().copied() {
            // The player compares every byte first.
            assert_eq!(member.player.ask(&format!("{verb} {key}")), Answer::Done(String::new()));
            if verb == "drop" {
                member.holds.remove(&key);
            }
        }
    }

    fn delete(&mut self, who: usize) {
        let Some((id, object)) = self.any_object() else {
            return;
        };
        let is_by_name = self.dice.roll(2) == 0;
        let what = object.name.filter(|_| is_by_name).unwrap_or_else(|| id.clone());
        let answer = self.members[who].player.ask(&format!("delete {what}"));
        assert_eq!(answer, Answer::Done(String::new()), "delete {what}");
        self.objects.remove(&id);
    }

    fn kill(&mut self) {
        self.kills += 1;
        if self.dice.roll(2) == 0 {
            self.daemon.kill9();
            self.daemon.restart();
            // The same client finds the next daemon by itself.
            wait_for("the next daemon", || self.client.stats().ok()).unwrap();
            // Each takes the names of what it is writing again.
            for member in &mut self.members {
                assert_eq!(member.player.ask("hello"), Answer::Done(String::new()));
            }
            return;
        }
        let who = self.dice.roll(PLAYERS as u64) as usize;
        let fresh = Member::new(&self.daemon);
        std::mem::replace(&mut self.members[who], fresh).player.kill9();
        let clients = PLAYERS as u64 + 1;
        let is_gone = || (self.client.stats().unwrap().node.clients == clients).then_some(());
        wait_for("the place of a dead client", is_gone).unwrap();
    }

    /// Everything that the model has is there, and nothing else.
    fn check(&self) {
        let listed = self.client.list("").unwrap();
        let found: BTreeMap<String, (Option<String>, u64)> =
            listed.into_iter().map(|one| (one.id.to_string(), (one.name, one.bytes))).collect();
        let expected: BTreeMap<String, (Option<String>, u64)> = self
            .objects
            .iter()
            .map(|(id, object)| (id.clone(), (object.name.clone(), object.length)))
            .collect();
        assert_eq!(found, expected);
        for (id, object) in &self.objects {
            let target = Target::Id(id.parse().unwrap());
            let view = self.client.get(&target, Duration::ZERO).unwrap().view().unwrap();
            assert!(view[..] == bytes_of(object.seed, view.len())[..], "{object:?} has changed");
        }
        assert_balanced(&self.client.stats().unwrap());
    }

    /// All goes, and every byte is back.
    fn end(mut self) {
        self.check();
        self.members.clear();
        let all: Vec<Target> =
            self.objects.keys().map(|id| Target::Id(id.parse().unwrap())).collect();
        self.client.delete(&all).unwrap();
        drop(self.client);
        let client = self.daemon.client();
        wait_for("all memory", || {
            let node = client.stats().unwrap().node;
            (node.free == node.capacity).then_some(())
        })
        .unwrap_or_else(|| panic!("bytes leaked: {:?}", client.stats().unwrap()));
    }
}

impl Member {
    fn new(daemon: &Daemon) -> Self {
        let player = Player::start(&daemon.socket);
        Self { player, holds: BTreeMap::new(), writers: BTreeMap::new() }
    }
}

#[test]
fn a_hundred_thousand_operations_and_kills_agree_with_the_model() {
    let seed = 0x000f_a110_0000_0001;
    let mut model = Model::new("24M", &["--no-prepare"], seed);
    for operation in 1..=OPERATIONS {
        model.step();
        if operation % BETWEEN_CHECKS == 0 {
            model.check();
        }
    }
    assert!(model.kills > OPERATIONS / KILL_ONE_IN / 2, "{} kills", model.kills);
    model.end();
}
