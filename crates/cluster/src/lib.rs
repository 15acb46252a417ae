//! Everything in Farrow that talks: the daemon `farrowd` and the protocol of its clients.
//!
//! Decisions live in [`protocol`], which knows neither clock nor sockets; [`node`] puts them
//! on a Unix socket over one region. Clients use [`link`], and [`listener`] to wait for events. It
//! knows no Arrow, and it trusts nothing that a client sends or writes.

#![forbid(unsafe_code)]

pub mod certs;
mod config;
mod endpoint;
pub mod farrowd;
pub mod interrupt;
pub mod leftovers;
pub mod link;
pub mod listener;
mod lock;
mod memory;
pub mod metrics;
mod neighbour;
pub mod node;
pub mod paths;
mod peers;
mod place;
mod prepare;
pub mod protocol;
mod server;
pub mod size;
mod spill;
mod supervisor;
mod upgrade;
pub mod wire;
