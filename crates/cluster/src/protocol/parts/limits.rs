//! Limits of clients and namespaces.

use farrow_store::{ClientSlot, NamespaceId};

/// Limits for each client; `None`: no limit but the region's own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Bytes of grants and objects.
    pub client_bytes_max: Option<u64>,
    /// Sealed objects.
    pub client_objects_max: Option<u32>,
}

/// Client or namespace that a limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::protocol) enum Scope {
    Client(ClientSlot),
    Namespace(NamespaceId),
}

/// Used amount and maximum.
#[derive(Debug, Clone, Copy)]
pub(in crate::protocol) struct Limit {
    pub(in crate::protocol) scope: Scope,
    pub(in crate::protocol) used: u64,
    pub(in crate::protocol) max: u64,
}
