//! Many objects for one message at most.

use std::sync::Arc;

use farrow_cluster::wire::{BATCH_ITEMS_MAX, SealItem, WireError};
use farrow_store::ObjectId;

use crate::background;
use crate::client::Target;
use crate::error::Error;
use crate::gather::Gather;
use crate::local;
use crate::options::ObjectOptions;
use crate::put::{Value, Written, abandon, settle, write};
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

fn put_batch(
    session: &Arc<Session>,
    values: &[(Value<'_>, ObjectOptions<'_>)],
) -> Result<Vec<ObjectId>, Error> {
    let mut written: Vec<Written> = Vec::with_capacity(values.len());
    let mut small = Gather::neighbours(session);
    let done = values
        .iter()
        .try_for_each(|(value, options)| {
            written.push(write(session, value, options, &mut small)?);
            Ok(())
        })
        .and_then(|()| small.flush());
    if let Err(error) = done {
        written.iter().for_each(|one| abandon(session, one, false));
        return Err(error);
    }
    let own: Vec<Option<ObjectId>> =
        written.iter().map(|one| local::seal(session, &one.item)).collect();
    let is_left =
        |(one, own): (&Written, &Option<ObjectId>)| own.is_none().then(|| one.item.clone());
    let items: Vec<SealItem> = written.iter().zip(&own).filter_map(is_left).collect();
    let _unheld = items.iter().any(|item| item.is_held_by_creator).then(|| session.sealing());
    let mut results = match items.is_empty() {
        true => Vec::new().into_iter(),
        false => match seal::many(session, items) {
            Ok(results) => results.into_iter(),
            Err(error) => {
                let is_unknown = seal::is_unknown(session, &error);
                let left = written.iter().zip(&own).filter(|(_, own)| own.is_none());
                left.for_each(|(one, _)| abandon(session, one, is_unknown));
                take_back(session, &own.into_iter().flatten().collect::<Vec<_>>());
                return Err(error);
            }
        },
    };
    let mut ids = Vec::with_capacity(own.len());
    let mut first_error = None;
    for (one, own) in written.into_iter().zip(own) {
        if let Some(id) = own {
            ids.push(id);
            continue;
        }
        let missing = || Err(WireError::Closing);
        let result = results.next().unwrap_or_else(missing).map_err(Error::from);
        settle(session, &one, &result);
        background::take_down(one.retired);
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
    let wait = objects.iter().map(|(_, options)| options.wait).max().unwrap_or_default();
    let sizes = objects.iter().map(|(bytes, options)| Writer::block_bytes(*bytes, options));
    let made = session.pool.extents().take_many(session, sizes, wait).and_then(|spans| {
        let made: Vec<_> = spans
            .into_iter()
            .zip(objects)
            .map(|(pages, (bytes, options))| Writer::over(session, pages, *bytes, options))
            .collect();
        made.into_iter().collect::<Result<Vec<Writer>, Error>>()
    });
    if made.is_err() {
        session.reservations.give(session, names);
    }
    made
}
