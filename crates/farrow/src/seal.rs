//! Asking the node to make written memory into objects.

use std::collections::BTreeMap;
use std::time::Instant;

use farrow_store::{Entry, ObjectId};
use farrow_wire::link::confused;
use farrow_wire::{ReplyBody, RequestBody, SealItem, WireError};

use crate::error::Error;
use crate::session::{Session, Unanswered};

/// What became of one object.
pub(crate) type Sealed = Result<ObjectId, Unsealed>;

/// Why there is no object.
#[derive(Debug)]
pub(crate) struct Unsealed {
    pub(crate) error: Error,
    /// There may be one, or may have been: the request went out, and no answer came.
    pub(crate) is_unknown: bool,
}

impl From<Unsealed> for Error {
    fn from(unsealed: Unsealed) -> Self {
        unsealed.error
    }
}

impl Unsealed {
    /// After a request that went out.
    fn sent(error: Error) -> Self {
        let is_unknown = matches!(
            error,
            Error::Timeout { .. }
                | Error::Protocol(_)
                | Error::Disconnected { .. }
                | Error::NodeLost { .. }
        );
        Self { error, is_unknown }
    }
}

/// One object.
pub(crate) fn one(session: &Session, item: SealItem) -> Sealed {
    let mut sealed = many(session, vec![item])?;
    let none = || Unsealed::sent(Error::Protocol("the node sealed nothing".into()));
    sealed.pop().unwrap_or_else(|| Err(none()))
}

/// Several in one message, each with its own result. The caller has noted in its books that they were
/// asked for.
pub(crate) fn many(session: &Session, items: Vec<SealItem>) -> Result<Vec<Sealed>, Unsealed> {
    let blocks: Vec<u64> = items.iter().map(|item| item.primary.0).collect();
    let deadline = Instant::now() + session.timeout;
    match session.call_numbered(RequestBody::Seal { items }, deadline) {
        Ok((ReplyBody::Sealed(results), _)) if results.len() == blocks.len() => {
            let id = |(hi, lo)| ObjectId { hi, lo };
            let sealed = |result: Result<_, WireError>| {
                result.map(id).map_err(|error| Unsealed::sent(error.into()))
            };
            Ok(results.into_iter().map(sealed).collect())
        }
        Ok((other, _)) => Err(Unsealed::sent(confused(&other).into())),
        Err(Unanswered { error, was_sent: false }) => Err(Unsealed { error, is_unknown: false }),
        Err(Unanswered {
            error: error @ (Error::Disconnected { .. } | Error::NodeLost { .. }),
            ..
        }) => find_sealed(session, &blocks, &error).ok_or(Unsealed::sent(error)),
        Err(Unanswered { error, .. }) => Err(Unsealed::sent(error)),
    }
}

/// The node went away with the answer. What it sealed is in the directory: found there by its primary
/// block. What is not found may have been sealed all the same, and be deleted, evicted or spilled by the
/// next daemon, or be sealed yet by a node whose carrier has gone. `None` when none is found.
fn find_sealed(session: &Session, blocks: &[u64], error: &Error) -> Option<Vec<Sealed>> {
    let (_, slot, _) = session.place();
    let mut found: BTreeMap<u64, ObjectId> = BTreeMap::new();
    // Where a spilled object lay may be anybody's by now, and so may the block of a deleted one.
    let is_own = |entry: &Entry| entry.creator == slot;
    let listed = session.reader.list("").ok()?.into_iter();
    for listed in listed.filter(|one| !one.is_spilled && is_own(&one.entry)) {
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
    let result = |block| found.get(block).copied().ok_or_else(|| Unsealed::sent(gone()));
    Some(blocks.iter().map(result).collect())
}
