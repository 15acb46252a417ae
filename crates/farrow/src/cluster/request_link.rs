//! Connections to a node whose memory this machine cannot map, and names reserved there.
//!
//! The object is written and sealed in the memory of the client's own node, without a name: it is
//! *staged*. The other node brings it over the network and makes it an object of its own; then the
//! staged one is deleted. If the client dies before that, its node deletes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_store::ObjectId;
use farrow_wire::link::{Link, LinkError, Notification, confused};
use farrow_wire::{
    BATCH_ITEMS_MAX, Hello, ImportStep, MemberInfo, PROTOCOL_VERSION, ReplyBody, RequestBody,
    WireTarget,
};

use crate::connection::session::Session;
use crate::error::Error;
use crate::interrupt;
use crate::memory::room;

/// Pause before a node without room is asked again, while the caller waits.
pub(crate) const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// A connection for requests to a node whose memory is not mapped.
#[derive(Debug)]
pub(crate) struct RequestLink {
    pub(crate) own: Arc<Session>,
    node: String,
    pub(crate) incarnation: u64,
    link: Arc<Link>,
    /// Its slot at the other node: (region uid, slot, nonce).
    slot: (u64, u32, u64),
}

impl RequestLink {
    /// Connects to a node. A connection `earlier` that broke ends there at once, so that its names
    /// are free for this one.
    pub(crate) fn open(
        own: &Arc<Session>,
        node: &MemberInfo,
        namespace: &str,
        earlier: Option<&Self>,
    ) -> Result<Self, Error> {
        own.check_process()?;
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: earlier.map(|earlier| earlier.slot),
            namespace: namespace.to_owned(),
            node: node.name.clone(),
            maps_memory: false,
        };
        let (link, welcome, _) = Link::connect(&own.socket, hello, Instant::now() + own.timeout)?;
        let slot = (welcome.region_uid, welcome.slot, welcome.nonce);
        let (node, incarnation) = (node.name.clone(), node.incarnation);
        Ok(Self { own: Arc::clone(own), node, incarnation, link: Arc::new(link), slot })
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.link.is_dead()
    }

    pub(crate) fn not_found(&self) -> Error {
        let reason = "it did not find what it was to bring".to_owned();
        Error::NodeLost { node: self.node.clone(), reason }
    }

    pub(crate) fn call(&self, body: RequestBody) -> Result<ReplyBody, Error> {
        self.own.check_process()?;
        let deadline = Instant::now() + self.own.timeout;
        let answer = self.link.call_unless(interrupt::current().as_ref(), body, deadline);
        answer.map_err(|error| {
            // Its reply may still come, and bring what has to be given back.
            self.own.late.attend(&self.link);
            self.lost(error)
        })
    }

    /// Sends a request whose reply is not needed, without waiting.
    pub(crate) fn notify(&self, notification: Notification) {
        self.own.late.notify(&self.link, notification);
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
            self.notify(Notification::Goodbye);
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
    pub(crate) fn is_used(&mut self) {
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
            self.link.notify(Notification::Unreserve(vec![name]));
        }
    }
}

/// Deletes a staged object. If that fails the node does it when the client ends.
pub(crate) fn discard(own: &Session, staged: ObjectId) {
    let _quiet = interrupt::suspend();
    let targets = vec![WireTarget::Id(staged.hi, staged.lo)];
    if let Err(error) = own.call(RequestBody::Delete { targets }) {
        tracing::debug!(%staged, %error, "a staged object is left to the node");
    }
}
