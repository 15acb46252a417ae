//! The configuration of the etcd that stores the membership.

use std::path::PathBuf;

use super::place::EtcdPlace;

/// Where etcd stores the membership, and the credentials of this node.
#[derive(Debug, Clone)]
pub struct EtcdConfig {
    /// The endpoints and the prefix.
    pub place: EtcdPlace,
    /// The files for `etcds://`.
    pub tls: Option<EtcdTls>,
    /// The user, if etcd requires one.
    pub user: Option<EtcdUser>,
    /// Whether plain text is allowed with an etcd on another machine.
    pub is_plaintext_allowed: bool,
}

/// Files for TLS with etcd, in PEM.
#[derive(Debug, Clone)]
pub struct EtcdTls {
    /// Certificates of the authorities that may have issued etcd's certificate.
    pub ca: PathBuf,
    /// This node's certificate and key, if etcd requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Debug, Clone)]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// A file that contains only the password and optionally a line end.
    pub password: PathBuf,
}
