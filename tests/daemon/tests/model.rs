//! 100,000 operations of several clients with many kills, compared with a small model of a store:
//! names and ids to bytes, metadata, pins, and a quota in a namespace. The store must always equal
//! the model, and so must its events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::scripted_client::{self, Answer, ScriptedClient};
use common::{Daemon, Dice, assert_balanced, bytes_of, client_in, wait_for};
use farrow::error::NamespaceInUse;
use farrow::{Client, Error, Metadata, NamespaceSpec, ObjectKey, SubscribeOptions, Subscription};
use farrow_store::{EventKind, Seen};

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
struct Object {
    name: Option<String>,
    seed: u64,
    length: u64,
    has_metadata: bool,
    is_pinned: bool,
}

impl Object {
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
struct Member {
    scripted_client: ScriptedClient,
    holds: BTreeMap<u64, String>,
    writers: BTreeMap<u64, Creation>,
}

struct Model {
    daemon: Daemon,
    client: Client,
    namespace: &'static str,
    events: Subscription,
    members: Vec<Member>,
    objects: BTreeMap<String, Object>,
    /// Names of which the events told that they are there.
    told: BTreeSet<String>,
    dice: Dice,
    next: u64,
    kills: u64,
    gaps: u64,
    refused: u64,
}

impl Model {
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
        let members = (0..SCRIPTED_CLIENTS).map(|_| Member::new(&daemon, namespace)).collect();
        let (objects, told) = Default::default();
        let (dice, next, kills, gaps, refused) = (Dice(seed), 1, 0, 0, 0);
        Self {
            daemon,
            client,
            namespace,
            events,
            members,
            objects,
            told,
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

    fn any_object(&mut self) -> Option<(String, Object)> {
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

    /// A put to come: what is asked, and what it makes.
    fn new_put(&mut self) -> (String, Object) {
        let (name, seed, length) = (self.name(), self.number(), self.length());
        let label = name.clone().unwrap_or("-".into());
        (format!("put {label} {seed} {length}"), Object::put(name, seed, length))
    }

    fn put(&mut self, who: usize) {
        let (command, object) = self.new_put();
        let answer = self.members[who].scripted_client.ask(&command);
        self.sealed(object, answer, false);
    }

    /// Compares an answer with what must be, and notes the object.
    fn sealed(&mut self, object: Object, answer: Answer, is_reserved_object: bool) {
        let is_taken = object.name.as_deref().is_some_and(|name| self.is_taken(name));
        match answer {
            Answer::Done(id) => {
                assert!(!is_taken, "{object:?}: the name was given twice");
                assert!(is_reserved_object || !self.is_full(1), "{object:?}: there was no room");
                assert!(self.objects.insert(id, object).is_none(), "an id was given twice");
            }
            Answer::Refused(kind) => {
                assert!(!is_reserved_object, "{object:?}: {kind}, though it was promised");
                self.assert_refused(&kind, is_taken, 1, &format!("{object:?}"));
            }
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
        match self.members[who].scripted_client.ask(&command) {
            Answer::Done(ids) => {
                assert!(!is_taken, "{command}: a name was given twice");
                assert!(!self.is_full(names.len()), "{command}: there was no room");
                for (number, (id, name)) in ids.split(' ').zip(names).enumerate() {
                    let object = Object::new(name, seed + number as u64, length);
                    assert!(self.objects.insert(id.to_owned(), object).is_none());
                }
            }
            Answer::Refused(kind) => {
                self.assert_refused(&kind, is_taken, names.len(), &command);
            }
        }
    }

    fn create(&mut self, who: usize, count: usize) {
        if self.members[who].writers.len() + count > IN_HAND {
            return self.finish(who);
        }
        let (key, length) = (self.number(), self.length());
        let names: Vec<Option<String>> = (0..count).map(|_| self.name()).collect();
        let labels: Vec<&str> = names.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
        let command = match &labels[..] {
            [label] => format!("create {key} {label} {length}"),
            labels => format!("create_many {key} {length} {}", labels.join(" ")),
        };
        let given: Vec<&String> = names.iter().flatten().collect();
        let is_double = given.iter().collect::<BTreeSet<_>>().len() < given.len();
        let is_taken = is_double || given.iter().any(|name| self.is_taken(name));
        match self.members[who].scripted_client.ask(&command) {
            Answer::Done(_) => {
                assert!(!is_taken, "{command}: a name was given twice");
                assert!(!self.is_full(count), "{command}: there was no room");
                let made = names.into_iter().map(|name| Creation { name, length });
                self.members[who].writers.extend((key..).zip(made));
            }
            Answer::Refused(kind) => self.assert_refused(&kind, is_taken, count, &command),
        }
    }

    /// Seals or aborts what is being written.
    fn finish(&mut self, who: usize) {
        let seed = self.number();
        let Some((key, creation)) = self.members[who].writers.pop_first() else {
            return;
        };
        let scripted_client = &mut self.members[who].scripted_client;
        if self.dice.roll(3) == 0 {
            assert_eq!(scripted_client.ask(&format!("abort {key}")), Answer::Done(String::new()));
            return;
        }
        let answer = scripted_client.ask(&format!("seal {key} {seed}"));
        self.sealed(Object::new(creation.name, seed, creation.length), answer, true);
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
        let what = object.name.clone().filter(|_| is_by_name).unwrap_or_else(|| id.clone());
        let command = format!("hold {key} {what} {} {}", object.seed, object.length);
        let answer = self.members[who].scripted_client.ask(&command);
        assert_eq!(answer, Answer::Done(String::new()), "{command}: {object:?} is lost");
        self.members[who].holds.insert(key, id);
    }

    fn get_many(&mut self, who: usize) {
        let mut command = "get_many".to_owned();
        for _ in 0..1 + self.dice.roll(6) {
            let Some((id, object)) = self.any_object() else {
                return;
            };
            command += &format!(" {id} {}", object.seed);
        }
        let answer = self.members[who].scripted_client.ask(&command);
        assert_eq!(answer, Answer::Done(String::new()), "{command}");
    }

    /// Of some names one is waited for, or one more than are there.
    fn wait(&mut self, who: usize) {
        let mut names: Vec<String> =
            (0..3).map(|_| format!("n{}", self.dice.roll(NAMES))).collect();
        names.dedup();
        let is_there =
            |name: &String| self.objects.values().any(|object| object.name.as_ref() == Some(name));
        let ready: String =
            names.iter().map(|name| if is_there(name) { '1' } else { '0' }).collect();
        let have = ready.matches('1').count();
        let (count, timeout_ms) =
            if have > 0 && self.dice.roll(4) > 0 { (1, 60_000) } else { (have + 1, 5) };
        let command = format!("wait {count} {timeout_ms} {}", names.join(" "));
        assert_eq!(
            self.members[who].scripted_client.ask(&command),
            Answer::Done(ready),
            "{command}"
        );
    }

    fn pin(&mut self, who: usize) {
        if let Some((id, object)) = self.any_object() {
            // Few stay pinned, so that there is something to evict.
            let is_pinned = !object.is_pinned && self.dice.roll(2) == 0;
            let verb = if is_pinned { "pin" } else { "unpin" };
            let answer = self.members[who].scripted_client.ask(&format!("{verb} {id}"));
            assert_eq!(answer, Answer::Done(String::new()), "{verb} {object:?}");
            self.objects.get_mut(&id).unwrap().is_pinned = is_pinned;
            assert_eq!(self.missing(), [""; 0], "lost by {verb}");
        }
    }

    /// Those that are not listed and do not go by another id either: what a client sealed by itself
    /// gets one when it is pinned, or was to be evicted and stays.
    fn missing(&mut self) -> Vec<String> {
        let there = self.listed();
        let ids: Vec<String> = self.objects.keys().cloned().collect();
        let mut missing = Vec::new();
        for old in ids.into_iter().filter(|id| !there.contains_key(id)) {
            let target = ObjectKey::Id(old.parse().unwrap());
            let Ok(found) = self.client.get(&target, Duration::ZERO) else {
                missing.push(old);
                continue;
            };
            let new = found.id().to_string();
            let object = self.objects.remove(&old).unwrap();
            assert!(self.objects.insert(new.clone(), object).is_none(), "{new} is two objects");
            let held = self.members.iter_mut().flat_map(|member| member.holds.values_mut());
            held.filter(|id| **id == old).for_each(|id| id.clone_from(&new));
        }
        missing
    }

    /// By hand, since the node evicts nothing by itself.
    fn evict(&mut self) {
        let bytes = 1 << self.dice.roll(20);
        let report = self.client.evict(bytes).unwrap();
        let gone = self.missing();
        assert_eq!(gone.len() as u64, report.objects);
        for id in gone {
            assert!(!self.is_held(&id), "{id} was held");
            let object = self.objects.remove(&id).unwrap();
            assert!(!object.is_pinned, "{object:?} was pinned");
        }
        let mut left = self.objects.iter();
        assert!(
            report.bytes >= bytes || left.all(|(id, one)| one.is_pinned || self.is_held(id)),
            "{bytes} B asked, {report:?}"
        );
    }

    fn let_go(&mut self, who: usize) {
        let verb = if self.dice.roll(3) == 0 { "check" } else { "drop" };
        let member = &mut self.members[who];
        if let Some(key) = member.holds.keys().next().copied() {
            // The scripted client compares every byte first.
            assert_eq!(
                member.scripted_client.ask(&format!("{verb} {key}")),
                Answer::Done(String::new())
            );
            if verb == "drop" {
                member.holds.remove(&key);
            }
        }
    }

    /// One or several at once.
    fn delete(&mut self, who: usize) {
        let mut targets = BTreeMap::new();
        for _ in 0..1 + self.dice.roll(2) {
            if let Some((id, object)) = self.any_object() {
                let is_by_name = self.dice.roll(2) == 0;
                let what = object.name.filter(|_| is_by_name).unwrap_or_else(|| id.clone());
                targets.insert(id, what);
            }
        }
        if targets.is_empty() {
            return;
        }
        let words: Vec<String> = targets.values().cloned().collect();
        let command = format!("delete {}", words.join(" "));
        let answer = self.members[who].scripted_client.ask(&command);
        assert_eq!(answer, Answer::Done(String::new()), "{command}");
        self.objects.retain(|id, _| !targets.contains_key(id));
    }

    /// A client, or the daemon, is killed somewhere in an operation: it took effect, or it did not.
    fn kill_under_way(&mut self) {
        self.kills += 1;
        let who = self.dice.roll(SCRIPTED_CLIENTS as u64) as usize;
        let mut made = Vec::new();
        let mut deleted = None;
        let command = match self.dice.roll(3) {
            0 => {
                let (id, _) = self.any_object().unzip();
                deleted = id.clone();
                format!("delete {}", id.unwrap_or("nothing".into()))
            }
            1 if !self.members[who].writers.is_empty() => {
                let seed = self.number();
                let (key, creation) = self.members[who].writers.pop_first().unwrap();
                made.push(Object::new(creation.name, seed, creation.length));
                format!("seal {key} {seed}")
            }
            _ => {
                let (mut command, mut object) = self.new_put();
                // A name that another one writes under is had, after a kill of the daemon, by who
                // comes back first.
                while self.is_written(object.name.as_deref()) {
                    (command, object) = self.new_put();
                }
                made.push(object);
                command
            }
        };
        // So is promised room, while the next daemon has not heard of all reservations: where there
        // is no other room the daemon is not killed during a put.
        let may_take_room = command.starts_with("put") && self.is_full(1);
        let is_of_daemon = self.dice.roll(2) == 0 && !may_take_room;
        let fresh = (!is_of_daemon).then(|| Member::new(&self.daemon, self.namespace));
        self.members[who].scripted_client.begin(&command);
        let pause = Duration::from_micros(self.dice.roll(400));
        std::thread::sleep(pause);
        match fresh {
            Some(fresh) => self.bury(who, fresh),
            None => {
                self.daemon.kill9();
                self.restart();
                let answer = self.members[who].scripted_client.answer(&command);
                self.greet();
                if let (Answer::Done(id), Some(object)) = (&answer, made.first()) {
                    let listed = self.listed();
                    let found = listed.get(id);
                    assert_eq!(found.map(|one| one.1), Some(object.length), "{command}");
                }
            }
        }
        let listed = self.listed();
        for (id, (name, length, _, _)) in &listed {
            if !self.objects.contains_key(id) {
                let place = made.iter().position(|one| one.name == *name && one.length == *length);
                let object = made.swap_remove(place.expect("an object out of nothing"));
                self.objects.insert(id.clone(), object);
            }
        }
        let is_deleted = |id: &String| deleted.as_ref() == Some(id);
        let lost = self.objects.keys().find(|id| !listed.contains_key(*id) && !is_deleted(id));
        assert_eq!(lost, None, "lost by {command}");
        self.objects.retain(|id, _| listed.contains_key(id));
    }

    /// The next daemon over the same memory. The same client finds it by itself.
    fn restart(&mut self) {
        self.daemon.restart();
        wait_for("the next daemon", || self.client.stats().ok()).unwrap();
    }

    /// Each takes the names, and the reservations, of what it is writing again.
    fn greet(&mut self) {
        for member in &mut self.members {
            assert_eq!(member.scripted_client.ask("hello"), Answer::Done(String::new()));
        }
    }

    /// Kills a member; all its memory and reservations become free.
    fn bury(&mut self, who: usize, fresh: Member) {
        std::mem::replace(&mut self.members[who], fresh).scripted_client.kill9();
        let clients = SCRIPTED_CLIENTS as u64 + 1;
        let is_gone = || (self.client.stats().unwrap().node.clients == clients).then_some(());
        wait_for("the place of a dead client", is_gone).unwrap();
    }

    fn kill(&mut self) {
        self.kills += 1;
        if self.dice.roll(2) == 0 {
            self.daemon.kill9();
            self.restart();
            return self.greet();
        }
        let who = self.dice.roll(SCRIPTED_CLIENTS as u64) as usize;
        let fresh = Member::new(&self.daemon, self.namespace);
        self.bury(who, fresh);
    }

    /// What is there: name, bytes, metadata, and whether it is pinned.
    fn listed(&self) -> BTreeMap<String, (Option<String>, u64, Metadata, bool)> {
        let listed = self.client.list("").unwrap().into_iter();
        listed
            .map(|one| (one.id.to_string(), (one.name, one.bytes, one.metadata, one.is_pinned)))
            .collect()
    }

    /// Everything that the model has is there, and nothing else.
    fn check(&mut self) {
        let told = |one: &Object| (one.name.clone(), one.length, one.metadata(), one.is_pinned);
        let expected = self.objects.iter().map(|(id, object)| (id.clone(), told(object))).collect();
        assert_eq!(self.listed(), expected);
        // Now and then so late that the ring has gone over what was not read.
        if self.dice.roll(4) == 0 {
            self.follow();
        }
        for (id, object) in &self.objects {
            let target = ObjectKey::Id(id.parse().unwrap());
            let view = self.client.get(&target, Duration::ZERO).unwrap().view().unwrap();
            assert!(view[..] == bytes_of(object.seed, view.len())[..], "{object:?} has changed");
        }
        assert_balanced(&self.client.stats().unwrap());
    }

    /// What the events tell is what is there, unless they say that some were missed.
    fn follow(&mut self) {
        let mut is_all = true;
        while let Some(seen) = self.events.try_next().unwrap() {
            match seen {
                Seen::Gap { missed } => {
                    assert!(missed > 0);
                    (is_all, self.gaps) = (false, self.gaps + 1);
                }
                Seen::Event(event) if event.kind == EventKind::Sealed => {
                    let is_new = self.told.insert(event.name);
                    assert!(is_new || !is_all, "told twice");
                }
                Seen::Event(event) => {
                    let was_there = self.told.remove(&event.name);
                    assert!(was_there || !is_all, "{:?} before it came", event.name);
                }
            }
        }
        let there = self.objects.values().filter_map(|object| object.name.clone()).collect();
        if !is_all {
            self.told = there;
        } else {
            assert_eq!(self.told, there, "what the events tell is not what is there");
        }
    }

    /// Deletes everything; every byte must be free.
    fn end(mut self) {
        self.check();
        self.follow();
        self.members.clear();
        let all: Vec<ObjectKey> =
            self.objects.keys().map(|id| ObjectKey::Id(id.parse().unwrap())).collect();
        let client = self.daemon.client();
        // A reader of another namespace.
        let held = all.first().map(|id| client.get(id, Duration::ZERO).unwrap().view().unwrap());
        self.client.delete(&all).unwrap();
        drop(self.events);
        drop(self.client);
        if !self.namespace.is_empty() {
            let dropped = wait_for("the last client of the namespace", || {
                match client.drop_namespace(self.namespace) {
                    Err(Error::NamespaceInUse(NamespaceInUse { clients: 1.., .. })) => None,
                    dropped => Some(dropped),
                }
            });
            assert!(
                matches!(
                    dropped,
                    Some(Err(Error::NamespaceInUse(NamespaceInUse { objects: 0, bytes: 1.., .. })))
                ),
                "{dropped:?}, while {:?} is held",
                held.map(|view| view.len())
            );
        }
        drop(held);
        wait_for("all memory", || {
            let node = client.stats().unwrap().node;
            (node.free == node.capacity).then_some(())
        })
        .unwrap_or_else(|| panic!("bytes leaked: {:?}", client.stats().unwrap()));
    }
}

impl Member {
    fn new(daemon: &Daemon, namespace: &str) -> Self {
        let scripted_client = ScriptedClient::start_in(&daemon.socket, namespace);
        Self { scripted_client, holds: BTreeMap::new(), writers: BTreeMap::new() }
    }
}

fn play(operations: u64, seed: u64, namespace: &'static str) -> Model {
    let mut model = Model::new("24M", &["--no-prepare", "--evict", "none"], seed, namespace);
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
