//! Kills of clients and of the daemon, between operations and during them.

use std::time::Duration;

use super::common::scripted_client::ScriptedAnswer;
use super::common::wait_for;
use super::*;

impl DaemonModel {
    /// A client, or the daemon, is killed somewhere in an operation: it took effect, or it did not.
    pub(super) fn kill_under_way(&mut self) {
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
                made.push(ExpectedObject::new(creation.name, seed, creation.length));
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
        let fresh = (!is_of_daemon).then(|| ScriptedMember::new(&self.daemon, self.namespace));
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
                if let (ScriptedAnswer::Done(id), Some(object)) = (&answer, made.first()) {
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
    pub(super) fn restart(&mut self) {
        self.daemon.restart();
        wait_for("the next daemon", || self.client.stats().ok()).unwrap();
    }

    /// Each takes the names, and the reservations, of what it is writing again.
    pub(super) fn greet(&mut self) {
        for member in &mut self.members {
            assert_eq!(member.scripted_client.ask("hello"), ScriptedAnswer::Done(String::new()));
        }
    }

    /// Kills a member; all its memory and reservations become free.
    pub(super) fn bury(&mut self, who: usize, fresh: ScriptedMember) {
        std::mem::replace(&mut self.members[who], fresh).scripted_client.kill9();
        let clients = SCRIPTED_CLIENTS as u64 + 1;
        let is_removed = || (self.client.stats().unwrap().node.clients == clients).then_some(());
        wait_for("the place of a dead client", is_removed).unwrap();
    }

    pub(super) fn kill(&mut self) {
        self.kills += 1;
        if self.dice.roll(2) == 0 {
            self.daemon.kill9();
            self.restart();
            return self.greet();
        }
        let who = self.dice.roll(SCRIPTED_CLIENTS as u64) as usize;
        let fresh = ScriptedMember::new(&self.daemon, self.namespace);
        self.bury(who, fresh);
    }
}
