//! A small reference model of a region: its objects and their bytes, the grants, the holds. It runs
//! operations on a real home, may have the home killed at the n-th failpoint of one, adopts the
//! region again, and compares everything.
//!
//! After a kill only one thing is uncertain: whether the interrupted operation took effect. The
//! model lists the possible states, observes the actual one, and continues from it.
//!
//! Over a thousand lines, because each operation needs all of the model's state to list the
//! outcomes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;

use farrow_memory::{Access, Length, Offset, Span};

use super::spill::File;
use super::support::{Client, World, part, table};
use crate::failpoints;
use crate::{
    ClientSlot, DirectoryItem, EventCursor, EventKind, Held, Home, Lru, Namespace,
    NamespaceOptions, Need, ObjectId, SealRequest, Seen, StoreError, StoreStats, Target, UseStamps,
    Whereabouts, full_name,
};

const GRAIN: u64 = 128;
/// Filler of a client's extents before it writes objects: if an extent overlapped an object, the
/// object would contain it.
const POISON: u8 = 0xdd;

/// One operation. Numbers are indexes, modulo the number of choices.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Join,
    /// Into one of the existing namespaces.
    JoinIn {
        namespace: usize,
    },
    CreateNamespace {
        name: u8,
    },
    DropNamespace {
        namespace: usize,
    },
    Leave {
        client: usize,
    },
    HoldBlock {
        client: usize,
    },
    Grant {
        client: usize,
        min: u64,
        want: u64,
    },
    Release {
        client: usize,
        at: usize,
        grains: u64,
    },
    SealBytes {
        client: usize,
        at: usize,
        grains: u64,
        name: Option<u8>,
    },
    SealTable {
        client: usize,
        at: usize,
        extra: Vec<(usize, u64)>,
        shared: Option<usize>,
        name: Option<u8>,
    },
    EntryPages {
        client: usize,
        count: u32,
    },
    /// Without a message: the home learns of it later.
    SealLocal {
        client: usize,
        at: usize,
        grains: u64,
        is_held: bool,
    },
    Register,
    TakeOver {
        object: usize,
    },
    Delete {
        object: usize,
        by_name: bool,
    },
    Hold {
        client: usize,
        object: usize,
    },
    Unhold {
        client: usize,
        hold: usize,
    },
    Pin {
        object: usize,
        is_pinned: bool,
    },
    Use {
        object: usize,
        at_ns: u64,
    },
    EvictOne {
        object: usize,
    },
    Evict {
        bytes: u64,
        is_run: bool,
    },
    /// Write an object to a file and remove it from memory.
    Spill {
        object: usize,
    },
    /// Restore one from its file.
    Restore {
        object: usize,
    },
    DeleteSpilled {
        object: usize,
    },
    /// Stop lending free pages.
    Withdraw {
        pages: u64,
    },
    Lend {
        pages: u64,
    },
    Reclaim,
    Adopt,
}

/// A sealed object, with the bytes of its blocks.
#[derive(Clone, Debug)]
struct Object {
    namespace: String,
    name: Option<String>,
    blocks: Vec<(Span, Vec<u8>)>,
}

struct Member {
    client: Client,
    /// Grains of the heap that are granted to it.
    grains: BTreeSet<u64>,
    holds: Vec<Held>,
}

impl Object {
    /// Its name in the directory.
    fn full_name(&self) -> Option<String> {
        self.name.as_ref().map(|name| full_name(&self.namespace, name).unwrap().into_owned())
    }
}

/// What a table has beside its primary block.
#[derive(Default)]
struct TableParts<'a> {
    /// Ranges of the client's grants.
    extra: &'a [(usize, u64)],
    /// A block of another object.
    shared: Option<usize>,
}

