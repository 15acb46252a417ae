//! The comparison of all observable state with the model.

use std::collections::BTreeSet;

use farrow_memory::Span;

use super::{GRAIN, ModelObject, StoreModel, grains};
use crate::{EventKind, ObjectId, Seen, Target, Whereabouts};

impl StoreModel {
    /// No event is lost or repeated, whenever the home was killed.
    fn verify_events(&mut self) {
        while let Some(seen) = self.events.advance().unwrap() {
            let Seen::Event(event) = seen else { panic!("events were lost: {seen:?}") };
            let before = match event.kind {
                EventKind::Deleted if self.own.remove(&event.id) => {
                    self.withdrawn.remove(&event.id);
                    None
                }
                EventKind::Evicted if !self.reported.contains_key(&event.id) => {
                    self.evicted_own = self.evicted_own.checked_sub(1).expect("told twice");
                    None
                }
                EventKind::Spilled => {
                    let is_new = self.withdrawn.insert(event.id);
                    assert!(is_new, "{} went twice", event.id);
                    None
                }
                EventKind::Restored => {
                    assert!(self.withdrawn.remove(&event.id), "{} came back twice", event.id);
                    None
                }
                EventKind::Sealed => self.reported.insert(event.id, event.name),
                _ => {
                    self.withdrawn.remove(&event.id);
                    Some(event.name)
                        .filter(|name| self.reported.remove(&event.id).as_ref() != Some(name))
                }
            };
            assert_eq!(before, None, "{:?} of {} was told already", event.kind, event.id);
        }
        let name = |object: &ModelObject| object.name.clone().unwrap_or_default();
        let is_notified = |id: &&ObjectId| !self.own.contains(id);
        let there = self.objects.iter().filter(|(id, _)| is_notified(id));
        let there = there.map(|(id, object)| (*id, name(object)));
        let away = self.spilled.iter().filter(|(id, _)| is_notified(id));
        let there = there.chain(away.map(|(id, (object, _))| (*id, name(object))));
        let away: BTreeSet<ObjectId> = self.spilled.keys().copied().collect();
        assert_eq!(self.withdrawn, away, "what went and came back was not told");
        assert_eq!(self.reported, there.collect(), "what the events tell is not what is there");
        let is_there =
            |id: &ObjectId| self.objects.contains_key(id) || self.spilled.contains_key(id);
        assert!(self.own.iter().all(is_there), "a delete was not told");
        assert_eq!(self.evicted_own, 0, "an eviction was not told");
    }

    /// Compare all observable state.
    pub(super) fn verify(&mut self) {
        self.verify_events();
        self.home().check().unwrap();
        let names = self.home().namespaces().map(|one| one.options.name.clone());
        assert_eq!(names.collect::<BTreeSet<_>>(), self.namespaces);
        let stats = self.home().stats().unwrap();
        let granted: usize = self.members.iter().map(|member| member.grains.len()).sum();
        let granted = granted as u64 * GRAIN;
        let distinct: BTreeSet<u64> =
            self.objects.values().flat_map(|o| &o.blocks).flat_map(|b| grains(b.0)).collect();
        let used = distinct.len() as u64 * GRAIN;
        // The home may not know some objects yet: it counts their memory as granted.
        assert_eq!(stats.used.0 + stats.granted.0, used + granted);
        assert!(stats.objects as usize <= self.objects.len() && stats.used.0 <= used);
        if self.seed.is_multiple_of(3) {
            self.home().register_all().unwrap();
            self.home().check().unwrap();
            let stats = self.home().stats().unwrap();
            let free_records = stats.grants_max - stats.grants;
            if free_records as usize >= self.objects.len() {
                assert_eq!(stats.objects as usize, self.objects.len());
                assert_eq!((stats.used.0, stats.granted.0), (used, granted));
            }
        }
        let held: BTreeSet<(u32, ObjectId)> = self
            .members
            .iter()
            .flat_map(|m| m.holds.iter().map(|held| (m.client.slot.0, held.entry().id)))
            .collect();
        assert_eq!(stats.holds, held.len() as u64);
        let reader = self.world.reader();
        let listed = self.list();
        let pinned = listed.iter().filter(|listed| listed.is_pinned).map(|one| one.entry.id);
        assert_eq!(pinned.collect::<BTreeSet<_>>(), self.pinned);
        assert_eq!(stats.objects_spilled as usize, self.spilled.len());
        for (id, (object, _)) in &self.spilled {
            let found = reader.whereabouts(Target::Id(*id)).unwrap();
            assert_eq!(found, Whereabouts::Away(*id));
            let one = listed.iter().find(|one| one.entry.id == *id).expect("it is listed");
            assert!(one.is_spilled && one.name == object.name);
            if let Some(before) = self.before.get(id) {
                let found = reader.whereabouts(Target::Id(*before)).unwrap();
                assert_eq!(found, Whereabouts::Away(*id));
            }
            if let Some(name) = &object.name {
                let namespace = self.home.as_ref().unwrap().namespace(&object.namespace).unwrap();
                let reader = reader.clone().in_namespace(namespace.id, &object.namespace);
                let found = reader.whereabouts(Target::Name(name)).unwrap();
                assert_eq!(found, Whereabouts::Away(*id));
            }
        }
        for (id, object) in &self.objects {
            let entry = reader.by_id(*id).unwrap().expect("a sealed object is found by its id");
            assert_eq!(entry.id, *id);
            if let Some(before) = self.before.get(id) {
                assert_eq!(reader.by_id(*before).unwrap(), Some(entry));
                assert_eq!(self.home.as_ref().unwrap().find(Target::Id(*before)).unwrap(), entry);
            }
            let name = reader.name_of(&entry).unwrap();
            assert_eq!(name, object.name);
            if let Some(name) = name {
                let home = self.home.as_ref().unwrap();
                let namespace = home.namespace(&object.namespace).unwrap().id;
                assert_eq!(entry.namespace, namespace);
                let reader = reader.clone().in_namespace(namespace, &object.namespace);
                assert_eq!(reader.find(&name).unwrap().map(|e| e.id), Some(*id));
            }
            let blocks: Vec<Span> = object.blocks.iter().map(|block| block.0).collect();
            assert_eq!(reader.blocks(&entry).unwrap(), blocks);
        }
        let held = self.retiring.iter().filter(|(id, _)| self.is_held(**id));
        for (id, object) in self.objects.iter().chain(held) {
            for (span, bytes) in &object.blocks {
                let mut found = vec![0; bytes.len()];
                reader.region().copy_out(span.offset, &mut found).unwrap();
                assert_eq!(&found, bytes, "bytes of {id} changed");
            }
        }
    }
}
