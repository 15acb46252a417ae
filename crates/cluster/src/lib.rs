//! The daemon `farrowd`.
//!
//! Decisions are made in [`protocol`], which uses neither clock nor sockets. [`node`] serves them
//! on a Unix socket over one region. The crate `farrow-wire` contains the parts that clients need.
//! Only the network fabric reads Arrow, to select columns and rows for a transfer. Nothing that a
//! client sends or writes is trusted.

#![forbid(unsafe_code)]

mod audit;
pub mod certs;
mod config;
mod descriptors;
mod endpoint;
pub mod farrowd;
mod host;
pub mod leftovers;
mod line_queue;
mod lock;
mod logging;
mod memory;
pub mod metrics;
mod net;
pub mod node;
mod peer_memory;
mod peers;
mod place;
mod prepare;
pub mod protocol;
mod server;
mod signals;
pub mod size;
mod spill;
mod supervisor;
mod upgrade;
