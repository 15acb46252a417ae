//! Contracts and probes for the tests of several crates; nothing that ships uses it.
//!
//! [`fabric`] holds the conformance suite of [`farrow_memory::Fabric`]: every contract is a
//! function over a [`fabric::World`], and [`fabric_contracts!`] turns them into tests of one back
//! end, with its parties in one process or each in its own. [`incoherent`] is a fabric whose nodes
//! see each other's stores only where they publish and refresh. [`probe`] does what safe code
//! cannot: tries a forbidden store, and mounts small file systems that no other process sees. A
//! failed contract panics, as a test should.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fabric;
pub mod incoherent;
pub mod probe;
pub mod random;
