//! Many objects for one message at most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_cluster::wire::{BATCH_ITEMS_MAX, SealItem, WireError};
use farrow_memory::{Length, Span};
use farrow_store::ObjectId;

use crate::background;
use crate::client::Target;
use crate::error::Error;
use crate::gather::Gather;
use crate::local;
use crate::options::ObjectOptions;
use crate::promises::{Promise, rest_of};
use crate::put::{Value, Written, abandon, settle, write, write_plain};
use crate::seal;
use crate::session::Session;
use crate::writer::Writer;

/// Seals what the client cannot seal by itself in one message (for each 8192 objects). When one
/// fails, all are taken back.
pub(crate) fn put_many(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<Vec<ObjectId>, Error> {
    session.check_process()?;
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

/// Deletes what was sealed before another of its set failed.
fn take_back(session: &Arc<Session>, ids: &[ObjectId]) {
    let targets: Vec<Target> = ids.iter().map(|id| (*id).into()).collect();
    // The failure that led here is the one to tell.
    let _ = crate::client::delete(session, &targets);
}

/// One object of a batch, written.
enum Made {
    /// Plain bytes without a name, of which there are many: the block and the bytes.
    Plain(Span, Length),
    Whole(Box<Written>),
}

impl Made {
    fn written(self) -> Written {
        match self {
            Self::Plain(primary, size) => Written::small_bytes(primary, size),
            Self::Whole(written) => *written,
        }
    }
}

fn put_batch(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<Vec<ObjectId>, Error> {
    let made = write_batch(session, values)?;
    let sealer = local::Sealer::new(session);
    let mut own: Vec<Option<ObjectId>> = Vec::with_capacity(made.len());
    let mut left: Vec<Written> = Vec::new();
    for one in made {
        let id = match &one {
            Made::Plain(primary, size) => sealer.bytes(*primary, *size),
            Made::Whole(written) => sealer.item(&written.item),
        };
        own.push(id);
        if id.is_none() {
            left.push(one.written());
        }
    }
    if left.is_empty() {
        return Ok(own.into_iter().flatten().collect());
    }
    seal_left(session, own, left)
}

/// Puts all bytes in their places.
fn write_batch(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<Vec<Made>, Error> {
    let mut made: Vec<Made> = Vec::with_capacity(values.len());
    let wait = longest_wait(values.iter().map(|(_, options)| options));
    let (mut promise, _) = Promise::take_to_wait(session, values.len(), wait)?;
    let mut small = Gather::neighbours(session);
    let done = values
        .iter()
        .try_for_each(|(value, options)| {
            made.push(match write_plain(session, value, options, &mut small)? {
                Some((primary, size)) => Made::Plain(primary, size),
                None => {
                    let one = promise.split_one();
                    Made::Whole(Box::new(write(session, value, options, one, &mut small)?))
                }
            });
            Ok(())
        })
        .and_then(|()| small.flush());
    match done {
        Ok(()) => Ok(made),
        Err(error) => {
            made.into_iter().for_each(|one| abandon(session, &mut one.written(), false));
            Err(error)
        }
    }
}

/// Seals by one message what this client cannot seal by itself: where `own` has no id, in order.
fn seal_left(
    session: &Arc<Session>,
    own: Vec<Option<ObjectId>>,
    mut left: Vec<Written>,
) -> Result<Vec<ObjectId>, Error> {
    let items: Vec<SealItem> = left.iter().map(|one| one.item.clone()).collect();
    let _unheld = items.iter().any(|item| item.is_held_by_creator).then(|| session.sealing());
    let results = match seal::many(session, items) {
        Ok(results) => results,
        Err(error) => {
            let is_unknown = seal::is_unknown(session, &error);
            left.iter_mut().for_each(|one| abandon(session, one, is_unknown));
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
                Some((mut one, result)) => {
                    settle(session, &mut one, &result);
                    background::take_down(one.retired);
                    result
                }
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

/// Room for several objects: their names are taken with one message, and one grant, at most, is
/// asked for. All or none.
pub(crate) fn create_many(
    session: &Arc<Session>,
    objects: &[(u64, ObjectOptions<'_>)],
) -> Result<Vec<Writer>, Error> {
    session.check_process()?;
    let names: Vec<String> =
        objects.iter().filter_map(|(_, options)| options.name.map(str::to_owned)).collect();
    if objects.len() > BATCH_ITEMS_MAX {
        let what = "objects created at once".into();
        return Err(Error::TooMany { what, max: BATCH_ITEMS_MAX as u64 });
    }
    session.reservations.take(session, names.clone())?;
    let wait = longest_wait(objects.iter().map(|(_, options)| options));
    let since = Instant::now();
    let made = Promise::take(session, objects.len(), wait).and_then(|mut promise| {
        let sizes = objects.iter().map(|(bytes, options)| Writer::block_bytes(*bytes, options));
        let wait = rest_of(wait, since.elapsed());
        let spans = session.pool.extents().take_many(session, sizes, wait)?;
        let made: Vec<_> = spans
            .into_iter()
            .zip(objects)
            .map(|(pages, (bytes, options))| {
                Writer::over(session, pages, *bytes, options, promise.split_one())
            })
            .collect();
        made.into_iter().collect::<Result<Vec<Writer>, Error>>()
    });
    if made.is_err() {
        session.reservations.give(session, names);
    }
    made
}
