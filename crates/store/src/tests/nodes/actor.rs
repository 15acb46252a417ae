//! A node with one client process, which runs random steps of a seed and compares its observations
//! with the expected state.

use std::sync::Arc;

use farrow_memory::{Access, Alias, Length, Offset, Proximity, Region, Span, page_bytes};
use farrow_testkit::random::Random;

use super::world::{ActorObject, CoherenceMistake, Grave, NodesWorld, ObjectRegistry};
use crate::{
    BLOCK_BYTES, ClientSlot, EntryTable, EventCursor, Held, HoldTable, Home, ObjectId, Reader,
    SealRequest, Seen, StoreError, Target, clean,
};

/// A fault, as text.
pub(super) type ActorResult<T> = Result<T, String>;

/// Objects that one client holds at a time.
const HELD_MAX: usize = 4;
/// All objects are smaller.
const TOGETHER_BYTES_MAX: Length = Length(1 << 12);

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A range that a client may write, and how much of it is used.
struct ActorExtent {
    alias: Alias,
    used: u64,
}

impl ActorExtent {
    fn left(&self) -> Span {
        let span = self.alias.span();
        Span::new(Offset(span.offset.0 + self.used), Length(span.length.0 - self.used))
    }
}

/// The state of a client process.
struct ActorProcess {
    slot: ClientSlot,
    reader: Reader,
    holds: Arc<HoldTable>,
    entries: EntryTable,
    extent: Option<ActorExtent>,
    held: Vec<Held>,
    events: EventCursor,
}

/// A node.
pub(super) struct NodeActor<'a> {
    world: &'a NodesWorld,
    node: u32,
    region: Arc<Region>,
    random: Random,
    process: Option<ActorProcess>,
}

impl<'a> NodeActor<'a> {
    pub(super) fn new(world: &'a NodesWorld, node: u32, seed: u64) -> Self {
        let region = world.cluster.map(node, Access::Client);
        let random = Random::new(seed ^ u64::from(node) << 40);
        Self { world, node, region, random, process: None }
    }

    /// Runs `steps` steps, and then leaves.
    pub(super) fn run(&mut self, steps: u32) -> ActorResult<()> {
        for _ in 0..steps {
            if self.world.fault().is_some() {
                return Ok(());
            }
            self.world.turns.may_pass();
            self.world.cluster.disturb(3);
            self.step()?;
        }
        self.leave()
    }

    fn step(&mut self) -> ActorResult<()> {
        if self.process.is_none() {
            return self.join();
        }
        match self.random.below(28) {
            0..=6 => self.create(),
            7..=10 => self.read_live(),
            11..=12 => self.read_together(),
            13 => self.read_removed(),
            14..=16 => self.delete(),
            17 => self.let_go(),
            18 => self.read_coming(),
            19 => self.look_again(),
            20 => self.list(),
            21 => self.follow(),
            22 => self.give_back(),
            23 => self.crash(),
            24..=25 => self.evict(),
            _ if self.node == 0 => self.keep_house(),
            _ => self.look_again(),
        }
    }

    fn join(&mut self) -> ActorResult<()> {
        let pid = self.random.next() as u32;
        let joined = self.world.home(|home| -> Result<_, StoreError> {
            let client = home.client_join(pid, 1, 0)?.client;
            match home.hold_block(client) {
                Ok(block) => Ok((client, block)),
                Err(error) => {
                    home.client_leave(client)?;
                    Err(error)
                }
            }
        });
        let (slot, block) = match joined {
            Ok(joined) => joined,
            // All slots are in quarantine.
            Err(StoreError::TooManyClients { .. } | StoreError::HoldBlocksExhausted { .. }) => {
                return self.dig_up();
            }
            Err(error) => return Err(text(error)),
        };
        if self.node == 0 {
            self.world.home(|home| home.set_proximity(slot, Proximity::Local)).map_err(text)?;
        }
        // The process maps the region again, so it retains nothing of the previous one.
        self.region = self.world.cluster.map(self.node, Access::Client);
        let reader = Reader::open(Arc::clone(&self.region)).map_err(text)?;
        let holds = HoldTable::new(Arc::clone(&self.region), &[block]).map_err(text)?;
        let entries = EntryTable::new(Arc::clone(&self.region), slot, pid).map_err(text)?;
        let events = reader.events(u64::MAX).map_err(text)?;
        let (holds, held, extent) = (Arc::new(holds), Vec::new(), None);
        self.process = Some(ActorProcess { slot, reader, holds, entries, extent, held, events });
        Ok(())
    }

