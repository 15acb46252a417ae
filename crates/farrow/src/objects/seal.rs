//! Requests to the node to seal written memory as objects.

use std::collections::BTreeMap;

use farrow_store::{Entry, ObjectId};
use farrow_wire::link::confused;
use farrow_wire::{ReplyBody, RequestBody, SealItem, WireError};

use crate::clock::deadline_after;
use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::node::{LostReply, Unanswered};

/// The outcome of one object's seal.
pub(crate) type Sealed = Result<ObjectId, Unsealed>;

/// Why a seal yielded no object.
#[derive(Debug)]
pub(crate) struct Unsealed {
    pub(crate) error: Error,
    /// Whether an object may exist, or have existed: the request was sent, and no answer arrived.
    pub(crate) is_unknown: bool,
    /// The missing answer, if the connection of the request is known.
    pub(crate) lost: Option<Box<LostReply>>,
}

impl From<Unsealed> for Error {
    fn from(unsealed: Unsealed) -> Self {
        unsealed.error
    }
}

impl Unsealed {
    /// The error of a request that was sent.
    fn sent(error: Error) -> Self {
        let is_unknown = matches!(
            error,
            Error::Timeout { .. }
                | Error::Protocol(_)
                | Error::Disconnected { .. }
                | Error::NodeLost { .. }
        );
        Self { error, is_unknown, lost: None }
    }

    /// The error of a request whose outcome is known.
    pub(crate) fn known(error: Error) -> Self {
        Self { error, is_unknown: false, lost: None }
    }
}

/// Seals one object.
pub(crate) fn one(session: &Session, item: SealItem) -> Sealed {
    let mut sealed = many(session, vec![item])?;
    let none = || Unsealed::sent(Error::Protocol("the node sealed nothing".into()));
    sealed.pop().unwrap_or_else(|| Err(none()))
}

/// Seals several objects in one message, each with its own result. The caller has recorded the seal
/// requests in its extents.
pub(crate) fn many(session: &Session, items: Vec<SealItem>) -> Result<Vec<Sealed>, Unsealed> {
    let blocks: Vec<u64> = items.iter().map(|item| item.primary.0).collect();
    let deadline = deadline_after(session.timeout);
    match session.call_numbered(RequestBody::Seal { items }, deadline) {
        Ok((reply, received_on)) => results(session, &blocks, Ok(reply), received_on),
        Err(Unanswered { error, lost: None }) => Err(Unsealed::known(error)),
        Err(Unanswered { error, lost: Some(lost) }) if lost.pending.is_some() => {
            Err(Unsealed { lost: Some(lost), ..Unsealed::sent(error) })
        }
        Err(Unanswered { error, lost: Some(lost) }) => {
            let again = || Some(Box::new(LostReply { sent_on: lost.sent_on, pending: None }));
            let on = |unsealed| Unsealed { lost: again(), ..unsealed };
            let found = results(session, &blocks, Err(error), lost.sent_on).map_err(on)?;
            Ok(found.into_iter().map(|sealed| sealed.map_err(on)).collect())
        }
    }
}

/// The result for each primary block, from the answer to a request that was sent on connection
/// `sent_on`.
pub(crate) fn results(
    session: &Session,
    blocks: &[u64],
    answer: Result<ReplyBody, Error>,
    sent_on: u64,
) -> Result<Vec<Sealed>, Unsealed> {
    match answer {
        Ok(ReplyBody::Sealed(results)) if results.len() == blocks.len() => {
            let sealed = |result: Result<_, WireError>| {
                result.map(ObjectId::from).map_err(|error| Unsealed::sent(error.into()))
            };
            Ok(results.into_iter().map(sealed).collect())
        }
        Ok(other) => Err(Unsealed::sent(confused(&other).into())),
        Err(error @ (Error::Disconnected { .. } | Error::NodeLost { .. })) => {
            find_sealed(session, blocks, &error, sent_on).ok_or(Unsealed::sent(error))
        }
        Err(error) => Err(Unsealed::sent(error)),
    }
}

/// Looks for the objects of a seal whose answer was lost, in the directory and by primary block. An
/// object not found may have been sealed all the same: the next daemon may have deleted, evicted or
/// spilled it, or a remote node whose proxy ended may still seal it. `None` if none is found. If the
/// session has another connection by now, blocks may have returned to the node, been granted again,
/// and be other objects of this client. Then an object counts only if the comparison of the records
/// has shown that its block was sealed, while this request waited.
fn find_sealed(
    session: &Session,
    blocks: &[u64],
    error: &Error,
    sent_on: u64,
) -> Option<Vec<Sealed>> {
    let (_, slot, _) = session.place();
    #[cfg(feature = "failpoints")]
    farrow_store::failpoints::hit_by_client("seal.lost");
    let mut found: BTreeMap<u64, ObjectId> = BTreeMap::new();
    // The former block of a spilled or deleted object may belong to any client by now.
    let is_own = |entry: &Entry| entry.creator == slot;
    let listed = session.reader.list("").ok()?.into_iter();
    for listed in listed.filter(|one| !one.is_spilled && is_own(&one.entry)) {
        let block = listed.entry.primary.offset.0;
        if blocks.contains(&block) {
            found.insert(block, listed.entry.id);
        }
    }
    // Only after the list: no block is granted again before the number changes.
    if session.connection_number() != sent_on {
        found.retain(|block, _| session.extents.was_sealed(*block));
    }
    if found.is_empty() {
        return None;
    }
    let disconnected = || Error::Disconnected {
        socket: session.socket.clone(),
        reason: format!("it sealed some objects of several only: {error}"),
    };
    let result = |block| found.get(block).copied().ok_or_else(|| Unsealed::sent(disconnected()));
    Some(blocks.iter().map(result).collect())
}
