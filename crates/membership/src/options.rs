//! Options of a node, and their limits.

use thiserror::Error;

use super::message::SEEDS_MAX;
use super::types::{ADDRESS_BYTES_MAX, INFO_BYTES_MAX, Incarnation, NodeName};
use super::view::is_address;

/// Shortest lease: a busy machine still sends four beats, one every 25 ms.
const LEASE_MS_MIN: u64 = 100;

/// Longest lease: an hour, so that sums of a few leases never overflow.
const LEASE_MS_MAX: u64 = 3_600_000;

/// Options of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Its name.
    pub name: NodeName,
    /// Address for other nodes, at most 255 bytes.
    pub address: String,
    /// See [`super::Member::info`].
    pub info: Vec<u8>,
    /// Addresses to ask for admission, at most 63 besides the own one. With the own address they are
    /// the electorate of the first view, so nodes that found a cluster together have the same.
    /// Empty: the node founds alone.
    pub seeds: Vec<String>,
    /// How long a silent node stays in the view, 100 to 3,600,000 ms; the same on all nodes.
    pub lease_ms: u64,
    /// Its incarnation, above all earlier ones unless `retained` is given.
    pub incarnation: Incarnation,
    /// Seed for jitter and ids; random, and different at each start.
    pub seed: u64,
}

/// Why [`Options`] are not valid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// An address is empty or too long.
    #[error("an address has 1 to {ADDRESS_BYTES_MAX} bytes, not {bytes}")]
    Address {
        /// Length of the address.
        bytes: usize,
    },
    /// The information about the region is too long.
    #[error("info has at most {INFO_BYTES_MAX} bytes, not {bytes}")]
    Info {
        /// Length of the information.
        bytes: usize,
    },
    /// Too many seeds.
    #[error("a node has at most {} seeds besides its own address, not {count}", SEEDS_MAX - 1)]
    Seeds {
        /// Number of seeds.
        count: usize,
    },
    /// The lease is too short or too long.
    #[error("a lease is {LEASE_MS_MIN} to {LEASE_MS_MAX} ms, not {lease_ms}")]
    Lease {
        /// The requested lease.
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
        // The electorate has at most 64 addresses, including its own.
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
    fn a_node_with_too_many_seeds_learns_the_limit_that_holds() {
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
