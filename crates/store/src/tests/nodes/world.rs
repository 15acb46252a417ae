//! A region over simulated nodes, its home, and the expected state of its objects.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use farrow_memory::{Access, Length, Region, Span};
use farrow_testkit::incoherent::{
    CacheSettings, CallWatch, IncoherentNodes, MaintenanceCall, Upkeep,
};

use super::turns::Turns;
use crate::format::hash::HashKey;
use crate::format::header::RegionHeader;
use crate::format::ids::RegionUid;
use crate::{ClientSlot, Home, Layout, ObjectId, RegionOptions};

/// Deleted objects that are still looked up.
const REMOVED_MAX: usize = 16;

/// A mistake in the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CoherenceMistake {
    /// This part of the region is never published.
    NoPublish(Area),
    /// This part of the region is never refreshed.
    NoRefresh(Area),
    /// The home refreshes it, clients of other nodes do not.
    NoRefreshByOthers(Area),
    /// An object is sealed first and its bytes are published afterwards.
    HeaderBeforePayload,
    /// Clients of two nodes write in one line.
    TwoObjectsOnOneLine,
    /// Memory that a lost client could write is free at once.
    ReuseWithoutQuarantine,
    /// Memory released to the home may have dirty lines.
    ReleaseWithoutClean,
}

/// Parts of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Area {
    Header,
    Directory,
    Index,
    Names,
    Lives,
    Events,
    Holds,
    EntryPages,
    Heap,
    Other,
}

impl Area {
    pub(super) fn of(layout: &Layout, span: Span) -> Self {
        let parts = [
            (layout.directory, Self::Directory),
            (layout.index[0], Self::Index),
            (layout.index[1], Self::Index),
            (layout.names, Self::Names),
            (layout.lives, Self::Lives),
            (layout.events, Self::Events),
            (layout.hold_blocks, Self::Holds),
            (layout.entry_pages, Self::EntryPages),
            (layout.heap, Self::Heap),
        ];
        let start = Span::new(span.offset, Length(0));
        let found =
            parts.iter().find(|(part, _)| part.contains(start) && part.end() != Some(span.offset));
        match found {
            Some((_, area)) => *area,
            None if span.offset.0 < layout.clients.offset.0 => Self::Header,
            None => Self::Other,
        }
    }
}

/// An object that was sealed.
#[derive(Clone, Debug)]
pub(super) struct ActorObject {
    pub(super) id: ObjectId,
    pub(super) name: Option<String>,
    /// Checksum of its bytes.
    pub(super) checksum: u32,
    /// An actor has begun to delete or evict it.
    pub(super) is_leaving: bool,
    /// How often its eviction began and failed: during that time it is not found.
    pub(super) returns: u32,
}

/// A client in quarantine, its node and its memory.
#[derive(Clone, Debug)]
pub(super) struct Grave {
    pub(super) client: ClientSlot,
    pub(super) node: u32,
    pub(super) spans: Vec<Span>,
}

/// State that the actors share without the region.
#[derive(Debug, Default)]
pub(super) struct ObjectRegistry {
    pub(super) live: Vec<ActorObject>,
    pub(super) removed: Vec<ObjectId>,
    pub(super) graves: Vec<Grave>,
    pub(super) names: u32,
    /// The name of the object that is being sealed, or was last.
    pub(super) coming: Option<String>,
    /// Objects that were evicted.
    pub(super) evicted: u32,
    /// Objects whose eviction failed because they were held.
    pub(super) stayed: u32,
    fault: Option<String>,
}

impl ObjectRegistry {
    pub(super) fn bury(&mut self, id: ObjectId) {
        self.live.retain(|known| known.id != id);
        self.removed.push(id);
        if self.removed.len() > REMOVED_MAX {
            self.removed.remove(0);
        }
    }

