//! Deleting objects of one node.

use std::sync::Arc;

use farrow_wire::link::confused;
use farrow_wire::{BATCH_ITEMS_MAX, ReplyBody, RequestBody, WireError};

use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;

pub(crate) fn delete(session: &Arc<Session>, targets: &[ObjectKey]) -> Result<(), Error> {
    let mut first_error: Option<Error> = None;
    for batch in targets.chunks(BATCH_ITEMS_MAX) {
        let body = RequestBody::Delete { targets: batch.iter().map(ObjectKey::wire).collect() };
        let results = match session.call(body)? {
            ReplyBody::Deleted(results) => results,
            other => return Err(confused(&other).into()),
        };
        let errors = results.into_iter().filter_map(Result::err);
        for error in errors {
            first_error.get_or_insert(WireError::into(error));
        }
    }
    first_error.map_or(Ok(()), Err)
}
