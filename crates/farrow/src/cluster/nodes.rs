//! The nodes of a cluster as one store: one session at each node, opened at first use.
//!
//! The daemon publishes the membership list in its region. So a search for an object on other nodes
//! sends no message once this client has its sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_store::{Held, Metadata, MetadataError, ObjectId};
use farrow_wire::link::confused;
use farrow_wire::{
    Extent, ListedItem, Listing, MemberInfo, Members, PartSpec, Reach, ReplyBody, RequestBody,
};

use crate::api::{Client, ListedObject};
use crate::cluster::request_link::RequestLink;
use crate::connection::session::Session;
use crate::error::Error;
use crate::interrupt;
use crate::key::ObjectKey;
use crate::lock::lock;
use crate::objects::held_bytes::{self, BatchBytes};
use crate::options::ConnectOptions;

/// The client's sessions: the one at its own node, and those at other nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    own: Arc<Session>,
    options: ConnectOptions,
    seen: Mutex<SeenNodes>,
    /// Connections for requests to nodes whose memory is not mapped.
    links: Mutex<BTreeMap<String, Arc<RequestLink>>>,
}

/// The latest membership list of the daemon, and the open sessions.
#[derive(Debug, Default)]
struct SeenNodes {
    number: u64,
    members: Arc<Members>,
    sessions: BTreeMap<String, Arc<Session>>,
    /// The sessions at nodes whose memory can be used.
    usable: Arc<[Arc<Session>]>,
}

impl SeenNodes {
    fn count_usable(&mut self) {
        let usable = self
            .sessions
            .iter()
            .filter(|(name, _)| self.members.find(name).is_some_and(MemberInfo::is_usable));
        self.usable = usable.map(|(_, session)| Arc::clone(session)).collect();
    }
}

/// The result of a search for an object on other nodes.
enum RemoteLookup<T> {
    Here(T),
    Nowhere,
    /// The object may be on a node whose objects are fetched over the network. The list has the
    /// errors of unreachable nodes.
    ByNet(Vec<(String, Error)>),
    /// The object may be on a node that cannot be reached.
    Unknown(Error),
}

/// How a client reaches the objects of a node.
#[derive(Debug, Clone)]
pub(crate) enum NodeReach {
    /// In mapped memory.
    Mapped(Arc<Session>),
    /// Through its own node, which asks the other one.
    ByNet(Box<MemberInfo>),
}

impl Nodes {
    pub(crate) fn new(own: Arc<Session>, options: ConnectOptions) -> Self {
        Self { own, options, seen: Mutex::default(), links: Mutex::default() }
    }

    /// The session at the client's own node.
    pub(crate) fn own(&self) -> &Arc<Session> {
        &self.own
    }

    /// The membership list. One load when nothing has changed.
    fn members(&self) -> Result<Arc<Members>, Error> {
        self.look(|seen| Arc::clone(&seen.members))
    }

    fn look<T>(&self, look: impl FnOnce(&SeenNodes) -> T) -> Result<T, Error> {
        let number = self.own.reader.told_number()?;
        self.own.check_process()?;
        let mut seen = lock(&self.seen);
        if seen.number != number
            && let Some((number, bytes)) = self.own.reader.told()?
            && let Some(members) = Members::decode(&bytes)
        {
            // A node that lost its memory has a new region.
            seen.sessions.retain(|name, session| {
                members.find(name).is_none_or(|node| node.region_uid == session.region_uid())
            });
            (seen.number, seen.members) = (number, Arc::new(members));
            seen.count_usable();
        }
        Ok(look(&seen))
    }

    /// Holds an object in the memory of a node at which this client already has a session. Sends no
    /// message.
    pub(crate) fn hold_here_at(
        &self,
        but: &Session,
        target: &ObjectKey,
        now_ns: u64,
    ) -> Result<Option<(Arc<Session>, Held)>, Error> {
        let usable = self.usable()?;
        for session in self.others(&usable, but).filter(|one| one.may_have(target)) {
            if let Some(held) = session.hold_here_at(target, now_ns)? {
                return Ok(Some((Arc::clone(session), held)));
            }
        }
        Ok(None)
    }

