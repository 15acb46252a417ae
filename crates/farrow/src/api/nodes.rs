//! The client at the nodes of a cluster.

use std::sync::Arc;

use farrow_store::ObjectId;
use farrow_wire::link::confused;
use farrow_wire::{MemberInfo, Members, ReplyBody, RequestBody};

use crate::api::Client;
use crate::cluster::placement::{PlacementNeed, PlacementRule};
use crate::cluster::request_link::RequestLink;
use crate::error::Error;

impl Client {
    /// The same client with the memory of another node: its new objects and allocations are placed
    /// there, and its statistics are that node's. Objects are found on any node. `"nearest"` and
    /// `"most-free"` choose among the nodes whose memory is mapped here, at this moment.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`], [`Error::NodeUnreachable`] for a node whose memory cannot be mapped
    /// here, [`Error::InvalidArgument`] for an unknown node, [`Error::NotPermitted`] for a node that
    /// admits no client of this node.
    pub fn at(&self, node: &str) -> Result<Self, Error> {
        if let Some(rule) = PlacementRule::parse(node) {
            let need = PlacementNeed { bytes: 1, is_mapped: true };
            let found = self.first_by(rule, need)?;
            return found.map_or_else(|| Ok(self.at_own()), |node| self.at_named(&node));
        }
        self.at_named(node)
    }

    /// As [`Self::at`], for the name of a node.
    pub(crate) fn at_named(&self, node: &str) -> Result<Self, Error> {
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

    pub(super) fn at_node(&self, node: &MemberInfo) -> Result<Self, Error> {
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

    /// The name of the node in whose memory an object was sealed; empty without a cluster, and for a
    /// node that has left it.
    ///
    /// # Errors
    ///
    /// The region is damaged.
    pub fn node_of(&self, id: ObjectId) -> Result<String, Error> {
        self.nodes().name_of(id.region().0)
    }

    /// The uid of the region in which this client puts. A node that lost its memory has a new one.
    pub fn region_uid(&self) -> u64 {
        self.session().region_uid()
    }

    /// The nodes of the cluster, as seen by the client's own node; none without a cluster.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn members(&self) -> Result<Members, Error> {
        match self.nodes().own().call(RequestBody::Nodes)? {
            ReplyBody::Nodes(members) => Ok(members.marked()),
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
        self.nodes().own().call(RequestBody::Forget { node: node.to_owned() }).map(drop)
    }
}
