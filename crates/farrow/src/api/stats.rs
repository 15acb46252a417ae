//! Statistics of a node and of this client.

use std::collections::BTreeMap;

use farrow_store::ObjectId;
use farrow_wire::link::confused;
use farrow_wire::{NodeStats, Overview, ReplyBody, RequestBody};
use serde::Serialize;

use crate::api::Client;
use crate::error::Error;

/// Counters of one process on one fabric.
#[derive(Debug, Clone, Serialize)]
pub struct FabricStats {
    /// Lines written back to memory.
    pub published_lines: u64,
    /// Lines dropped from the caches, so that they are read again from memory.
    pub refreshed_lines: u64,
    /// Calls to publish.
    pub publish_calls: u64,
    /// Calls to refresh.
    pub refresh_calls: u64,
    /// Time spent in publish, in nanoseconds.
    pub publish_ns: u64,
    /// Time spent in refresh, in nanoseconds.
    pub refresh_ns: u64,
    /// How often all caches of the machine were written back at once, instead of many single lines.
    pub all_caches_calls: u64,
    /// Bytes mapped writable.
    pub mapped_writable: u64,
}

/// Statistics of the node and of this client, in bytes unless stated otherwise.
#[derive(Debug, Clone, Serialize)]
pub struct Stats {
    /// Statistics of the node.
    #[serde(flatten)]
    pub node: NodeStats,
    /// Counters of this process on each fabric, by the fabric's name.
    pub fabrics: BTreeMap<String, FabricStats>,
    /// True if the region is mapped at the address agreed on by all processes.
    pub is_at_agreed_address: bool,
    /// First address of the region in this process.
    pub base: u64,
    /// Bytes of live allocations of the memory pool.
    pub pool_allocated: u64,
    /// Allocations that failed because the region was full.
    pub pool_refused: u64,
}

impl Client {
    /// Statistics of the node and of this client.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn stats(&self) -> Result<Stats, Error> {
        let node = match self.session().call(RequestBody::Stats)? {
            ReplyBody::Stats(node) => *node,
            other => return Err(confused(&other).into()),
        };
        let region = &self.session().region;
        let counters = region.counters();
        let counters = FabricStats {
            published_lines: counters.published_lines,
            refreshed_lines: counters.refreshed_lines,
            publish_calls: counters.publish_calls,
            refresh_calls: counters.refresh_calls,
            publish_ns: counters.publish_ns,
            refresh_ns: counters.refresh_ns,
            all_caches_calls: counters.all_caches_calls,
            mapped_writable: counters.mapped_writable_bytes,
        };
        let fabric = region.fabric().kind().as_str().to_owned();
        let pool = self.pool().stats();
        Ok(Stats {
            node,
            fabrics: BTreeMap::from([(fabric, counters)]),
            is_at_agreed_address: region.is_at_wish(),
            base: region.base().0 as u64,
            pool_allocated: pool.allocated,
            pool_refused: pool.refused,
        })
    }

    /// The clients of the node with the objects that they hold, `held_max` holds at most, and its
    /// heap in `cells` equal parts.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn overview(&self, cells: u32, held_max: u32) -> Result<Overview, Error> {
        match self.session().call(RequestBody::Overview { cells, held_max })? {
            ReplyBody::Overview(overview) => Ok(overview),
            other => Err(confused(&other).into()),
        }
    }

    /// Those of `ids` that are copies of objects of other nodes, with the ids of these. Sends no
    /// message. An object that is not sealed at this node, or damaged, is left out.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] when the node has ended.
    pub fn origins(&self, ids: &[ObjectId]) -> Result<Vec<(ObjectId, ObjectId)>, Error> {
        self.session().check()?;
        let reader = &self.session().reader;
        let origin = |id: &ObjectId| Some((*id, reader.origin_of(*id).ok()??));
        Ok(ids.iter().filter_map(origin).collect())
    }
}