    fn process(&mut self) -> ActorResult<&mut ActorProcess> {
        self.process.as_mut().ok_or_else(|| "no process".to_owned())
    }

    /// A block of the client's own, with bytes that were stored but not published.
    fn write(&mut self) -> ActorResult<Option<(Span, Length, u32)>> {
        let is_torn = self.world.mutant == Some(CoherenceMistake::TwoObjectsOnOneLine);
        let line = u64::from(self.region.line_bytes());
        let size = if is_torn { line / 2 } else { 40 + self.random.below(700) };
        let bytes: Vec<u8> = (0..size).map(|_| self.random.next() as u8).collect();
        let block = size.next_multiple_of(BLOCK_BYTES);
        let (world, node) = (self.world, self.node);
        let process = self.process()?;
        let is_full = process.extent.as_ref().is_none_or(|extent| extent.left().length.0 < block);
        if is_full {
            self.give_back()?;
            let process = self.process()?;
            let page = Length(page_bytes());
            match world.home(|home| home.grant(process.slot, page, page)) {
                Ok(span) => {
                    let alias = process.reader.region().alias(span).map_err(text)?;
                    process.extent = Some(ActorExtent { alias, used: 0 });
                }
                Err(StoreError::OutOfMemory { .. } | StoreError::TooManyGrants { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(text(error)),
            }
        }
        let process = self.process()?;
        let Some(extent) = &mut process.extent else { return Ok(None) };
        let at = extent.left().offset;
        extent.alias.write(at, &bytes).map_err(text)?;
        extent.used += block;
        let page = extent.alias.span();
        if is_torn {
            let other = world.cluster.map(if node == 1 { 2 } else { 1 }, Access::Client);
            let half = Offset(at.0 + line / 2);
            other.alias(page).map_err(text)?.write(half, &bytes).map_err(text)?;
        }
        let primary = Span::new(at, Length(block));
        Ok(Some((primary, Length(size), crc32c::crc32c(&bytes))))
    }

    fn create(&mut self) -> ActorResult<()> {
        let Some((primary, size, crc)) = self.write()? else {
            return Ok(());
        };
        let is_late = self.world.mutant == Some(CoherenceMistake::HeaderBeforePayload);
        if !is_late {
            self.region.publish(Span::new(primary.offset, size)).map_err(text)?;
        }
        let number = self.world.registry(|registry| {
            registry.names += 1;
            registry.names
        });
        let name = self.random.one_in(3).then(|| format!("object {number}"));
        self.world.registry(|registry| registry.coming.clone_from(&name));
        let sealed = self.seal(primary, size, crc, name.as_deref())?;
        if is_late {
            self.region.publish(Span::new(primary.offset, size)).map_err(text)?;
        }
        if let Some(id) = sealed {
            let known = ActorObject { id, name, checksum: crc, is_leaving: false, returns: 0 };
            self.world.registry(|registry| registry.live.push(known));
        }
        Ok(())
    }

    fn seal(
        &mut self,
        primary: Span,
        size: Length,
        crc: u32,
        name: Option<&str>,
    ) -> ActorResult<Option<ObjectId>> {
        let world = self.world;
        let is_held = self.random.one_in(4);
        let process = self.process()?;
        // A checksum of the bytes, in the entry's field for that of a descriptor.
        let request =
            SealRequest { descriptor_crc: crc, ..SealRequest::bytes(primary, size, name) };
        if name.is_some() {
            return match world.home(|home| home.seal(process.slot, &request, 5)) {
                Ok(id) => Ok(Some(id)),
                Err(
                    StoreError::TooManyObjects { .. }
                    | StoreError::TooManyGrants { .. }
                    | StoreError::NameSpaceFull { .. },
                ) => Ok(None),
                Err(error) => Err(text(error)),
            };
        }
        let holds = Some(&process.holds).filter(|_| is_held && process.held.len() < HELD_MAX);
        for _ in 0..2 {
            if let Some((id, held)) = process.entries.seal(&request, 5, holds).map_err(text)? {
                process.held.extend(held);
                return Ok(Some(id));
            }
            match world.home(|home| home.entry_pages(process.slot, 1)) {
                Ok(pages) => process.entries.add_pages(pages).map_err(text)?,
                Err(StoreError::EntryPagesExhausted { .. }) => return Ok(None),
                Err(error) => return Err(text(error)),
            }
        }
        Ok(None)
    }

    fn any_live(&mut self) -> Option<ActorObject> {
        let pick = self.random.next();
        self.world.registry(|registry| {
            let live: Vec<&ActorObject> =
                registry.live.iter().filter(|one| !one.is_leaving).collect();
            let index = pick.checked_rem(live.len() as u64)? as usize;
            live.get(index).map(|known| (*known).clone())
        })
    }

    /// A sealed object that is not being deleted is found on every node, whole.
    fn read_live(&mut self) -> ActorResult<()> {
        let Some(known) = self.any_live() else { return Ok(()) };
        if self.process()?.held.len() >= HELD_MAX {
            self.let_go()?;
        }
        let is_by_name = self.random.one_in(2);
        let (world, node) = (self.world, self.node);
        let process = self.process()?;
        let target = match &known.name {
            Some(name) if is_by_name => Target::Name(name),
            _ => Target::Id(known.id),
        };
        match process.reader.hold(&process.holds, target).map_err(text)? {
            Some(held) => {
                check_bytes(&process.reader, &held)?;
                process.held.push(held);
                Ok(())
            }
            None if world.registry(|registry| registry.must_be_found(&known)) => {
                Err(format!("node {node} does not find {target}"))
            }
            None => Ok(()),
        }
    }

    /// The same for several objects at once, by id, because names are looked up one by one. Small
    /// bytes must be held, and stay whole until they are released.
    fn read_together(&mut self) -> ActorResult<()> {
        let some: Vec<ActorObject> = (0..4).filter_map(|_| self.any_live()).collect();
        let targets: Vec<Target<'_>> = some.iter().map(|known| Target::Id(known.id)).collect();
        let (world, node) = (self.world, self.node);
        let process = self.process()?;
        let (reader, holds) = (&process.reader, &process.holds);
        let held = reader.hold_bytes(holds, &targets, TOGETHER_BYTES_MAX, |_| false);
        let held = held.map_err(text)?;
        for (index, known) in some.iter().enumerate() {
            let Some((id, payload)) = held.get(index) else { continue };
            world.turns.may_pass();
            let mut bytes = vec![0; payload.length.0 as usize];
            reader.region().copy_out(payload.offset, &mut bytes).map_err(text)?;
            // An adopted object has another id.
            if crc32c::crc32c(&bytes) != known.checksum {
                return Err(format!("node {node} holds {id} for {}, with other bytes", known.id));
            }
            held.let_go(index);
        }
        Ok(())
    }

    /// An object that is being sealed may be found or not. If it is found, it is whole.
    fn read_coming(&mut self) -> ActorResult<()> {
        let Some(name) = self.world.registry(|registry| registry.coming.clone()) else {
            return Ok(());
        };
        let process = self.process()?;
        let held = process.reader.hold(&process.holds, Target::Name(&name)).map_err(text)?;
        held.map_or(Ok(()), |held| check_bytes(&process.reader, &held))
    }

    /// A deleted object is not found.
    fn read_removed(&mut self) -> ActorResult<()> {
        let pick = self.random.next();
        let id = self.world.registry(|registry| {
            let index = pick.checked_rem(registry.removed.len() as u64)? as usize;
            registry.removed.get(index).copied()
        });
        let Some(id) = id else { return Ok(()) };
        let node = self.node;
        let process = self.process()?;
        if process.reader.by_id(id).map_err(text)?.is_some()
            || process.reader.hold(&process.holds, Target::Id(id)).map_err(text)?.is_some()
        {
            return Err(format!("node {node} finds {id}, which is gone"));
        }
        Ok(())
    }

    fn delete(&mut self) -> ActorResult<()> {
        let Some(known) = self.any_live() else { return Ok(()) };
        if self.world.registry(|registry| registry.begin_to_leave(known.id)) {
            self.world.home(|home| home.delete(Target::Id(known.id))).map_err(text)?;
            self.world.registry(|registry| registry.bury(known.id));
        }
        Ok(())
    }

    /// The home makes room: an object that is not held is evicted. An object held on any node stays
    /// and is found as before.
    fn evict(&mut self) -> ActorResult<()> {
        let Some(known) = self.any_live() else { return Ok(()) };
        if !self.world.registry(|registry| registry.begin_to_leave(known.id)) {
            return Ok(());
        }
        let stays = self.world.home(|home| match home.evict(known.id)? {
            Some(_) => Ok(None),
            // The home has adopted an object that a client sealed: it has another id there.
            None => home.find(Target::Id(known.id)).map(|entry| Some(entry.id)),
        });
        let stays = stays.map_err(|error: StoreError| text(error))?;
        self.world.registry(|registry| match stays {
            Some(id) => registry.stay(known.id, id),
            None => {
                registry.evicted += 1;
                registry.bury(known.id);
            }
        });
        Ok(())
    }

    /// A held object is unchanged until it is released.
    fn let_go(&mut self) -> ActorResult<()> {
        let pick = self.random.next();
        let process = self.process()?;
        if let Some(index) = pick.checked_rem(process.held.len() as u64) {
            let held = process.held.swap_remove(index as usize);
            check_bytes(&process.reader, &held)?;
        }
        Ok(())
    }

    fn look_again(&mut self) -> ActorResult<()> {
        let process = self.process()?;
        process.held.iter().try_for_each(|held| check_bytes(&process.reader, held))
    }

    /// A list contains every object that is there from its beginning to its end. Every listed
    /// object is whole, even if it was sealed just now.
    fn list(&mut self) -> ActorResult<()> {
        let before: Vec<ActorObject> = self.world.registry(|registry| {
            registry.live.iter().filter(|one| !one.is_leaving).cloned().collect()
        });
        let (world, node) = (self.world, self.node);
        let listed = self.process()?.reader.list("").map_err(text)?;
        for known in before {
            let is_there = listed.iter().any(|one| one.entry.id == known.id);
            if !is_there && world.registry(|registry| registry.must_be_found(&known)) {
                return Err(format!("node {node} does not list {}", known.id));
            }
        }
        let process = self.process()?;
        for one in listed {
            let target = Target::Id(one.entry.id);
            if let Some(held) = process.reader.hold(&process.holds, target).map_err(text)? {
                check_bytes(&process.reader, &held)?;
            }
        }
        Ok(())
    }

    /// Events are consecutive; the ring is longer than a run.
    fn follow(&mut self) -> ActorResult<()> {
        let node = self.node;
        let process = self.process()?;
        while let Some(seen) = process.events.advance().map_err(text)? {
            if let Seen::Gap { missed } = seen {
                return Err(format!("node {node} misses {missed} events"));
            }
        }
        Ok(())
    }

    /// Release the rest of an extent, clean.
    fn give_back(&mut self) -> ActorResult<()> {
        let world = self.world;
        let process = self.process()?;
        let Some(extent) = process.extent.take() else { return Ok(()) };
        let left = extent.left();
        if left.is_empty() {
            return Ok(());
        }
        // Leave bytes there of an object that was begun and abandoned.
        extent.alias.write(left.offset, &[0xAB; 100]).map_err(text)?;
        drop(extent);
        if world.mutant != Some(CoherenceMistake::ReleaseWithoutClean) {
            clean(process.reader.region(), &[left]).map_err(text)?;
        }
        // The home may not know an object of the same page yet.
        world.home(|home| home.release(process.slot, &[left])).map_err(text)
    }

    /// The process is killed: bytes that it did not publish are still in the caches of its node.
    fn crash(&mut self) -> ActorResult<()> {
        for _ in 0..self.random.below(4) {
            self.write()?;
        }
        let Some(process) = self.process.take() else { return Ok(()) };
        process.holds.abandon();
        let slot = process.slot;
        drop(process);
        if self.node != 0 && self.random.one_in(3) {
            // The whole machine loses power and restarts.
            self.world.cluster.node(self.node).caches().power_off();
        }
        self.bury_client(slot)
    }

    /// The daemon learns that a client of any node is lost.
    fn bury_client(&mut self, client: ClientSlot) -> ActorResult<()> {
        let (world, node) = (self.world, self.node);
        if world.mutant == Some(CoherenceMistake::ReuseWithoutQuarantine) {
            return world.home(|home| home.client_leave(client)).map(drop).map_err(text);
        }
        world.home(|home| {
            let spans = home.quarantine(client).map_err(text)?.spans;
            world.registry(|registry| registry.graves.push(Grave { client, node, spans }));
            Ok(())
        })
    }

    /// A node reports that it has no dirty line of a lost client.
    fn dig_up(&mut self) -> ActorResult<()> {
        let world = self.world;
        let Some(grave) = world.registry(|registry| registry.graves.last().cloned()) else {
            return Ok(());
        };
        // Another process of that node does it.
        let region = world.cluster.map(grave.node, Access::Client);
        clean(&region, &grave.spans).map_err(text)?;
        world.home(|home| {
            let is_open = |registry: &mut ObjectRegistry| {
                let count = registry.graves.len();
                registry.graves.retain(|other| other.client != grave.client);
                registry.graves.len() < count
            };
            if world.registry(is_open) {
                home.release_quarantine(grave.client).map_err(text)?;
            }
            Ok(())
        })
    }

    /// Background work of the daemon.
    fn keep_house(&mut self) -> ActorResult<()> {
        match self.random.below(6) {
            0 => self.world.home(|home| home.reclaim()).map(drop).map_err(text),
            1 => self.world.home(|home| home.register_all()).map(drop).map_err(text),
            2 => self.world.home(|home| home.check()),
            3 => self.adopt(),
            _ => self.dig_up(),
        }
    }

    /// The daemon is killed; its successor learns again which clients are lost.
    fn adopt(&mut self) -> ActorResult<()> {
        let world = self.world;
        let region = Arc::clone(&world.home_region);
        let near = self.process.as_ref().map(|process| process.slot);
        world.home(|home| {
            let graves = world.registry(|registry| registry.graves.clone());
            let (mut adopted, report) = Home::adopt(region).map_err(text)?;
            if let Some(dropped) = report.dropped.first() {
                return Err(format!("dropped on adoption: {}", dropped.reason));
            }
            for client in report.clients.iter().map(|record| record.client) {
                adopted.confirm_earlier(client);
            }
            if let Some(near) = near {
                adopted.set_proximity(near, Proximity::Local).map_err(text)?;
            }
            for grave in &graves {
                adopted.quarantine(grave.client).map_err(text)?;
            }
            *home = adopted;
            home.check()
        })
    }

    /// The client leaves in good order.
    fn leave(&mut self) -> ActorResult<()> {
        if self.process.is_none() {
            return Ok(());
        }
        self.look_again()?;
        self.follow()?;
        self.give_back()?;
        let Some(process) = self.process.take() else { return Ok(()) };
        let (region, slot) = (Arc::clone(process.reader.region()), process.slot);
        drop(process);
        let written = self.world.home(|home| home.writable_by(slot));
        clean(&region, &written).map_err(text)?;
        self.world.home(|home| home.client_leave(slot)).map(drop).map_err(text)
    }
}

/// The bytes of an object are those that were sealed.
pub(super) fn check_bytes(reader: &Reader, held: &Held) -> ActorResult<()> {
    let entry = held.entry();
    let mut bytes = vec![0; entry.size.0 as usize];
    reader.region().copy_out(entry.primary.offset, &mut bytes).map_err(text)?;
    if crc32c::crc32c(&bytes) != entry.descriptor_crc {
        let place = reader.region().fabric().describe();
        return Err(format!("{} at {} has other bytes on {place}", entry.id, entry.primary));
    }
    Ok(())
}
