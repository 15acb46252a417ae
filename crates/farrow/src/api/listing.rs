//! Lists of objects, of one node and of all.

use std::time::{Duration, Instant};

use farrow_store::{Metadata, ObjectId, ObjectKind};
use farrow_wire::link::confused;
use farrow_wire::{ListedItem, Listing, MemberInfo, Reach, ReplyBody, RequestBody};

use crate::api::Client;
use crate::clock::deadline_after;
use crate::error::Error;
use crate::interrupt;
use crate::key::ObjectKey;

/// Maximum bytes of the names in one question to another node, whose requests are short.
const FIND_BYTES_MAX: usize = 3072;

/// Bytes of a target in such a question, besides its name.
const TARGET_BYTES: usize = 24;

/// Pause before a node is asked again that restores an object.
const RESTORE_PAUSE: Duration = Duration::from_millis(5);

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

/// The objects of all nodes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ClusterList {
    /// Each object with its node; `None` without a cluster.
    pub objects: Vec<(Option<String>, ListedObject)>,
    /// Nodes whose objects are missing, and why: they are lost, or refuse this client.
    pub not_listed: Vec<(String, Error)>,
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
        let kind = ObjectKind::from_u8(item.kind);
        Ok(Self {
            id: item.id.into(),
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

impl Client {
    /// All sealed objects of the namespace whose names begin with `prefix`, by name. An empty
    /// prefix includes objects without a name, which are last. Sends no message.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn list(&self, prefix: &str) -> Result<Vec<ListedObject>, Error> {
        self.list_where(prefix, &Metadata::default())
    }

    /// Whether this node has no object of the namespace, in memory or out of it. Sends no message.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn is_empty(&self) -> Result<bool, Error> {
        self.session().check()?;
        let mut is_empty = true;
        self.session().reader.list_from(0, u64::MAX, "", &mut |_| {
            is_empty = false;
            false
        })?;
        Ok(is_empty)
    }

    /// As [`Self::list`], of the objects whose metadata contains all pairs of `filter`. The
    /// metadata of a spilled object is unknown until it is restored: it is listed as if it had
    /// none.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn list_where(&self, prefix: &str, filter: &Metadata) -> Result<Vec<ListedObject>, Error> {
        self.session().check()?;
        let mut all = Vec::new();
        for found in self.session().reader.list(prefix)? {
            // The metadata of a spilled object is spilled too.
            let metadata = match found.is_spilled {
                true => Some(Metadata::default()),
                false => self.session().reader.metadata(&found.entry)?,
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

    /// As [`Self::list_where`], on all nodes. Objects of lost nodes, and of nodes that refuse this
    /// client, are missing; the result names these nodes.
    ///
    /// # Errors
    ///
    /// [`Error::NodeUnreachable`] names a live node whose objects cannot be listed from here; use
    /// [`Self::list_on`] to list each of the others. A region is damaged.
    pub fn list_all(&self, prefix: &str, filter: &Metadata) -> Result<ClusterList, Error> {
        let members = self.nodes().members()?;
        let mut all = ClusterList::default();
        if members.nodes.is_empty() {
            let listed = self.list_where(prefix, filter)?;
            all.objects.extend(listed.into_iter().map(|one| (None, one)));
            return Ok(all);
        }
        for node in &members.nodes {
            match self.list_of(node, prefix, filter) {
                Ok(listed) => {
                    let listed = listed.into_iter().map(|one| (Some(node.name.clone()), one));
                    all.objects.extend(listed);
                }
                // A node that is no member has no objects.
                Err(Error::NodeLost { .. })
                    if matches!(node.reach, Reach::Left | Reach::NotJoined) => {}
                // The daemon may not have noticed yet that the other node is lost.
                Err(
                    error @ (Error::NodeLost { .. }
                    | Error::Disconnected { .. }
                    | Error::NotPermitted(_)),
                ) if !node.is_own => all.not_listed.push((node.name.clone(), error)),
                Err(error) => return Err(error),
            }
        }
        all.objects.sort_by(|(_, one), (_, other)| one.order().cmp(&other.order()));
        Ok(all)
    }

    /// As [`Self::list_where`], on a node of the cluster.
    ///
    /// # Errors
    ///
    /// As [`Self::at`] and [`Self::list_where`]. A node whose objects are fetched over the network
    /// answers through messages.
    pub fn list_on(
        &self,
        node: &str,
        prefix: &str,
        filter: &Metadata,
    ) -> Result<Vec<ListedObject>, Error> {
        match self.nodes().members()?.find(node) {
            Some(found) if found.is_by_net() => self.list_of(found, prefix, filter),
            _ => self.at(node)?.list_where(prefix, filter),
        }
    }

    fn list_of(
        &self,
        node: &MemberInfo,
        prefix: &str,
        filter: &Metadata,
    ) -> Result<Vec<ListedObject>, Error> {
        if !node.is_by_net() {
            return self.at_node(node)?.list_where(prefix, filter);
        }
        let mut all = self.list_by_net(node, prefix, filter)?;
        all.sort_by(|one, other| one.order().cmp(&other.order()));
        Ok(all)
    }

    pub(crate) fn list_by_net(
        &self,
        node: &MemberInfo,
        prefix: &str,
        filter: &Metadata,
    ) -> Result<Vec<ListedObject>, Error> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(start) = from {
            let (node, prefix) = (node.name.clone(), prefix.to_owned());
            let page = RequestBody::ListAt { node, prefix, from: start };
            let Listing { items, next } = match self.nodes().own().call(page)? {
                ReplyBody::Listing(listing) => listing,
                other => return Err(confused(&other).into()),
            };
            for item in items {
                let listed = ListedObject::of_item(item)?;
                if listed.metadata.contains_all(filter) {
                    all.push(listed);
                }
            }
            from = next.filter(|next| *next > start);
        }
        Ok(all)
    }

    /// Those of these objects that a node has whose memory is not mapped here, with their metadata.
    pub(crate) fn find_at(
        &self,
        node: &MemberInfo,
        targets: &[ObjectKey],
    ) -> Result<Vec<ListedObject>, Error> {
        let own = self.nodes().own();
        let mut found = Vec::with_capacity(targets.len());
        let deadline = deadline_after(own.timeout);
        let mut left = targets;
        while !left.is_empty() {
            let mut bytes = 0;
            let is_short = |target: &&ObjectKey| {
                bytes += target_bytes(target);
                bytes <= FIND_BYTES_MAX
            };
            let (some, rest) = left.split_at(left.iter().take_while(is_short).count().max(1));
            let wanted = some.iter().map(ObjectKey::wire).collect();
            let body = RequestBody::FindAt { node: node.name.clone(), targets: wanted };
            let items = match own.call(body)? {
                ReplyBody::Listing(listing) => listing.items,
                other => return Err(confused(&other).into()),
            };
            let is_theirs = |item: &ListedItem| item.id.hi == node.region_uid;
            if items.len() > some.len() || !items.iter().all(is_theirs) {
                let text = format!("node {:?} reported other objects than requested", node.name);
                return Err(Error::Protocol(text));
            }
            if items.iter().any(|item| item.is_spilled) {
                // Its metadata is out of memory too, and on its way back.
                if Instant::now() >= deadline {
                    let what = format!("an object of node {:?} to be restored", node.name);
                    let waited_ms = u64::try_from(own.timeout.as_millis()).unwrap_or(u64::MAX);
                    return Err(Error::Timeout { what, waited_ms });
                }
                interrupt::pause(RESTORE_PAUSE)?;
                continue;
            }
            for item in items {
                found.push(ListedObject::of_item(item)?);
            }
            left = rest;
        }
        Ok(found)
    }
}

fn target_bytes(target: &ObjectKey) -> usize {
    match target {
        ObjectKey::Id(_) => TARGET_BYTES,
        ObjectKey::Name(name) => TARGET_BYTES + name.len(),
    }
}
