//! Objects that the client's own node fetches from nodes whose memory is not mapped.

use std::sync::Arc;

use farrow_store::{Held, Metadata, MetadataError, ObjectId};
use farrow_wire::link::confused;
use farrow_wire::{Extent, PartSpec, ReplyBody, RequestBody};

use crate::cluster::nodes::Nodes;
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;

/// Maximum fetches of one object, which may be evicted again before this client holds it.
const FETCHES_MAX: u32 = 16;

/// An object that is held in the memory of another node, or was fetched from there.
pub(crate) struct Elsewhere {
    pub(crate) session: Arc<Session>,
    pub(crate) held: Held,
    /// Only the requested part was fetched.
    pub(crate) is_part: bool,
}

impl Nodes {
    /// Has the client's own node begin to fetch an object that is needed soon.
    pub(crate) fn fetch_ahead(&self, target: &ObjectKey, part: Option<&PartSpec>) {
        let extent = part.map_or(Extent::Whole, |part| Extent::Part(part.clone()));
        let fetch = RequestBody::Fetch { target: target.wire(), extent, wait_ms: 0 };
        if let Err(error) = self.own().call(fetch) {
            // The fetch that waits for the object reports it.
            tracing::debug!(%target, %error, "not fetched ahead");
        }
    }

    /// Fetches an object of another node, or a part of it, into the memory of the client's own
    /// node, and holds it.
    pub(crate) fn fetch(
        &self,
        target: &ObjectKey,
        part: Option<&PartSpec>,
    ) -> Result<Option<Elsewhere>, Error> {
        let own = self.own();
        // A slow transfer is no timeout: the node answers `Fetching` at this interval.
        let wait_ms = u64::try_from(own.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let mut evictions = 0;
        while evictions < FETCHES_MAX {
            let extent = part.map_or(Extent::Whole, |part| Extent::Part(part.clone()));
            let fetch = RequestBody::Fetch { target: target.wire(), extent, wait_ms };
            let (id, is_part) = match own.call(fetch)? {
                ReplyBody::Fetched(None) => return Ok(None),
                ReplyBody::Fetched(Some(id)) => (ObjectId::from(id), false),
                ReplyBody::FetchedPart(id) => (id.into(), true),
                ReplyBody::Fetching => continue,
                other => return Err(confused(&other).into()),
            };
            evictions += 1;
            if let Some(held) = own.hold(&ObjectKey::Id(id))? {
                return Ok(Some(Elsewhere { session: Arc::clone(own), held, is_part }));
            }
        }
        Err(evicted_again(target))
    }

    /// The metadata of an object of another node; `None` if there is no such object.
    pub(crate) fn fetch_metadata(&self, target: &ObjectKey) -> Result<Option<Metadata>, Error> {
        let own = self.own();
        let wait_ms = u64::try_from(own.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let mut evictions = 0;
        while evictions < FETCHES_MAX {
            let (target, extent) = (target.wire(), Extent::Metadata);
            let id = match own.call(RequestBody::Fetch { target, extent, wait_ms })? {
                ReplyBody::Fetched(None) => return Ok(None),
                ReplyBody::Fetched(Some(id)) => ObjectId::from(id),
                ReplyBody::Metadata(bytes) => {
                    let wrong = |error: MetadataError| Error::Protocol(error.to_string());
                    return Metadata::decode(&bytes).map(Some).map_err(wrong);
                }
                ReplyBody::Fetching => continue,
                other => return Err(confused(&other).into()),
            };
            evictions += 1;
            if let Some(held) = own.hold(&ObjectKey::Id(id))? {
                let metadata = own.reader.metadata(held.entry());
                own.release(held);
                return Ok(metadata?);
            }
        }
        Err(evicted_again(target))
    }
}

fn evicted_again(target: &ObjectKey) -> Error {
    let what = format!("object {target}, whose copy here is evicted again and again");
    Error::Timeout { what, waited_ms: 0 }
}
