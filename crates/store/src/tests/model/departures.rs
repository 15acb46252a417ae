//! Objects of the model that leave memory, and return.

use std::collections::BTreeSet;

use farrow_memory::{Length, Span};

use super::super::spill::File;
use super::{ModelObject, StoreModel, choose, is_tight};
use crate::{Lru, Need, ObjectId, StoreError, Target};

impl StoreModel {
    pub(super) fn evict_one(&mut self, object: usize) {
        let Some(i) = choose(object, self.objects.len()) else {
            return;
        };
        let id = *self.objects.keys().nth(i).unwrap();
        let stays = self.is_held(id) || self.pinned.contains(&id);
        let before = self.home().stats().unwrap();
        let is_tight = is_tight(&before);
        match self.home().evict(id).unwrap() {
            Some(bytes) => {
                assert!(!stays, "{id} went though it may not");
                assert_eq!(self.home().stats().unwrap().free.0, before.free.0 + bytes.0);
            }
            None => assert!(stays || is_tight, "{id} stays though it may go"),
        }
        self.follow();
        self.forget_evicted();
    }

    pub(super) fn evict(&mut self, bytes: u64, is_run: bool) {
        self.home().set_time(u64::MAX);
        self.home().register_all().unwrap();
        let before = self.home().stats().unwrap();
        let length = Length(bytes);
        let need = if is_run { Need::Run(length) } else { Need::Bytes(length) };
        let evicted = self.home().evict_for(&Lru, need).unwrap();
        let after = self.home().stats().unwrap();
        self.follow();
        self.forget_evicted();
        assert_eq!(after.free.0, before.free.0 + evicted.bytes.0, "freed is what was said");
        assert_eq!(before.objects - after.objects, evicted.objects);
        assert_eq!(before.evictable.0, after.evictable.0 + evicted.bytes.0);
        match need {
            Need::Bytes(_) if evicted.bytes.0 < bytes => assert_eq!(after.evictable.0, 0),
            Need::Run(_) if after.largest_free.0 < bytes => assert_eq!(evicted.objects, 0),
            _ => {}
        }
    }

    /// The home gives a pinned or evicted object a new id, to which the old one leads.
    pub(super) fn follow(&mut self) {
        let reader = self.world.reader();
        for id in self.objects.keys().copied().collect::<Vec<_>>() {
            if let Some(entry) = reader.by_id(id).unwrap() {
                self.rename(id, entry.id);
            }
        }
    }

    /// Forget evicted objects, and check that none was held or pinned.
    pub(super) fn forget_evicted(&mut self) {
        let there: BTreeSet<ObjectId> = self.in_memory().into_iter().collect();
        let removed: Vec<ObjectId> =
            self.objects.keys().copied().filter(|id| !there.contains(id)).collect();
        for id in removed {
            assert!(!self.is_held(id) && !self.pinned.contains(&id), "{id} was evicted");
            self.objects.remove(&id);
            self.evicted_own += usize::from(self.own.remove(&id));
        }
    }

    pub(super) fn spill(&mut self, object: usize) {
        let Some(i) = choose(object, self.objects.len()) else {
            return;
        };
        let id = *self.objects.keys().nth(i).unwrap();
        let stays = self.is_held(id) || self.pinned.contains(&id);
        let before = self.home().stats().unwrap();
        let is_tight = is_tight(&before);
        let home = self.home.as_mut().unwrap();
        let written = File::of(home, id);
        let new = written.as_ref().map_or(id, |file| file.head.id);
        self.rename(id, new);
        let is_written = written.is_some();
        self.written = written;
        let freed = match is_written {
            true => self.home().finish_spill(new).unwrap(),
            false => None,
        };
        match freed {
            Some(bytes) => {
                assert!(!stays, "{new} went though it may not");
                assert_eq!(self.home().stats().unwrap().free.0, before.free.0 + bytes.0);
                self.note_spilled(new);
            }
            None => assert!(stays || is_tight, "{new} stays though it may go"),
        }
    }

    pub(super) fn note_spilled(&mut self, id: ObjectId) {
        let file = self.written.take().expect("an object went without a file");
        assert_eq!(file.head.id, id);
        let object = self.objects.remove(&id).unwrap();
        self.spilled.insert(id, (object, file));
    }

    pub(super) fn restore(&mut self, object: usize) {
        let Some(i) = choose(object, self.spilled.len()) else {
            return;
        };
        let id = *self.spilled.keys().nth(i).unwrap();
        let largest = self.home().stats().unwrap().largest_free.0;
        let home = self.home.as_mut().unwrap();
        let file = &self.spilled[&id].1;
        match file.restore(home) {
            Ok(()) => self.note_restored(id),
            Err(StoreError::OutOfMemory { requested, .. }) => assert!(largest < requested.0),
            Err(error) => panic!("{error}"),
        }
    }

    /// It has a new address now, and its primary block is longer.
    pub(super) fn note_restored(&mut self, id: ObjectId) {
        let (object, _) = self.spilled.remove(&id).unwrap();
        let reader = self.world.reader();
        let entry = reader.by_id(id).unwrap().expect("what came back is there");
        let mut blocks = Vec::new();
        for (place, (_, before)) in reader.places(&entry).unwrap().iter().zip(&object.blocks) {
            let read = |span: Span| {
                let mut bytes = vec![0; span.length.0 as usize];
                reader.region().copy_out(span.offset, &mut bytes).unwrap();
                bytes
            };
            let found = read(place.block);
            let at_seal = place.origin.length.0 as usize;
            assert_eq!(found[..at_seal], before[..at_seal], "{id} came back as something else");
            blocks.push((place.block, found));
        }
        assert_eq!(blocks.len(), object.blocks.len());
        self.objects.insert(id, ModelObject { blocks, ..object });
    }

    pub(super) fn delete_spilled(&mut self, object: usize) {
        let Some(i) = choose(object, self.spilled.len()) else {
            return;
        };
        let id = *self.spilled.keys().nth(i).unwrap();
        assert!(self.home().delete(Target::Id(id)).unwrap().freed_now);
        self.spilled.remove(&id);
        self.note_removed_spilled(id);
    }

    /// The end of an adopted object is announced in any case.
    pub(super) fn note_removed_spilled(&mut self, id: ObjectId) {
        self.before.remove(&id);
    }
}
