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
//!
//! # Types by task
//!
//! | task | types and methods |
//! | --- | --- |
//! | connect to a node, or start a private one | [`Client::connect`], [`ConnectOptions`], [`SpawnCommand`] |
//! | put and get a value | [`Client::put`], [`Client::put_with`], [`Client::put_many`], [`Client::get`], [`Client::get_many`], [`Client::get_batch`]; [`Value`], [`ObjectKey`], [`ObjectOptions`], [`Metadata`], [`Object`], [`ObjectBytes`], [`BatchItem`] |
//! | skip rows of a table by its statistics | [`ObjectOptions::statistics`], [`parts_statistics`], [`STATISTICS_KEY`] |
//! | get a part of a value, or its pages on demand | [`Client::get_part`], [`PartSpec`], [`Client::get_lazy`], [`LazyValue`], [`fetch`] |
//! | wait for objects, flags and other processes | [`Client::wait`], [`Client::wait_flags`], [`Client::set_flags`], [`Client::barrier`] |
//! | list, pin, evict and delete objects | [`Client::list`], [`ListedObject`], [`Client::pin`], [`Client::evict`], [`Client::delete`] |
//! | write an object in place | [`Client::create`], [`Writer`], [`WriterMemory`] |
//! | allocate buffers that need no copy | [`Client::pool`], [`Pool`], [`PoolStats`] |
//! | pass a value to another process by a short message | [`share()`](fn@share), [`SharedValue`], [`Client::put_shared`], [`Client::open_shared`], [`OpenedValue`] |
//! | append to a table of many parts, and read it | [`Client::huge_table`], [`HugeTable`], [`TableOptions`], [`AppendOptions`], [`Snapshot`], [`Partition`], [`WaitFor`] |
//! | use other nodes, and place objects there | [`Client::members`], [`Members`], [`MemberInfo`], [`Client::at`], [`Client::put_on`], [`Client::create_on`], [`Client::move_object`], [`Client::locate`] |
//! | drain a node, and change its settings | [`Client::begin_drain`], [`DrainReport`], [`Client::change_settings`], [`Setting`], [`NodeSettings`] |
//! | divide a node among users | [`Client::create_namespace`], [`NamespaceSpec`], [`Client::namespaces`], [`NamespaceReport`], [`Client::permit`], [`Rule`], [`Rights`] |
//! | follow what happens to objects | [`Client::subscribe`], [`SubscribeOptions`], [`Subscription`], [`Next`], [`Seen`], [`Event`] |
//! | interrupt a call | [`CancelToken`], the module [`interrupt`] |
//! | measure | [`Client::stats`], [`Stats`], [`NodeStats`], [`FabricStats`] |
//! | handle a failure | [`Error`], by what the caller can do; its numbers are in [`mod@error`] |
//!
//! The module [`arrow`] describes Arrow values and rebuilds them over mapped memory. Bindings
//! exchange them with other libraries by [`arrow_ffi`].

#![forbid(unsafe_code)]

mod api;
pub mod arrow_ffi;
mod clock;
mod cluster;
mod connection;
pub mod error;
mod gate;
mod huge;
pub mod interrupt;
mod key;
mod lazy;
mod lock;
mod memory;
mod objects;
mod options;
mod share;
mod statistics;
mod value;

pub use api::{Client, ClusterList, FabricStats, LazyValue, ListedObject, Pool, Stats};
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
pub use objects::table_statistics::{STATISTICS_KEY, parts_statistics};
pub use objects::writer::{Writer, WriterMemory};
pub use options::{CONNECT_TIMEOUT, ConnectOptions, LINGER, ObjectOptions, SpawnCommand};
pub use share::{OpenedValue, ShareOptions, SharedValue, share};
pub use value::Value;
