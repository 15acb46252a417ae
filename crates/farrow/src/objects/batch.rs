//! Many objects with at most one message.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{Length, Span};
use farrow_store::ObjectId;
use farrow_wire::{BATCH_ITEMS_MAX, SealItem, WireError};

use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;
use crate::memory::arena::{SMALL_BYTES_MAX, lines};
use crate::memory::room::{self, Demand};
use crate::objects::block::block_bytes;
use crate::objects::local;
use crate::objects::name_claim::NameClaim;
use crate::objects::object_reservation::{ObjectReservation, rest_of};
use crate::objects::put::{write, write_plain};
use crate::objects::seal;
use crate::objects::write_batch::WriteBatch;
use crate::objects::writer::Writer;
use crate::objects::written::{
    ObjectPlacement, Prepared, WrittenObject, abandon, give_back, leave_unanswered, settle,
};
use crate::options::ObjectOptions;
use crate::value::Value;

/// Puts several values. Objects that the client cannot seal by itself are sealed with one message
/// for each 8192 of them. If one fails, all are deleted.
pub(crate) fn put_many(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<Vec<ObjectId>, Error> {
    session.check()?;
    let mut ids = Vec::with_capacity(values.len());
    for batch in values.chunks(BATCH_ITEMS_MAX) {
        match put_batch(session, batch) {
            Ok(sealed) => ids.extend(sealed),
            Err(error) => {
                take_back(session, &ids);
                return Err(error);
            }
        }
    }
    Ok(ids)
}

/// Deletes the objects that were sealed before another object of the set failed.
fn take_back(session: &Arc<Session>, ids: &[ObjectId]) {
    let targets: Vec<ObjectKey> = ids.iter().map(|id| (*id).into()).collect();
    // The first failure is the one to report.
    let _ = crate::objects::delete::delete(session, &targets);
}

/// A written object of a batch.
enum WrittenItem {
    /// Plain bytes without a name, the common case: the block and the length.
    Plain(Span, Length),
    Whole(Box<WrittenObject>),
}

impl WrittenItem {
    fn written(self) -> WrittenObject {
        match self {
            Self::Plain(primary, size) => WrittenObject::small_bytes(primary, size),
            Self::Whole(written) => *written,
        }
    }
}

fn put_batch(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<Vec<ObjectId>, Error> {
    let (made, mut reservation) = write_batch(session, values)?;
    let sealer = local::Sealer::new(session);
    let mut own: Vec<Option<ObjectId>> = Vec::with_capacity(made.len());
    let mut left: Vec<WrittenObject> = Vec::new();
    for one in made {
        let id = match &one {
            WrittenItem::Plain(primary, size) => sealer.bytes(*primary, *size),
            WrittenItem::Whole(written) => sealer.item(&written.item),
        };
        own.push(id);
        if id.is_none() {
            let mut written = one.written();
            written.reserve(reservation.split_one());
            left.push(written);
        }
    }
    if left.is_empty() {
        return Ok(own.into_iter().flatten().collect());
    }
    seal_left(session, own, left)
}

/// Writes all values: to free memory or, if that is too small, to memory that is made free for all
/// of them at once. Also returns the reservation for all of them.
fn write_batch(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<(Vec<WrittenItem>, ObjectReservation), Error> {
    let wait = longest_wait(values.iter().map(|(_, options)| options));
    let (reservation, wait) = ObjectReservation::take_to_wait(session, values.len(), wait)?;
    let mut small = WriteBatch::neighbours(session);
    let mut made: Vec<WrittenItem> = Vec::with_capacity(values.len());
    let done = values.iter().try_for_each(|(value, options)| {
        made.push(match write_plain(session, value, options, &mut small)? {
            Some((primary, size)) => WrittenItem::Plain(primary, size),
            None => {
                let own = Prepared { place: ObjectPlacement::Free, ..Prepared::default() };
                WrittenItem::Whole(Box::new(write(session, value, options, own, &mut small)?))
            }
        });
        Ok(())
    });
    let error = match done.and_then(|()| small.flush()) {
        Ok(()) => return Ok((made, reservation)),
        Err(error) => error,
    };
    drop(small);
    made.into_iter().for_each(|one| abandon(session, &mut one.written()));
    if !room::is_short(&error) {
        return Err(error);
    }
    let (mut places, mut claim) = places_for(session, values, wait)?;
    let mut small = WriteBatch::neighbours(session);
    let mut made: Vec<WrittenItem> = Vec::with_capacity(values.len());
    let done = values.iter().try_for_each(|(value, options)| {
        let place = places.pop_front().unwrap_or(ObjectPlacement::Free);
        let claim = claim.split(options.name);
        let own = Prepared { claim, place, ..Prepared::default() };
        made.push(WrittenItem::Whole(Box::new(write(session, value, options, own, &mut small)?)));
        Ok(())
    });
    let done = done.and_then(|()| small.flush());
    drop(small);
    places.into_iter().for_each(|place| give_back(session, place));
    if done.is_err() {
        made.drain(..).for_each(|one| abandon(session, &mut one.written()));
    }
    done.map(|()| (made, reservation))
}

/// Memory for each value, and the claim on their names. If free memory is too small, other objects
/// are evicted, provided that all values then fit.
fn places_for(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
    wait: Duration,
) -> Result<(VecDeque<ObjectPlacement>, NameClaim), Error> {
    let mut taken = BTreeSet::new();
    let sizes =
        values.iter().map(|(value, options)| block_bytes(session, value, options, &mut taken));
    let sizes: Vec<u64> = sizes.collect::<Result<_, _>>()?;
    let names = || values.iter().filter_map(|(_, options)| options.name);
    let reserved = values.iter().filter_map(|(_, options)| options.name_to_reserve());
    let claim = NameClaim::take(session, reserved.collect())?;
    let is_small = |size: &u64| *size <= SMALL_BYTES_MAX;
    let small: u64 = sizes.iter().filter(|size| is_small(size)).map(|size| lines(*size)).sum();
    let large = sizes.iter().copied().filter(|size| !is_small(size));
    let ranges: Vec<u64> = large.chain((small > 0).then_some(small)).collect();
    let demand = Demand::new(values.len(), names(), wait);
    let mut made = VecDeque::from(session.extents.make(&**session, &ranges, &demand)?);
    // Small values share the last range.
    let mut shared = if small > 0 { made.pop_back().unwrap_or_default() } else { Span::default() };
    let place = |size: &u64| match is_small(size) {
        true => {
            let span = Span { offset: shared.offset, length: Length(lines(*size)) };
            shared.offset.0 += span.length.0;
            shared.length.0 = shared.length.0.saturating_sub(span.length.0);
            ObjectPlacement::At { span, is_small: true }
        }
        false => {
            ObjectPlacement::At { span: made.pop_front().unwrap_or_default(), is_small: false }
        }
    };
    let places = sizes.iter().map(place).collect();
    session.extents.give_lines(&**session, shared);
    Ok((places, claim))
}

/// Seals the objects that this client cannot seal by itself, with one message: those with no id in
/// `own`, in order.
fn seal_left(
    session: &Arc<Session>,
    own: Vec<Option<ObjectId>>,
    mut left: Vec<WrittenObject>,
) -> Result<Vec<ObjectId>, Error> {
    let items: Vec<SealItem> = left.iter().map(|one| one.item.clone()).collect();
    let sealing = items.iter().any(|item| item.is_held_by_creator).then(|| session.sealing());
    left.iter_mut().for_each(|one| one.ask(session));
    let results = match seal::many(session, items) {
        Ok(results) => results,
        Err(unsealed) => {
            let error = if unsealed.is_unknown {
                leave_unanswered(session, left, unsealed, sealing.as_ref())
            } else {
                left.iter_mut().for_each(|one| abandon(session, one));
                unsealed.error
            };
            take_back(session, &own.into_iter().flatten().collect::<Vec<_>>());
            return Err(error);
        }
    };
    let mut results = left.into_iter().zip(results);
    let mut ids = Vec::with_capacity(own.len());
    let mut first_error = None;
    for own in own {
        let result = match own {
            Some(id) => Ok(id),
            None => match results.next() {
                Some((one, result)) => settle(session, one, result, sealing.as_ref()),
                None => Err(WireError::Closing.into()),
            },
        };
        match result {
            Ok(id) => ids.push(id),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    match first_error {
        None => Ok(ids),
        Some(error) => {
            take_back(session, &ids);
            Err(error)
        }
    }
}

fn longest_wait<'a>(all: impl Iterator<Item = &'a ObjectOptions<'a>>) -> Duration {
    all.map(|options| options.wait).max().unwrap_or_default()
}

/// Memory for several objects, all or none. The names are reserved with one message, and at most
/// one grant is requested.
pub(crate) fn create_many(
    session: &Arc<Session>,
    objects: &[(u64, ObjectOptions<'_>)],
) -> Result<Vec<Writer>, Error> {
    session.check()?;
    let names: Vec<String> =
        objects.iter().filter_map(|(_, options)| options.name_to_reserve()).collect();
    if objects.len() > BATCH_ITEMS_MAX {
        let what = "objects created at once".into();
        return Err(Error::TooMany { what, max: BATCH_ITEMS_MAX as u64 });
    }
    session.reservations.take(&**session, names.clone())?;
    let wait = longest_wait(objects.iter().map(|(_, options)| options));
    let since = Instant::now();
    let made = ObjectReservation::take(session, objects.len(), wait).and_then(|mut reservation| {
        let sizes = objects.iter().map(|(bytes, options)| Writer::block_bytes(*bytes, options));
        let wait = rest_of(wait, since.elapsed());
        let sizes: Vec<u64> = sizes.collect();
        let demand = Demand::new(objects.len(), names.iter().map(String::as_str), wait);
        let spans = session.pool.extents().take_or_make(&**session, &sizes, &demand)?;
        let made: Vec<_> = spans
            .into_iter()
            .zip(objects)
            .map(|(pages, (bytes, options))| {
                Writer::over(session, pages, *bytes, options, reservation.split_one())
            })
            .collect();
        made.into_iter().collect::<Result<Vec<Writer>, Error>>()
    });
    if made.is_err() {
        session.reservations.give(&**session, names);
    }
    made
}
