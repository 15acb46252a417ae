//! After a kill: which of the possible states is the actual one.

use std::collections::BTreeSet;

use super::{ModelOperation, StoreModel, grains};
use crate::{ClientSlot, ObjectId, Target};

impl StoreModel {
    /// After a kill in the middle of `op`: find out which of the possible states is the actual one.
    pub(super) fn reconcile(&mut self, op: &ModelOperation) {
        if matches!(
            op,
            ModelOperation::CreateNamespace { .. } | ModelOperation::DropNamespace { .. }
        ) {
            let home = self.home.as_ref().unwrap();
            let there = home.namespaces().map(|one| one.options.name.clone()).collect();
            assert!(self.namespaces.symmetric_difference(&there).count() <= 1);
            self.namespaces = there;
        }
        self.reconcile_clients(op);
        self.reconcile_objects(op);
        let home = self.home.as_ref().unwrap();
        let sealed: BTreeSet<u64> =
            self.objects.values().flat_map(|o| &o.blocks).flat_map(|b| grains(b.0)).collect();
        for member in &mut self.members {
            let now: BTreeSet<u64> =
                home.grants_of(member.client.slot).into_iter().flat_map(grains).collect();
            // The home may not know some objects yet.
            let now: BTreeSet<u64> = now.difference(&sealed).copied().collect();
            let before: BTreeSet<u64> = member.grains.difference(&sealed).copied().collect();
            match op {
                ModelOperation::Grant { .. } => assert!(before.is_subset(&now)),
                ModelOperation::Release { .. } => assert!(now.is_subset(&before)),
                _ => assert_eq!(before, now, "grants changed"),
            }
            member.grains = now;
        }
        self.forget_free();
    }

    fn reconcile_clients(&mut self, op: &ModelOperation) {
        let joined: BTreeSet<ClientSlot> =
            self.home().clients().map(|record| record.client).collect();
        if let Some(i) = self.members.iter().position(|m| !joined.contains(&m.client.slot)) {
            assert!(matches!(op, ModelOperation::Leave { .. }), "a client is gone after {op:?}");
            self.remove_member(i);
        }
        for member in &self.members {
            let (slot, nonce) = (member.client.slot, member.client.nonce);
            self.home.as_mut().unwrap().client_resume(slot, nonce, 42).unwrap();
            for pages in self.home.as_ref().unwrap().entry_pages_of(slot) {
                member.client.entries.add_pages(pages).unwrap();
            }
        }
        let known: BTreeSet<ClientSlot> = self.members.iter().map(|m| m.client.slot).collect();
        for slot in joined.difference(&known) {
            // Its process never learned that it had joined, and so does not continue.
            assert!(
                matches!(op, ModelOperation::Join | ModelOperation::JoinIn { .. }),
                "a client came after {op:?}"
            );
            self.home().client_leave(*slot).unwrap();
        }
    }

    /// Either in memory or out of memory, never neither.
    fn reconcile_spilled(&mut self, op: &ModelOperation) {
        if !matches!(
            op,
            ModelOperation::Spill { .. }
                | ModelOperation::Restore { .. }
                | ModelOperation::DeleteSpilled { .. }
        ) {
            return;
        }
        self.follow();
        let listed = self.list();
        let away: BTreeSet<ObjectId> =
            listed.iter().filter(|one| one.is_spilled).map(|one| one.entry.id).collect();
        let there = self.in_memory();
        for id in self.spilled.keys().copied().collect::<Vec<_>>() {
            if there.contains(&id) {
                assert!(matches!(op, ModelOperation::Restore { .. }));
                self.note_restored(id);
            } else if !away.contains(&id) {
                assert!(matches!(op, ModelOperation::DeleteSpilled { .. }), "lost after {op:?}");
                self.spilled.remove(&id);
                self.note_removed_spilled(id);
            }
        }
        for id in away.into_iter().filter(|id| !self.spilled.contains_key(id)).collect::<Vec<_>>() {
            self.note_spilled(id);
        }
    }

    fn reconcile_objects(&mut self, op: &ModelOperation) {
        if matches!(
            op,
            ModelOperation::Evict { .. }
                | ModelOperation::EvictOne { .. }
                | ModelOperation::Pin { .. }
        ) {
            self.follow();
        }
        if matches!(op, ModelOperation::Evict { .. } | ModelOperation::EvictOne { .. }) {
            self.forget_evicted();
        }
        self.reconcile_spilled(op);
        let there: Vec<ObjectId> = self.in_memory();
        let removed: Vec<ObjectId> =
            self.objects.keys().copied().filter(|id| !there.contains(id)).collect();
        if let (ModelOperation::TakeOver { .. }, [id]) = (op, &removed[..]) {
            let new = there.iter().find(|id| !self.objects.contains_key(id)).unwrap();
            return self.rename(*id, *new);
        }
        for id in &removed {
            assert!(
                matches!(op, ModelOperation::Delete { .. }) && removed.len() == 1,
                "lost after {op:?}"
            );
            let object = self.objects.remove(id).unwrap();
            self.pinned.remove(id);
            self.retiring.insert(*id, object);
        }
        if let ModelOperation::Pin { .. } = op {
            let listed = self.list();
            let pinned = listed.iter().filter(|listed| listed.is_pinned);
            self.pinned = pinned.map(|listed| listed.entry.id).collect();
        }
        for id in there.into_iter().filter(|id| !self.objects.contains_key(id)).collect::<Vec<_>>()
        {
            let object = self.pending.take().expect("an object out of nothing");
            let entry = self.home().find(Target::Id(id)).unwrap();
            assert_eq!(entry.primary, object.blocks[0].0);
            self.objects.insert(id, object);
        }
    }
}
