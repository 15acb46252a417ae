//! Comparisons of the store and its events with the model.

use std::time::Duration;

use farrow::error::NamespaceInUse;
use farrow::{Error, ObjectKey};
use farrow_store::{EventKind, Seen};

use super::common::{assert_balanced, bytes_of, wait_for};
use super::*;

impl DaemonModel {
    /// What is there: name, bytes, metadata, and whether it is pinned.
    pub(super) fn listed(&self) -> BTreeMap<String, (Option<String>, u64, Metadata, bool)> {
        let listed = self.client.list("").unwrap().into_iter();
        listed
            .map(|one| (one.id.to_string(), (one.name, one.bytes, one.metadata, one.is_pinned)))
            .collect()
    }

    /// Everything that the model has is there, and nothing else.
    pub(super) fn check(&mut self) {
        let reported =
            |one: &ExpectedObject| (one.name.clone(), one.length, one.metadata(), one.is_pinned);
        let expected =
            self.objects.iter().map(|(id, object)| (id.clone(), reported(object))).collect();
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
    pub(super) fn follow(&mut self) {
        let mut is_all = true;
        while let Some(seen) = self.events.try_next().unwrap() {
            match seen {
                Seen::Gap { missed } => {
                    assert!(missed > 0);
                    (is_all, self.gaps) = (false, self.gaps + 1);
                }
                Seen::Event(event) if event.kind == EventKind::Sealed => {
                    let is_new = self.reported.insert(event.name);
                    assert!(is_new || !is_all, "told twice");
                }
                Seen::Event(event) => {
                    let was_there = self.reported.remove(&event.name);
                    assert!(was_there || !is_all, "{:?} before it came", event.name);
                }
            }
        }
        let there = self.objects.values().filter_map(|object| object.name.clone()).collect();
        if !is_all {
            self.reported = there;
        } else {
            assert_eq!(self.reported, there, "what the events tell is not what is there");
        }
    }

    /// Deletes everything; every byte must be free.
    pub(super) fn end(mut self) {
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
