//! Connections to a node whose memory this machine cannot map, and names reserved there.
//!
//! The object is written and sealed in the memory of the client's own node, without a name: it is
//! *staged*. The other node brings it over the network and makes it an object of its own; then the
//! staged one is deleted. If the client dies before that, its node deletes it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_store::ObjectId;
use farrow_wire::link::{Link, LinkError, Notification, confused};
use farrow_wire::{
    BATCH_ITEMS_MAX, Hello, ImportStep, MemberInfo, PROTOCOL_VERSION, ReplyBody, RequestBody,
    WireTarget,
};

use crate::clock::deadline_after;
use crate::connection::connect::{ConnectTarget, connect};
use crate::connection::replaced::is_served;
use crate::connection::session::Session;
use crate::connection::turn::Turn;
use crate::error::Error;
use crate::interrupt;
use crate::lock::lock;
use crate::memory::room;

/// Pause before a node without room is asked again, while the caller waits.
pub(crate) const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Attempts to send a request. A node that returns may end a second connection soon after it
/// accepted it.
const ATTEMPTS_MAX: u32 = 4;

/// The other node may have ended a connection that was not used for this long, without a message
/// that arrived: the shortest lease is shorter, and a round trip a second costs nothing.
const IDLE: Duration = Duration::from_secs(1);

/// Time that a node has to free the names that an ended connection reserved.
const FREED_MAX: Duration = Duration::from_secs(2);

/// Requests to a node whose memory is not mapped. A connection that has ended is replaced.
#[derive(Debug)]
pub(crate) struct RequestLink {
    pub(crate) own: Arc<Session>,
    node: String,
    namespace: String,
    pub(crate) incarnation: u64,
    current: Mutex<RequestConnection>,
    reconnecting: Turn,
}

/// One connection. What was reserved over it at the other node ends with it.
#[derive(Debug, Clone)]
struct RequestConnection {
    link: Arc<Link>,
    number: u64,
    /// Its slot at the other node: (region uid, slot, nonce).
    slot: (u64, u32, u64),
    used_at: Instant,
}

/// Why a request has no reply.
#[derive(Debug)]
enum RequestFailure {
    /// The node has not received it, or will undo it: it may be sent over another connection.
    Unsent(Box<RequestBody>, Error),
    /// The node may have served it.
    Unknown(Box<RequestBody>, Error),
    Other(Error),
}

impl From<RequestFailure> for Error {
    fn from(failure: RequestFailure) -> Self {
        match failure {
            RequestFailure::Unsent(_, error)
            | RequestFailure::Unknown(_, error)
            | RequestFailure::Other(error) => error,
        }
    }
}

impl RequestLink {
    /// Connects to a node. A connection of `earlier` ends there at once, so that its names are free
    /// for this one.
    pub(crate) fn open(
        own: &Arc<Session>,
        node: &MemberInfo,
        namespace: &str,
        earlier: Option<&Self>,
    ) -> Result<Self, Error> {
        own.check()?;
        let (node, incarnation, namespace) =
            (node.name.clone(), node.incarnation, namespace.to_owned());
        let earlier = earlier.map(|earlier| lock(&earlier.current).clone());
        let deadline = deadline_after(own.timeout);
        let first = connect_again(own, (&node, &namespace), earlier.as_ref(), deadline)?;
        let (own, current) = (Arc::clone(own), Mutex::new(first));
        Ok(Self { own, node, namespace, incarnation, current, reconnecting: Turn::default() })
    }

    pub(crate) fn not_found(&self) -> Error {
        let reason = "it did not find what it was to bring".to_owned();
        Error::NodeLost { node: self.node.clone(), reason }
    }

