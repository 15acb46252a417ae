//! The daemon `farrowd`.
//!
//! Decisions live in [`protocol`], which knows neither clock nor sockets; [`node`] puts them
//! on a Unix socket over one region. What its clients need of it is the crate `farrow-wire`. It
//! knows no Arrow, and it trusts nothing that a client sends or writes.

#![forbid(unsafe_code)]

pub mod certs;
mod config;
mod endpoint;
pub mod farrowd;
pub mod leftovers;
mod lock;
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
