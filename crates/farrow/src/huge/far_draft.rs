//! A draft in the client's own memory for a node that this machine cannot map.

use std::sync::Arc;
use std::time::Instant;

use farrow_store::{Metadata, ObjectId};
use farrow_wire::link::{Notification, confused};
use farrow_wire::{ImportStep, MemberInfo, ReplyBody};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::cluster::request_link::{FarDestination, ROOM_PAUSE, RequestLink, discard};
use crate::error::Error;
use crate::interrupt;
use crate::memory::room;
use crate::objects::draft::{Draft, SealedHold};
use crate::options::ObjectOptions;
use crate::value::Value;

/// An object whose bytes are in the memory of another node, and that has no name yet. So several
/// names can be tried, and none is reserved while the bytes are on their way.
pub(crate) struct FarDraft {
    link: Arc<RequestLink>,
    /// The original, which is retained until the other node has the object.
    staged: SealedHold,
    is_sealed: bool,
}

impl FarDraft {
    /// Writes a value to the memory of the client's own node, and has another node bring it.
    pub(crate) fn new(
        client: &Client,
        node: &MemberInfo,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<Self, Error> {
        let link = client.nodes().request_link(node)?;
        let deadline = deadline_after(options.wait);
        let staged = Draft::staged(client.nodes().own(), value, options)?.stage()?;
        let draft = Self { link, staged, is_sealed: false };
        loop {
            let id = draft.staged.id();
            match draft.link.bring(id) {
                Ok(ReplyBody::Done) => return Ok(draft),
                Ok(ReplyBody::Fetching) => interrupt::pause(ROOM_PAUSE)?,
                Ok(ReplyBody::Fetched(None)) => return Err(draft.link.not_found()),
                Ok(other) => return Err(confused(&other).into()),
                Err(error) if room::is_short(&error) && Instant::now() < deadline => {
                    interrupt::pause(ROOM_PAUSE)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Seals the object under this name, pinned, with metadata as long as before. `None`: the name
    /// is taken.
    pub(crate) fn seal(
        &mut self,
        name: &str,
        metadata: &Metadata,
    ) -> Result<Option<ObjectId>, Error> {
        let reserved = FarDestination::reserve(&self.link, vec![Some(name)]);
        let mut reserved = match reserved.map(|mut reserved| reserved.pop()) {
            Ok(Some(reserved)) => reserved,
            Ok(None) | Err(Error::AlreadyExists { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (name, metadata) = (Some(name.to_owned()), Some(metadata.encode()));
        let step = ImportStep::Seal { name, metadata, is_pinned: true };
        loop {
            let id = self.staged.id();
            match reserved.call(id, step.clone()) {
                Ok(ReplyBody::Fetched(Some(id))) => {
                    self.is_sealed = true;
                    reserved.is_used();
                    return Ok(Some(id.into()));
                }
                Ok(ReplyBody::Fetching) => interrupt::pause(ROOM_PAUSE)?,
                Ok(ReplyBody::Fetched(None)) => return Err(self.link.not_found()),
                Ok(other) => return Err(confused(&other).into()),
                Err(Error::AlreadyExists { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the object's buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.staged.bytes()
    }
}

impl Drop for FarDraft {
    fn drop(&mut self) {
        if !self.link.own.is_own_process() {
            return;
        }
        let id = self.staged.id();
        if !self.is_sealed {
            self.link.notify(Notification::AbandonImport(id.into()));
        }
        discard(&self.link.own, id);
    }
}
