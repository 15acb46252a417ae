//! Puts into the memory of a node that this machine cannot map.
//!
//! The object is written and sealed in the memory of the client's own node, without a name: it is
//! *staged*. The other node brings it over the network and makes it an object of its own; then the
//! staged one is deleted. If the client dies before that, its node deletes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_store::{Metadata, ObjectId};
use farrow_wire::link::{Link, LinkError, confused};
use farrow_wire::{
    BATCH_ITEMS_MAX, Hello, ImportStep, MemberInfo, PROTOCOL_VERSION, ReplyBody, RequestBody,
    WireTarget,
};

use crate::client::Client;
use crate::clock::deadline_after;
use crate::draft::{Draft, SealedHold};
use crate::error::Error;
use crate::interrupt;
use crate::options::ObjectOptions;
use crate::room;
use crate::session::Session;
use crate::value::Value;
use crate::writer::Writer;

/// Pause before a node without room is asked again, while the caller waits.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// A connection for requests to a node whose memory is not mapped.
#[derive(Debug)]
pub(crate) struct RequestLink {
    own: Arc<Session>,
    node: String,
    pub(crate) incarnation: u64,
    link: Link,
}

impl RequestLink {
    pub(crate) fn open(
        own: &Arc<Session>,
        node: &MemberInfo,
        namespace: &str,
    ) -> Result<Self, Error> {
        own.check_process()?;
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: namespace.to_owned(),
            node: node.name.clone(),
            maps_memory: false,
        };
        let (link, ..) = Link::connect(&own.socket, hello, Instant::now() + own.timeout)?;
        let (node, incarnation) = (node.name.clone(), node.incarnation);
        Ok(Self { own: Arc::clone(own), node, incarnation, link })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.link.is_dead()
    }

    fn not_found(&self) -> Error {
        let reason = "it did not find what it was to bring".to_owned();
        Error::NodeLost { node: self.node.clone(), reason }
    }

    pub(crate) fn call(&self, body: RequestBody) -> Result<ReplyBody, Error> {
        self.own.check_process()?;
        let deadline = Instant::now() + self.own.timeout;
        let answer = self.link.call_unless(interrupt::current().as_ref(), body, deadline);
        answer.map_err(|error| self.lost(error))
    }

    /// A connection that ended while the client's own node is there ended at the other node.
    fn lost(&self, error: LinkError) -> Error {
        match error {
            LinkError::Closed { reason, .. } | LinkError::Unsent { reason, .. }
                if std::os::unix::net::UnixStream::connect(&self.own.socket).is_ok() =>
            {
                let reason = format!("it went away before it answered: {reason}");
                Error::NodeLost { node: self.node.clone(), reason }
            }
            error => error.into(),
        }
    }
}

impl Drop for RequestLink {
    fn drop(&mut self) {
        if self.own.is_own_process() {
            self.link.tell(RequestBody::Goodbye);
        }
    }
}

/// Where an object of this client is to be, and the name that it has reserved there.
#[derive(Debug)]
pub(crate) struct FarDestination {
    link: Arc<RequestLink>,
    /// `None`: the object has no name, or has it.
    name: Option<String>,
}

impl FarDestination {
    /// Reserves names at a node, all or none.
    pub(crate) fn reserve(
        link: &Arc<RequestLink>,
        names: Vec<Option<&str>>,
    ) -> Result<Vec<Self>, Error> {
        let nameless = || Self { link: Arc::clone(link), name: None };
        let mut all: Vec<Self> = names.iter().map(|_| nameless()).collect();
        let named = all.iter_mut().zip(names).filter_map(|(one, name)| Some((one, name?)));
        let mut named: Vec<(&mut Self, &str)> = named.collect();
        // If a later part fails, the earlier ones give their names back.
        for some in named.chunks_mut(BATCH_ITEMS_MAX) {
            let names = some.iter().map(|(_, name)| (*name).to_owned()).collect();
            link.call(RequestBody::Reserve { names })?;
            some.iter_mut().for_each(|(one, name)| one.name = Some((*name).to_owned()));
        }
        Ok(all)
    }

    /// The object has the name.
    fn is_used(&mut self) {
        self.name = None;
    }

