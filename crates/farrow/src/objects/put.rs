//! Writes a value of this process to memory and seals it.
//!
//! Buffers that are already in the region stay in place; everything else is copied once, straight
//! to its place. The client itself seals an object without a name and of one block. Every other
//! object is sealed with one message to the node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_arrow::{CopySource, DescriptorStamp, Plan};
use farrow_memory::{
    Address, Length, Offset, Retired, Span, are_maps_scarce, check_maps, page_bytes,
};
use farrow_store::{ObjectId, encode_extra};
use farrow_wire::{EXTRA_BLOCKS_MAX, SealItem};

use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::arena::SMALL_BYTES_MAX;
use crate::memory::background;
use crate::memory::extents::SealTicket;
use crate::memory::room::{self, Demand};
use crate::objects::local;
use crate::objects::name_claim::NameClaim;
use crate::objects::object_reservation::ObjectReservation;
use crate::objects::seal::{self, Sealed, Unsealed};
use crate::objects::write_batch::WriteBatch;
use crate::options::ObjectOptions;
use crate::spans::wire_span;
use crate::value::Value;

/// An object that is written and not yet sealed.
pub(crate) struct WrittenObject {
    pub(crate) item: SealItem,
    primary: Span,
    is_small: bool,
    /// Buffers of the pool that become part of the object.
    pool_pages: Vec<Span>,
    /// The old page tables of these buffers.
    pub(crate) retired: Retired,
    reservation: ObjectReservation,
    claim: NameClaim,
    /// Set once the node was asked to seal the object.
    ticket: Option<SealTicket>,
}

impl WrittenObject {
    fn new(mut item: SealItem, primary: Span, is_small: bool, prepared: Prepared) -> Self {
        let Prepared { reservation, claim, .. } = prepared;
        item.is_reserved_object = reservation.is_there();
        item.is_reserved = claim.is_there();
        let retired = Retired::default();
        let (pool_pages, ticket) = (Vec::new(), None);
        Self { item, primary, is_small, pool_pages, retired, reservation, claim, ticket }
    }

    /// Records that the node is about to be asked to seal the object.
    pub(crate) fn ask(&mut self, session: &Session) {
        self.ticket = Some(session.extents.asked(self.primary));
    }

    /// The node is to count the object among the reserved ones.
    pub(crate) fn reserve(&mut self, reservation: ObjectReservation) {
        self.item.is_reserved_object = reservation.is_there();
        self.reservation = reservation;
    }

    /// The object written by [`write_plain`].
    pub(crate) fn small_bytes(primary: Span, size: Length) -> Self {
        let item = SealItem::bytes(wire_span(primary), size.0);
        Self::new(item, primary, true, Prepared::default())
    }
}

/// Where memory maps are scarce, pool buffers below this size are copied, as small objects are.
const COPIED_BYTES_MAX: u64 = SMALL_BYTES_MAX;

/// Resources acquired for an object before it is written.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) reservation: ObjectReservation,
    pub(crate) claim: NameClaim,
    pub(crate) place: ObjectPlacement,
}

/// Where an object is placed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum ObjectPlacement {
    /// Anywhere; if no memory is free, other objects are evicted.
    #[default]
    Any,
    /// In free memory only.
    Free,
    /// In this range. A small object shares its pages with others.
    At { span: Span, is_small: bool },
}

impl From<ObjectReservation> for Prepared {
    fn from(reservation: ObjectReservation) -> Self {
        Self { reservation, ..Self::default() }
    }
}

/// A value that has a descriptor, and the layout of its block.
struct Measured {
    plan: Plan,
    /// Buffers of the pool that become part of the object.
    pool_pages: Vec<Span>,
    extra: Vec<Span>,
    list: Vec<u8>,
    descriptor_at: u64,
    list_at: u64,
    total: u64,
}

impl Measured {
    /// `taken`: pool buffers that become part of another object before, and have to be copied.
    fn new(session: &Session, value: &Value<'_>, taken: &BTreeSet<u64>) -> Result<Self, Error> {
        let (plan, in_place) = plan_of(session, value, taken)?;
        let pool_pages = sorted(in_place.pool);
        let extra = sorted(in_place.sealed.into_iter().chain(pool_pages.iter().copied()).collect());
        let list = encode_extra(&extra);
        // Copies first, at the block's start, then the descriptor, then the list of blocks.
        let descriptor_at = plan.copy_bytes().next_multiple_of(8);
        let list_at = (descriptor_at + plan.descriptor_bytes()).next_multiple_of(8);
        let total = list_at + list.len() as u64;
        Ok(Self { plan, pool_pages, extra, list, descriptor_at, list_at, total })
    }
}

