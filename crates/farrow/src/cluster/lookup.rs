//! Searches of the other nodes' memory.

use std::sync::Arc;
use std::time::Instant;

use farrow_wire::link::confused;
use farrow_wire::{MemberInfo, ReplyBody, RequestBody};

use crate::cluster::nodes::{Nodes, is_of_node};
use crate::connection::session::Session;
use crate::error::Error;
use crate::key::ObjectKey;

/// The result of a search for an object on other nodes.
pub(crate) enum RemoteLookup<T> {
    Here(T),
    Nowhere,
    /// The object may be on a node whose objects are fetched over the network. The list has the
    /// errors of unreachable nodes.
    ByNet(Vec<(String, Error)>),
    /// The object may be on a node that cannot be reached.
    Unknown(Error),
}

impl Nodes {
    /// The first of the other nodes where `look` finds something. The result is an error if the
    /// object may be on a node that is lost, cannot be mapped, or refuses this client.
    pub(crate) fn first<T>(
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
    pub(crate) fn settled<T>(
        &self,
        target: &ObjectKey,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let since = Instant::now();
        loop {
            let before = self.own.reader.members_version()?;
            let found = look()?;
            if found.is_some() || self.own.reader.members_version()? == before {
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
    pub(crate) fn at_unseen(
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

/// Whether a node may have an object. An id names the region of its object; a name may be anywhere.
fn is_possible(node: &MemberInfo, target: &ObjectKey) -> bool {
    match target {
        ObjectKey::Id(id) => id.region().0 == node.region_uid,
        ObjectKey::Name(_) => true,
    }
}
