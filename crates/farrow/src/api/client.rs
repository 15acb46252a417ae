//! The client: the API that users of Farrow call.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farrow_memory::{Address, Length, Offset, Region, Span};
use farrow_store::{Metadata, ObjectId, ObjectKind};
use farrow_wire::link::confused;
use farrow_wire::{
    BATCH_ITEMS_MAX, ListedItem, NodeStats, Overview, ReplyBody, RequestBody, WAIT_MS_MAX,
};
use serde::Serialize;

use crate::clock::{deadline_after, millis};
use crate::cluster::nodes::Nodes;
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;
use crate::memory::pool::{Pool, PoolStats};
use crate::objects::batch;
use crate::objects::delete::delete;
use crate::objects::put;
use crate::objects::subscription::{SubscribeOptions, Subscription};
use crate::objects::writer::Writer;
use crate::options::{ConnectOptions, ObjectOptions};
use crate::value::Value;

/// An object in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Its id.
    pub id: ObjectId,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its kind.
    pub kind: ObjectKind,
    /// Bytes of its buffers.
    pub bytes: u64,
    /// Nanoseconds since 1970 at its seal.
    pub sealed_at_ns: u64,
    /// The process that made it.
    pub creator_pid: u32,
    /// Its metadata.
    pub metadata: Metadata,
    /// True if it is never evicted.
    pub is_pinned: bool,
    /// Nanoseconds since 1970 at its last use (a get or the seal), with a resolution of one
    /// millisecond.
    pub last_use_ns: u64,
    /// True if it is out of memory: a get restores it.
    pub is_spilled: bool,
    /// True if its name in memory was overwritten. It then has no name, and is found by its id.
    pub is_name_damaged: bool,
}

impl ListedObject {
    fn new(listed: farrow_store::DirectoryItem, metadata: Metadata) -> Self {
        let entry = listed.entry;
        Self {
            id: entry.id,
            name: listed.name,
            kind: entry.kind,
            bytes: entry.size.0,
            sealed_at_ns: entry.sealed_at_ns,
            creator_pid: entry.creator_pid,
            metadata,
            is_pinned: listed.is_pinned,
            last_use_ns: listed.last_use_ns,
            is_spilled: listed.is_spilled,
            is_name_damaged: listed.is_name_damaged,
        }
    }

    /// Decodes an object listed by another node.
    pub(crate) fn of_item(item: ListedItem) -> Result<Self, Error> {
        let wrong = |what: &str| Error::Protocol(format!("an object is listed with {what}"));
        let (hi, lo) = item.id;
        let kind = ObjectKind::from_u8(item.kind);
        Ok(Self {
            id: ObjectId { hi, lo },
            name: item.name,
            kind: kind.ok_or_else(|| wrong(&format!("kind {}", item.kind)))?,
            bytes: item.bytes,
            sealed_at_ns: item.sealed_at_ns,
            creator_pid: item.creator_pid,
            metadata: Metadata::decode(&item.metadata)
                .map_err(|error| wrong(&error.to_string()))?,
            is_pinned: item.is_pinned,
            last_use_ns: item.last_use_ns,
            is_spilled: item.is_spilled,
            is_name_damaged: item.is_name_damaged,
        })
    }

    /// Sort key: by name; objects without a name last.
    pub(crate) fn order(&self) -> (bool, Option<&str>, ObjectId) {
        (self.name.is_none(), self.name.as_deref(), self.id)
    }
}

/// Counters of one process on one fabric.
#[derive(Debug, Clone, Serialize)]
pub struct FabricStats {
    /// Lines written back to memory.
    pub published_lines: u64,
    /// Lines dropped from the caches, so that they are read again from memory.
    pub refreshed_lines: u64,
    /// Calls to publish.
    pub publish_calls: u64,
    /// Calls to refresh.
    pub refresh_calls: u64,
    /// Time spent in publish, in nanoseconds.
    pub publish_ns: u64,
    /// Time spent in refresh, in nanoseconds.
    pub refresh_ns: u64,
    /// How often all caches of the machine were written back at once, instead of many single lines.
    pub all_caches_calls: u64,
    /// Bytes mapped writable.
    pub mapped_writable: u64,
}