pub(crate) struct Model {
    world: World,
    /// The existing namespaces, including the default one.
    namespaces: BTreeSet<String>,
    home: Option<Home>,
    members: Vec<Member>,
    objects: BTreeMap<ObjectId, Object>,
    /// Deleted while they were held.
    retiring: BTreeMap<ObjectId, Object>,
    /// State according to the events: the names of the existing objects.
    told: BTreeMap<ObjectId, String>,
    /// Objects out of memory, according to the events.
    told_away: BTreeSet<ObjectId>,
    events: EventCursor,
    /// Objects without a seal event: clients sealed them without the home.
    own: BTreeSet<ObjectId>,
    /// The id that an object had before the home adopted it.
    before: BTreeMap<ObjectId, ObjectId>,
    pinned: BTreeSet<ObjectId>,
    /// Objects out of memory, with their files.
    spilled: BTreeMap<ObjectId, (Object, File)>,
    /// The file of the object that the current operation spills.
    written: Option<File>,
    /// Evicted objects without a seal event whose end is not announced yet.
    evicted_own: usize,
    /// The object that the current operation would make.
    pending: Option<Object>,
    seed: u8,
}

/// The payload of a failpoint's panic, which distinguishes it from other panics.
struct Killed;

impl Model {
    pub(crate) fn new(world: World) -> Self {
        let home = world.create();
        let events = world.reader().events(0).unwrap();
        Self {
            world,
            namespaces: BTreeSet::from([String::new()]),
            home: Some(home),
            members: Vec::new(),
            objects: BTreeMap::new(),
            retiring: BTreeMap::new(),
            told: BTreeMap::new(),
            told_away: BTreeSet::new(),
            events,
            own: BTreeSet::new(),
            before: BTreeMap::new(),
            pinned: BTreeSet::new(),
            spilled: BTreeMap::new(),
            written: None,
            evicted_own: 0,
            pending: None,
            seed: 0,
        }
    }

