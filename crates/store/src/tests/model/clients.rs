//! Clients of the model: namespaces, holds and grants, and the memory that the node lends.

use std::collections::BTreeSet;

use farrow_memory::Length;

use super::super::support::TestClient;
use super::{ModelMember, ModelObject, POISON, StoreModel, choose, grains, take};
use crate::{NamespaceOptions, ObjectId, StoreError};

impl StoreModel {
    pub(super) fn create_namespace(&mut self, name: &str) {
        let options = NamespaceOptions {
            name: name.to_owned(),
            objects_max: Some(7),
            ..NamespaceOptions::default()
        };
        match self.home().create_namespace(&options) {
            Ok(_) => assert!(self.namespaces.insert(name.to_owned())),
            Err(StoreError::NameTaken { .. }) => assert!(self.namespaces.contains(name)),
            Err(StoreError::TooManyNamespaces { max }) => {
                assert_eq!(self.namespaces.len(), max as usize + 1);
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn drop_namespace(&mut self, name: &str) {
        let is_used = |model: &Self| {
            let of = |object: &&ModelObject| object.namespace == name;
            let away = model.spilled.values().map(|(object, _)| object);
            let mut all = model.objects.values().chain(model.retiring.values()).chain(away);
            all.any(|object| of(&object))
                || model.members.iter().any(|m| m.client.reader.namespace().1 == name)
        };
        match self.home().drop_namespace(name) {
            Ok(()) => {
                let held = |id: &ObjectId| self.is_held(*id);
                let away = self.spilled.values().map(|(object, _)| object);
                assert!(self.objects.values().chain(away).all(|one| one.namespace != name));
                let mut retiring = self.retiring.iter().filter(|(id, _)| held(id));
                assert!(retiring.all(|(_, object)| object.namespace != name));
                assert!(self.namespaces.remove(name));
            }
            // A block that another namespace shares may still be charged to it.
            Err(StoreError::NamespaceInUse { objects: 0, clients: 0, bytes, .. }) => {
                assert!(name.is_empty() || bytes.0 > 0);
            }
            Err(StoreError::NamespaceInUse { .. }) => assert!(is_used(self)),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn join(&mut self, namespace: &str) {
        let home = self.home.as_mut().unwrap();
        match TestClient::join_in(&self.world, home, namespace) {
            Ok(client) => {
                let (grains, holds) = (BTreeSet::new(), Vec::new());
                self.members.push(ModelMember { client, grains, holds });
            }
            Err(StoreError::TooManyClients { .. } | StoreError::HoldBlocksExhausted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn leave(&mut self, client: usize) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let slot = self.members[i].client.slot;
        self.home().client_leave(slot).unwrap();
        self.remove_member(i);
        self.forget_free();
    }

    pub(super) fn remove_member(&mut self, i: usize) {
        let member = self.members.remove(i);
        member.client.holds.abandon();
    }

    pub(super) fn hold_block(&mut self, client: usize) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let home = self.home.as_mut().unwrap();
        match home.hold_block(self.members[i].client.slot) {
            Ok(block) => assert!(self.members[i].client.holds.add_block(block).unwrap()),
            Err(StoreError::HoldBlocksExhausted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn grant(&mut self, client: usize, min: u64, want: u64) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let largest = self.home().stats().unwrap().largest_free.0;
        let home = self.home.as_mut().unwrap();
        match home.grant(self.members[i].client.slot, Length(min), Length(want)) {
            Ok(span) => {
                assert!(span.length.0 >= min.max(1));
                let member = &mut self.members[i];
                member.client.write(span.offset, &vec![POISON; span.length.0 as usize]);
                member.grains.extend(grains(span));
            }
            Err(StoreError::OutOfMemory { .. }) => assert!(largest < min || largest == 0),
            Err(StoreError::TooManyGrants { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn release(&mut self, client: usize, at: usize, count: u64) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let mut free = self.members[i].grains.clone();
        let Some(span) = take(&mut free, at, count) else {
            return;
        };
        let home = self.home.as_mut().unwrap();
        match home.release(self.members[i].client.slot, &[span]) {
            Ok(()) => self.members[i].grains = free,
            Err(StoreError::TooManyGrants { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn entry_pages(&mut self, client: usize, count: u32) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let client = &self.members[i].client;
        match self.home.as_mut().unwrap().entry_pages(client.slot, count) {
            Ok(pages) => client.entries.add_pages(pages).unwrap(),
            Err(StoreError::EntryPagesExhausted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn withdraw(&mut self, pages: u64) {
        let before = self.home().stats().unwrap();
        let requested = pages * self.home().layout().page.0;
        let spans = match self.home().withdraw_pages(Length(requested)) {
            Ok(spans) => spans,
            Err(StoreError::TooManyGrants { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let bytes: u64 = spans.iter().map(|span| span.length.0).sum();
        let after = self.home().stats().unwrap();
        assert!(bytes <= requested);
        assert_eq!(after.capacity.0, before.capacity.0 - bytes);
        assert_eq!(after.free.0, before.free.0 - bytes);
        let withdrawn: u64 = self.home().withdrawn().map(|span| span.length.0).sum();
        assert_eq!(after.capacity.0 + withdrawn, after.capacity_max.0);
    }

    pub(super) fn lend(&mut self, pages: u64) {
        let page = self.home().layout().page.0;
        let before = self.home().stats().unwrap();
        let Some(span) = self.home().next_to_lend(Length(pages * page)) else { return };
        self.home().lend(span).unwrap();
        let after = self.home().stats().unwrap();
        assert_eq!(after.capacity.0, before.capacity.0 + span.length.0);
        assert_eq!(after.free.0, before.free.0 + span.length.0);
    }
}
