//! Writes a value of this process to memory and seals it.
//!
//! Buffers that are already in the region stay in place; everything else is copied once, straight
//! to its place. The client itself seals an object without a name and of one block. Every other
//! object is sealed with one message to the node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_arrow::{CopySource, DescriptorStamp, Plan};
use farrow_memory::{Length, Offset, Span};
use farrow_store::ObjectId;
use farrow_wire::{SealItem, wire_span};

use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::arena::SMALL_BYTES_MAX;
use crate::memory::background;
use crate::memory::room::{self, Demand};
use crate::objects::block::{MeasuredValue, with_metadata};
use crate::objects::local;
use crate::objects::name_claim::NameClaim;
use crate::objects::object_reservation::ObjectReservation;
use crate::objects::seal::{self, Sealed, Unsealed};
use crate::objects::table_statistics::{STATISTICS_KEY, TableCount, without_statistics};
use crate::objects::write_batch::WriteBatch;
use crate::objects::written::{
    ObjectPlacement, Prepared, WrittenObject, abandon, give_back, relabel, settle, write_metadata,
};
use crate::options::ObjectOptions;
use crate::statistics::count_within;
use crate::value::Value;

pub(crate) fn put(
    session: &Arc<Session>,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
) -> Result<ObjectId, Error> {
    session.check()?;
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
    let sealed = seal_until(session, &written.item, deadline);
    settle(session, written, sealed, sealing.as_ref())
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
        room::ask(&**session, Vec::new(), 0, Some(&demand)).map_err(Unsealed::known)?;
    }
}

/// Writes a value to its place, at the latest when the small writes are flushed. Then only the seal
/// is missing.
pub(crate) fn write(
    session: &Arc<Session>,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
    prepared: Prepared,
    small: &mut WriteBatch<'_>,
) -> Result<WrittenObject, Error> {
    let Some(count) = TableCount::new(value, options) else {
        if options.metadata.is_none_or(|metadata| metadata.get(STATISTICS_KEY).is_none()) {
            return write_value(session, value, options, prepared, small);
        }
        let metadata = without_statistics(options.metadata);
        let own = ObjectOptions { metadata: Some(&metadata), ..*options };
        return write_value(session, value, &own, prepared, small);
    };
    let zero = count.placeholder().inspect_err(|_| give_back(session, prepared.place))?;
    let own = ObjectOptions { metadata: Some(&zero), ..*options };
    let counting = count.counting();
    let mut written = count_within(&counting, |after| {
        // Writes at once: the statistics replace the zeros.
        let small = &mut WriteBatch::seen(session, after);
        write_value(session, value, &own, prepared, small)
    })?;
    let metadata = count.finish(&counting);
    match metadata.and_then(|metadata| relabel(session, &mut written, &metadata.encode())) {
        Ok(()) => Ok(written),
        Err(error) => {
            abandon(session, &mut written);
            Err(error)
        }
    }
}

/// As [`write`], without statistics.
fn write_value(
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
    let measured = MeasuredValue::new(session, value, &BTreeSet::new());
    let measured = measured.inspect_err(|_| give_back(session, prepared.place))?;
    let MeasuredValue { plan, pool_pages, extra, list, descriptor_at, list_at, total } = measured;
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
        .and_then(|()| session.pool.begin_seal(&**session, &pool_pages, &mut written.retired));
    match filled {
        Ok(pool) => {
            written.pool = pool;
            Ok(written)
        }
        Err(error) => {
            abandon(session, &mut written);
            Err(error)
        }
    }
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
    let primary = session.arena.take(session, &session.extents, size)?;
    if let Err(error) = small.write(primary.offset, bytes) {
        session.arena.untake(session, &session.extents, primary);
        return Err(error);
    }
    Ok(Some((primary, Length(size))))
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
            alias.write_fresh(primary.offset, bytes, None)?;
            background::unmap(alias);
            Ok(())
        })
    };
    match copied.and_then(|()| write_metadata(small, primary, &metadata)) {
        Ok(()) => Ok(written),
        Err(error) => {
            abandon(session, &mut written);
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
        true => session.arena.take(&**session, &session.extents, total),
        false => session.extents.take(&**session, total),
    };
    match (taken, prepared.place) {
        (Err(error), ObjectPlacement::Any | ObjectPlacement::Transit) if room::is_short(&error) => {
        }
        (Err(Error::NodeDraining { .. }), ObjectPlacement::Transit) => {
            let demand = Demand::transit(options.wait);
            let made = session.extents.make(&**session, &[total], &demand)?;
            return Ok((made.first().copied().unwrap_or_default(), false));
        }
        (taken, _) => return Ok((taken?, is_small)),
    }
    // No object is evicted for a new object whose name is taken.
    let name = options.name_to_reserve().into_iter().collect();
    prepared.claim = NameClaim::take(session, name)?;
    let demand = Demand::new(1, options.name.into_iter(), options.wait);
    if is_small && options.wait.is_zero() {
        return session
            .arena
            .make(&**session, &session.extents, total, &demand)
            .map(|span| (span, true));
    }
    // Pages of its own: a wait inside the arena would block other threads.
    let made = session.extents.make(&**session, &[total], &demand)?;
    Ok((made.first().copied().unwrap_or_default(), false))
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
            alias.write_fresh(offset, bytes, small.after())?;
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
