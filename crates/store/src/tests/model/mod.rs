//! A small reference model of a region: its objects and their bytes, the grants, the holds. It runs
//! operations on a real home, may have the home killed at the n-th failpoint of one, adopts the
//! region again, and compares everything.
//!
//! After a kill only one thing is uncertain: whether the interrupted operation took effect. The
//! model lists the possible states, observes the actual one, and continues from it.

mod clients;
mod departures;
mod objects;
mod reconcile;
mod verify;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::rc::Rc;

use farrow_memory::{Length, Offset, Span};

use super::spill::File;
use super::support::{TestClient, TestRegion, part};
use crate::failpoints;
use crate::{
    DirectoryItem, EventCursor, Held, Home, Namespace, ObjectId, StoreError, StoreStats, Target,
    full_name,
};

const GRAIN: u64 = 128;
/// Filler of a client's extents before it writes objects: if an extent overlapped an object, the
/// object would contain it.
const POISON: u8 = 0xdd;

/// One operation. Numbers are indexes, modulo the number of choices.
#[derive(Clone, Debug)]
pub(crate) enum ModelOperation {
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
struct ModelObject {
    namespace: String,
    name: Option<String>,
    blocks: Vec<(Span, Vec<u8>)>,
}

struct ModelMember {
    client: TestClient,
    /// Grains of the heap that are granted to it.
    grains: BTreeSet<u64>,
    holds: Vec<Held>,
}

impl ModelObject {
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

pub(crate) struct StoreModel {
    world: TestRegion,
    /// The existing namespaces, including the default one.
    namespaces: BTreeSet<String>,
    home: Option<Home>,
    members: Vec<ModelMember>,
    objects: BTreeMap<ObjectId, ModelObject>,
    /// Deleted while they were held.
    retiring: BTreeMap<ObjectId, ModelObject>,
    /// State according to the events: the names of the existing objects.
    reported: BTreeMap<ObjectId, String>,
    /// Objects out of memory, according to the events.
    withdrawn: BTreeSet<ObjectId>,
    events: EventCursor,
    /// Objects without a seal event: clients sealed them without the home.
    own: BTreeSet<ObjectId>,
    /// The id that an object had before the home adopted it.
    before: BTreeMap<ObjectId, ObjectId>,
    pinned: BTreeSet<ObjectId>,
    /// Objects out of memory, with their files.
    spilled: BTreeMap<ObjectId, (ModelObject, File)>,
    /// The file of the object that the current operation spills.
    written: Option<File>,
    /// Evicted objects without a seal event whose end is not announced yet.
    evicted_own: usize,
    /// The object that the current operation would make.
    pending: Option<ModelObject>,
    seed: u8,
}

/// The payload of a failpoint's panic, which distinguishes it from other panics.
struct KilledHome;

impl StoreModel {
    pub(crate) fn new(world: TestRegion) -> Self {
        let home = world.create();
        let events = world.reader().events(0).unwrap();
        Self {
            world,
            namespaces: BTreeSet::from([String::new()]),
            home: Some(home),
            members: Vec::new(),
            objects: BTreeMap::new(),
            retiring: BTreeMap::new(),
            reported: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
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
    pub(crate) fn run(&mut self, op: &ModelOperation, kill: Option<u32>) -> Option<&'static str> {
        let killed_at = Rc::new(Cell::new(None));
        if let Some(kill) = kill {
            let (mut passed, killed_at) = (0, Rc::clone(&killed_at));
            failpoints::set_local(Some(Box::new(move |name| {
                if passed == kill {
                    killed_at.set(Some(name));
                    panic_any(KilledHome);
                }
                passed += 1;
            })));
        }
        let result = catch_unwind(AssertUnwindSafe(|| self.step(op)));
        failpoints::set_local(None);
        if let Err(panic) = result {
            if !panic.is::<KilledHome>() {
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

    fn step(&mut self, op: &ModelOperation) {
        match op {
            ModelOperation::Join => self.join(""),
            ModelOperation::JoinIn { namespace } => {
                let name = self.namespaces.iter().nth(namespace % self.namespaces.len());
                self.join(&name.unwrap().clone());
            }
            ModelOperation::CreateNamespace { name } => {
                self.create_namespace(&format!("space {}", name % 6))
            }
            ModelOperation::DropNamespace { namespace } => {
                let name = self.namespaces.iter().nth(namespace % self.namespaces.len());
                self.drop_namespace(&name.unwrap().clone());
            }
            ModelOperation::Leave { client } => self.leave(*client),
            ModelOperation::HoldBlock { client } => self.hold_block(*client),
            ModelOperation::Grant { client, min, want } => self.grant(*client, *min, *want),
            ModelOperation::Release { client, at, grains } => self.release(*client, *at, *grains),
            ModelOperation::SealBytes { client, at, grains, name } => {
                self.seal(*client, (*at, *grains), *name, None);
            }
            ModelOperation::SealTable { client, at, extra, shared, name } => {
                let parts = TableParts { extra, shared: *shared };
                self.seal(*client, (*at, 4), *name, Some(parts));
            }
            ModelOperation::EntryPages { client, count } => self.entry_pages(*client, *count),
            ModelOperation::SealLocal { client, at, grains, is_held } => {
                self.seal_local(*client, (*at, *grains), *is_held);
            }
            ModelOperation::Register => {
                self.home().register_all().unwrap();
            }
            ModelOperation::TakeOver { object } => self.take_over(*object),
            ModelOperation::Delete { object, by_name } => self.delete(*object, *by_name),
            ModelOperation::Hold { client, object } => self.hold(*client, *object),
            ModelOperation::Unhold { client, hold } => self.unhold(*client, *hold),
            ModelOperation::Pin { object, is_pinned } => self.pin(*object, *is_pinned),
            ModelOperation::Use { object, at_ns } => self.touch(*object, *at_ns),
            ModelOperation::EvictOne { object } => self.evict_one(*object),
            ModelOperation::Evict { bytes, is_run } => self.evict(*bytes, *is_run),
            ModelOperation::Spill { object } => self.spill(*object),
            ModelOperation::Restore { object } => self.restore(*object),
            ModelOperation::DeleteSpilled { object } => self.delete_spilled(*object),
            ModelOperation::Withdraw { pages } => self.withdraw(*pages),
            ModelOperation::Lend { pages } => self.lend(*pages),
            ModelOperation::Reclaim => {
                self.home().reclaim().unwrap();
                self.forget_free();
            }
            ModelOperation::Adopt => {
                self.home = None;
                self.reopen();
                self.forget_free();
            }
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

    /// After a scan: retiring objects that are not held are freed.
    fn forget_free(&mut self) {
        let removed: Vec<ObjectId> =
            self.retiring.keys().copied().filter(|id| !self.is_held(*id)).collect();
        for id in removed {
            self.retiring.remove(&id);
        }
    }

    fn in_memory(&self) -> Vec<ObjectId> {
        self.list().iter().filter(|one| !one.is_spilled).map(|one| one.entry.id).collect()
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
