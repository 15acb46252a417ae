//! Namespaces: separate names, quotas and writers in one region.

use farrow_wire::link::confused;
use farrow_wire::{NamespaceReport, NamespaceSpec, ReplyBody, RequestBody, Rule};

use crate::api::Client;
use crate::error::Error;

impl Client {
    /// The namespace of this client since it connected; `""` is the default one.
    pub fn namespace(&self) -> &str {
        self.session().reader.namespace().1
    }

    /// Creates a namespace. It persists over restarts of the node until it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyExists`], [`Error::InvalidArgument`] for an invalid name or number of
    /// writers, [`Error::TooMany`], [`Error::PermissionDenied`] unless the node belongs to this
    /// user.
    pub fn create_namespace(&self, spec: &NamespaceSpec) -> Result<(), Error> {
        self.session().call(RequestBody::CreateNamespace(spec.clone())).map(drop)
    }

    /// Drops a namespace without objects, granted memory and clients.
    ///
    /// # Errors
    ///
    /// [`Error::NamespaceInUse`] with the contents, [`Error::NoNamespace`],
    /// [`Error::PermissionDenied`] unless the node belongs to this user.
    pub fn drop_namespace(&self, name: &str) -> Result<(), Error> {
        self.session().call(RequestBody::DropNamespace { name: name.to_owned() }).map(drop)
    }

    /// All namespaces with their limits and usage, the default one first.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn namespaces(&self) -> Result<Vec<NamespaceReport>, Error> {
        match self.session().call(RequestBody::Namespaces)? {
            ReplyBody::Namespaces(namespaces) => Ok(namespaces),
            other => Err(confused(&other).into()),
        }
    }

    /// Sets the permissions of another node's clients in a namespace of this client's node, from
    /// now on and over its restarts. Memory granted to them before remains theirs until they end.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for invalid names, [`Error::TooMany`],
    /// [`Error::PermissionDenied`] unless the node belongs to this user.
    pub fn permit(&self, rule: &Rule) -> Result<(), Error> {
        self.session().call(RequestBody::SetRule(rule.clone())).map(drop)
    }

    /// Removes such a rule. Then the next closest one applies: that of all nodes in this namespace,
    /// of this node in all namespaces, or of all nodes in all. Without a rule everything is
    /// permitted.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::PermissionDenied`] unless the node belongs to this user.
    pub fn drop_permission(&self, namespace: &str, node: &str) -> Result<(), Error> {
        let (namespace, node) = (namespace.to_owned(), node.to_owned());
        self.session().call(RequestBody::RemoveRule { namespace, node }).map(drop)
    }

    /// All rules for clients of other nodes, by namespace and node.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn permissions(&self) -> Result<Vec<Rule>, Error> {
        match self.session().call(RequestBody::Rules)? {
            ReplyBody::Rules(rules) => Ok(rules),
            other => Err(confused(&other).into()),
        }
    }
}
