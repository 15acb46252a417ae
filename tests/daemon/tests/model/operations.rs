//! The operations of clients, each compared with what the model expects.

use std::time::Duration;

use farrow::ObjectKey;

use super::common::scripted_client::ScriptedAnswer;
use super::*;

impl DaemonModel {
    /// A put to come: what is asked, and what it makes.
    pub(super) fn new_put(&mut self) -> (String, ExpectedObject) {
        let (name, seed, length) = (self.name(), self.number(), self.length());
        let label = name.clone().unwrap_or("-".into());
        (format!("put {label} {seed} {length}"), ExpectedObject::put(name, seed, length))
    }

    pub(super) fn put(&mut self, who: usize) {
        let (command, object) = self.new_put();
        let answer = self.members[who].scripted_client.ask(&command);
        self.sealed(object, answer, false);
    }

    /// Compares an answer with what must be, and notes the object.
    pub(super) fn sealed(
        &mut self,
        object: ExpectedObject,
        answer: ScriptedAnswer,
        is_reserved_object: bool,
    ) {
        let is_taken = object.name.as_deref().is_some_and(|name| self.is_taken(name));
        match answer {
            ScriptedAnswer::Done(id) => {
                assert!(!is_taken, "{object:?}: the name was given twice");
                assert!(is_reserved_object || !self.is_full(1), "{object:?}: there was no room");
                assert!(self.objects.insert(id, object).is_none(), "an id was given twice");
            }
            ScriptedAnswer::Refused(kind) => {
                assert!(!is_reserved_object, "{object:?}: {kind}, though it was promised");
                self.assert_refused(&kind, is_taken, 1, &format!("{object:?}"));
            }
        }
    }

    pub(super) fn put_many(&mut self, who: usize) {
        let (seed, length) = (self.number(), self.length());
        let names: Vec<Option<String>> = (0..1 + self.dice.roll(5)).map(|_| self.name()).collect();
        let labels: Vec<&str> = names.iter().map(|name| name.as_deref().unwrap_or("-")).collect();
        let command = format!("put_many {seed} {length} {}", labels.join(" "));
        let given: Vec<&String> = names.iter().flatten().collect();
        let is_double = given.iter().collect::<BTreeSet<_>>().len() < given.len();
        let is_taken = is_double || given.iter().any(|name| self.is_taken(name));
        match self.members[who].scripted_client.ask(&command) {
            ScriptedAnswer::Done(ids) => {
                assert!(!is_taken, "{command}: a name was given twice");
                assert!(!self.is_full(names.len()), "{command}: there was no room");
                for (number, (id, name)) in ids.split(' ').zip(names).enumerate() {
                    let object = ExpectedObject::new(name, seed + number as u64, length);
                    assert!(self.objects.insert(id.to_owned(), object).is_none());
                }
            }
            ScriptedAnswer::Refused(kind) => {
                self.assert_refused(&kind, is_taken, names.len(), &command);
            }
        }
    }

    pub(super) fn create(&mut self, who: usize, count: usize) {
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
            ScriptedAnswer::Done(_) => {
                assert!(!is_taken, "{command}: a name was given twice");
                assert!(!self.is_full(count), "{command}: there was no room");
                let made = names.into_iter().map(|name| Creation { name, length });
                self.members[who].writers.extend((key..).zip(made));
            }
            ScriptedAnswer::Refused(kind) => self.assert_refused(&kind, is_taken, count, &command),
        }
    }

    /// Seals or aborts what is being written.
    pub(super) fn finish(&mut self, who: usize) {
        let seed = self.number();
        let Some((key, creation)) = self.members[who].writers.pop_first() else {
            return;
        };
        let scripted_client = &mut self.members[who].scripted_client;
        if self.dice.roll(3) == 0 {
            assert_eq!(
                scripted_client.ask(&format!("abort {key}")),
                ScriptedAnswer::Done(String::new())
            );
            return;
        }
        let answer = scripted_client.ask(&format!("seal {key} {seed}"));
        self.sealed(ExpectedObject::new(creation.name, seed, creation.length), answer, true);
    }

    pub(super) fn hold(&mut self, who: usize) {
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
        assert_eq!(answer, ScriptedAnswer::Done(String::new()), "{command}: {object:?} is lost");
        self.members[who].holds.insert(key, id);
    }

    pub(super) fn get_many(&mut self, who: usize) {
        let mut command = "get_many".to_owned();
        for _ in 0..1 + self.dice.roll(6) {
            let Some((id, object)) = self.any_object() else {
                return;
            };
            command += &format!(" {id} {}", object.seed);
        }
        let answer = self.members[who].scripted_client.ask(&command);
        assert_eq!(answer, ScriptedAnswer::Done(String::new()), "{command}");
    }

    /// Of some names one is waited for, or one more than are there.
    pub(super) fn wait(&mut self, who: usize) {
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
            ScriptedAnswer::Done(ready),
            "{command}"
        );
    }

    pub(super) fn pin(&mut self, who: usize) {
        if let Some((id, object)) = self.any_object() {
            // Few stay pinned, so that there is something to evict.
            let is_pinned = !object.is_pinned && self.dice.roll(2) == 0;
            let verb = if is_pinned { "pin" } else { "unpin" };
            let answer = self.members[who].scripted_client.ask(&format!("{verb} {id}"));
            assert_eq!(answer, ScriptedAnswer::Done(String::new()), "{verb} {object:?}");
            self.objects.get_mut(&id).unwrap().is_pinned = is_pinned;
            assert_eq!(self.missing(), [""; 0], "lost by {verb}");
        }
    }

    /// Those that are not listed and do not go by another id either: what a client sealed by itself
    /// gets one when it is pinned, or was to be evicted and stays.
    pub(super) fn missing(&mut self) -> Vec<String> {
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
    pub(super) fn evict(&mut self) {
        let bytes = 1 << self.dice.roll(20);
        let report = self.client.evict(bytes).unwrap();
        let removed = self.missing();
        assert_eq!(removed.len() as u64, report.objects);
        for id in removed {
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

    pub(super) fn let_go(&mut self, who: usize) {
        let verb = if self.dice.roll(3) == 0 { "check" } else { "drop" };
        let member = &mut self.members[who];
        if let Some(key) = member.holds.keys().next().copied() {
            // The scripted client compares every byte first.
            assert_eq!(
                member.scripted_client.ask(&format!("{verb} {key}")),
                ScriptedAnswer::Done(String::new())
            );
            if verb == "drop" {
                member.holds.remove(&key);
            }
        }
    }

    /// One or several at once.
    pub(super) fn delete(&mut self, who: usize) {
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
        assert_eq!(answer, ScriptedAnswer::Done(String::new()), "{command}");
        self.objects.retain(|id, _| !targets.contains_key(id));
    }
}