/// Bytes of the block that a value would need after the values before it. `taken` has the offsets of
/// the pool buffers that become part of those.
pub(crate) fn block_bytes(
    session: &Session,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
    taken: &mut BTreeSet<u64>,
) -> Result<u64, Error> {
    let total = match value {
        Value::Bytes(bytes) => bytes.len() as u64,
        value => {
            let measured = Measured::new(session, value, taken)?;
            taken.extend(measured.pool_pages.iter().map(|pages| pages.offset.0));
            measured.total
        }
    };
    Ok(with_metadata(total, &options.encoded_metadata()))
}

/// Blocks that an object refers to in place, found while its buffers are walked.
#[derive(Default)]
pub(crate) struct InPlace<'a> {
    /// Buffers of the pool that are part of another object by then.
    taken: Option<&'a BTreeSet<u64>>,
    /// Buffers of the pool, live.
    pool: Vec<Span>,
    /// Blocks of sealed objects.
    sealed: Vec<Span>,
}

impl<'a> InPlace<'a> {
    fn beside(taken: &'a BTreeSet<u64>) -> Self {
        Self { taken: Some(taken), ..Self::default() }
    }

    fn is_taken(&self, pages: Span) -> bool {
        self.taken.is_some_and(|taken| taken.contains(&pages.offset.0))
    }

    /// Offset of the bytes if they may stay where they are.
    pub(crate) fn locate(
        &mut self,
        session: &Session,
        pointer: *const u8,
        length: usize,
    ) -> Option<u64> {
        // A page is the unit of protection, and a small buffer should not keep a large block alive.
        if (length as u64) < page_bytes() {
            return None;
        }
        let offset = session.region.offset_of(Address(pointer as usize))?;
        let span = Span { offset, length: Length(length as u64) };
        session.region.check(span).ok()?;
        match session.pool.find(span) {
            Some((pages, false)) if self.is_taken(pages) => return None,
            // A copy needs no map of its own, and copying a small buffer is quicker anyway.
            Some((pages, false)) if pages.length.0 < COPIED_BYTES_MAX && are_maps_scarce() => {
                return None;
            }
            Some((_, false)) if check_maps().is_err() => return None,
            Some((pages, false)) => remember(&mut self.pool, pages),
            Some((pages, true)) => remember(&mut self.sealed, pages),
            None => remember(&mut self.sealed, session.blocks.find(span)?),
        }
        Some(offset.0)
    }

    /// All blocks, in order.
    pub(crate) fn into_spans(self) -> Vec<Span> {
        sorted(self.sealed.into_iter().chain(self.pool).collect())
    }
}

fn remember(spans: &mut Vec<Span>, span: Span) {
    // Buffers mostly arrive in order; other duplicates are removed at the end.
    if spans.last() != Some(&span) {
        spans.push(span);
    }
}

fn sorted(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.offset);
    spans.dedup();
    spans
}

pub(crate) fn put(
    session: &Arc<Session>,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
) -> Result<ObjectId, Error> {
    session.check_process()?;
    // Reading the clock would take a twentieth of a small put.
    let since = (!options.wait.is_zero()).then(Instant::now);
    let (reservation, wait) = ObjectReservation::take_to_wait(session, 1, options.wait)?;
    let own = ObjectOptions { wait, ..*options };
    let small = &mut WriteBatch::nothing(session);
    let plain = match write_plain(session, value, &own, small) {
        // No free memory: `write` below makes room.
        Err(error) if room::is_short(&error) => None,
        plain => plain?,
    };
    let mut written = match plain {
        Some((primary, size)) => {
            if let Some(id) = local::Sealer::new(session).bytes(primary, size) {
                return Ok(id);
            }
            WrittenObject::small_bytes(primary, size)
        }
        None => write(session, value, &own, reservation.into(), small)?,
    };
    if plain.is_none()
        && let Some(id) = local::seal(session, &written.item)
    {
        return Ok(id);
    }
    let sealing = written.item.is_held_by_creator.then(|| session.sealing());
    let waited = since.map_or(Duration::ZERO, |since| since.elapsed());
    let deadline = deadline_after(options.wait.saturating_sub(waited));
    written.ask(session);
    let result = seal_until(session, &written.item, deadline);
    if !settle(session, &mut written, &result)
        && let Some(sealing) = sealing
    {
        sealing.never_ends();
    }
    background::take_down(written.retired);
    Ok(result?)
}

