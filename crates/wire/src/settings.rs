//! Settings of a node that can be changed while it serves.

use serde::{Deserialize, Serialize};

/// Limit on settings in one request.
pub const SETTINGS_MAX: usize = 32;

/// Limit on the bytes of a log filter, as long as a few dozen modules need.
pub const LOG_FILTER_BYTES_MAX: usize = 1024;

/// A setting and its new value. A limit below the present use removes nothing: what exceeds it is
/// refused until the use is below.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Setting {
    /// Most bytes of grants and objects of one client; `None`: no limit.
    ClientBytes(Option<u64>),
    /// Most objects of one client; `None`: no limit.
    ClientObjects(Option<u32>),
    /// Bytes of memory that the node lends, at most those for which its region was made. Objects
    /// are evicted or spilled if it shrinks.
    Memory(u64),
    /// Most bytes of replicas of objects of other nodes; `None`: the free memory. Replicas beyond
    /// it that no client holds are dropped.
    Cache(Option<u64>),
    /// Whether the node evicts the least recently used objects when memory is short.
    IsEvicting(bool),
    /// The filter of the log, as in `FARROW_LOG`, at most [`LOG_FILTER_BYTES_MAX`] bytes.
    Log(String),
    /// Most bytes of a namespace; `None`: no limit. Stored with the namespace.
    NamespaceBytes {
        /// Its name.
        name: String,
        /// The limit.
        max: Option<u64>,
    },
    /// Most objects of a namespace; `None`: no limit. Stored with the namespace.
    NamespaceObjects {
        /// Its name.
        name: String,
        /// The limit.
        max: Option<u32>,
    },
}

/// The settings of a node that can be changed while it serves, except those of namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// Most bytes of grants and objects of one client; `None`: no limit.
    pub client_bytes: Option<u64>,
    /// Most objects of one client; `None`: no limit.
    pub client_objects: Option<u32>,
    /// Most bytes of replicas of objects of other nodes; `None`: the free memory.
    pub cache: Option<u64>,
    /// Whether the node evicts the least recently used objects when memory is short.
    pub is_evicting: bool,
    /// The filter of the log; empty: unknown.
    pub log: String,
    /// Bytes of memory that the node lends.
    pub memory: u64,
}

impl NodeSettings {
    /// Names of the settings that differ.
    #[must_use]
    pub fn changed_from(&self, other: &Self) -> Vec<String> {
        [
            ("client_bytes", self.client_bytes != other.client_bytes),
            ("client_objects", self.client_objects != other.client_objects),
            ("cache", self.cache != other.cache),
            ("is_evicting", self.is_evicting != other.is_evicting),
            ("log", self.log != other.log),
            ("memory", self.memory != other.memory),
        ]
        .into_iter()
        .filter(|(_, is_changed)| *is_changed)
        .map(|(name, _)| name.to_owned())
        .collect()
    }
}