    /// Run `op`; the home is killed at its failpoint number `kill`, if it reaches that. Returns the
    /// name of that failpoint.
    pub(crate) fn run(&mut self, op: &Op, kill: Option<u32>) -> Option<&'static str> {
        let killed_at = Rc::new(Cell::new(None));
        if let Some(kill) = kill {
            let (mut passed, killed_at) = (0, Rc::clone(&killed_at));
            failpoints::set_local(Some(Box::new(move |name| {
                if passed == kill {
                    killed_at.set(Some(name));
                    panic_any(Killed);
                }
                passed += 1;
            })));
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.step(op)));
        failpoints::set_local(None);
        if let Err(panic) = result {
            if !panic.is::<Killed>() {
                std::panic::resume_unwind(panic);
            }
            self.home = None;
            self.reopen();
            self.reconcile(op);
        }
        self.pending = None;
        self.written = None;
        self.verify();
        killed_at.get()
    }

    /// Remove everything: nothing may be left behind.
    pub(crate) fn finish(mut self) {
        let mut left = Vec::new();
        for id in self.spilled.keys().copied().collect::<Vec<_>>() {
            self.home().delete(Target::Id(id)).unwrap();
        }
        for id in self.objects.keys().copied().collect::<Vec<_>>() {
            match self.home().delete(Target::Id(id)) {
                Ok(_) => {}
                Err(StoreError::TooManyGrants { .. }) => left.push(id),
                Err(error) => panic!("{error}"),
            }
        }
        let members = std::mem::take(&mut self.members);
        for member in &members {
            self.home().client_leave(member.client.slot).unwrap();
        }
        for id in left {
            self.home().delete(Target::Id(id)).unwrap();
        }
        while let Some(span) = self.home().next_to_lend(Length(u64::MAX)) {
            self.home().lend(span).unwrap();
        }
        let stats = self.home().stats().unwrap();
        assert_eq!(stats.capacity, stats.capacity_max);
        assert_eq!((stats.free, stats.fragmented.0), (stats.capacity, 0));
        assert_eq!(
            (stats.objects, stats.objects_retiring, stats.clients, stats.grants),
            (0, 0, 0, 0)
        );
        assert_eq!((stats.client_objects, stats.entry_pages), (0, 0));
        assert_eq!(stats.name_bytes_free, self.world.options.name_bytes);
        self.home().check().unwrap();
        // Holds of departed members point into blocks that may be another's by now.
        members.iter().for_each(|member| member.client.holds.abandon());
    }

    fn home(&mut self) -> &mut Home {
        self.home.as_mut().unwrap()
    }

    fn reopen(&mut self) {
        self.home = Some(self.world.adopt());
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Join => self.join(""),
            Op::JoinIn { namespace } => {
                let name = self.namespaces.iter().nth(namespace % self.namespaces.len());
                self.join(&name.unwrap().clone());
            }
            Op::CreateNamespace { name } => self.create_namespace(&format!("space {}", name % 6)),
            Op::DropNamespace { namespace } => {
                let name = self.namespaces.iter().nth(namespace % self.namespaces.len());
                self.drop_namespace(&name.unwrap().clone());
            }
            Op::Leave { client } => self.leave(*client),
            Op::HoldBlock { client } => self.hold_block(*client),
            Op::Grant { client, min, want } => self.grant(*client, *min, *want),
            Op::Release { client, at, grains } => self.release(*client, *at, *grains),
            Op::SealBytes { client, at, grains, name } => {
                self.seal(*client, (*at, *grains), *name, None);
            }
            Op::SealTable { client, at, extra, shared, name } => {
                let parts = TableParts { extra, shared: *shared };
                self.seal(*client, (*at, 4), *name, Some(parts));
            }
            Op::EntryPages { client, count } => self.entry_pages(*client, *count),
            Op::SealLocal { client, at, grains, is_held } => {
                self.seal_local(*client, (*at, *grains), *is_held);
            }
            Op::Register => {
                self.home().register_all().unwrap();
            }
            Op::TakeOver { object } => self.take_over(*object),
            Op::Delete { object, by_name } => self.delete(*object, *by_name),
            Op::Hold { client, object } => self.hold(*client, *object),
            Op::Unhold { client, hold } => self.unhold(*client, *hold),
            Op::Pin { object, is_pinned } => self.pin(*object, *is_pinned),
            Op::Use { object, at_ns } => self.touch(*object, *at_ns),
            Op::EvictOne { object } => self.evict_one(*object),
            Op::Evict { bytes, is_run } => self.evict(*bytes, *is_run),
            Op::Spill { object } => self.spill(*object),
            Op::Restore { object } => self.restore(*object),
            Op::DeleteSpilled { object } => self.delete_spilled(*object),
            Op::Withdraw { pages } => self.withdraw(*pages),
            Op::Lend { pages } => self.lend(*pages),
            Op::Reclaim => {
                self.home().reclaim().unwrap();
                self.forget_free();
            }
            Op::Adopt => {
                self.home = None;
                self.reopen();
                self.forget_free();
            }
        }
    }

    fn create_namespace(&mut self, name: &str) {
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

    fn drop_namespace(&mut self, name: &str) {
        let is_used = |model: &Self| {
            let of = |object: &&Object| object.namespace == name;
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

    fn join(&mut self, namespace: &str) {
        let home = self.home.as_mut().unwrap();
        match Client::join_in(&self.world, home, namespace) {
            Ok(client) => {
                let (grains, holds) = (BTreeSet::new(), Vec::new());
                self.members.push(Member { client, grains, holds });
            }
            Err(StoreError::TooManyClients { .. } | StoreError::HoldBlocksExhausted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn leave(&mut self, client: usize) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        let slot = self.members[i].client.slot;
        self.home().client_leave(slot).unwrap();
        self.remove_member(i);
        self.forget_free();
    }

    fn remove_member(&mut self, i: usize) {
        let member = self.members.remove(i);
        member.client.holds.abandon();
    }

    fn hold_block(&mut self, client: usize) {
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

    fn grant(&mut self, client: usize, min: u64, want: u64) {
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

    fn release(&mut self, client: usize, at: usize, count: u64) {
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

    /// Seal an object of ranges of one client's grants, and of a block of another object.
    fn seal(
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
        let object = Object { namespace, name: name.clone(), blocks };
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

    fn entry_pages(&mut self, client: usize, count: u32) {
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

    fn seal_local(&mut self, client: usize, (at, count): (usize, u64), is_held: bool) {
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
        let object = Object { namespace, name: None, blocks: vec![(primary, bytes)] };
        self.own.insert(id);
        assert!(self.objects.insert(id, object).is_none() && !self.retiring.contains_key(&id));
    }

    fn take_over(&mut self, object: usize) {
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

    fn rename(&mut self, id: ObjectId, new: ObjectId) {
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

    fn delete(&mut self, object: usize, by_name: bool) {
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

    fn pin(&mut self, object: usize, is_pinned: bool) {
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

    fn touch(&mut self, object: usize, at_ns: u64) {
        if let Some(i) = choose(object, self.objects.len()) {
            let slot = self.objects.keys().nth(i).unwrap().slot();
            UseStamps::new(&self.world.map(Access::Client)).unwrap().touch(slot, at_ns, 1);
        }
    }

    fn evict_one(&mut self, object: usize) {
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

    fn evict(&mut self, bytes: u64, is_run: bool) {
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
    fn follow(&mut self) {
        let reader = self.world.reader();
        for id in self.objects.keys().copied().collect::<Vec<_>>() {
            if let Some(entry) = reader.by_id(id).unwrap() {
                self.rename(id, entry.id);
            }
        }
    }

    /// Forget evicted objects, and check that none was held or pinned.
    fn forget_evicted(&mut self) {
        let there: BTreeSet<ObjectId> = self.in_memory().into_iter().collect();
        let gone: Vec<ObjectId> =
            self.objects.keys().copied().filter(|id| !there.contains(id)).collect();
        for id in gone {
            assert!(!self.is_held(id) && !self.pinned.contains(&id), "{id} was evicted");
            self.objects.remove(&id);
            self.evicted_own += usize::from(self.own.remove(&id));
        }
    }

    fn spill(&mut self, object: usize) {
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

    fn note_spilled(&mut self, id: ObjectId) {
        let file = self.written.take().expect("an object went without a file");
        assert_eq!(file.head.id, id);
        let object = self.objects.remove(&id).unwrap();
        self.spilled.insert(id, (object, file));
    }

    fn restore(&mut self, object: usize) {
        let Some(i) = choose(object, self.spilled.len()) else {
            return;
        };
        let id = *self.spilled.keys().nth(i).unwrap();
        let largest = self.home().stats().unwrap().largest_free.0;
        let home = self.home.as_mut().unwrap();
        let file = &self.spilled[&id].1;
        match file.restore(home) {
            Ok(()) => self.note_restored(id),
            Err(StoreError::OutOfMemory { asked, .. }) => assert!(largest < asked.0),
            Err(error) => panic!("{error}"),
        }
    }

    /// It has a new address now, and its primary block is longer.
    fn note_restored(&mut self, id: ObjectId) {
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
        self.objects.insert(id, Object { blocks, ..object });
    }

    fn delete_spilled(&mut self, object: usize) {
        let Some(i) = choose(object, self.spilled.len()) else {
            return;
        };
        let id = *self.spilled.keys().nth(i).unwrap();
        assert!(self.home().delete(Target::Id(id)).unwrap().freed_now);
        self.spilled.remove(&id);
        self.note_gone_spilled(id);
    }

    /// The end of an adopted object is announced in any case.
    fn note_gone_spilled(&mut self, id: ObjectId) {
        self.before.remove(&id);
    }

    fn hold(&mut self, client: usize, object: usize) {
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

    fn unhold(&mut self, client: usize, hold: usize) {
        let Some(i) = choose(client, self.members.len()) else {
            return;
        };
        if let Some(n) = choose(hold, self.members[i].holds.len()) {
            self.members[i].holds.swap_remove(n);
        }
    }

    /// All objects, in all namespaces.
    fn list(&self) -> Vec<DirectoryItem> {
        let home = self.home.as_ref().unwrap();
        let in_one = |one: &Namespace| {
            self.world.reader().in_namespace(one.id, &one.options.name).list("").unwrap()
        };
        home.namespaces().flat_map(in_one).collect()
    }

    fn is_held(&self, id: ObjectId) -> bool {
        let before = self.before.get(&id);
        let mut all = self.members.iter().flat_map(|member| &member.holds);
        all.any(|held| held.entry().id == id || Some(&held.entry().id) == before)
    }

    fn withdraw(&mut self, pages: u64) {
        let before = self.home().stats().unwrap();
        let asked = pages * self.home().layout().page.0;
        let spans = match self.home().withdraw_pages(Length(asked)) {
            Ok(spans) => spans,
            Err(StoreError::TooManyGrants { .. }) => return,
            Err(error) => panic!("{error}"),
        };
        let bytes: u64 = spans.iter().map(|span| span.length.0).sum();
        let after = self.home().stats().unwrap();
        assert!(bytes <= asked);
        assert_eq!(after.capacity.0, before.capacity.0 - bytes);
        assert_eq!(after.free.0, before.free.0 - bytes);
        let withdrawn: u64 = self.home().withdrawn().map(|span| span.length.0).sum();
        assert_eq!(after.capacity.0 + withdrawn, after.capacity_max.0);
    }

    fn lend(&mut self, pages: u64) {
        let page = self.home().layout().page.0;
        let before = self.home().stats().unwrap();
        let Some(span) = self.home().next_to_lend(Length(pages * page)) else { return };
        self.home().lend(span).unwrap();
        let after = self.home().stats().unwrap();
        assert_eq!(after.capacity.0, before.capacity.0 + span.length.0);
        assert_eq!(after.free.0, before.free.0 + span.length.0);
    }

    /// After a scan: retiring objects that are not held are freed.
    fn forget_free(&mut self) {
        let gone: Vec<ObjectId> =
            self.retiring.keys().copied().filter(|id| !self.is_held(*id)).collect();
        for id in gone {
            self.retiring.remove(&id);
        }
    }

    /// After a kill in the middle of `op`: find out which of the possible states is the actual one.
    fn reconcile(&mut self, op: &Op) {
        if matches!(op, Op::CreateNamespace { .. } | Op::DropNamespace { .. }) {
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
                Op::Grant { .. } => assert!(before.is_subset(&now)),
                Op::Release { .. } => assert!(now.is_subset(&before)),
                _ => assert_eq!(before, now, "grants changed"),
            }
            member.grains = now;
        }
        self.forget_free();
    }

    fn reconcile_clients(&mut self, op: &Op) {
        let joined: BTreeSet<ClientSlot> =
            self.home().clients().map(|record| record.client).collect();
        if let Some(i) = self.members.iter().position(|m| !joined.contains(&m.client.slot)) {
            assert!(matches!(op, Op::Leave { .. }), "a client is gone after {op:?}");
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
            assert!(matches!(op, Op::Join | Op::JoinIn { .. }), "a client came after {op:?}");
            self.home().client_leave(*slot).unwrap();
        }
    }

    fn in_memory(&self) -> Vec<ObjectId> {
        self.list().iter().filter(|one| !one.is_spilled).map(|one| one.entry.id).collect()
    }

    /// Either in memory or out of memory, never neither.
    fn reconcile_spilled(&mut self, op: &Op) {
        if !matches!(op, Op::Spill { .. } | Op::Restore { .. } | Op::DeleteSpilled { .. }) {
            return;
        }
        self.follow();
        let listed = self.list();
        let away: BTreeSet<ObjectId> =
            listed.iter().filter(|one| one.is_spilled).map(|one| one.entry.id).collect();
        let there = self.in_memory();
        for id in self.spilled.keys().copied().collect::<Vec<_>>() {
            if there.contains(&id) {
                assert!(matches!(op, Op::Restore { .. }));
                self.note_restored(id);
            } else if !away.contains(&id) {
                assert!(matches!(op, Op::DeleteSpilled { .. }), "lost after {op:?}");
                self.spilled.remove(&id);
                self.note_gone_spilled(id);
            }
        }
        for id in away.into_iter().filter(|id| !self.spilled.contains_key(id)).collect::<Vec<_>>() {
            self.note_spilled(id);
        }
    }

    fn reconcile_objects(&mut self, op: &Op) {
        if matches!(op, Op::Evict { .. } | Op::EvictOne { .. } | Op::Pin { .. }) {
            self.follow();
        }
        if matches!(op, Op::Evict { .. } | Op::EvictOne { .. }) {
            self.forget_evicted();
        }
        self.reconcile_spilled(op);
        let there: Vec<ObjectId> = self.in_memory();
        let gone: Vec<ObjectId> =
            self.objects.keys().copied().filter(|id| !there.contains(id)).collect();
        if let (Op::TakeOver { .. }, [id]) = (op, &gone[..]) {
            let new = there.iter().find(|id| !self.objects.contains_key(id)).unwrap();
            return self.rename(*id, *new);
        }
        for id in &gone {
            assert!(matches!(op, Op::Delete { .. }) && gone.len() == 1, "lost after {op:?}");
            let object = self.objects.remove(id).unwrap();
            self.pinned.remove(id);
            self.retiring.insert(*id, object);
        }
        if let Op::Pin { .. } = op {
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

    /// No event is lost or repeated, whenever the home was killed.
    fn verify_events(&mut self) {
        while let Some(seen) = self.events.advance().unwrap() {
            let Seen::Event(event) = seen else { panic!("events were lost: {seen:?}") };
            let before = match event.kind {
                EventKind::Deleted if self.own.remove(&event.id) => {
                    self.told_away.remove(&event.id);
                    None
                }
                EventKind::Evicted if !self.told.contains_key(&event.id) => {
                    self.evicted_own = self.evicted_own.checked_sub(1).expect("told twice");
                    None
                }
                EventKind::Spilled => {
                    let is_new = self.told_away.insert(event.id);
                    assert!(is_new, "{} went twice", event.id);
                    None
                }
                EventKind::Restored => {
                    assert!(self.told_away.remove(&event.id), "{} came back twice", event.id);
                    None
                }
                EventKind::Sealed => self.told.insert(event.id, event.name),
                _ => {
                    self.told_away.remove(&event.id);
                    Some(event.name)
                        .filter(|name| self.told.remove(&event.id).as_ref() != Some(name))
                }
            };
            assert_eq!(before, None, "{:?} of {} was told already", event.kind, event.id);
        }
        let name = |object: &Object| object.name.clone().unwrap_or_default();
        let is_told = |id: &&ObjectId| !self.own.contains(id);
        let there = self.objects.iter().filter(|(id, _)| is_told(id));
        let there = there.map(|(id, object)| (*id, name(object)));
        let away = self.spilled.iter().filter(|(id, _)| is_told(id));
        let there = there.chain(away.map(|(id, (object, _))| (*id, name(object))));
        let away: BTreeSet<ObjectId> = self.spilled.keys().copied().collect();
        assert_eq!(self.told_away, away, "what went and came back was not told");
        assert_eq!(self.told, there.collect(), "what the events tell is not what is there");
        let is_there =
            |id: &ObjectId| self.objects.contains_key(id) || self.spilled.contains_key(id);
        assert!(self.own.iter().all(is_there), "a delete was not told");
        assert_eq!(self.evicted_own, 0, "an eviction was not told");
    }

    /// Compare all observable state.
    fn verify(&mut self) {
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

/// Whether an object may lack the directory entry or grant record that its deletion needs.
fn is_tight(stats: &StoreStats) -> bool {
    stats.objects + stats.objects_retiring + stats.objects_spilled >= stats.objects_max
        || stats.grants_max - stats.grants < 2
}

fn choose(n: usize, of: usize) -> Option<usize> {
    (of > 0).then(|| n % of)
}

fn grains(span: Span) -> impl Iterator<Item = u64> {
    let first = span.offset.0 / GRAIN;
    first..first + span.length.0 / GRAIN
}

/// Take a range of at most `count` grains that starts at the `at`-th of `free`.
fn take(free: &mut BTreeSet<u64>, at: usize, count: u64) -> Option<Span> {
    let first = *free.iter().nth(choose(at, free.len())?)?;
    let end =
        (first..first + count.max(1)).find(|g| !free.contains(g)).unwrap_or(first + count.max(1));
    free.retain(|grain| !(first..end).contains(grain));
    let all = Span::new(Offset(0), Length(u64::MAX));
    Some(part(all, first * GRAIN, (end - first) * GRAIN))
}
