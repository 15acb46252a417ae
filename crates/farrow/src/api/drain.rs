//! Draining a node: its objects move to other nodes before it leaves.

use std::sync::Arc;
use std::time::Instant;

use farrow_store::ObjectId;
use farrow_wire::link::confused;
use farrow_wire::{DrainReport, DrainStep, ImportStep, ReplyBody, RequestBody};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::cluster::request_link::{ROOM_PAUSE, RequestLink};
use crate::error::Error;
use crate::interrupt;

impl Client {
    /// Begins to drain this client's node: it takes no new objects, and [`Self::move_object`] moves
    /// its objects to other nodes. It stays so until [`Self::cancel_drain`] or its end in order, also
    /// after a kill. Objects that are held, got or deleted there are so as before.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no node to which objects could move;
    /// [`Error::PermissionDenied`] unless the node belongs to this user.
    pub fn begin_drain(&self) -> Result<DrainReport, Error> {
        self.drain_step(DrainStep::Begin)
    }

    /// Ends the drain of this client's node. Objects that have moved stay where they are.
    ///
    /// # Errors
    ///
    /// As [`Self::begin_drain`].
    pub fn cancel_drain(&self) -> Result<DrainReport, Error> {
        self.drain_step(DrainStep::Cancel)
    }

    /// The state of the drain of this client's node.
    ///
    /// # Errors
    ///
    /// As [`Self::begin_drain`].
    pub fn drain_report(&self) -> Result<DrainReport, Error> {
        self.drain_step(DrainStep::Report)
    }

    fn drain_step(&self, step: DrainStep) -> Result<DrainReport, Error> {
        match self.nodes().own().call(RequestBody::Drain(step))? {
            ReplyBody::Drain(report) => Ok(report),
            other => Err(confused(&other).into()),
        }
    }

    /// Moves an object with a name from this client's draining node to another one, over the network
    /// also where memory is mapped. It keeps its name, bytes, metadata, pin and time of creation,
    /// and gets another id, which is returned. It is found by its name at every moment. Clients that
    /// hold it keep the memory that they read. The object is in the namespace of this client, also
    /// at the other node, and counts there towards its quotas.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if it is deleted; [`Error::OutOfMemory`], [`Error::QuotaExceeded`],
    /// [`Error::NoNamespace`], [`Error::NodeLost`] and others of that node: another one may take the
    /// object. [`Error::NotMoved`] if it could not move until the deadline, with the reason, and
    /// [`Error::Timeout`]: then it may still move. In each case it is at exactly one node.
    pub fn move_object(
        &self,
        id: ObjectId,
        node: &str,
        deadline: Instant,
    ) -> Result<ObjectId, Error> {
        let link = self.link_to(node)?;
        let moved = self.bring_to(&link, id, deadline).and_then(|()| {
            let step = DrainStep::Move { id: id.into(), node: node.to_owned() };
            self.give_name(&step, deadline)
        });
        self.abandon_unless(&moved, &link, id);
        moved
    }

    /// Has a node bring the bytes of an object.
    pub(crate) fn bring_to(
        &self,
        link: &RequestLink,
        id: ObjectId,
        deadline: Instant,
    ) -> Result<(), Error> {
        let mut busy = None;
        while busy.is_none() || Instant::now() < deadline {
            match link.bring(id) {
                Ok(ReplyBody::Done) => return Ok(()),
                Ok(ReplyBody::Fetching) => {
                    busy = Some("its bytes are on their way".to_owned());
                    interrupt::pause(ROOM_PAUSE)?;
                }
                Ok(ReplyBody::Fetched(None)) => {
                    return Err(Error::no_object(id));
                }
                Ok(other) => return Err(confused(&other).into()),
                // A replica of the object is being brought for a client of that node.
                Err(Error::InvalidArgument(why)) => {
                    busy = Some(why);
                    interrupt::pause(ROOM_PAUSE)?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::NotMoved(busy.unwrap_or_default()))
    }

    /// Moves the name of an object to a node with the bytes of another one, `staged`, as
    /// [`DrainStep::MoveAs`] says.
    pub(crate) fn move_name(
        &self,
        (id, staged): (ObjectId, ObjectId),
        node: &str,
        absent: &str,
        deadline: Instant,
    ) -> Result<ObjectId, Error> {
        let link = self.link_to(node)?;
        let moved = self.bring_to(&link, staged, deadline).and_then(|()| {
            let (node, absent) = (node.to_owned(), absent.to_owned());
            let (id, staged) = (id.into(), staged.into());
            // What was staged may be out of date later: the caller stages it again.
            self.give_name(&DrainStep::MoveAs { id, node, staged, absent }, Instant::now())
        });
        self.abandon_unless(&moved, &link, staged);
        moved
    }

    fn link_to(&self, node: &str) -> Result<Arc<RequestLink>, Error> {
        let members = self.nodes().members()?;
        let found = members.find(node).filter(|found| !found.is_own).ok_or_else(|| {
            let known = members.names();
            Error::InvalidArgument(format!("no other node {node:?} in the cluster of {known:?}"))
        })?;
        self.nodes().request_link(found)
    }

    /// Has a node drop a copy that it does not need.
    fn abandon_unless(&self, moved: &Result<ObjectId, Error>, link: &RequestLink, id: ObjectId) {
        if moved.is_ok() {
            return;
        }
        let _quiet = interrupt::suspend();
        let (origin, step) = (id.into(), ImportStep::Abandon);
        if let Err(error) = link.call(RequestBody::Import { origin, step, wait_ms: 0 }) {
            tracing::debug!(%id, %error, "a copy is left to another node");
        }
    }

    /// Has this client's node give a name to a node that has the bytes.
    fn give_name(&self, step: &DrainStep, deadline: Instant) -> Result<ObjectId, Error> {
        let own = self.nodes().own();
        loop {
            let until = deadline.max(deadline_after(own.timeout));
            match own.call_until(RequestBody::Drain(step.clone()), until) {
                Ok(ReplyBody::Fetched(Some(id))) => return Ok(id.into()),
                Ok(other) => return Err(confused(&other).into()),
                Err(Error::NotMoved(_)) if Instant::now() < deadline => {
                    interrupt::pause(ROOM_PAUSE)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
