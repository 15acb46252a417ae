//! Namespaces: names, quotas and writers of their own in one region.

use farrow_wire::link::confused;
use farrow_wire::{NamespaceReport, NamespaceSpec, ReplyBody, RequestBody, Rule};

use crate::client::Client;
use crate::error::Error;

impl Client {
    /// The namespace that this client is in, since it connected; `""` is the default one.
    pub fn namespace(&self) -> &str {
        self.session().reader.namespace().1
    }

    /// Makes a namespace. It stays, over restarts of the node, until it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyExists`], [`Error::InvalidArgument`] for a name or a number of writers that
    /// cannot be, [`Error::TooMany`], [`Error::PermissionDenied`] unless the node is this user's.
    pub fn create_namespace(&self, spec: &NamespaceSpec) -> Result<(), Error> {
        self.session().call(RequestBody::CreateNamespace(spec.clone())).map(drop)
    }

    /// Drops a namespace in which nothing and nobody is.
    ///
    /// # Errors
    ///
    /// [`Error::NamespaceInUse`] with what is in it, [`Error::NoNamespace`],
    /// [`Error::PermissionDenied`] unless the node is this user's.
    pub fn drop_namespace(&self, name: &str) -> Result<(), Error> {
        self.session().call(RequestBody::DropNamespace { name: name.to_owned() }).map(drop)
    }

    /// All namespaces with their limits and what is in them, the default one first.
    ///
    /// # Errors
    ///
    /// The node is gone.
    pub fn namespaces(&self) -> Result<Vec<NamespaceReport>, Error> {
        match self.session().call(RequestBody::Namespaces)? {
            ReplyBody::Namespaces(namespaces) => Ok(namespaces),
            other => Err(confused(&other).into()),
        }
    }

    /// Says what clients of another node may do in a namespace of this client's node, from now on
    /// and over its restarts. Memory that they were granted before stays theirs until they end.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for names that cannot be, [`Error::TooMany`],
    /// [`Error::PermissionDenied`] unless the node is this user's.
    pub fn grant(&self, rule: &Rule) -> Result<(), Error> {
        self.session().call(RequestBody::SetRule(rule.clone())).map(drop)
    }

    /// Takes such a rule out; then the next closest one holds: that for all nodes in the namespace,
    /// for the node in all, for all in all; without any they may do everything.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::PermissionDenied`] unless the node is this user's.
    pub fn drop_grant(&self, namespace: &str, node: &str) -> Result<(), Error> {
        let (namespace, node) = (namespace.to_owned(), node.to_owned());
        self.session().call(RequestBody::RemoveRule { namespace, node }).map(drop)
    }

    /// All rules for clients of other nodes, by namespace and node.
    ///
    /// # Errors
    ///
    /// The node is gone.
    pub fn grants(&self) -> Result<Vec<Rule>, Error> {
        match self.session().call(RequestBody::Rules)? {
            ReplyBody::Rules(rules) => Ok(rules),
            other => Err(confused(&other).into()),
        }
    }
}