    /// Finds and holds small plain-bytes objects, those that are not yet `found`, in the memory of
    /// nodes at which this client already has a session. Sends messages only for pages of holds.
    pub(crate) fn get_batch(
        &self,
        but: &Session,
        targets: &[ObjectKey],
        now_ns: u64,
        found: &mut [Option<BatchBytes>],
    ) -> Result<(), Error> {
        let mut left: Vec<usize> =
            (0..found.len()).filter(|index| matches!(found.get(*index), Some(None))).collect();
        if left.is_empty() {
            return Ok(());
        }
        let usable = self.usable()?;
        for session in self.others(&usable, but) {
            let is_possible = |index: &&usize| {
                targets.get(**index).is_some_and(|target| session.may_have(target))
            };
            let possible: Vec<usize> = left.iter().filter(is_possible).copied().collect();
            if possible.is_empty() {
                continue;
            }
            let some: Vec<ObjectKey> =
                possible.iter().filter_map(|index| targets.get(*index).cloned()).collect();
            for (index, one) in possible.into_iter().zip(held_bytes::get(session, &some, now_ns)?) {
                if let Some(place) = found.get_mut(index) {
                    *place = one;
                }
            }
            left.retain(|index| matches!(found.get(*index), Some(None)));
        }
        Ok(())
    }

    /// The sessions at other nodes whose memory can be used; none without a cluster.
    fn usable(&self) -> Result<Arc<[Arc<Session>]>, Error> {
        if self.own.reader.told_number()? == 0 {
            return Ok(Arc::default());
        }
        self.look(|seen| Arc::clone(&seen.usable))
    }

