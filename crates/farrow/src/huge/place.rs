//! A node that may have objects of a table. In mapped memory they are found by loads. Other nodes
//! are asked by messages, many names in one.

use std::sync::Arc;

use farrow_memory::AfterCopy;
use farrow_store::{Metadata, ObjectId};
use farrow_wire::PartSpec;

use crate::api::{Client, ListedObject};
use crate::cluster::nodes::NodeReach;
use crate::connection::session::Session;
use crate::error::Error;
use crate::huge::far_draft::FarDraft;
use crate::key::ObjectKey;
use crate::objects::delete::delete;
use crate::objects::draft::{Draft, SealedHold};
use crate::objects::object::Object;
use crate::options::ObjectOptions;
use crate::value::Value;

/// A node that may have objects of a table, as a client reaches it.
#[derive(Clone)]
pub(super) struct Place<'a> {
    client: &'a Client,
    reach: NodeReach,
}

/// An object at such a node.
#[derive(Debug, Clone)]
pub(super) struct FoundObject {
    pub(super) id: ObjectId,
    /// Bytes of its buffers.
    pub(super) bytes: u64,
    pub(super) metadata: Metadata,
}

impl From<ListedObject> for FoundObject {
    fn from(listed: ListedObject) -> Self {
        Self { id: listed.id, bytes: listed.bytes, metadata: listed.metadata }
    }
}

impl<'a> Place<'a> {
    /// The node whose memory has this uid; `name` is its name when the table learned of it.
    pub(super) fn new(client: &'a Client, region: u64, name: &str) -> Result<Self, Error> {
        Ok(Self { client, reach: client.nodes().reach_of(region, name)? })
    }

    /// The node in whose memory the client puts, or this one.
    pub(super) fn to_append(client: &'a Client, node: Option<&str>) -> Result<Self, Error> {
        let reach = match node {
            None => NodeReach::Mapped(Arc::clone(client.session())),
            Some(node) => client.reach_by_name(node)?,
        };
        Ok(Self { client, reach })
    }

    /// All nodes that can be searched.
    pub(super) fn all(client: &'a Client) -> Result<Vec<Self>, Error> {
        let all = client.nodes().reaches()?;
        Ok(all.into_iter().map(|reach| Self { client, reach }).collect())
    }

    pub(super) fn region(&self) -> u64 {
        match &self.reach {
            NodeReach::Mapped(session) => session.region_uid(),
            NodeReach::ByNet(node) => node.region_uid,
        }
    }

    pub(super) fn is_by_net(&self) -> bool {
        matches!(self.reach, NodeReach::ByNet(_))
    }

    /// Whether the node is not mapped, and does not drain.
    pub(super) fn is_by_net_to_stay(&self) -> bool {
        matches!(&self.reach, NodeReach::ByNet(node) if !node.is_draining)
    }

    /// The objects of these names, in the same order.
    pub(super) fn find(&self, names: &[String]) -> Result<Vec<Option<FoundObject>>, Error> {
        let node = match &self.reach {
            NodeReach::Mapped(session) => {
                return names.iter().map(|name| find_mapped(session, name)).collect();
            }
            NodeReach::ByNet(node) => node,
        };
        let targets: Vec<ObjectKey> =
            names.iter().map(|name| ObjectKey::Name(name.clone())).collect();
        let mut found = self.client.find_at(node, &targets)?;
        let mut take = |name: &String| {
            let place = found.iter().position(|one| one.name.as_ref() == Some(name))?;
            Some(FoundObject::from(found.swap_remove(place)))
        };
        Ok(names.iter().map(&mut take).collect())
    }

    /// As [`Self::find`], and whether the node has the object `id` after that.
    pub(super) fn find_beside(
        &self,
        id: ObjectId,
        names: &[String],
    ) -> Result<(bool, Vec<Option<FoundObject>>), Error> {
        let node = match &self.reach {
            NodeReach::Mapped(_) => {
                let found = self.find(names)?;
                return Ok((self.has(id)?, found));
            }
            NodeReach::ByNet(node) => node,
        };
        let mut targets: Vec<ObjectKey> =
            names.iter().map(|name| ObjectKey::Name(name.clone())).collect();
        targets.push(id.into());
        let mut found = self.client.find_at(node, &targets)?;
        let mut take = |name: &String| {
            let place = found.iter().position(|one| one.name.as_ref() == Some(name))?;
            Some(FoundObject::from(found.swap_remove(place)))
        };
        let named = names.iter().map(&mut take).collect();
        Ok((found.iter().any(|one| one.id == id), named))
    }

    pub(super) fn find_one(&self, name: &str) -> Result<Option<FoundObject>, Error> {
        Ok(self.find(&[name.to_owned()])?.pop().flatten())
    }

    pub(super) fn has(&self, id: ObjectId) -> Result<bool, Error> {
        match &self.reach {
            NodeReach::Mapped(session) => session.has(&id.into()),
            NodeReach::ByNet(node) => Ok(!self.client.find_at(node, &[id.into()])?.is_empty()),
        }
    }

