//! The client: the API that users of Farrow call.

use std::path::Path;
use std::sync::Arc;

use farrow_memory::{Address, Length, Offset, Region, Span};
use farrow_store::ObjectId;
use farrow_wire::RequestBody;

use crate::api::pool::Pool;
use crate::cluster::nodes::Nodes;
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;
use crate::objects::delete::delete_each;
use crate::objects::subscription::{SubscribeOptions, Subscription};
use crate::objects::writer::Writer;
use crate::objects::{batch, put};
use crate::options::{ConnectOptions, ObjectOptions};
use crate::value::Value;

/// Attempts to find an object that moves between nodes.
const MOVES_MAX: u32 = 3;

/// A connection to a node. Clones share it; threads may use it at the same time.
///
/// The session with the node, and all its holds, end once the client and everything made from it
/// (objects, arrays, pools, writers) are dropped.
#[derive(Debug, Clone)]
pub struct Client {
    session: Arc<Session>,
    nodes: Arc<Nodes>,
}

impl Client {
    /// Connects to a node, or starts a private one where the options allow it.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when no node answers, [`Error::PermissionDenied`] when it belongs to
    /// another user, [`Error::NoNamespace`].
    pub fn connect(options: &ConnectOptions) -> Result<Self, Error> {
        let (socket, _) = options.place();
        let session = Session::open(options, "")?;
        let options = ConnectOptions { socket: Some(socket), spawn: None, ..options.clone() };
        let nodes = Arc::new(Nodes::new(Arc::clone(&session), options));
        Ok(Self { session, nodes })
    }

    pub(crate) fn new(session: Arc<Session>, nodes: Arc<Nodes>) -> Self {
        Self { session, nodes }
    }

    pub(crate) fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Puts a value and seals it. Buffers that are already in the region, in a pool or a held
    /// object, stay in place; the rest is copied, once.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`], [`Error::AlreadyExists`] for the name, [`Error::TooMany`],
    /// [`Error::InvalidArgument`] for a value that breaks its own layout.
    pub fn put(&self, value: &Value<'_>, name: Option<&str>) -> Result<ObjectId, Error> {
        self.put_with(value, &ObjectOptions::named(name))
    }

    /// As [`Self::put`], with all options of an object.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]. With [`ObjectOptions::replace`], [`Error::AlreadyExists`] only if the name is
    /// that of an object of another node, or reserved by another client.
    pub fn put_with(
        &self,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
    ) -> Result<ObjectId, Error> {
        put::put(&self.session, value, options)
    }

    /// Puts several values, and seals them with at most one message for each 8192. If one fails,
    /// none stays.
    ///
    /// # Errors
    ///
    /// As [`Self::put`].
    pub fn put_many(
        &self,
        values: &[(Value<'_>, ObjectOptions<'_>)],
    ) -> Result<Vec<ObjectId>, Error> {
        batch::put_many(&self.session, values)
    }

    /// Allocates an object of plain bytes, to be written and sealed.
    ///
    /// # Errors
    ///
    /// As [`Self::put`]. The name is reserved from here on.
    pub fn create(&self, bytes: u64, name: Option<&str>) -> Result<Writer, Error> {
        self.create_with(bytes, &ObjectOptions::named(name))
    }

    /// As [`Self::create`], with all options of an object.
    ///
    /// # Errors
    ///
    /// As [`Self::create`].
    pub fn create_with(&self, bytes: u64, options: &ObjectOptions<'_>) -> Result<Writer, Error> {
        self.session.check()?;
        Writer::new(&self.session, bytes, options)
    }

    /// Allocates several objects, by their lengths in bytes, all or none. The names are reserved
    /// with one message.
    ///
    /// # Errors
    ///
    /// As [`Self::create`]; [`Error::TooMany`] for more than 8192.
    pub fn create_many(&self, objects: &[(u64, ObjectOptions<'_>)]) -> Result<Vec<Writer>, Error> {
        batch::create_many(&self.session, objects)
    }

    /// Deletes objects: their names are free at once, their memory after the last hold ends.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] names the first missing object, [`Error::PermissionDenied`] the first of
    /// another namespace; the others are deleted.
    pub fn delete(&self, targets: &[ObjectKey]) -> Result<(), Error> {
        let (mut first_error, mut left) = (None, targets.to_vec());
        for attempt in 0..=MOVES_MAX {
            let mut moved = Vec::new();
            for (session, numbers) in self.by_home(&left)? {
                let some = numbers.iter().filter_map(|number| left.get(*number).cloned());
                let some: Vec<ObjectKey> = some.collect();
                let results = match delete_each(&session, &some) {
                    Ok(results) => results,
                    Err(error) => {
                        first_error.get_or_insert(error);
                        continue;
                    }
                };
                for (target, result) in some.into_iter().zip(results) {
                    match (result, &target) {
                        (Ok(()), _) => {}
                        // It may have moved to another node while it was to be deleted here.
                        (Err(Error::NotFound { .. }), ObjectKey::Name(_))
                            if attempt < MOVES_MAX && self.nodes().is_any_draining()? =>
                        {
                            moved.push(target);
                        }
                        (Err(error), _) => drop(first_error.get_or_insert(error)),
                    }
                }
            }
            if moved.is_empty() {
                break;
            }
            left = moved;
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Subscribes to events of objects in the memory of this client's node, from now on or from the
    /// oldest retained event. Seals of objects without a name are reported only while a
    /// subscription to all objects exists.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a prefix longer than any name.
    pub fn subscribe(&self, options: SubscribeOptions) -> Result<Subscription, Error> {
        Subscription::new(&self.session, options)
    }

    /// The allocator of memory in the region.
    pub fn pool(&self) -> Pool {
        Pool::new(Arc::clone(&self.session))
    }

    /// The mapped region.
    pub fn region(&self) -> &Arc<Region> {
        &self.session.region
    }

    /// The offset of these bytes in the region, if all of them are in it.
    pub fn locate(&self, pointer: *const u8, length: usize) -> Option<Offset> {
        let offset = self.session.region.offset_of(Address(pointer as usize))?;
        let span = Span { offset, length: Length(length as u64) };
        self.session.region.check(span).ok().map(|()| offset)
    }

    /// The node's socket.
    pub fn socket(&self) -> &Path {
        &self.session.socket
    }

    /// True if no node served when this client connected, so that it started a private one, which
    /// had no objects.
    pub fn has_started_node(&self) -> bool {
        self.session.has_started_node
    }

    /// Shuts down the node.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has already ended.
    pub fn shut_down_node(&self) -> Result<(), Error> {
        self.session.call(RequestBody::Shutdown).map(drop)
    }
}