    /// The session at the client's own node and these, except `but`.
    fn others<'a>(
        &'a self,
        usable: &'a [Arc<Session>],
        but: &Session,
    ) -> impl Iterator<Item = &'a Arc<Session>> {
        std::iter::once(&self.own).chain(usable).filter(move |one| !std::ptr::eq(&***one, but))
    }

    /// True when there are no other nodes.
    fn is_alone(&self) -> Result<bool, Error> {
        Ok(self.own.reader.told_number()? == 0 || self.members()?.nodes.len() < 2)
    }

    /// The session at a node.
    fn session(&self, node: &MemberInfo) -> Result<Arc<Session>, Error> {
        if node.is_own {
            return Ok(Arc::clone(&self.own));
        }
        if !node.is_member() {
            let reason = match node.reach {
                Reach::Left => "it left the cluster".to_owned(),
                _ => format!("nothing is heard from {}", node.address),
            };
            return Err(Error::NodeLost { node: node.name.clone(), reason });
        }
        if !node.is_usable() {
            return Err(Error::NodeUnreachable {
                node: node.name.clone(),
                address: node.address.clone(),
                reason: node.why_not.clone(),
            });
        }
        if let Some(session) = lock(&self.seen).sessions.get(&node.name) {
            return Ok(Arc::clone(session));
        }
        self.own.check_process()?;
        // Not under the lock: this node may be slow, and other threads may call other nodes
        // meanwhile.
        let session = Session::open(&self.options, &node.name)?;
        let mut seen = lock(&self.seen);
        let session = Arc::clone(seen.sessions.entry(node.name.clone()).or_insert(session));
        seen.count_usable();
        Ok(session)
    }

    /// A connection for requests to a node whose memory is not mapped.
    pub(crate) fn request_link(&self, node: &MemberInfo) -> Result<Arc<RequestLink>, Error> {
        let known = lock(&self.links).get(&node.name).cloned();
        if let Some(link) = &known
            && link.incarnation == node.incarnation
            && !link.is_dead()
        {
            return Ok(Arc::clone(link));
        }
        // Not under the lock: the node may be slow.
        let namespace = &self.options.namespace;
        let link = Arc::new(RequestLink::open(&self.own, node, namespace, known.as_deref())?);
        lock(&self.links).insert(node.name.clone(), Arc::clone(&link));
        Ok(link)
    }

    /// The node whose memory has this uid; `name` is what that node was called.
    pub(crate) fn reach_of(&self, region: u64, name: &str) -> Result<NodeReach, Error> {
        if region == self.own.region_uid() {
            return Ok(NodeReach::Mapped(Arc::clone(&self.own)));
        }
        let members = self.members()?;
        if let Some(node) = members.nodes.iter().find(|node| node.region_uid == region) {
            return self.reach(node);
        }
        let reason = match members.find(name) {
            // An unreachable node has its own error.
            Some(node) => match self.reach(node) {
                Ok(_) => "it has come back without the memory that it had".to_owned(),
                Err(error) => return Err(error),
            },
            None => format!("it is none of the cluster's nodes {:?}", members.names()),
        };
        Err(Error::NodeLost { node: name.to_owned(), reason })
    }

    fn reach(&self, node: &MemberInfo) -> Result<NodeReach, Error> {
        match node.is_by_net() && !node.is_own {
            true => Ok(NodeReach::ByNet(Box::new(node.clone()))),
            false => self.session(node).map(NodeReach::Mapped),
        }
    }

    /// The name of the node whose memory has this uid; empty without a cluster.
    pub(crate) fn name_of(&self, region: u64) -> Result<String, Error> {
        let members = self.members()?;
        let is_own = region == self.own.region_uid();
        let found =
            members.nodes.iter().find(|node| node.region_uid == region || (is_own && node.is_own));
        Ok(found.map(|node| node.name.clone()).unwrap_or_default())
    }

    /// The name of a node that is lost and not forgotten, if any.
    pub(crate) fn first_lost(&self) -> Result<Option<String>, Error> {
        let members = self.members()?;
        let lost = members.nodes.iter().find(|node| node.reach == Reach::Lost);
        Ok(lost.map(|node| node.name.clone()))
    }

    /// All nodes whose objects can be found from here.
    pub(crate) fn reaches(&self) -> Result<Vec<NodeReach>, Error> {
        let mut reaches = vec![NodeReach::Mapped(Arc::clone(&self.own))];
        for node in self.members()?.nodes.iter().filter(|node| !node.is_own) {
            match self.reach(node) {
                Ok(reach) => reaches.push(reach),
                Err(error) if is_of_node(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(reaches)
    }

    /// The first of the other nodes where `look` finds something. The result is an error if the
    /// object may be on a node that is lost, cannot be mapped, or refuses this client.
    fn first<T>(
        &self,
        but: &Session,
        target: &ObjectKey,
        look: impl Fn(&Arc<Session>) -> Result<Option<T>, Error>,
    ) -> Result<RemoteLookup<T>, Error> {
        if self.is_alone()? {
            return Ok(RemoteLookup::Nowhere);
        }
        let members = self.members()?;
        let (mut trouble, mut unseen, mut is_by_net) = (None, Vec::new(), false);
        for node in members.nodes.iter().filter(|node| is_possible(node, target)) {
            if node.region_uid == but.region_uid() {
                continue;
            }
            if node.is_by_net() {
                is_by_net = true;
                continue;
            }
            let found = match self.session(node) {
                Ok(session) => look(&session),
                Err(error) if is_of_node(&error) => {
                    unseen.push((node.name.clone(), error));
                    continue;
                }
                Err(error) => Err(error),
            };
            match found {
                Ok(Some(found)) => return Ok(RemoteLookup::Here(found)),
                Ok(None) => {}
                Err(error) => drop(trouble.get_or_insert(error)),
            }
        }
        if trouble.is_none() && is_by_net {
            return Ok(RemoteLookup::ByNet(unseen));
        }
        if trouble.is_none() {
            trouble = self.at_unseen(unseen, target)?;
        }
        Ok(trouble.map_or(RemoteLookup::Nowhere, RemoteLookup::Unknown))
    }

    /// Calls `look` until it finds something or the membership list stayed the same during the
    /// call. A list that changed may lack a node of which the client did not know yet.
    fn settled<T>(
        &self,
        target: &ObjectKey,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let since = Instant::now();
        loop {
            let before = self.own.reader.told_number()?;
            let found = look()?;
            if found.is_some() || self.own.reader.told_number()? == before {
                return Ok(found);
            }
            let waited = since.elapsed();
            if waited >= self.own.timeout {
                let what = format!("object {target}, looked for among nodes that come and go");
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                return Err(Error::Timeout { what, waited_ms });
            }
        }
    }

    /// The error of the node that has an object, among the nodes that this client could not search.
    /// `None` if the object exists nowhere. Asks the client's own daemon.
    fn at_unseen(
        &self,
        unseen: Vec<(String, Error)>,
        target: &ObjectKey,
    ) -> Result<Option<Error>, Error> {
        if unseen.is_empty() {
            return Ok(None);
        }
        let mut unseen = unseen.into_iter();
        let ObjectKey::Name(name) = target else {
            // An id names the region of its object.
            return Ok(unseen.next().map(|(_, error)| error));
        };
        match self.own.call(RequestBody::FindLost { name: name.clone() })? {
            ReplyBody::FoundLost(found) => {
                let is_it = |(node, _): &(String, Error)| found.as_deref() == Some(node);
                Ok(unseen.find(is_it).map(|(_, error)| error))
            }
            other => Err(confused(&other).into()),
        }
    }
}

fn evicted_again(target: &ObjectKey) -> Error {
    let what = format!("object {target}, whose copy here is evicted again and again");
    Error::Timeout { what, waited_ms: 0 }
}

/// An object that is held in the memory of another node, or was fetched from there.
pub(crate) struct Elsewhere {
    pub(crate) session: Arc<Session>,
    pub(crate) held: Held,
    /// Only the requested part was fetched.
    pub(crate) is_part: bool,
}

/// Maximum bytes of the names in one question to another node, whose requests are short.
const FIND_BYTES_MAX: usize = 3072;

/// Bytes of a target in such a question, besides its name.
const TARGET_BYTES: usize = 24;

/// Pause before a node is asked again that restores an object.
const RESTORE_PAUSE: Duration = Duration::from_millis(5);

fn target_bytes(target: &ObjectKey) -> usize {
    match target {
        ObjectKey::Id(_) => TARGET_BYTES,
        ObjectKey::Name(name) => TARGET_BYTES + name.len(),
    }
}

/// Maximum fetches of one object, which may be evicted again before this client holds it.
const FETCHES_MAX: u32 = 16;

/// Whether an error concerns a single other node.
fn is_of_node(error: &Error) -> bool {
    matches!(
        error,
        Error::NodeLost { .. } | Error::NodeUnreachable { .. } | Error::NotGranted { .. }
    )
}

/// A session, and the indices of the targets at its node.
type AtHome = (Arc<Session>, Vec<usize>);

/// Whether a node may have an object. An id names the region of its object; a name may be anywhere.
fn is_possible(node: &MemberInfo, target: &ObjectKey) -> bool {
    match target {
        ObjectKey::Id(id) => id.region().0 == node.region_uid,
        ObjectKey::Name(_) => true,
    }
}

impl Client {
    /// The same client with the memory of another node: its new objects and allocations are placed
    /// there, and its statistics are that node's. Objects are found on any node.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`], [`Error::NodeUnreachable`] for a node whose memory cannot be mapped
    /// here, [`Error::InvalidArgument`] for an unknown node, [`Error::NotGranted`] for a node that
    /// admits no client of this node.
    pub fn at(&self, node: &str) -> Result<Self, Error> {
        let members = self.nodes().members()?;
        let found = members.find(node).ok_or_else(|| {
            let known = members.names();
            Error::InvalidArgument(format!("no node {node:?} in the cluster; there are {known:?}"))
        })?;
        self.at_node(found)
    }

    /// A connection for requests to a node, if its memory is not mapped and its objects travel by
    /// network.
    pub(crate) fn request_link(&self, node: &str) -> Result<Option<Arc<RequestLink>>, Error> {
        let found = self.by_net_member(node)?;
        found.map(|found| self.nodes().request_link(&found)).transpose()
    }

    /// The member of this name, if its objects are fetched over the network.
    pub(crate) fn by_net_member(&self, node: &str) -> Result<Option<MemberInfo>, Error> {
        let members = self.nodes().members()?;
        let found = members.find(node).filter(|found| found.is_by_net() && !found.is_own);
        Ok(found.cloned())
    }

    fn at_node(&self, node: &MemberInfo) -> Result<Self, Error> {
        Ok(Self::new(self.nodes().session(node)?, Arc::clone(self.nodes())))
    }

    /// The node in whose memory this client puts; `None` without a cluster.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn node(&self) -> Result<Option<String>, Error> {
        let (uid, members) = (self.region_uid(), self.nodes().members()?);
        let found = members.nodes.iter().find(|node| node.region_uid == uid);
        Ok(found.map(|node| node.name.clone()))
    }

    /// The uid of the region in which this client puts. A node that lost its memory has a new one.
    pub fn region_uid(&self) -> u64 {
        self.session().region_uid()
    }

    /// As [`Self::list_where`], on all nodes, each object with its node; `None` without a cluster.
    /// Objects of lost nodes, and of nodes that refuse this client, are not listed.
    ///
    /// # Errors
    ///
    /// [`Error::NodeUnreachable`] names a live node whose objects cannot be listed from here; use
    /// [`Self::list_on`] to list each of the others. A region is damaged.
    pub fn list_all(
        &self,
        prefix: &str,
        filter: &Metadata,
    ) -> Result<Vec<(Option<String>, ListedObject)>, Error> {
        let members = self.nodes().members()?;
        if members.nodes.is_empty() {
            let listed = self.list_where(prefix, filter)?;
            return Ok(listed.into_iter().map(|one| (None, one)).collect());
        }
        let mut all = Vec::new();
        for node in &members.nodes {
            match self.list_of(node, prefix, filter) {
                Ok(listed) => {
                    all.extend(listed.into_iter().map(|one| (Some(node.name.clone()), one)));
                }
                // The daemon may not have noticed yet that the other node is lost.
                Err(
                    error @ (Error::NodeLost { .. }
                    | Error::Disconnected { .. }
                    | Error::NotGranted { .. }),
                ) if !node.is_own => {
                    tracing::debug!(%error, "not listed");
                }
                Err(error) => return Err(error),
            }
        }
        all.sort_by(|(_, one), (_, other)| one.order().cmp(&other.order()));
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
        let deadline = Instant::now() + own.timeout;
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
            let is_theirs = |item: &ListedItem| item.id.0 == node.region_uid;
            if items.len() > some.len() || !items.iter().all(is_theirs) {
                let text = format!("node {:?} told of other objects than asked for", node.name);
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

    /// Has the client's own node begin to fetch an object that is needed soon.
    pub(crate) fn fetch_ahead(&self, target: &ObjectKey, part: Option<&PartSpec>) {
        let extent = part.map_or(Extent::Whole, |part| Extent::Part(part.clone()));
        let fetch = RequestBody::Fetch { target: target.wire(), extent, wait_ms: 0 };
        if let Err(error) = self.nodes().own().call(fetch) {
            // The fetch that waits for the object reports it.
            tracing::debug!(%target, %error, "not fetched ahead");
        }
    }

    /// The nodes of the cluster, as seen by the client's own node; none without a cluster.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node is gone.
    pub fn members(&self) -> Result<Members, Error> {
        match self.nodes().own.call(RequestBody::Nodes)? {
            ReplyBody::Nodes(members) => Ok(members),
            other => Err(confused(&other).into()),
        }
    }

    /// Declares that all processes of a lost node have ended, and frees the memory they held. Be
    /// sure: memory that they still read would be granted again. Names of the lost node that this
    /// node could not read become free. Call this on each remaining node.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a node that is unknown or not lost.
    pub fn forget_node(&self, node: &str) -> Result<(), Error> {
        self.nodes().own.call(RequestBody::Forget { node: node.to_owned() }).map(drop)
    }

    /// The session at the node that has an object. If the object exists nowhere: this client's own.
    pub(crate) fn home_of(&self, target: &ObjectKey) -> Result<Arc<Session>, Error> {
        if self.session().has(target)? {
            return Ok(Arc::clone(self.session()));
        }
        let look = |session: &Arc<Session>| Ok(session.has(target)?.then(|| Arc::clone(session)));
        match self.nodes().first(self.session(), target, look)? {
            RemoteLookup::Here(session) => Ok(session),
            RemoteLookup::Nowhere => Ok(Arc::clone(self.session())),
            // The client's own node asks the other nodes.
            RemoteLookup::ByNet(unseen) => match self.nodes().at_unseen(unseen, target)? {
                Some(error) => Err(error),
                None => Ok(Arc::clone(self.nodes().own())),
            },
            RemoteLookup::Unknown(error) => Err(error),
        }
    }

    /// Whether an object is on a node whose objects are fetched over the network.
    pub(crate) fn is_by_net(&self, target: &ObjectKey) -> Result<bool, Error> {
        let found = self.nodes().settled(target, || {
            let is_there = self.ask_by_net(target)?;
            Ok(is_there.then_some(()))
        })?;
        Ok(found.is_some())
    }

    fn ask_by_net(&self, target: &ObjectKey) -> Result<bool, Error> {
        match target {
            ObjectKey::Name(name) => Ok(self.net_home_of_name(target, name)?.is_some()),
            ObjectKey::Id(_) => {
                let look = |session: &Arc<Session>| Ok(session.has(target)?.then_some(()));
                match self.nodes().first(self.session(), target, look)? {
                    RemoteLookup::ByNet(_) => Ok(self.fetch_metadata(target)?.is_some()),
                    _ => Ok(false),
                }
            }
        }
    }

    /// The node whose memory is not mapped that has an object of this name.
    fn net_home_of_name(&self, target: &ObjectKey, name: &str) -> Result<Option<String>, Error> {
        let look = |session: &Arc<Session>| Ok(session.has(target)?.then_some(()));
        let found = self.nodes().first(self.session(), target, look)?;
        let RemoteLookup::ByNet(unseen) = found else { return Ok(None) };
        match self.nodes().own().call(RequestBody::FindLost { name: name.to_owned() })? {
            ReplyBody::FoundLost(None) => Ok(None),
            ReplyBody::FoundLost(Some(node)) => {
                let wrong = unseen.into_iter().find(|(of, _)| *of == node);
                wrong.map_or(Ok(Some(node)), |(_, error)| Err(error))
            }
            other => Err(confused(&other).into()),
        }
    }

    /// The home of an object, if its memory is not mapped here and its objects are fetched over the
    /// network. `None` also if there is no such object.
    pub(crate) fn net_home_of(&self, target: &ObjectKey) -> Result<Option<MemberInfo>, Error> {
        let members = self.nodes().members()?;
        let is_far = |node: &&MemberInfo| node.is_by_net() && !node.is_own;
        if !members.nodes.iter().any(|node| is_far(&node)) {
            return Ok(None);
        }
        let of_region = |region: u64| {
            let mut far = members.nodes.iter().filter(is_far);
            far.find(|node| node.region_uid == region).cloned()
        };
        let name = match target {
            ObjectKey::Id(id) => return Ok(of_region(id.region().0)),
            ObjectKey::Name(name) => name,
        };
        let own = self.nodes().own();
        if let Some(entry) = own.lookup(target)?.filter(|entry| entry.is_replica) {
            let origin = own.reader.origin(&entry)?;
            return Ok(origin.and_then(|origin| of_region(origin.region().0)));
        }
        if self.session().has(target)? {
            return Ok(None);
        }
        let node = self.net_home_of_name(target, name)?;
        Ok(node.and_then(|node| members.find(&node).filter(is_far).cloned()))
    }

    /// Fetches an object of another node, or a part of it, into the memory of the client's own
    /// node, and holds it.
    fn fetch(
        &self,
        target: &ObjectKey,
        part: Option<&PartSpec>,
    ) -> Result<Option<Elsewhere>, Error> {
        let own = self.nodes().own();
        // A slow transfer is no timeout: the node answers `Fetching` at this interval.
        let wait_ms = u64::try_from(own.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let mut evictions = 0;
        while evictions < FETCHES_MAX {
            let extent = part.map_or(Extent::Whole, |part| Extent::Part(part.clone()));
            let fetch = RequestBody::Fetch { target: target.wire(), extent, wait_ms };
            let (id, is_part) = match own.call(fetch)? {
                ReplyBody::Fetched(None) => return Ok(None),
                ReplyBody::Fetched(Some((hi, lo))) => (ObjectId { hi, lo }, false),
                ReplyBody::FetchedPart((hi, lo)) => (ObjectId { hi, lo }, true),
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
    fn fetch_metadata(&self, target: &ObjectKey) -> Result<Option<Metadata>, Error> {
        let own = self.nodes().own();
        let wait_ms = u64::try_from(own.timeout.as_millis() / 2).unwrap_or(u64::MAX);
        let mut evictions = 0;
        while evictions < FETCHES_MAX {
            let (target, extent) = (target.wire(), Extent::Metadata);
            let id = match own.call(RequestBody::Fetch { target, extent, wait_ms })? {
                ReplyBody::Fetched(None) => return Ok(None),
                ReplyBody::Fetched(Some((hi, lo))) => ObjectId { hi, lo },
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

    /// The metadata of an object in the memory of a node other than this client's.
    pub(crate) fn metadata_elsewhere(&self, target: &ObjectKey) -> Result<Option<Metadata>, Error> {
        let look = |session: &Arc<Session>| {
            let Some(held) = session.hold(target)? else { return Ok(None) };
            let metadata = session.reader.metadata(held.entry());
            session.release(held);
            Ok(metadata?)
        };
        self.nodes().settled(target, || match self.nodes().first(self.session(), target, look)? {
            RemoteLookup::Here(found) => Ok(Some(found)),
            RemoteLookup::Nowhere => Ok(None),
            RemoteLookup::ByNet(unseen) => match self.fetch_metadata(target)? {
                None => self.nodes().at_unseen(unseen, target)?.map_or(Ok(None), Err),
                found => Ok(found),
            },
            RemoteLookup::Unknown(error) => Err(error),
        })
    }

    /// Holds an object in the memory of a node other than this client's. If the object has to be
    /// fetched, only `part` of it is.
    pub(crate) fn hold_elsewhere(
        &self,
        target: &ObjectKey,
        part: Option<&PartSpec>,
    ) -> Result<Option<Elsewhere>, Error> {
        self.nodes().settled(target, || self.look_elsewhere(target, part))
    }

    fn look_elsewhere(
        &self,
        target: &ObjectKey,
        part: Option<&PartSpec>,
    ) -> Result<Option<Elsewhere>, Error> {
        let look = |session: &Arc<Session>| {
            let held = session.hold(target)?;
            Ok(held.map(|held| Elsewhere { session: Arc::clone(session), held, is_part: false }))
        };
        match self.nodes().first(self.session(), target, look)? {
            RemoteLookup::Here(found) => Ok(Some(found)),
            RemoteLookup::Nowhere => Ok(None),
            RemoteLookup::ByNet(unseen) => match self.fetch(target, part)? {
                None => self.nodes().at_unseen(unseen, target)?.map_or(Ok(None), Err),
                found => Ok(found),
            },
            RemoteLookup::Unknown(error) => Err(error),
        }
    }

    /// The targets' indices, grouped by the sessions at their nodes, in order.
    pub(crate) fn by_home(&self, targets: &[ObjectKey]) -> Result<Vec<AtHome>, Error> {
        let all = || (0..targets.len()).collect();
        if self.nodes().is_alone()? {
            return Ok(vec![(Arc::clone(self.session()), all())]);
        }
        let mut groups: Vec<AtHome> = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            let home = self.home_of(target)?;
            match groups.iter_mut().find(|(session, _)| Arc::ptr_eq(session, &home)) {
                Some((_, numbers)) => numbers.push(number),
                None => groups.push((home, vec![number])),
            }
        }
        Ok(groups)
    }
}
