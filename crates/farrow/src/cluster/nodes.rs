//! The nodes of a cluster as one store: one session at each node, opened at first use.
//!
//! The daemon publishes the membership list in its region. So a search for an object on other nodes
//! sends no message once this client has its sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farrow_store::Held;
use farrow_wire::{MemberInfo, Members, Reach};

use crate::cluster::request_link::RequestLink;
use crate::connection::late_queue::LateWork;
use crate::connection::session::Session;
use crate::error::{Error, NodeUnreachable};
use crate::key::ObjectKey;
use crate::lock::lock;
use crate::options::ConnectOptions;

/// The client's sessions: the one at its own node, and those at other nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(super) own: Arc<Session>,
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

    /// Takes a new list, and returns the sessions at nodes that have no more use for this client: a
    /// node that lost its memory has a new region. Each session maps its region.
    fn follow(&mut self, number: u64, members: Members) -> Vec<Arc<Session>> {
        let mut left = Vec::new();
        self.sessions.retain(|name, session| {
            let node = may_have_memory(&members, name);
            let is_there = node.is_some_and(|node| node.region_uid == session.region_uid());
            if !is_there {
                left.push(Arc::clone(session));
            }
            is_there
        });
        (self.number, self.members) = (number, Arc::new(members));
        self.count_usable();
        left
    }
}

/// A node of this name, unless its memory has ended with it. One that is lost may return with its
/// memory, until it is forgotten.
fn may_have_memory<'a>(members: &'a Members, name: &str) -> Option<&'a MemberInfo> {
    members.find(name).filter(|node| !matches!(node.reach, Reach::Left | Reach::NotJoined))
}

/// Sessions that a client has no more use for. Their last user says goodbye, which may wait for the
/// daemon, and the caller may hold a lock of its program.
#[derive(Debug)]
struct LeftSessions(Vec<Arc<Session>>);

impl LateWork for LeftSessions {
    fn turn(self: Box<Self>, _deadline: Instant) -> Option<Box<dyn LateWork>> {
        drop(self.0);
        None
    }
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
    pub(crate) fn members(&self) -> Result<Arc<Members>, Error> {
        self.look(|seen| Arc::clone(&seen.members))
    }

    fn look<T>(&self, look: impl FnOnce(&SeenNodes) -> T) -> Result<T, Error> {
        let number = self.own.reader.members_version()?;
        self.own.check()?;
        let mut seen = lock(&self.seen);
        if seen.number != number
            && let Some((number, bytes)) = self.own.reader.published_members()?
            && let Some(members) = Members::decode(&bytes)
        {
            let left = seen.follow(number, members);
            if !left.is_empty() {
                self.own.late.add(Box::new(LeftSessions(left)));
            }
        }
        Ok(look(&seen))
    }

    /// Calls `look` again if it found nothing while objects may move between nodes. A name is at its
    /// new node before it leaves the old one, so a look that follows one that missed the move finds
    /// it there. Each draining node can cause one more miss.
    pub(crate) fn despite_moves<T>(
        &self,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let before = self.own.reader.members_version()?;
        let found = look()?;
        if found.is_some() || self.own.reader.members_version()? == 0 {
            return Ok(found);
        }
        // A drain that began or ended meanwhile has changed the list.
        let has_changed = self.own.reader.members_version()? != before;
        for _ in 0..self.members()?.draining.len() + usize::from(has_changed) {
            if let Some(found) = look()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Whether objects may move between nodes.
    pub(crate) fn is_any_draining(&self) -> Result<bool, Error> {
        Ok(self.own.reader.members_version()? != 0 && self.members()?.is_any_draining())
    }

    /// Holds an object in the memory of a node at which this client already has a session. Sends no
    /// message.
    pub(crate) fn hold_by_loads(
        &self,
        but: &Session,
        target: &ObjectKey,
        now_ns: u64,
    ) -> Result<Option<(Arc<Session>, Held)>, Error> {
        let usable = self.usable()?;
        for session in self.except(&usable, but).filter(|one| one.may_have(target)) {
            if let Some(held) = session.hold_by_loads(target, now_ns)? {
                return Ok(Some((Arc::clone(session), held)));
            }
        }
        Ok(None)
    }

    /// The sessions at other nodes whose memory can be used; none without a cluster.
    pub(crate) fn usable(&self) -> Result<Arc<[Arc<Session>]>, Error> {
        if self.own.reader.members_version()? == 0 {
            return Ok(Arc::default());
        }
        self.look(|seen| Arc::clone(&seen.usable))
    }

    /// The session at the client's own node and these, except `but`.
    pub(crate) fn except<'a>(
        &'a self,
        usable: &'a [Arc<Session>],
        but: &Session,
    ) -> impl Iterator<Item = &'a Arc<Session>> {
        std::iter::once(&self.own).chain(usable).filter(move |one| !std::ptr::eq(&***one, but))
    }

    /// True when there are no other nodes.
    pub(crate) fn is_alone(&self) -> Result<bool, Error> {
        Ok(self.own.reader.members_version()? == 0 || self.members()?.nodes.len() < 2)
    }

    /// The session at a node.
    pub(crate) fn session(&self, node: &MemberInfo) -> Result<Arc<Session>, Error> {
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
            return Err(Error::NodeUnreachable(NodeUnreachable {
                node: node.name.clone(),
                address: node.address.clone(),
                reason: node.why_not.clone(),
            }));
        }
        if let Some(session) = lock(&self.seen).sessions.get(&node.name) {
            return Ok(Arc::clone(session));
        }
        self.own.check()?;
        // Not under the lock: this node may be slow, and other threads may call other nodes
        // meanwhile.
        let session = Session::open(&self.options, &node.name)?;
        self.own.note_other(&session);
        let members = self.members()?;
        let mut seen = lock(&self.seen);
        if let Some(first) = seen.sessions.get(&node.name) {
            // Another thread was faster. The lock ends before this session.
            return Ok(Arc::clone(first));
        }
        // The session at a node that left meanwhile would stay until the next change of the list.
        if may_have_memory(&members, &node.name).is_some() {
            seen.sessions.insert(node.name.clone(), Arc::clone(&session));
            seen.count_usable();
        }
        Ok(session)
    }

    /// The connection for requests to a node whose memory is not mapped.
    pub(crate) fn request_link(&self, node: &MemberInfo) -> Result<Arc<RequestLink>, Error> {
        let known = lock(&self.links).get(&node.name).cloned();
        if let Some(link) = &known
            && link.incarnation == node.incarnation
        {
            return Ok(Arc::clone(link));
        }
        // Not under the lock: the node may be slow.
        let namespace = &self.options.namespace;
        let link = Arc::new(RequestLink::open(&self.own, node, namespace, known.as_deref())?);
        let members = self.members()?;
        let mut links = lock(&self.links);
        links.retain(|name, _| may_have_memory(&members, name).is_some());
        links.insert(node.name.clone(), Arc::clone(&link));
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
}

/// Whether an error concerns a single other node.
pub(super) fn is_of_node(error: &Error) -> bool {
    matches!(error, Error::NodeLost { .. } | Error::NodeUnreachable(_) | Error::NotPermitted(_))
}