/// Seals a written object. If the directory is full, waits for room in it until the deadline.
fn seal_until(session: &Arc<Session>, item: &SealItem, deadline: Instant) -> Sealed {
    loop {
        let result = seal::one(session, item.clone());
        let wait = deadline.saturating_duration_since(Instant::now());
        let is_short = |no: &Unsealed| room::is_entry_short(&no.error);
        if wait.is_zero() || !result.as_ref().err().is_some_and(is_short) {
            return result;
        }
        let demand = Demand::new(1, item.name.as_deref().into_iter(), wait);
        // A seal that failed for lack of room has a known outcome.
        room::ask(session, Vec::new(), 0, Some(&demand))
            .map_err(|error| Unsealed { error, is_unknown: false })?;
    }
}

/// Writes a value to its place, at the latest when the small writes are flushed. Then only the seal
/// is missing.
pub(crate) fn write(
    session: &Arc<Session>,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
    mut prepared: Prepared,
    small: &mut WriteBatch<'_>,
) -> Result<WrittenObject, Error> {
    let metadata = options.encoded_metadata();
    if let Value::Bytes(bytes) = value {
        return write_bytes(session, bytes, options, prepared, small);
    }
    let measured = Measured::new(session, value, &BTreeSet::new());
    let measured = measured.inspect_err(|_| give_back(session, prepared.place))?;
    let Measured { plan, pool_pages, extra, list, descriptor_at, list_at, total } = measured;
    let total_bytes = with_metadata(total, &metadata);
    let (primary, is_small) = take(session, total_bytes, options, &mut prepared)?;
    let base = primary.offset.0;
    let uid = session.region_uid();
    let descriptor = plan.descriptor(DescriptorStamp { region: uid, epoch: 0 }, base);
    let item = SealItem {
        // Descriptors and the directory number the kinds alike.
        kind: plan.kind() as u8,
        primary: wire_span(primary),
        descriptor: (base + descriptor_at, descriptor.len() as u64),
        descriptor_crc: crc32c::crc32c(&descriptor),
        extra: extra.iter().copied().map(wire_span).collect(),
        extra_crc: crc32c::crc32c(&list),
        size: plan.data_bytes(),
        metadata_bytes: metadata.len() as u32,
        metadata_crc: crc32c::crc32c(&metadata),
        name: options.name.map(str::to_owned),
        is_reserved: false,
        is_reserved_object: false,
        is_held_by_creator: !pool_pages.is_empty(),
        is_staged: false,
        lease_ms: 0,
        is_replacing: options.replace && options.name.is_some(),
    };
    let mut tail = vec![0; (total - descriptor_at) as usize];
    if let Some(place) = tail.get_mut(..descriptor.len()) {
        place.copy_from_slice(&descriptor);
    }
    if let Some(place) = tail.get_mut((list_at - descriptor_at) as usize..) {
        place.copy_from_slice(&list);
    }
    let mut written = WrittenObject::new(item, primary, is_small, prepared);
    let tail = BlockTail { offset: descriptor_at, bytes: &tail };
    let filled = fill(session, &written, &plan, tail, small)
        .and_then(|()| write_metadata(small, primary, &metadata))
        .and_then(|()| session.pool.begin_seal(session, &pool_pages, &mut written.retired));
    if let Err(error) = filled {
        abandon(session, &mut written, false);
        return Err(error);
    }
    written.pool_pages = pool_pages;
    Ok(written)
}

/// As [`write`], for small plain bytes with neither name nor metadata: the block and the length.
/// `None` for any other value.
pub(crate) fn write_plain(
    session: &Session,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
    small: &mut WriteBatch<'_>,
) -> Result<Option<(Span, Length)>, Error> {
    let Value::Bytes(bytes) = value else {
        return Ok(None);
    };
    let size = bytes.len() as u64;
    let is_bare = options.name.is_none() && options.metadata.is_none() && options.wait.is_zero();
    if !is_bare || size > SMALL_BYTES_MAX {
        return Ok(None);
    }
    let primary = session.arena.take(session, size)?;
    if let Err(error) = small.write(primary.offset, bytes) {
        session.arena.untake(session, primary);
        return Err(error);
    }
    Ok(Some((primary, Length(size))))
}

fn plan_of<'a>(
    session: &Session,
    value: &Value<'_>,
    taken: &'a BTreeSet<u64>,
) -> Result<(Plan, InPlace<'a>), Error> {
    let mut in_place = InPlace::beside(taken);
    let mut locate = |pointer: *const u8, length: usize| in_place.locate(session, pointer, length);
    let plan = describe(value, &mut locate)?;
    if in_place.pool.len() + in_place.sealed.len() > EXTRA_BLOCKS_MAX {
        let all = sorted(in_place.pool.iter().chain(&in_place.sealed).copied().collect());
        if all.len() > EXTRA_BLOCKS_MAX {
            // Too many blocks for one object: if copied, the buffers need only one.
            return Ok((describe(value, &mut |_, _| None)?, InPlace::beside(taken)));
        }
    }
    Ok((plan, in_place))
}

