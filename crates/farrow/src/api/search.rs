//! Which node has an object.

use std::cell::Cell;
use std::sync::Arc;

use farrow_store::Metadata;
use farrow_wire::link::confused;
use farrow_wire::{MemberInfo, PartSpec, ReplyBody, RequestBody};

use crate::api::Client;
use crate::cluster::fetch::Elsewhere;
use crate::cluster::lookup::RemoteLookup;
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;

/// A session, and the indices of the targets at its node.
type AtHome = (Arc<Session>, Vec<usize>);

impl Client {
    /// The metadata of a sealed object. Sends no message unless the object is spilled, and then
    /// restored, or on another node.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]; the region is damaged.
    pub fn metadata(&self, target: &ObjectKey) -> Result<Metadata, Error> {
        let found = self.nodes().despite_moves(|| self.metadata_now(target))?;
        found.ok_or_else(|| Error::no_object(target.store()))
    }

    fn metadata_now(&self, target: &ObjectKey) -> Result<Option<Metadata>, Error> {
        let session = self.home_of(target)?;
        if let Some(entry) = session.lookup(target)?
            && let Some(metadata) = session.reader.metadata(&entry)?
        {
            return Ok(Some(metadata));
        }
        // The object may be spilled together with its metadata, or on a node that has to be asked.
        let Some(held) = session.hold(target)? else {
            return self.metadata_elsewhere(target);
        };
        let metadata = session.reader.metadata(held.entry());
        session.release(held);
        Ok(metadata?)
    }

    /// Whether a sealed object has this id or name, on any node. Sends no message, except to open a
    /// session at each node not searched before, and if nodes are lost or cannot be mapped.
    ///
    /// # Errors
    ///
    /// The region is damaged; [`Error::NodeLost`] when the object may be on a node that is lost;
    /// [`Error::NodeUnreachable`] when it is on a node whose memory cannot be mapped here.
    pub fn contains(&self, target: &ObjectKey) -> Result<bool, Error> {
        let look = || {
            let is_here = self.session().has(target)? || self.home_of(target)?.has(target)?;
            Ok((is_here || self.is_by_net(target)?).then_some(()))
        };
        Ok(self.nodes().despite_moves(look)?.is_some())
    }

    /// The session at the node that has an object. If the object exists nowhere: this client's own.
    pub(crate) fn home_of(&self, target: &ObjectKey) -> Result<Arc<Session>, Error> {
        let nowhere = Cell::new(None);
        let found = self.nodes().despite_moves(|| match self.home_now(target)? {
            (session, true) => Ok(Some(session)),
            (session, false) => {
                nowhere.set(Some(session));
                Ok(None)
            }
        })?;
        Ok(found.or(nowhere.into_inner()).unwrap_or_else(|| Arc::clone(self.session())))
    }

    /// The same, and whether the object was found there.
    fn home_now(&self, target: &ObjectKey) -> Result<(Arc<Session>, bool), Error> {
        if self.session().has(target)? {
            return Ok((Arc::clone(self.session()), true));
        }
        let look = |session: &Arc<Session>| Ok(session.has(target)?.then(|| Arc::clone(session)));
        match self.nodes().first(self.session(), target, look)? {
            RemoteLookup::Here(session) => Ok((session, true)),
            RemoteLookup::Nowhere => Ok((Arc::clone(self.session()), false)),
            // The client's own node asks the other nodes.
            RemoteLookup::ByNet(unseen) => match self.nodes().at_unseen(unseen, target)? {
                Some(error) => Err(error),
                None => Ok((Arc::clone(self.nodes().own()), false)),
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
                    RemoteLookup::ByNet(_) => Ok(self.nodes().fetch_metadata(target)?.is_some()),
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
        self.nodes().despite_moves(|| self.net_home_now(target))
    }

    fn net_home_now(&self, target: &ObjectKey) -> Result<Option<MemberInfo>, Error> {
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
            RemoteLookup::ByNet(unseen) => match self.nodes().fetch_metadata(target)? {
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
            RemoteLookup::ByNet(unseen) => match self.nodes().fetch(target, part)? {
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
