//! A node with one client, which builds tables in granted memory, and reads those of all nodes over
//! its own copy of the region.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use bytes::Bytes;
use farrow_arrow::{
    ArrowObject, BatchData, CopySource, Decoded, DescriptorStamp, Limits, Plan, Rebuilt,
};
use farrow_memory::{
    Access, Address, Alias, Length, Offset, Proximity, Region, SealedBytes, Span, page_bytes,
};
use farrow_store::{
    BLOCK_BYTES, ClientSlot, EntryTable, Held, HoldTable, ObjectId, ObjectKind, Reader,
    SealRequest, StoreError, Target, clean, encode_extra,
};

use crate::tables::OriginalTable;
use crate::world::{KnownTable, Mistake, ReadersWorld, blocks};
use crate::{StepResult, text};

/// Tables that one node retains at a time.
const RETAINED_MAX: usize = 4;
/// Batches of a table to which others are added.
const BATCHES_MAX: usize = 4;
/// With this many tables, each step that would add one deletes one instead.
const LIVE_MAX: usize = 8;

/// A range that the client may write, with its unused part.
struct TableExtent {
    alias: Alias,
    used: u64,
}

impl TableExtent {
    fn left(&self) -> Span {
        let span = self.alias.span();
        Span::new(Offset(span.offset.0 + self.used), Length(span.length.0 - self.used))
    }
}

/// A table that is written and not yet sealed.
struct TableDraft {
    request: SealRequest<'static>,
    table: Arc<OriginalTable>,
    /// The table whose batches are part of this one.
    source: Option<Arc<RetainedTable>>,
}

/// A table in use, in place. Faults name its offset, since ids differ from run to run.
struct RetainedTable {
    primary: Span,
    decoded: Decoded,
    blocks: Vec<(Span, Buffer)>,
    object: ArrowObject,
    table: Arc<OriginalTable>,
}

/// Bytes of a block. They hold its object.
struct BlockBytes {
    bytes: SealedBytes,
    _held: Option<Arc<Held>>,
}

impl AsRef<[u8]> for BlockBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl RetainedTable {
    fn resolve(&self, offset: u64, length: u64) -> Option<Buffer> {
        resolve(&self.blocks, offset, length)
    }

    /// The offset of the bytes in the region, and the table's block that contains them.
    fn locate(&self, region: &Region, pointer: *const u8, length: usize) -> Option<(Offset, Span)> {
        let offset = region.offset_of(Address(pointer as usize))?;
        let span = Span::new(offset, Length(length as u64));
        self.blocks
            .iter()
            .find(|(block, _)| block.contains(span))
            .map(|(block, _)| (offset, *block))
    }
}

fn resolve(blocks: &[(Span, Buffer)], offset: u64, length: u64) -> Option<Buffer> {
    let wanted = Span::new(Offset(offset), Length(length));
    let (block, buffer) = blocks.iter().find(|(block, _)| block.contains(wanted))?;
    let start = usize::try_from(offset - block.offset.0).ok()?;
    Some(buffer.slice_with_length(start, usize::try_from(length).ok()?))
}

pub struct ReaderNode {
    number: u32,
    slot: ClientSlot,
    region: Arc<Region>,
    reader: Reader,
    holds: Arc<HoldTable>,
    entries: EntryTable,
    extent: Option<TableExtent>,
    draft: Option<TableDraft>,
    retained: Vec<Arc<RetainedTable>>,
    /// Blocks that were refreshed, for a mistake.
    refreshed: BTreeSet<u64>,
}

impl ReaderNode {
    pub fn join(world: &mut ReadersWorld, number: u32) -> StepResult<Self> {
        let slot = world.home.client_join(100 + number, 1, 0).map_err(text)?.client;
        let block = world.home.hold_block(slot).map_err(text)?;
        if number == 0 {
            world.home.set_proximity(slot, Proximity::Local).map_err(text)?;
        }
        let region = world.cluster.map(number, Access::Client);
        let reader = Reader::open(Arc::clone(&region)).map_err(text)?;
        let holds = Arc::new(HoldTable::new(Arc::clone(&region), &[block]).map_err(text)?);
        let entries = EntryTable::new(Arc::clone(&region), slot, 100 + number).map_err(text)?;
        let (extent, draft, retained, refreshed) = (None, None, Vec::new(), BTreeSet::new());
        Ok(Self {
            number,
            slot,
            region,
            reader,
            holds,
            entries,
            extent,
            draft,
            retained,
            refreshed,
        })
    }

