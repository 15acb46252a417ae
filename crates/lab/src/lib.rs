//! Microbenchmarks of the cost of coherence on this machine, for `farrow lab coherence`.
//!
//! The timed loops are those of [`farrow_memory::timing`], with which every machine is profiled.
//! This crate adds what only the laboratory needs: memory of another node's kind to run them in
//! ([`region_buffer`]), and a cost model ([`fit()`]). Analysis and report are in `python/farrow/lab`.

#![forbid(unsafe_code)]

mod fit;
mod region;

pub use fit::{CostModel, fit};
pub use region::{LabError, region_buffer};
