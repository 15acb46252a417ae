//! Objects of the model, from their seal to their deletion.

use farrow_memory::{Access, Span};

use super::super::support::table;
use super::{ModelObject, StoreModel, TableParts, choose, take};
use crate::{ObjectId, SealRequest, StoreError, Target, UseStamps, full_name};

impl StoreModel {
    /// Seal an object of ranges of one client's grants, and of a block of another object.
    pub(super) fn seal(
        &mut self,
        client: usize,
        (at, count): (usize, u64),
        name: Option<u8>,
        parts: Option<TableParts<'_>>,
    ) {
        let is_table = parts.is_some();
        let TableParts { extra, shared } = parts.unwrap_or_default();
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let mut free = self.members[i].grains.clone();
        let Some(primary) = take(&mut free, at, count) else {
            return;
        };
        let mut blocks: Vec<Span> =
            extra.iter().filter_map(|(at, count)| take(&mut free, *at, *count)).collect();
        let known: Vec<Span> = self.objects.values().flat_map(|o| &o.blocks).map(|b| b.0).collect();
        let sharing = shared.and_then(|n| choose(n, known.len())).map(|n| known[n]);
        blocks.extend(sharing.filter(|_| is_table));
        if is_table && primary.length.0 < 24 + 16 * blocks.len() as u64 {
            return;
        }
        let client = &self.members[i].client;
        self.seed = self.seed.wrapping_add(1);
        for block in std::iter::once(&primary).chain(blocks.iter().filter(|b| Some(**b) != sharing))
        {
            client.write(block.offset, &vec![self.seed; block.length.0 as usize]);
        }
        let name = name.map(|n| format!("{}-{n}", "name".repeat(usize::from(n % 40))));
        let namespace = client.reader.namespace().1.to_owned();
        let full = name.as_ref().map(|name| full_name(&namespace, name).unwrap().into_owned());
        let request = if is_table {
            table(client, primary, &blocks, full.as_deref())
        } else {
            SealRequest::bytes(primary, primary.length, full.as_deref())
        };
        let all = std::iter::once(primary).chain(blocks);
        let blocks = all.map(|b| (b, client.read(b))).collect();
        let object = ModelObject { namespace, name: name.clone(), blocks };
        let away = self.spilled.values().map(|(object, _)| object);
        let mut others = self.objects.values().chain(away);
        let is_taken = name.is_some() && others.any(|o| o.full_name() == full);
        self.pending = Some(object.clone());
        match self.home.as_mut().unwrap().seal(client.slot, &request, u64::from(self.seed)) {
            Ok(id) => {
                assert!(!is_taken, "sealed a name that is taken");
                assert!(
                    self.objects.insert(id, object).is_none() && !self.retiring.contains_key(&id)
                );
                self.members[i].grains = free;
            }
            Err(StoreError::NameTaken { .. }) => assert!(is_taken),
            Err(
                StoreError::TooManyObjects { .. }
                | StoreError::TooManyGrants { .. }
                | StoreError::NameSpaceFull { .. },
            ) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn seal_local(&mut self, client: usize, (at, count): (usize, u64), is_held: bool) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let mut free = self.members[i].grains.clone();
        let Some(primary) = take(&mut free, at, count) else {
            return;
        };
        self.seed = self.seed.wrapping_add(1);
        let bytes = vec![self.seed; primary.length.0 as usize];
        let member = &mut self.members[i];
        member.client.write(primary.offset, &bytes);
        let request = SealRequest::bytes(primary, primary.length, None);
        let holds = is_held.then_some(&member.client.holds);
        let sealed = member.client.entries.seal(&request, u64::from(self.seed), holds).unwrap();
        let Some((id, held)) = sealed else {
            return;
        };
        assert_eq!(held.is_some(), is_held);
        member.holds.extend(held);
        member.grains = free;
        let namespace = self.members[i].client.reader.namespace().1.to_owned();
        let object = ModelObject { namespace, name: None, blocks: vec![(primary, bytes)] };
        self.own.insert(id);
        assert!(self.objects.insert(id, object).is_none() && !self.retiring.contains_key(&id));
    }

    pub(super) fn take_over(&mut self, object: usize) {
        let Some(i) = choose(object, self.objects.len()) else {
            return;
        };
        let id = self.objects.keys().nth(i).copied().unwrap();
        match self.home().take_over(id) {
            Ok(new) => self.rename(id, new),
            Err(StoreError::TooManyObjects { .. } | StoreError::TooManyGrants { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn rename(&mut self, id: ObjectId, new: ObjectId) {
        if id == new {
            return;
        }
        let object = self.objects.remove(&id).unwrap();
        assert!(self.objects.insert(new, object).is_none());
        self.before.insert(new, id);
        if self.own.remove(&id) {
            self.own.insert(new);
        }
    }

    pub(super) fn delete(&mut self, object: usize, by_name: bool) {
        let Some(i) = choose(object, self.objects.len()) else {
            return;
        };
        let (id, object) = self.objects.iter().nth(i).map(|(id, o)| (*id, o.clone())).unwrap();
        let full = object.full_name();
        let target = match &full {
            Some(name) if by_name => Target::Name(name),
            _ => Target::Id(id),
        };
        let deleted = match self.home.as_mut().unwrap().delete(target) {
            Ok(deleted) => deleted,
            Err(StoreError::TooManyGrants { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(deleted.id, id);
        assert_eq!(deleted.freed_now, !self.is_held(id));
        self.objects.remove(&id);
        self.pinned.remove(&id);
        if !deleted.freed_now {
            self.retiring.insert(id, object);
        }
    }

    pub(super) fn pin(&mut self, object: usize, is_pinned: bool) {
        let Some(i) = choose(object, self.objects.len()) else {
            return;
        };
        let id = *self.objects.keys().nth(i).unwrap();
        let new = match self.home().pin(Target::Id(id), is_pinned) {
            Ok(new) => new,
            Err(StoreError::TooManyObjects { .. } | StoreError::TooManyGrants { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        self.rename(id, new);
        let id = new;
        if is_pinned {
            self.pinned.insert(id);
        } else {
            self.pinned.remove(&id);
        }
    }

    pub(super) fn touch(&mut self, object: usize, at_ns: u64) {
        if let Some(i) = choose(object, self.objects.len()) {
            let slot = self.objects.keys().nth(i).unwrap().slot();
            UseStamps::new(&self.world.map(Access::Client)).unwrap().touch(slot, at_ns, 1);
        }
    }

    pub(super) fn hold(&mut self, client: usize, object: usize) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let Some(n) = choose(object, self.objects.len()) else {
            return;
        };
        let id = *self.objects.keys().nth(n).unwrap();
        let member = &mut self.members[i];
        let held = member.client.reader.hold(&member.client.holds, Target::Id(id)).unwrap();
        member.holds.push(held.expect("a sealed object can be held"));
    }

    pub(super) fn unhold(&mut self, client: usize, hold: usize) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        if let Some(n) = choose(hold, self.members[i].holds.len()) {
            self.members[i].holds.swap_remove(n);
        }
    }
}
