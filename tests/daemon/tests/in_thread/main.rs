//! Clients of nodes that run in threads of the test: no test here changes its process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

mod batches;
mod cancel;
mod capi_coherence;
mod capi_listing;
mod creators;
mod node;
mod removed;
mod shares;
mod tables;