    /// The named objects whose names begin with a prefix. Objects out of memory have no metadata.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<(String, FoundObject)>, Error> {
        let named = |name: Option<String>, object: FoundObject| name.map(|name| (name, object));
        match &self.reach {
            NodeReach::Mapped(session) => {
                let listed = session.reader.list(prefix)?.into_iter();
                let all = listed.filter_map(|one| {
                    let (id, bytes) = (one.entry.id, one.entry.size.0);
                    named(one.name, FoundObject { id, bytes, metadata: Metadata::default() })
                });
                Ok(all.collect())
            }
            NodeReach::ByNet(node) => {
                let listed = self.client.list_by_net(node, prefix, &Metadata::default())?;
                let all = listed.into_iter();
                let all = all.filter(|one| one.id.region().0 == node.region_uid);
                Ok(all.filter_map(|mut one| named(one.name.take(), one.into())).collect())
            }
        }
    }

    pub(super) fn delete(&self, ids: &[ObjectId]) -> Result<(), Error> {
        let targets: Vec<ObjectKey> = ids.iter().map(|id| (*id).into()).collect();
        match &self.reach {
            NodeReach::Mapped(session) => delete(session, &targets),
            // The client's own node has each object deleted at its home.
            NodeReach::ByNet(_) => delete(self.client.nodes().own(), &targets),
        }
    }

    /// Writes a value to the memory of this node, to be sealed under one of several names.
    pub(super) fn draft(
        &self,
        value: &Value<'_>,
        options: &ObjectOptions<'_>,
        after: Option<AfterCopy<'_>>,
    ) -> Result<NamelessDraft, Error> {
        match &self.reach {
            NodeReach::Mapped(session) => {
                let draft = Draft::new(session, value, options, after)?;
                Ok(NamelessDraft::Mapped(Box::new(draft)))
            }
            NodeReach::ByNet(node) => {
                FarDraft::new(self.client, node, value, options).map(NamelessDraft::ByNet)
            }
        }
    }

    /// Holds an object, or a part of it. True: only the part was transferred.
    pub(super) fn hold(
        &self,
        id: ObjectId,
        part: Option<&PartSpec>,
    ) -> Result<Option<(Object, bool)>, Error> {
        match &self.reach {
            NodeReach::Mapped(session) => {
                let Some(held) = session.hold(&id.into())? else { return Ok(None) };
                Ok(Some((Object::new(session, held)?, false)))
            }
            NodeReach::ByNet(_) => {
                let Some(found) = self.client.hold_elsewhere(&id.into(), part)? else {
                    return Ok(None);
                };
                Ok(Some((Object::new(&found.session, found.held)?, found.is_part)))
            }
        }
    }
}

/// An object that is written at a node, and that has no name yet. A drop leaves nothing behind.
pub(super) enum NamelessDraft {
    Mapped(Box<Draft>),
    ByNet(FarDraft),
}

/// An object that was just sealed.
pub(super) struct SealedObject {
    pub(super) id: ObjectId,
    /// Bytes of its buffers.
    pub(super) bytes: u64,
    /// True: its node pinned it as it sealed it. Otherwise it is held until it is pinned.
    pub(super) is_pinned: bool,
    _held: Option<SealedHold>,
}

impl NamelessDraft {
    /// Seals the object under this name, with metadata as long as before. `None`: the name is taken.
    pub(super) fn seal(
        &mut self,
        name: &str,
        metadata: &Metadata,
    ) -> Result<Option<SealedObject>, Error> {
        match self {
            Self::Mapped(draft) => {
                draft.relabel(metadata)?;
                Ok(draft.seal(name)?.map(|held| SealedObject {
                    id: held.id(),
                    bytes: held.bytes(),
                    is_pinned: false,
                    _held: Some(held),
                }))
            }
            Self::ByNet(draft) => {
                let sealed = draft.seal(name, metadata)?;
                let bytes = draft.bytes();
                let sealed =
                    sealed.map(|id| SealedObject { id, bytes, is_pinned: true, _held: None });
                Ok(sealed)
            }
        }
    }
}

fn find_mapped(session: &Arc<Session>, name: &str) -> Result<Option<FoundObject>, Error> {
    let found = super::find(session, name)?;
    // The table has its chunk where it is original: a replica can be evicted.
    let found = found.filter(|(entry, _)| !entry.is_replica);
    Ok(found.map(|(entry, metadata)| FoundObject { id: entry.id, bytes: entry.size.0, metadata }))
}

impl Client {
    fn reach_by_name(&self, node: &str) -> Result<NodeReach, Error> {
        match self.by_net_member(node)? {
            Some(member) => Ok(NodeReach::ByNet(Box::new(member))),
            None => Ok(NodeReach::Mapped(Arc::clone(self.at_named(node)?.session()))),
        }
    }
}