pub(crate) fn describe(
    value: &Value<'_>,
    locate: &mut dyn FnMut(*const u8, usize) -> Option<u64>,
) -> Result<Plan, Error> {
    Ok(match value {
        Value::Bytes(_) => return Err(Error::InvalidArgument("bytes have no descriptor".into())),
        Value::NdArray { shape, data } => Plan::ndarray(shape, data, locate)?,
        Value::Array { field, data } => Plan::array(field, data, locate)?,
        Value::ChunkedArray { field, chunks } => Plan::chunked_array(field, chunks, locate)?,
        Value::RecordBatch { schema, batch } => Plan::record_batch(schema, batch, locate)?,
        Value::Table { schema, batches } => Plan::table(schema, batches, locate)?,
    })
}

fn write_bytes(
    session: &Arc<Session>,
    bytes: &[u8],
    options: &ObjectOptions<'_>,
    mut prepared: Prepared,
    small: &mut WriteBatch<'_>,
) -> Result<WrittenObject, Error> {
    let metadata = options.encoded_metadata();
    let total = bytes.len() as u64;
    let with_metadata = with_metadata(total, &metadata);
    let (primary, is_small) = take(session, with_metadata, options, &mut prepared)?;
    let item = SealItem {
        name: options.name.map(str::to_owned),
        metadata_bytes: metadata.len() as u32,
        metadata_crc: crc32c::crc32c(&metadata),
        is_replacing: options.replace && options.name.is_some(),
        ..SealItem::bytes(wire_span(primary), total)
    };
    let mut written = WrittenObject::new(item, primary, is_small, prepared);
    let copied = if is_small {
        small.write(primary.offset, bytes)
    } else {
        session.region.alias(primary).map_err(Error::from).and_then(|alias| {
            alias.write_fresh(primary.offset, bytes)?;
            background::unmap(alias);
            Ok(())
        })
    };
    match copied.and_then(|()| write_metadata(small, primary, &metadata)) {
        Ok(()) => Ok(written),
        Err(error) => {
            abandon(session, &mut written, false);
            Err(error)
        }
    }
}

/// Memory for `total` bytes, and whether it shares its pages.
fn take(
    session: &Arc<Session>,
    total: u64,
    options: &ObjectOptions<'_>,
    prepared: &mut Prepared,
) -> Result<(Span, bool), Error> {
    if let ObjectPlacement::At { span, is_small } = prepared.place {
        if span.length.0 >= total {
            return Ok((span, is_small));
        }
        // Another thread puts a buffer of it, which is copied therefore.
        give_back(session, std::mem::take(&mut prepared.place));
    }
    let is_small = total <= SMALL_BYTES_MAX;
    let taken = match is_small {
        true => session.arena.take(session, total),
        false => session.extents.take(session, total),
    };
    match taken {
        Err(error) if room::is_short(&error) && matches!(prepared.place, ObjectPlacement::Any) => {}
        taken => return Ok((taken?, is_small)),
    }
    // No object is evicted for a new object whose name is taken.
    let name = options.name_to_reserve().into_iter().collect();
    prepared.claim = NameClaim::take(session, name)?;
    let demand = Demand::new(1, options.name.into_iter(), options.wait);
    if is_small && options.wait.is_zero() {
        return session.arena.make(session, total, &demand).map(|span| (span, true));
    }
    // Pages of its own: a wait inside the arena would block other threads.
    let made = session.extents.make(session, &[total], &demand)?;
    Ok((made.first().copied().unwrap_or_default(), false))
}

/// Gives back memory that was not written to.
pub(crate) fn give_back(session: &Session, place: ObjectPlacement) {
    match place {
        ObjectPlacement::At { span, is_small: true } => session.extents.give_lines(session, span),
        ObjectPlacement::At { span, is_small: false } => session.extents.give(session, span),
        ObjectPlacement::Any | ObjectPlacement::Free => {}
    }
}

/// Bytes of a block with `total` bytes of content and metadata at its end.
pub(crate) fn with_metadata(total: u64, metadata: &[u8]) -> u64 {
    if metadata.is_empty() {
        return total;
    }
    // A size that no region has is refused where memory is taken.
    let metadata = (metadata.len() as u64).next_multiple_of(8);
    let all = total.checked_next_multiple_of(8).and_then(|total| total.checked_add(metadata));
    all.unwrap_or(u64::MAX)
}