    /// False: it is removed, or another actor has begun to remove it.
    pub(super) fn begin_to_leave(&mut self, id: ObjectId) -> bool {
        let one = self.live.iter_mut().find(|one| one.id == id && !one.is_leaving);
        one.map(|one| one.is_leaving = true).is_some()
    }

    /// Its eviction failed, and it may have another id from now on.
    pub(super) fn stay(&mut self, before: ObjectId, id: ObjectId) {
        self.stayed += 1;
        if let Some(one) = self.live.iter_mut().find(|one| one.id == before) {
            one.id = id;
            one.is_leaving = false;
            one.returns += 1;
        }
    }

    /// Whether a lookup that began with `known` must have found the object.
    pub(super) fn must_be_found(&self, known: &ActorObject) -> bool {
        let mut live = self.live.iter().filter(|one| !one.is_leaving);
        live.any(|one| one.id == known.id && one.returns == known.returns)
    }
}

/// Options so small that memory, slots and pages are soon used again.
pub(super) fn options() -> RegionOptions {
    RegionOptions {
        capacity: Length(8 << 12),
        objects_max: 12,
        clients_max: 12,
        hold_blocks_max: 12,
        grants_max: 32,
        name_bytes: Length(16 * 32),
        client_objects_max: 42 * 10,
        events_max: 256,
        namespaces_max: 2,
    }
}

/// State that the actors share.
pub(super) struct NodesWorld {
    pub(super) cluster: IncoherentNodes,
    pub(super) turns: Arc<Turns>,
    pub(super) mutant: Option<CoherenceMistake>,
    pub(super) home_region: Arc<Region>,
    home: Mutex<Home>,
    registry: Mutex<ObjectRegistry>,
}

impl NodesWorld {
    pub(super) fn new(
        seed: u64,
        line_bytes: u32,
        nodes: u32,
        mutant: Option<CoherenceMistake>,
    ) -> Self {
        let layout = Layout::new(&options()).unwrap();
        let settings = CacheSettings { line_bytes, acts: 3, seed };
        let cluster = IncoherentNodes::new(layout.geometry, nodes, settings);
        let turns = Turns::new(nodes as usize, seed);
        let home_region = cluster.map(0, Access::Home);
        let header =
            RegionHeader { uid: RegionUid(7), key: HashKey([seed, 3]), created_at_ns: 1, layout };
        let home = Home::create_as(Arc::clone(&home_region), header, Length(u64::MAX)).unwrap();
        let passing = Arc::clone(&turns);
        let watch: CallWatch = Arc::new(move |call: MaintenanceCall| {
            passing.may_pass();
            let area = Area::of(&layout, call.span);
            let left_out = match call.what {
                Upkeep::Publish => CoherenceMistake::NoPublish(area),
                Upkeep::Refresh => CoherenceMistake::NoRefresh(area),
            };
            let by_others = call.node != 0
                && call.what == Upkeep::Refresh
                && mutant == Some(CoherenceMistake::NoRefreshByOthers(area));
            mutant != Some(left_out) && !by_others
        });
        cluster.watch(&watch);
        let home = Mutex::new(home);
        let registry = Mutex::default();
        Self { cluster, turns, mutant, home_region, home, registry }
    }

    /// Ask the home, as a message would: one call at a time.
    pub(super) fn home<T>(&self, act: impl FnOnce(&mut Home) -> T) -> T {
        loop {
            match self.home.try_lock() {
                Ok(mut home) => return act(&mut home),
                Err(TryLockError::Poisoned(home)) => return act(&mut home.into_inner()),
                Err(TryLockError::WouldBlock) => self.turns.must_pass(),
            }
        }
    }

    pub(super) fn registry<T>(&self, act: impl FnOnce(&mut ObjectRegistry) -> T) -> T {
        act(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Record the first fault; all actors stop.
    pub(super) fn fail(&self, what: String) {
        self.registry(|registry| registry.fault.get_or_insert(what).len());
    }

    pub(super) fn fault(&self) -> Option<String> {
        self.registry(|registry| registry.fault.clone())
    }
}
