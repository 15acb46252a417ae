//! Arrow tables in far memory: the client library that users import and bindings wrap.
//!
//! A [`Client`] puts values into a node's region. This and every other process of the node get them
//! in place: no copy, no serialization. The client maps the region, writes its own extents, holds
//! the objects it reads, and asks the daemon only for grants and seals. The bindings to Python and
//! C are the crates `farrow-python` and `farrow-capi`.
//!
//! ```no_run
//! use std::time::Duration;
//! use farrow::{Client, ConnectOptions, Value};
//!
//! let client = Client::connect(&ConnectOptions::default())?;
//! let id = client.put(&Value::Bytes(b"hello"), Some("greeting"))?;
//! let object = client.get(&"greeting".into(), Duration::ZERO)?;
//! assert_eq!(object.id(), id);
//! assert_eq!(&object.view()?[..], b"hello");
//! # Ok::<(), farrow::Error>(())
//! ```

#![forbid(unsafe_code)]

mod api;
mod clock;
mod cluster;
mod connection;
mod error;
mod huge;
pub mod interrupt;
mod key;
mod lazy;
mod lock;
mod memory;
mod objects;
mod options;
mod share;
mod spans;
mod value;

pub use api::{Client, FabricStats, LazyValue, ListedObject, Pool, Stats};
pub use error::Error;
pub use farrow_arrow as arrow;
pub use farrow_arrow::{ArrowObject, BatchData, NdArray, Order, Rebuilt, SchemaNode};
pub use farrow_memory::{Length, Offset, Span};
pub use farrow_store::{Event, EventKind, Metadata, MetadataError, ObjectId, ObjectKind, Seen};
pub use farrow_wire::{
    DrainReport, EvictedReport, MemberInfo, Members, NamespaceReport, NamespaceSpec, NodeSettings,
    NodeStats, PartSpec, Reach, Rights, Rule, Setting,
};
pub use huge::{AppendOptions, HugeTable, Partition, Snapshot, TableOptions, WaitFor};
pub use interrupt::CancelToken;
pub use key::ObjectKey;
pub use lazy::fetch;
pub use memory::pool::PoolStats;
pub use objects::held_bytes::{BatchBytes, BatchItem};
pub use objects::object::{Hold, Object, ObjectBytes};
pub use objects::subscription::{CloseHandle, Next, Registration, SubscribeOptions, Subscription};
pub use objects::writer::{Writer, WriterMemory};
pub use options::{CONNECT_TIMEOUT, ConnectOptions, LINGER, ObjectOptions, SpawnCommand};
pub use share::{OpenedValue, ShareOptions, SharedValue, share};
pub use value::Value;
