//! Asking the node to make written memory into objects.

use std::collections::BTreeMap;

use farrow_cluster::link::confused;
use farrow_cluster::wire::{ReplyBody, RequestBody, SealItem};
use farrow_store::ObjectId;

use crate::error::Error;
use crate::session::Session;

/// What became of one object.
pub(crate) type Sealed = Result<ObjectId, Error>;

/// One object.
pub(crate) fn one(session: &Session, item: SealItem) -> Result<ObjectId, Error> {
    let mut sealed = many(session, vec![item])?;
    match sealed.pop() {
        Some(result) => result,
        None => Err(Error::Protocol("the node sealed nothing".into())),
    }
}

/// Several in one message, each with its own result.
pub(crate) fn many(session: &Session, items: Vec<SealItem>) -> Result<Vec<Sealed>, Error> {
    let blocks: Vec<u64> = items.iter().map(|item| item.primary.0).collect();
    match session.call(RequestBody::Seal { items }) {
        Ok(ReplyBody::Sealed(results)) if results.len() == blocks.len() => {
            let id = |(hi, lo)| ObjectId { hi, lo };
            Ok(results.into_iter().map(|result| Ok(result.map(id)?)).collect())
        }
        Ok(other) => Err(confused(&other).into()),
        Err(error @ (Error::Disconnected { .. } | Error::NodeLost { .. })) => {
            find_sealed(session, &blocks, &error).ok_or(error)
        }
        Err(error) => Err(error),
    }
}

/// The node went away with the answer. What it sealed is in the directory all the same: found
/// there by its primary block. `None` when it sealed none of them; of the others when it sealed some,
/// all that is known is that it went.
fn find_sealed(session: &Session, blocks: &[u64], error: &Error) -> Option<Vec<Sealed>> {
    let mut found: BTreeMap<u64, ObjectId> = BTreeMap::new();
    // Where a spilled object lay may be anybody's by now.
    for listed in session.reader.list("").ok()?.into_iter().filter(|one| !one.is_spilled) {
        let block = listed.entry.primary.offset.0;
        if blocks.contains(&block) {
            found.insert(block, listed.entry.id);
        }
    }
    if found.is_empty() {
        return None;
    }
    let gone = || Error::Disconnected {
        socket: session.socket.clone(),
        reason: format!("it sealed some objects of several only: {error}"),
    };
    let result = |block| found.get(block).copied().ok_or_else(gone);
    Some(blocks.iter().map(result).collect())
}

/// True when the request may still be carried out although no answer came. After its daemon has gone
/// it will not: [`many`] has looked. To another node it may be under way when its carrier is gone.
pub(crate) fn is_unknown(session: &Session, error: &Error) -> bool {
    match error {
        Error::Timeout { .. } | Error::Protocol(_) => true,
        Error::Disconnected { .. } | Error::NodeLost { .. } => session.is_elsewhere(),
        _ => false,
    }
}
