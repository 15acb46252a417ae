//! Contracts and probes for the tests of several crates; no released crate uses it.
//!
//! [`fabric`] contains the conformance suite of [`farrow_memory::Fabric`]: every contract is a
//! function over a [`fabric::ConformanceRegion`], and [`fabric_contracts!`] makes tests of them for
//! one back end, with its parties in one process or each in its own. [`incoherent`] is a fabric
//! whose nodes see each other's stores only after publish and refresh. [`probe`] does the parts that
//! need unsafe code: it tries a forbidden store, and mounts small file systems that no other process
//! sees. A failed contract panics, as a test should.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod directory;
pub mod fabric;
pub mod incoherent;
pub mod probe;
pub mod random;

pub use directory::{SHARED_DIR_PARENT, shared_dir};