    /// Has the node bring a staged object and make it one of its own, and deletes the staged one.
    /// Where there is no room, waits for some until the deadline.
    pub(crate) fn import(mut self, staged: ObjectId, deadline: Instant) -> Result<ObjectId, Error> {
        let own = Arc::clone(&self.link.own);
        let wait_ms = u64::try_from(own.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let imported = loop {
            let origin = (staged.hi, staged.lo);
            let (name, metadata) = (self.name.clone(), None);
            let step = ImportStep::Seal { name, metadata, is_pinned: false };
            let import = RequestBody::Import { origin, step, wait_ms };
            match self.link.call(import) {
                Ok(ReplyBody::Fetched(Some((hi, lo)))) => break Ok(ObjectId { hi, lo }),
                Ok(ReplyBody::Fetching) => {}
                Ok(ReplyBody::Fetched(None)) => break Err(self.link.not_found()),
                Ok(other) => break Err(confused(&other).into()),
                Err(error) if room::is_short(&error) && Instant::now() < deadline => {
                    if let Err(error) = interrupt::pause(ROOM_PAUSE) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if imported.is_ok() {
            self.is_used();
        }
        discard(&own, staged);
        imported
    }
}

impl Drop for FarDestination {
    fn drop(&mut self) {
        if let Some(name) = self.name.take()
            && self.link.own.is_own_process()
        {
            self.link.link.tell(RequestBody::Unreserve { names: vec![name] });
        }
    }
}

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
            match draft.step(ImportStep::Bring) {
                Ok(ReplyBody::Done) => return Ok(draft),
                Ok(ReplyBody::Fetching) => {}
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
        let mut reserved = match FarDestination::reserve(&self.link, vec![Some(name)]) {
            Ok(mut reserved) => reserved.pop(),
            Err(Error::AlreadyExists { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (name, metadata) = (Some(name.to_owned()), Some(metadata.encode()));
        let step = ImportStep::Seal { name, metadata, is_pinned: true };
        loop {
            match self.step(step.clone())? {
                ReplyBody::Fetched(Some((hi, lo))) => {
                    self.is_sealed = true;
                    reserved.iter_mut().for_each(FarDestination::is_used);
                    return Ok(Some(ObjectId { hi, lo }));
                }
                ReplyBody::Fetching => {}
                ReplyBody::Fetched(None) => return Err(self.link.not_found()),
                other => return Err(confused(&other).into()),
            }
        }
    }

    /// Bytes of the object's buffers.
    pub(crate) fn bytes(&self) -> u64 {
        self.staged.bytes()
    }

    fn step(&self, step: ImportStep) -> Result<ReplyBody, Error> {
        let id = self.staged.id();
        let wait_ms = u64::try_from(self.link.own.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        self.link.call(RequestBody::Import { origin: (id.hi, id.lo), step, wait_ms })
    }
}

impl Drop for FarDraft {
    fn drop(&mut self) {
        if !self.link.own.is_own_process() {
            return;
        }
        let id = self.staged.id();
        if !self.is_sealed {
            let (origin, step) = ((id.hi, id.lo), ImportStep::Abandon);
            self.link.link.tell(RequestBody::Import { origin, step, wait_ms: 0 });
        }
        discard(&self.link.own, id);
    }
}

/// Deletes a staged object. If that fails the node does it when the client ends.
fn discard(own: &Session, staged: ObjectId) {
    let _quiet = interrupt::suspend();
    let targets = vec![WireTarget::Id(staged.hi, staged.lo)];
    if let Err(error) = own.call(RequestBody::Delete { targets }) {
        tracing::debug!(%staged, %error, "a staged object is left to the node");
    }
}

impl Client {
    /// The node in whose memory buffers should be that are to be put at `node`: that node, or this
    /// client's own if the memory of the other one is not mapped here. See [`Self::at`] and
    /// [`Self::pool`].
    ///
    /// # Errors
    ///
    /// The membership list is damaged.
    pub fn pool_node(&self, node: &str) -> Result<String, Error> {
        let own = self.nodes().own().region_uid();
        match self.by_net_member(node)? {
            Some(_) => self.nodes().name_of(own),
            None => Ok(node.to_owned()),
        }
    }

    /// As [`Self::put_with`], in the memory of a node of the cluster. A node whose memory cannot be
    /// mapped here brings the object over the network.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::put_with`].
    pub fn put_on(
        &self,
        node: &str,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<ObjectId, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at(node)?.put_with(value, options);
        };
        let deadline = deadline_after(options.wait);
        let destination = FarDestination::reserve(&link, vec![options.name])?.pop();
        self.put_there(destination, value, options, deadline)
    }

    /// As [`Self::put_many`], in the memory of a node of the cluster. If one of the objects cannot be
    /// put, the node has none of them.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::put_many`].
    pub fn put_many_on(
        &self,
        node: &str,
        values: &[(Value<'_>, ObjectOptions<'_>)],
    ) -> Result<Vec<ObjectId>, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at(node)?.put_many(values);
        };
        let names = values.iter().map(|(_, options)| options.name).collect();
        let mut done: Vec<ObjectId> = Vec::with_capacity(values.len());
        let destinations = FarDestination::reserve(&link, names)?;
        for ((value, options), destination) in values.iter().zip(destinations) {
            let deadline = deadline_after(options.wait);
            match self.put_there(Some(destination), value, options, deadline) {
                Ok(id) => done.push(id),
                Err(error) => {
                    let _quiet = interrupt::suspend();
                    for some in done.chunks(BATCH_ITEMS_MAX) {
                        let targets = some.iter().map(|id| WireTarget::Id(id.hi, id.lo)).collect();
                        if let Err(error) = link.call(RequestBody::Delete { targets }) {
                            tracing::warn!(%error, objects = some.len(), "left at node {node}");
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(done)
    }

    /// As [`Self::create_with`], in the memory of a node of the cluster. At a node whose memory cannot
    /// be mapped here, the bytes are sent when the object is sealed.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::create_with`].
    pub fn create_on(
        &self,
        node: &str,
        bytes: u64,
        options: &ObjectOptions<'_>,
    ) -> Result<Writer, Error> {
        let Some(link) = self.request_link(node)? else {
            return self.at(node)?.create_with(bytes, options);
        };
        let destination = FarDestination::reserve(&link, vec![options.name])?.pop();
        let staged = ObjectOptions { name: None, ..*options };
        let mut writer = Writer::new(self.nodes().own(), bytes, &staged)?;
        writer.send_to(destination);
        Ok(writer)
    }

    fn put_there(
        &self,
        destination: Option<FarDestination>,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
        deadline: Instant,
    ) -> Result<ObjectId, Error> {
        let staged = Draft::staged(self.nodes().own(), value, options)?.stage()?;
        let gone = || Error::InvalidArgument("nowhere to put it".to_owned());
        destination.ok_or_else(gone)?.import(staged.id(), deadline)
    }
}