    pub fn step(&mut self, world: &mut ReadersWorld) -> StepResult<()> {
        match world.random.below(20) {
            0..=6 if world.live.len() >= LIVE_MAX => Self::delete(world),
            0..=6 if self.draft.is_some() => self.seal(world),
            0..=6 => self.build(world),
            7..=12 => self.read_any(world),
            13 => self.let_go(world),
            14..=15 => Self::delete(world),
            16..=17 => self.look_again(world),
            18 => self.give_back(world),
            _ => Self::keep_house(world),
        }
    }

    /// Writes a table to granted memory: a new one, or a retained one with another batch.
    fn build(&mut self, world: &mut ReadersWorld) -> StepResult<()> {
        // Only held memory can become part of another object.
        let is_good = |retained: &&Arc<RetainedTable>| {
            retained.table.batches.len() < BATCHES_MAX
                && world.mistake != Some(Mistake::TableWithoutHold)
        };
        let source =
            self.retained.last().filter(is_good).filter(|_| world.random.one_in(3)).cloned();
        let (table, batches) = match &source {
            Some(source) => {
                let batch = source.table.batch(&mut world.values, world.variety);
                let mut table = OriginalTable::clone(&source.table);
                table.batches.push(batch.clone());
                let in_place = source.object.batches.iter().cloned();
                (table, in_place.chain([batch]).collect::<Vec<BatchData>>())
            }
            None => {
                let table = OriginalTable::random(&mut world.values, world.variety);
                let batches = table.batches.clone();
                (table, batches)
            }
        };
        let mut extra = Vec::new();
        let region = Arc::clone(&self.region);
        let mut locate = |pointer: *const u8, length: usize| {
            let (offset, block) = source.as_ref()?.locate(&region, pointer, length)?;
            extra.push(block);
            Some(offset.0)
        };
        let plan = Plan::table(&table.schema_node()?, &batches, &mut locate).map_err(text)?;
        extra.sort_unstable_by_key(|block: &Span| block.offset);
        extra.dedup();
        let Some(request) = self.write(world, &plan, extra)? else { return Ok(()) };
        self.draft = Some(TableDraft { request, table: Arc::new(table), source });
        Ok(())
    }

