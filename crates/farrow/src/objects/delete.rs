//! Deleting objects of one node.

use std::sync::Arc;

use farrow_wire::link::confused;
use farrow_wire::{ReplyBody, RequestBody};

use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;

/// Objects that one message deletes, pins or unpins: about a millisecond for the node, which serves
/// others before the next message.
pub(crate) const CHANGES_IN_MESSAGE: usize = 1024;

pub(crate) fn delete(session: &Arc<Session>, targets: &[ObjectKey]) -> Result<(), Error> {
    let mut first_error: Option<Error> = None;
    for result in delete_each(session, targets)? {
        if let Err(error) = result {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// As [`delete`], with the result of each object.
pub(crate) fn delete_each(
    session: &Arc<Session>,
    targets: &[ObjectKey],
) -> Result<Vec<Result<(), Error>>, Error> {
    let mut all = Vec::with_capacity(targets.len());
    for batch in targets.chunks(CHANGES_IN_MESSAGE) {
        let body = RequestBody::Delete { targets: batch.iter().map(ObjectKey::wire).collect() };
        let results = match session.call(body)? {
            ReplyBody::Deleted(results) if results.len() == batch.len() => results,
            other => return Err(confused(&other).into()),
        };
        all.extend(results.into_iter().map(|result| result.map_err(Error::from)));
    }
    Ok(all)
}
