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

mod arena;
mod background;
mod batch;
mod blocks;
mod client;
mod clock;
mod connect;
mod delete;
mod draft;
mod error;
mod extents;
mod far_draft;
mod far_put;
mod get;
mod held_bytes;
mod huge;
mod inherited;
pub mod interrupt;
mod key;
mod local;
mod local_entries;
mod lock;
mod mapping;
mod name_claim;
mod namespaces;
mod node;
mod nodes;
mod object;
mod object_reservation;
mod options;
mod pending_holds;
mod pool;
mod put;
mod put_on;
mod registry;
mod reserved_names;
mod reserved_objects;
mod residency;
mod room;
mod seal;
mod sealing;
mod session;
mod share;
mod spans;
mod subscription;
mod sync;
mod turn;
mod unused;
mod value;
mod write_batch;
mod writer;

pub use client::{Client, FabricStats, ListedObject, Stats};
pub use error::Error;
pub use farrow_arrow as arrow;
pub use farrow_arrow::{ArrowObject, BatchData, NdArray, Order, Rebuilt, SchemaNode};
pub use farrow_memory::{Length, Offset, Span};
pub use farrow_store::{Event, EventKind, Metadata, MetadataError, ObjectId, ObjectKind, Seen};
pub use farrow_wire::{
    EvictedReport, MemberInfo, Members, NamespaceReport, NamespaceSpec, PartSpec, Reach, Rights,
    Rule,
};
pub use held_bytes::{BatchBytes, BatchItem};
pub use huge::{AppendOptions, HugeTable, Partition, Snapshot, WaitFor};
pub use interrupt::CancelToken;
pub use key::ObjectKey;
pub use object::{Hold, Object, ObjectBytes};
pub use options::{CONNECT_TIMEOUT, ConnectOptions, LINGER, ObjectOptions, SpawnCommand};
pub use pool::{Pool, PoolStats};
pub use share::{OpenedValue, ShareOptions, SharedValue, share};
pub use subscription::{CloseHandle, Next, Registration, SubscribeOptions, Subscription};
pub use value::Value;
pub use writer::{Writer, WriterMemory};