    /// Writes copies, descriptor and list of blocks in the client's layout (`farrow::put`).
    fn write(
        &mut self,
        world: &mut ReadersWorld,
        plan: &Plan,
        extra: Vec<Span>,
    ) -> StepResult<Option<SealRequest<'static>>> {
        let list = encode_extra(&extra);
        let descriptor_at = plan.copy_bytes().next_multiple_of(8);
        let list_at = (descriptor_at + plan.descriptor_bytes()).next_multiple_of(8);
        let total = (list_at + list.len() as u64).next_multiple_of(BLOCK_BYTES);
        let Some(primary) = self.take(world, total)? else { return Ok(None) };
        let at = |offset: u64| Offset(primary.offset.0 + offset);
        let stamp = DescriptorStamp { region: self.reader.uid().0, epoch: 0 };
        let descriptor = plan.descriptor(stamp, primary.offset.0);
        let has_values =
            !matches!(world.mistake, Some(Mistake::NoPublish | Mistake::OnlyDescriptorPublished));
        let has_descriptor = world.mistake != Some(Mistake::NoPublish);
        for copy in plan.copies() {
            match copy.source {
                CopySource::Bytes(bytes) => self.store(at(copy.offset), bytes, has_values)?,
                CopySource::Rewritten(_) => {
                    let mut bytes = vec![0; copy.length as usize];
                    copy.fill(&mut bytes);
                    self.store(at(copy.offset), &bytes, has_values)?;
                }
            }
        }
        self.store(at(descriptor_at), &descriptor, has_descriptor)?;
        self.store(at(list_at), &list, has_descriptor)?;
        Ok(Some(SealRequest {
            kind: ObjectKind::Table,
            primary,
            descriptor: Span::new(at(descriptor_at), Length(descriptor.len() as u64)),
            descriptor_crc: crc32c::crc32c(&descriptor),
            extra,
            extra_crc: crc32c::crc32c(&list),
            size: Length(plan.data_bytes()),
            metadata_bytes: 0,
            metadata_crc: 0,
            name: None,
            is_reserved: false,
            is_staged: false,
        }))
    }

    fn store(&self, at: Offset, bytes: &[u8], is_published: bool) -> StepResult<()> {
        let extent = self.extent.as_ref().ok_or("no extent")?;
        let stored = match is_published {
            true => extent.alias.write_fresh(at, bytes, None),
            false => extent.alias.write(at, bytes),
        };
        stored.map_err(text)
    }

    /// Takes a block from the client's extent, or from a new one.
    fn take(&mut self, world: &mut ReadersWorld, bytes: u64) -> StepResult<Option<Span>> {
        if self.extent.as_ref().is_none_or(|extent| extent.left().length.0 < bytes) {
            self.give_back(world)?;
            let length = Length(bytes.next_multiple_of(page_bytes()));
            match world.home.grant(self.slot, length, length) {
                Ok(span) => {
                    let alias = self.region.alias(span).map_err(text)?;
                    self.extent = Some(TableExtent { alias, used: 0 });
                }
                Err(StoreError::OutOfMemory { .. } | StoreError::TooManyGrants { .. }) => {
                    return Ok(None);
                }
                Err(error) => return Err(text(error)),
            }
        }
        let extent = self.extent.as_mut().ok_or("no extent")?;
        let at = extent.left().offset;
        extent.used += bytes;
        Ok(Some(Span::new(at, Length(bytes))))
    }

    /// Gives back the rest of an extent, cleaned.
    fn give_back(&mut self, world: &mut ReadersWorld) -> StepResult<()> {
        let Some(left) = self.extent.take().map(|extent| extent.left()) else { return Ok(()) };
        if left.is_empty() {
            return Ok(());
        }
        clean(&self.region, &[left]).map_err(text)?;
        world.home.release(self.slot, &[left]).map_err(text)
    }

    fn seal(&mut self, world: &mut ReadersWorld) -> StepResult<()> {
        let Some(draft) = self.draft.take() else { return Ok(()) };
        let is_local = draft.request.extra.is_empty() && world.random.one_in(2);
        let sealed =
            if is_local { self.seal_locally(world, &draft)? } else { self.ask(world, &draft)? };
        match sealed {
            Some(id) => {
                world.tally.derived += u32::from(draft.source.is_some());
                world.note_sealed(id, draft.table, draft.request.primary);
            }
            // Try again later, when there is room.
            None => self.draft = Some(draft),
        }
        Ok(())
    }

    fn seal_locally(
        &self,
        world: &mut ReadersWorld,
        draft: &TableDraft,
    ) -> StepResult<Option<ObjectId>> {
        for _ in 0..2 {
            if let Some((id, _)) = self.entries.seal(&draft.request, 5, None).map_err(text)? {
                return Ok(Some(id));
            }
            match world.home.entry_pages(self.slot, 1) {
                Ok(pages) => self.entries.add_pages(pages).map_err(text)?,
                Err(StoreError::EntryPagesExhausted { .. }) => return Ok(None),
                Err(error) => return Err(text(error)),
            }
        }
        Ok(None)
    }

    fn ask(&self, world: &mut ReadersWorld, draft: &TableDraft) -> StepResult<Option<ObjectId>> {
        match world.home.seal(self.slot, &draft.request, 5) {
            Ok(id) => Ok(Some(id)),
            Err(StoreError::TooManyObjects { .. } | StoreError::TooManyGrants { .. }) => Ok(None),
            Err(error) => Err(text(error)),
        }
    }

    fn read_any(&mut self, world: &mut ReadersWorld) -> StepResult<()> {
        let Some(known) = world.any_live() else { return Ok(()) };
        if self.retained.len() >= RETAINED_MAX {
            self.let_go(world)?;
        }
        self.read(world, &known)
    }

    /// Checks that a sealed table is found, and that every value equals the original.
    pub fn read(&mut self, world: &mut ReadersWorld, known: &KnownTable) -> StepResult<()> {
        let (number, id) = (self.number, known.id);
        let held = self.hold(world.mistake, id)?;
        let held = held.ok_or_else(|| format!("node {number} does not find {id}"))?;
        let retained = self.rebuild(world.mistake, held, known)?;
        self.check(world, &retained)?;
        world.note_read(retained.primary);
        self.retained.push(Arc::new(retained));
        Ok(())
    }

    fn hold(&mut self, mistake: Option<Mistake>, id: ObjectId) -> StepResult<Option<Held>> {
        let target = Target::Id(id);
        let own_ways =
            [Mistake::NoRefresh, Mistake::OnlyDescriptorRefreshed, Mistake::OneRefreshPerRange];
        if mistake.is_none_or(|mistake| !own_ways.contains(&mistake)) {
            return self.reader.hold(&self.holds, target).map_err(text);
        }
        let Some(entry) = self.reader.lookup(target).map_err(text)? else { return Ok(None) };
        match mistake {
            Some(Mistake::OnlyDescriptorRefreshed) => {
                self.region.refresh(entry.descriptor).map_err(text)?;
            }
            Some(Mistake::OneRefreshPerRange) => {
                self.region.refresh(entry.descriptor).map_err(text)?;
                for number in blocks(entry.primary) {
                    if self.refreshed.insert(number) {
                        let at = Offset(number * BLOCK_BYTES);
                        self.region.refresh(Span::new(at, Length(BLOCK_BYTES))).map_err(text)?;
                    }
                }
            }
            _ => {}
        }
        self.holds.hold(&entry).map_err(text)
    }

    /// Rebuilds the table over this node's copy, as the client does (`farrow::Object`).
    fn rebuild(
        &self,
        mistake: Option<Mistake>,
        held: Held,
        known: &KnownTable,
    ) -> StepResult<RetainedTable> {
        let entry = *held.entry();
        let mut descriptor = vec![0; entry.descriptor.length.as_usize()];
        self.region.copy_out(entry.descriptor.offset, &mut descriptor).map_err(text)?;
        if crc32c::crc32c(&descriptor) != entry.descriptor_crc {
            return Err(format!("another descriptor in {}", entry.primary));
        }
        let decoded = Decoded::parse(&descriptor, &Limits::default()).map_err(text)?;
        let spans = self.reader.blocks(&entry).map_err(text)?;
        let held = Some(Arc::new(held)).filter(|_| mistake != Some(Mistake::TableWithoutHold));
        let block = |span: Span| {
            let bytes = self.region.sealed(span).map_err(text)?;
            let owner = BlockBytes { bytes, _held: held.clone() };
            Ok((span, Buffer::from(Bytes::from_owner(owner))))
        };
        let blocks = spans.into_iter().map(block).collect::<StepResult<Vec<_>>>()?;
        let rebuilt = decoded.rebuild(&|offset, length| resolve(&blocks, offset, length));
        let Rebuilt::Arrow(object) = rebuilt.map_err(text)? else {
            return Err("an array of NumPy".to_owned());
        };
        let (table, primary) = (Arc::clone(&known.table), entry.primary);
        Ok(RetainedTable { primary, decoded, blocks, object, table })
    }

    /// Compares every value, with the reader of this node. The buffers must be in the node's copy.
    fn check(&self, world: &mut ReadersWorld, retained: &RetainedTable) -> StepResult<()> {
        let columns = retained.object.batches.iter().flat_map(|batch| &batch.columns);
        columns.into_iter().try_for_each(|column| self.check_place(retained, column))?;
        let outcome = match &mut world.python {
            Some((node, python)) if *node == self.number => {
                world.tally.read_by_python += 1;
                let read = python.compare(&self.region, &retained.object, &retained.table);
                read.map_err(|fault| format!("pyarrow: {fault}"))
            }
            _ => {
                // Damaged offsets would make the comparison panic.
                let checked =
                    retained.decoded.rebuild_checked(&|at, length| retained.resolve(at, length));
                checked.map_err(text).and_then(|_| retained.table.compare(&retained.object))
            }
        };
        outcome.map_err(|fault| format!("node {}, {}: {fault}", self.number, retained.primary))
    }

    fn check_place(&self, retained: &RetainedTable, array: &ArrayData) -> StepResult<()> {
        let nulls = array.nulls().map(|nulls| nulls.buffer());
        for buffer in array.buffers().iter().chain(nulls) {
            let is_in_place =
                retained.locate(&self.region, buffer.as_ptr(), buffer.len()).is_some();
            if !is_in_place && !buffer.is_empty() && !array.is_empty() {
                return Err(format!("{} B of {} were copied", buffer.len(), retained.primary));
            }
        }
        array.child_data().iter().try_for_each(|child| self.check_place(retained, child))
    }

    /// Checks that held tables are unchanged.
    pub fn look_again(&self, world: &mut ReadersWorld) -> StepResult<()> {
        self.retained.iter().try_for_each(|retained| self.check(world, retained))
    }

    fn let_go(&mut self, world: &mut ReadersWorld) -> StepResult<()> {
        if self.retained.is_empty() {
            return Ok(());
        }
        let index = world.random.below(self.retained.len() as u64) as usize;
        let retained = self.retained.swap_remove(index);
        self.check(world, &retained)?;
        drop(retained);
        world.home.reclaim().map(drop).map_err(text)
    }

    fn delete(world: &mut ReadersWorld) -> StepResult<()> {
        let Some(known) = world.any_live() else { return Ok(()) };
        world.live.retain(|other| other.id != known.id);
        world.home.delete(Target::Id(known.id)).map(drop).map_err(text)
    }

    /// Runs the daemon's periodic work.
    fn keep_house(world: &mut ReadersWorld) -> StepResult<()> {
        world.home.register_all().map_err(text)?;
        world.home.reclaim().map_err(text)?;
        world.home.check()
    }

    /// Ends the client in good order.
    pub fn leave(mut self, world: &mut ReadersWorld) -> StepResult<()> {
        self.look_again(world)?;
        self.retained.clear();
        self.draft = None;
        self.give_back(world)?;
        let written = world.home.writable_by(self.slot);
        clean(&self.region, &written).map_err(text)?;
        world.home.client_leave(self.slot).map(drop).map_err(text)
    }
}
