//! How a node is set up, and what may be wrong with that.

use thiserror::Error;

use super::message::SEEDS_MAX;
use super::types::{ADDRESS_BYTES_MAX, INFO_BYTES_MAX, Incarnation, NodeName};
use super::view::is_address;

/// Shortest lease: four beats of 25 ms are what a busy machine still keeps.
const LEASE_MS_MIN: u64 = 100;

/// Longest lease: an hour; sums of a few stay far from the end of the numbers.
const LEASE_MS_MAX: u64 = 3_600_000;

/// How a node is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Its name.
    pub name: NodeName,
    /// Where others reach it, at most 255 bytes.
    pub address: String,
    /// See [`super::Member::info`].
    pub info: Vec<u8>,
    /// Addresses to ask for a way in, at most 64. With its own they are the electorate of the
    /// first view, so nodes that found together have the same. None: it founds alone.
    pub seeds: Vec<String>,
    /// How long a silent node keeps its place, 100 to 3,600,000 ms; the same on all nodes.
    pub lease_ms: u64,
    /// Its life, above all before it unless `retained` is given.
    pub incarnation: Incarnation,
    /// For jitter and ids; random, and another one at each start.
    pub seed: u64,
}

/// What is wrong with [`Options`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// An address is empty or too long.
    #[error("an address has 1 to {ADDRESS_BYTES_MAX} bytes, not {bytes}")]
    Address {
        /// Bytes that it has.
        bytes: usize,
    },
    /// It says too much about the region.
    #[error("info has at most {INFO_BYTES_MAX} bytes, not {bytes}")]
    Info {
        /// Bytes that it has.
        bytes: usize,
    },
    /// Too many seeds.
    #[error("a node has at most {} seeds besides its own address, not {count}", SEEDS_MAX - 1)]
    Seeds {
        /// How many.
        count: usize,
    },
    /// A lease that nobody could keep, or that would never end.
    #[error("a lease is {LEASE_MS_MIN} to {LEASE_MS_MAX} ms, not {lease_ms}")]
    Lease {
        /// What was asked for.
        lease_ms: u64,
    },
}

impl Options {
    pub(super) fn check(&self) -> Result<(), OptionsError> {
        let addresses = self.seeds.iter().chain([&self.address]);
        if let Some(address) = addresses.clone().find(|address| !is_address(address)) {
            return Err(OptionsError::Address { bytes: address.len() });
        }
        if self.info.len() > INFO_BYTES_MAX {
            return Err(OptionsError::Info { bytes: self.info.len() });
        }
        // The electorate has 64 addresses, its own among them.
        let count = self.seeds.iter().filter(|seed| **seed != self.address).count();
        if count >= SEEDS_MAX {
            return Err(OptionsError::Seeds { count });
        }
        if !(LEASE_MS_MIN..=LEASE_MS_MAX).contains(&self.lease_ms) {
            return Err(OptionsError::Lease { lease_ms: self.lease_ms });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_too_many_seeds_is_told_the_limit_that_holds() {
        let address = |number: usize| format!("10.0.0.1:{number}");
        let check = |numbers: std::ops::Range<usize>| {
            let options = Options {
                name: NodeName::new("a").unwrap(),
                address: address(0),
                info: Vec::new(),
                seeds: numbers.map(address).collect(),
                lease_ms: 1000,
                incarnation: Incarnation(1),
                seed: 1,
            };
            options.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(1..64), Ok(()));
        assert_eq!(check(0..64), Ok(()), "its own address is one of the electorate in any case");
        let refused = "a node has at most 63 seeds besides its own address, not 64";
        assert_eq!(check(1..65), Err(refused.to_owned()));
    }
}