/// Writes metadata to the end of its block.
fn write_metadata(small: &mut WriteBatch<'_>, primary: Span, metadata: &[u8]) -> Result<(), Error> {
    if metadata.is_empty() {
        return Ok(());
    }
    small.write(metadata_offset(primary, metadata), metadata)
}

/// The offset of the metadata in its block.
pub(crate) fn metadata_offset(primary: Span, metadata: &[u8]) -> Offset {
    let end = primary.offset.0 + primary.length.0;
    Offset(end - (metadata.len() as u64).next_multiple_of(8))
}

/// The end of a block: the descriptor and the block list, behind the buffers.
struct BlockTail<'a> {
    /// Its offset in the block.
    offset: u64,
    bytes: &'a [u8],
}

/// Copies the buffers and writes the descriptor and the block list behind them.
fn fill(
    session: &Session,
    written: &WrittenObject,
    plan: &Plan,
    tail: BlockTail<'_>,
    small: &mut WriteBatch<'_>,
) -> Result<(), Error> {
    let base = written.primary.offset.0;
    if written.is_small {
        let mut bytes = vec![0; tail.offset as usize + tail.bytes.len()];
        plan.write_copies(&mut bytes)?;
        if let Some(place) = bytes.get_mut(tail.offset as usize..) {
            place.copy_from_slice(tail.bytes);
        }
        return small.write(written.primary.offset, &bytes);
    }
    let alias = session.region.alias(written.primary)?;
    let mut rewritten = Vec::new();
    for copy in plan.copies() {
        let offset = Offset(base + copy.offset);
        if let CopySource::Bytes(bytes) = copy.source {
            alias.write_fresh(offset, bytes)?;
        } else {
            rewritten.resize(copy.length as usize, 0);
            copy.fill(&mut rewritten);
            alias.write_published(offset, &rewritten)?;
        }
    }
    alias.write_published(Offset(base + tail.offset), tail.bytes)?;
    background::unmap(alias);
    Ok(())
}

/// Replaces the metadata of a written and unsealed object by metadata of the same length.
pub(crate) fn relabel(
    session: &Session,
    written: &mut WrittenObject,
    metadata: &[u8],
) -> Result<(), Error> {
    if metadata.len() as u64 != u64::from(written.item.metadata_bytes) {
        let had = written.item.metadata_bytes;
        let text = format!("metadata of {} B in the place of {had} B", metadata.len());
        return Err(Error::InvalidArgument(text));
    }
    write_metadata(&mut WriteBatch::nothing(session), written.primary, metadata)?;
    written.item.metadata_crc = crc32c::crc32c(metadata);
    Ok(())
}

/// Records the node's answer: the memory belongs to the object, to this client again, or the
/// outcome is unknown.
/// False: the object may be sealed, and its bytes in the pool are in use without a hold.
pub(crate) fn settle(session: &Arc<Session>, written: &mut WrittenObject, result: &Sealed) -> bool {
    let id = match result {
        Ok(id) => *id,
        Err(no) => {
            abandon(session, written, no.is_unknown);
            return !no.is_unknown || written.pool_pages.is_empty();
        }
    };
    written.reservation.used(1);
    written.claim.sealed();
    if let Some(ticket) = written.ticket {
        session.extents.sealed(ticket);
    }
    if written.pool_pages.is_empty() {
        return true;
    }
    // Each buffer holds the object until Arrow frees it, so that the source table stays valid even
    // if the object is deleted.
    match session.hold_sealed(id) {
        Ok(held) => {
            session.pool.commit_seal(&written.pool_pages, &held);
            true
        }
        // The buffers stay read-only and are never reused, which is safe.
        Err(error) => {
            tracing::error!(%error, %id, "a sealed object cannot be held");
            false
        }
    }
}

pub(crate) fn abandon(session: &Arc<Session>, written: &mut WrittenObject, is_unknown: bool) {
    // In a forked child the memory belongs to the parent.
    if !session.is_own_process() {
        return;
    }
    if is_unknown {
        written.reservation.used(1);
        // The object may be sealed: the buffers of the pool stay read-only as well.
        if let Some(ticket) = written.ticket {
            session.extents.in_limbo(session, ticket);
        }
        return;
    }
    if let Some(ticket) = written.ticket {
        session.extents.refused(ticket);
    }
    session.pool.abort_seal(session, &written.pool_pages);
    if written.is_small {
        session.arena.untake(session, written.primary);
    } else {
        session.extents.give(session, written.primary);
    }
}