    /// Sends a request and waits for its reply. If the connection has ended, sends it over the next
    /// one, unless the node may have served it.
    pub(crate) fn call(&self, body: RequestBody) -> Result<ReplyBody, Error> {
        let deadline = deadline_after(self.own.timeout);
        let mut body = body;
        let mut attempt = 1;
        loop {
            body = match self.attempt(None, body, deadline) {
                Err(RequestFailure::Unsent(unsent, _)) if attempt < ATTEMPTS_MAX => *unsent,
                result => return Ok(result?.0),
            };
            attempt += 1;
        }
    }

    /// Sends a request once. `on` is the only connection over which it may be sent.
    fn attempt(
        &self,
        on: Option<u64>,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(ReplyBody, u64), RequestFailure> {
        self.own.check().map_err(RequestFailure::Other)?;
        let RequestConnection { link, number, .. } =
            self.connection(deadline).map_err(RequestFailure::Other)?;
        if on.is_some_and(|on| on != number) {
            let error = self.disconnected("its last connection has ended");
            return Err(RequestFailure::Unsent(Box::new(body), error));
        }
        let (again, is_repeatable) = (Box::new(body.clone()), may_repeat(&body));
        let error = match link.call_unless(interrupt::current().as_ref(), body, deadline) {
            Ok(reply) => {
                self.note_use(number);
                return Ok((reply, number));
            }
            Err(error) => error,
        };
        // Its reply may still come, and bring what has to be given back.
        self.own.late.attend(&link);
        Err(match error {
            LinkError::Unsent { body, reason, .. } => {
                RequestFailure::Unsent(body, self.disconnected(&reason))
            }
            LinkError::Closed { reason, .. } if is_repeatable => {
                RequestFailure::Unsent(again, self.disconnected(&reason))
            }
            LinkError::Closed { reason, .. } => {
                RequestFailure::Unknown(again, self.disconnected(&reason))
            }
            LinkError::Timeout { waited_ms, .. } => RequestFailure::Other(Error::Timeout {
                what: format!("an answer of node {:?}", self.node),
                waited_ms,
            }),
            error => RequestFailure::Other(error.into()),
        })
    }

    /// The current connection, or a new one if it has ended.
    fn connection(&self, deadline: Instant) -> Result<RequestConnection, Error> {
        let current = lock(&self.current).clone();
        if !current.link.has_ended() {
            return Ok(current);
        }
        let _one = self.reconnecting.enter(&self.own.socket, deadline)?;
        let current = lock(&self.current).clone();
        if !current.link.has_ended() {
            return Ok(current);
        }
        let node = (self.node.as_str(), self.namespace.as_str());
        let next = connect_again(&self.own, node, Some(&current), deadline)?;
        *lock(&self.current) = next.clone();
        Ok(next)
    }

    fn note_use(&self, number: u64) {
        let mut current = lock(&self.current);
        if current.number == number {
            current.used_at = Instant::now();
        }
    }

    /// Sends a request that changes nothing, if the connection was not used for some time. So an end
    /// of the connection that this side has not seen is noticed before a request that cannot be
    /// repeated.
    fn check_idle(&self) -> Result<(), Error> {
        let is_idle = lock(&self.current).used_at.elapsed() > IDLE;
        if is_idle {
            self.call(RequestBody::Reserve { names: Vec::new() })?;
        }
        Ok(())
    }

    /// Reserves names, all or none, and returns the number of the connection. If the connection ends
    /// before the answer, reserves them again. The node frees what the ended connection reserved,
    /// which takes a round trip between nodes if it still asks for the names.
    fn reserve(&self, names: &[String]) -> Result<u64, Error> {
        let deadline = deadline_after(self.own.timeout);
        let (mut attempt, mut freed_by) = (1, None);
        loop {
            let body = RequestBody::Reserve { names: names.to_vec() };
            match self.attempt(None, body, deadline) {
                Ok((_, number)) => return Ok(number),
                Err(RequestFailure::Unsent(..)) if attempt < ATTEMPTS_MAX => attempt += 1,
                Err(RequestFailure::Unknown(..)) if attempt < ATTEMPTS_MAX => {
                    attempt += 1;
                    freed_by = Some(Instant::now() + FREED_MAX);
                }
                Err(RequestFailure::Other(Error::AlreadyExists { .. }))
                    if freed_by.is_some_and(|by| Instant::now() < by) =>
                {
                    interrupt::pause(ROOM_PAUSE)?;
                }
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// How long the node waits with its answer to a step of an import.
    fn import_wait_ms(&self) -> u64 {
        u64::try_from(self.own.timeout.as_millis() / 2).unwrap_or(u64::MAX)
    }

    /// Has the node bring the bytes of an object.
    pub(crate) fn bring(&self, origin: ObjectId) -> Result<ReplyBody, Error> {
        let (origin, step, wait_ms) = (origin.into(), ImportStep::Bring, self.import_wait_ms());
        self.call(RequestBody::Import { origin, step, wait_ms })
    }

    /// Whether an import whose answer was lost was served: the answer, or `None` if the object has
    /// yet to be sealed.
    fn imported(&self, origin: ObjectId) -> Result<Option<ReplyBody>, Error> {
        loop {
            match self.bring(origin) {
                Ok(reply @ ReplyBody::Fetched(Some(_))) => return Ok(Some(reply)),
                Ok(ReplyBody::Done) => return Ok(None),
                Ok(ReplyBody::Fetching) => interrupt::pause(ROOM_PAUSE)?,
                Ok(ReplyBody::Fetched(None)) => return Err(self.not_found()),
                Ok(other) => return Err(confused(&other).into()),
                Err(error) if room::is_short(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a request whose reply is not needed, without waiting.
    pub(crate) fn notify(&self, notification: Notification) {
        let link = Arc::clone(&lock(&self.current).link);
        self.own.late.notify(&link, notification);
    }

    /// A connection that ended while the client's own node is there ended at the other node.
    fn disconnected(&self, reason: &str) -> Error {
        if is_served(&self.own.socket) {
            let reason = format!("it went away before it answered: {reason}");
            return Error::NodeLost { node: self.node.clone(), reason };
        }
        Error::Disconnected { socket: self.own.socket.clone(), reason: reason.to_owned() }
    }
}

impl Drop for RequestLink {
    fn drop(&mut self) {
        if self.own.is_own_process() {
            self.notify(Notification::Goodbye);
        }
    }
}

fn connect_again(
    own: &Session,
    (node, namespace): (&str, &str),
    earlier: Option<&RequestConnection>,
    deadline: Instant,
) -> Result<RequestConnection, Error> {
    let hello = Hello {
        version: PROTOCOL_VERSION,
        resume: earlier.map(|earlier| earlier.slot),
        namespace: namespace.to_owned(),
        node: node.to_owned(),
        maps_memory: false,
    };
    let to = ConnectTarget {
        socket: &own.socket,
        spawn: None,
        excluded: &|| own.excluded(),
        patience: own.timeout,
    };
    let connected = connect(&to, &hello, deadline).map_err(|error| own.with_own_name(error))?;
    let welcome = connected.welcome;
    Ok(RequestConnection {
        link: Arc::new(connected.link),
        number: earlier.map_or(0, |earlier| earlier.number + 1),
        slot: (welcome.region_uid, welcome.slot, welcome.nonce),
        used_at: Instant::now(),
    })
}

/// Whether a request may be sent again after the end of its connection. The node undoes imports
/// without a seal when a connection ends, and sets a pin only once.
fn may_repeat(body: &RequestBody) -> bool {
    match body {
        RequestBody::Reserve { names } => names.is_empty(),
        RequestBody::Pin { .. } | RequestBody::Import { step: ImportStep::Bring, .. } => true,
        _ => false,
    }
}

/// Where an object of this client is to be, and the name that it has reserved there.
#[derive(Debug)]
pub(crate) struct FarDestination {
    link: Arc<RequestLink>,
    /// `None`: the object has no name, or has it.
    name: Option<String>,
    /// The connection over which the name was reserved.
    reserved_on: u64,
}

impl FarDestination {
    /// Reserves names at a node, all or none.
    pub(crate) fn reserve(
        link: &Arc<RequestLink>,
        names: Vec<Option<&str>>,
    ) -> Result<Vec<Self>, Error> {
        let nameless = || Self { link: Arc::clone(link), name: None, reserved_on: 0 };
        let mut all: Vec<Self> = names.iter().map(|_| nameless()).collect();
        let named = all.iter_mut().zip(names).filter_map(|(one, name)| Some((one, name?)));
        let mut named: Vec<(&mut Self, &str)> = named.collect();
        link.check_idle()?;
        // If a later part fails, the earlier ones give their names back.
        for some in named.chunks_mut(BATCH_ITEMS_MAX) {
            let names: Vec<String> = some.iter().map(|(_, name)| (*name).to_owned()).collect();
            let number = link.reserve(&names)?;
            for (one, name) in some {
                (one.name, one.reserved_on) = (Some((*name).to_owned()), number);
            }
        }
        Ok(all)
    }

    /// The object has the name.
    pub(crate) fn is_used(&mut self) {
        self.name = None;
    }

    /// Sends a step of an import, of an object that is sealed under the reserved name. If the
    /// connection that reserved it has ended, reserves it again first. If the connection ends before
    /// the answer, asks over the next one whether the object was sealed.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyExists`] if another client has taken the name meanwhile. [`Error::NodeLost`]
    /// if the node may have sealed the object and does not know it any more.
    pub(crate) fn call(&mut self, origin: ObjectId, step: ImportStep) -> Result<ReplyBody, Error> {
        let wait_ms = self.link.import_wait_ms();
        let mut deadline = deadline_after(self.link.own.timeout);
        let mut body = RequestBody::Import { origin: origin.into(), step, wait_ms };
        let (mut attempt, mut lost) = (1, None);
        loop {
            let on = self.name.as_ref().map(|_| self.reserved_on);
            body = match self.link.attempt(on, body, deadline) {
                Err(RequestFailure::Unsent(unsent, _)) if attempt < ATTEMPTS_MAX => *unsent,
                Err(RequestFailure::Unknown(sent, error)) if attempt < ATTEMPTS_MAX => {
                    if let Some(reply) = self.link.imported(origin)? {
                        return Ok(reply);
                    }
                    // The bytes may have been brought once more.
                    deadline = deadline_after(self.link.own.timeout);
                    lost = Some(error);
                    *sent
                }
                result => return Ok(result?.0),
            };
            attempt += 1;
            if let Some(name) = &self.name {
                let reserved = self.link.reserve(std::slice::from_ref(name));
                self.reserved_on = reserved.map_err(|error| match (error, lost.take()) {
                    (Error::AlreadyExists { .. }, Some(lost)) => lost,
                    (error, _) => error,
                })?;
            }
        }
    }

    /// Has the node bring a staged object and make it one of its own, and deletes the staged one.
    /// Where there is no room, waits for some until the deadline.
    pub(crate) fn import(mut self, staged: ObjectId, deadline: Instant) -> Result<ObjectId, Error> {
        let own = Arc::clone(&self.link.own);
        let imported = loop {
            let (name, metadata) = (self.name.clone(), None);
            let step = ImportStep::Seal { name, metadata, is_pinned: false };
            match self.call(staged, step) {
                Ok(ReplyBody::Fetched(Some(id))) => break Ok(ObjectId::from(id)),
                // It is on its way, or the import of an earlier connection has yet to end.
                Ok(ReplyBody::Fetching) => {
                    if let Err(error) = interrupt::pause(ROOM_PAUSE) {
                        break Err(error);
                    }
                }
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
    let targets = vec![WireTarget::Id(staged.into())];
    if let Err(error) = own.call(RequestBody::Delete { targets }) {
        tracing::debug!(%staged, %error, "a staged object is left to the node");
    }
}
