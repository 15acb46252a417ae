//! A region over simulated nodes, its home, and the tables in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_arrow::testing::SplitMix64;
use farrow_memory::{Access, Length, Span, page_bytes};
use farrow_store::{BLOCK_BYTES, Home, Layout, ObjectId, RegionOptions};
use farrow_testkit::incoherent::{CacheSettings, IncoherentNodes};
use farrow_testkit::random::Random;

use crate::StepResult;
use crate::pyarrow::Python;
use crate::tables::{OriginalTable, Variety};

/// The home and two other nodes; each has one client that builds and reads.
pub const NODES: u32 = 3;

/// A mistake of a client, which the test must detect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Seals without publishing.
    NoPublish,
    /// Publishes the descriptor, but not the buffers it refers to.
    OnlyDescriptorPublished,
    /// Rebuilds a table without refreshing it.
    NoRefresh,
    /// Refreshes the descriptor, but not the buffers it refers to.
    OnlyDescriptorRefreshed,
    /// Refreshes a range only once, as if it never had another object.
    OneRefreshPerRange,
    /// Releases an object and keeps the table over its memory.
    TableWithoutHold,
}

/// A table that is sealed and not deleted.
#[derive(Clone, Debug)]
pub struct KnownTable {
    pub id: ObjectId,
    pub table: Arc<OriginalTable>,
}

/// Counters of a run.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub sealed: u32,
    /// Of the sealed tables, those that refer to batches of another object.
    pub derived: u32,
    pub read: u32,
    /// Of the tables read, those in memory that had another table before.
    pub read_in_reused: u32,
    /// Maximum number of tables that used the same block, one after the other.
    pub uses_max: u32,
    /// Of the tables read, those that Python read too.
    pub read_by_python: u32,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.sealed += other.sealed;
        self.derived += other.derived;
        self.read += other.read;
        self.read_in_reused += other.read_in_reused;
        self.uses_max = self.uses_max.max(other.uses_max);
        self.read_by_python += other.read_by_python;
    }
}

/// The state shared by all nodes.
pub struct ReadersWorld {
    pub cluster: IncoherentNodes,
    pub home: Home,
    pub mistake: Option<Mistake>,
    pub variety: Variety,
    pub live: Vec<KnownTable>,
    pub random: Random,
    pub values: SplitMix64,
    pub tally: Tally,
    /// Python reads on this node instead of this process.
    pub python: Option<(u32, Python)>,
    /// Number of objects that used each block of 128 B, by the block's number.
    uses: BTreeMap<u64, u32>,
}

impl ReadersWorld {
    pub fn new(
        seed: u64,
        line_bytes: u32,
        mistake: Option<Mistake>,
        variety: Variety,
    ) -> StepResult<Self> {
        // Small enough that memory, slots and entry pages are soon reused.
        let options = RegionOptions {
            capacity: Length(16 * page_bytes()),
            objects_max: 12,
            clients_max: NODES,
            hold_blocks_max: NODES,
            grants_max: 48,
            name_bytes: Length(32),
            client_objects_max: 42 * 4,
            events_max: 64,
            namespaces_max: 1,
        };
        let layout = Layout::new(&options).map_err(crate::text)?;
        let settings = CacheSettings { line_bytes, acts: 3, seed };
        let cluster = IncoherentNodes::new(layout.geometry, NODES, settings);
        let region = cluster.map(0, Access::Home);
        let home = Home::create(region, &options, 1).map_err(crate::text)?;
        Ok(Self {
            cluster,
            home,
            mistake,
            variety,
            live: Vec::new(),
            random: Random::new(seed),
            values: SplitMix64::new(seed),
            tally: Tally::default(),
            python: None,
            uses: BTreeMap::new(),
        })
    }

    pub fn note_sealed(&mut self, id: ObjectId, table: Arc<OriginalTable>, primary: Span) {
        for number in blocks(primary) {
            let uses = self.uses.entry(number).or_default();
            *uses += 1;
            self.tally.uses_max = self.tally.uses_max.max(*uses);
        }
        self.tally.sealed += 1;
        self.live.push(KnownTable { id, table });
    }

    pub fn note_read(&mut self, primary: Span) {
        let is_reused = blocks(primary).any(|number| self.uses.get(&number) > Some(&1));
        self.tally.read += 1;
        self.tally.read_in_reused += u32::from(is_reused);
    }

    pub fn any_live(&mut self) -> Option<KnownTable> {
        let index = self.random.below(self.live.len() as u64) as usize;
        self.live.get(index).cloned()
    }
}

/// Numbers of the 128 B blocks in a span.
pub fn blocks(span: Span) -> std::ops::Range<u64> {
    span.offset.0 / BLOCK_BYTES..(span.offset.0 + span.length.0).div_ceil(BLOCK_BYTES)
}