/// Statistics of the node and of this client, in bytes unless stated otherwise.
#[derive(Debug, Clone, Serialize)]
pub struct Stats {
    /// Statistics of the node.
    #[serde(flatten)]
    pub node: NodeStats,
    /// Counters of this process on each fabric, by the fabric's name.
    pub fabrics: BTreeMap<String, FabricStats>,
    /// True if the region is mapped at the address agreed on by all processes.
    pub is_at_agreed_address: bool,
    /// First address of the region in this process.
    pub base: u64,
    /// Bytes of live allocations of the memory pool.
    pub pool_allocated: u64,
    /// Allocations that failed because the region was full.
    pub pool_refused: u64,
}

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
        self.session.check_process()?;
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

    /// The metadata of a sealed object. Sends no message unless the object is spilled, and then
    /// restored, or on another node.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; the region is damaged.
    pub fn metadata(&self, target: &ObjectKey) -> Result<Metadata, Error> {
        let missing = || Error::NotFound { what: target.to_string() };
        let session = self.home_of(target)?;
        if let Some(entry) = session.lookup(target)?
            && let Some(metadata) = session.reader.metadata(&entry)?
        {
            return Ok(metadata);
        }
        // The object may be spilled together with its metadata, or on a node that has to be asked.
        let Some(held) = session.hold(target)? else {
            return self.metadata_elsewhere(target)?.ok_or_else(missing);
        };
        let metadata = session.reader.metadata(held.entry());
        session.release(held);
        metadata?.ok_or_else(missing)
    }

    /// Whether a sealed object has this id or name, on any node. Sends no message, except to open a
    /// session at each node not searched before, and if nodes are lost or cannot be mapped.
    ///
    /// # Errors
    ///
    /// The region is damaged; [`Error::NodeLost`] when the object may be on a node that is lost;
    /// [`Error::NodeUnreachable`] when it is on a node whose memory cannot be mapped here.
    pub fn contains(&self, target: &ObjectKey) -> Result<bool, Error> {
        let is_here = self.session.has(target)? || self.home_of(target)?.has(target)?;
        Ok(is_here || self.is_by_net(target)?)
    }

    /// Deletes objects: their names are free at once, their memory after the last hold ends.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] names the first missing object, [`Error::PermissionDenied`] the first of
    /// another namespace; the others are deleted.
    pub fn delete(&self, targets: &[ObjectKey]) -> Result<(), Error> {
        let mut first_error = None;
        for (session, numbers) in self.by_home(targets)? {
            let some = numbers.iter().filter_map(|number| targets.get(*number).cloned());
            if let Err(error) = delete(&session, &some.collect::<Vec<_>>()) {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Waits until `count` of the objects are sealed or the timeout expires, and returns which are
    /// sealed. Only names can be waited for: an id exists from its seal on.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node is gone; [`Error::NodeUnreachable`] when one of the
    /// objects is, or is sealed, in memory that cannot be mapped here.
    pub fn wait(
        &self,
        targets: &[ObjectKey],
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<bool>, Error> {
        let ready = targets.iter().map(|target| self.contains(target));
        let ready: Vec<bool> = ready.collect::<Result<_, _>>()?;
        let have = ready.iter().filter(|ready| **ready).count();
        if have >= count.min(targets.len()) || timeout.is_zero() {
            return Ok(ready);
        }
        self.wait_until(targets, count, deadline_after(timeout))
    }

    pub(crate) fn wait_until(
        &self,
        targets: &[ObjectKey],
        count: usize,
        deadline: Instant,
    ) -> Result<Vec<bool>, Error> {
        if targets.len() > BATCH_ITEMS_MAX {
            return Err(Error::TooMany {
                what: "objects to wait for".into(),
                max: BATCH_ITEMS_MAX as u64,
            });
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout_ms = millis(left).min(WAIT_MS_MAX);
            let body = RequestBody::Wait {
                targets: targets.iter().map(ObjectKey::wire).collect(),
                count: u32::try_from(count).unwrap_or(u32::MAX),
                timeout_ms,
            };
            // The node enforces the timeout; its answer may take a little longer.
            let patience = deadline.checked_add(self.session.timeout).unwrap_or(deadline);
            let ready = match self.session.call_until(body, patience)? {
                ReplyBody::Ready(ready) => ready,
                other => return Err(confused(&other).into()),
            };
            let have = ready.iter().filter(|ready| **ready).count();
            if have >= count.min(targets.len()) || timeout_ms < WAIT_MS_MAX {
                return Ok(ready);
            }
        }
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

    /// All sealed objects of the namespace whose names begin with `prefix`, by name. An empty
    /// prefix includes objects without a name, which are last. Sends no message.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn list(&self, prefix: &str) -> Result<Vec<ListedObject>, Error> {
        self.list_where(prefix, &Metadata::default())
    }

    /// As [`Self::list`], of the objects whose metadata contains all pairs of `filter`. The
    /// metadata of a spilled object is unknown until it is restored: it is listed as if it had
    /// none.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn list_where(&self, prefix: &str, filter: &Metadata) -> Result<Vec<ListedObject>, Error> {
        self.session.check_process()?;
        let mut all = Vec::new();
        for found in self.session.reader.list(prefix)? {
            // The metadata of a spilled object is spilled too.
            let metadata = match found.is_spilled {
                true => Some(Metadata::default()),
                false => self.session.reader.metadata(&found.entry)?,
            };
            // `None`: the object was deleted or evicted meanwhile.
            if let Some(metadata) = metadata
                && metadata.contains_all(filter)
            {
                all.push(ListedObject::new(found, metadata));
            }
        }
        all.sort_by(|one, other| one.order().cmp(&other.order()));
        Ok(all)
    }

    /// Statistics of the node and of this client.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node is gone.
    pub fn stats(&self) -> Result<Stats, Error> {
        let node = match self.session.call(RequestBody::Stats)? {
            ReplyBody::Stats(node) => *node,
            other => return Err(confused(&other).into()),
        };
        let region = &self.session.region;
        let counters = region.counters();
        let counters = FabricStats {
            published_lines: counters.published_lines,
            refreshed_lines: counters.refreshed_lines,
            publish_calls: counters.publish_calls,
            refresh_calls: counters.refresh_calls,
            publish_ns: counters.publish_ns,
            refresh_ns: counters.refresh_ns,
            all_caches_calls: counters.all_caches_calls,
            mapped_writable: counters.mapped_writable_bytes,
        };
        let fabric = region.fabric().kind().as_str().to_owned();
        let pool = self.pool_stats();
        Ok(Stats {
            node,
            fabrics: BTreeMap::from([(fabric, counters)]),
            is_at_agreed_address: region.is_at_wish(),
            base: region.base().0 as u64,
            pool_allocated: pool.allocated,
            pool_refused: pool.refused,
        })
    }

    /// The clients of the node, and its heap in `cells` equal parts.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node is gone.
    pub fn overview(&self, cells: u32) -> Result<Overview, Error> {
        match self.session.call(RequestBody::Overview { cells })? {
            ReplyBody::Overview(overview) => Ok(overview),
            other => Err(confused(&other).into()),
        }
    }

    /// The allocator of memory in the region.
    pub fn pool(&self) -> Pool {
        Pool::new(Arc::clone(&self.session))
    }

    fn pool_stats(&self) -> PoolStats {
        self.pool().stats()
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
    /// [`Error::Disconnected`] when the node is already gone.
    pub fn shut_down_node(&self) -> Result<(), Error> {
        self.session.call(RequestBody::Shutdown).map(drop)
    }
}
