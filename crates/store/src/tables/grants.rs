//! The grant table: ranges of the heap that belong to a client, before anything in them is sealed.
//!
//! The table is in the region, so that a restarted home leaves the memory of a running writer
//! alone. Each change is a sequence of single stores. After each of them the records cover at least
//! the granted ranges: a home that adopts the region subtracts those that have become objects.

use std::collections::BTreeMap;

use farrow_memory::{Length, Offset, Span};

use crate::alloc::space::{Run, inside};
use crate::error::StoreError;
use crate::failpoint;
use crate::format::layout::{GRANT_BYTES, Layout};
use crate::tables::control::{Control, word_of};

const OWNER_WORD: u64 = 0;
const START_WORD: u64 = 1;
const END_WORD: u64 = 2;

/// The owner of ranges that are not lent. No client has this number: there are at most 2^20.
pub(crate) const WITHDRAWN: u32 = u32::MAX - 1;

/// One range of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Grant {
    end: u64,
    record: u32,
}

/// A record as found in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FoundGrant {
    pub(crate) record: u32,
    pub(crate) client: u32,
    pub(crate) run: Run,
}

impl FoundGrant {
    /// Whether it is a range that is not lent: whole pages of the heap.
    pub(crate) fn is_withdrawn(&self, layout: &Layout) -> bool {
        let span = Span::between(Offset(self.run.start), Offset(self.run.end)).unwrap_or_default();
        self.client == WITHDRAWN
            && !span.is_empty()
            && span.is_aligned(layout.page.0)
            && layout.heap.contains(span)
    }
}

/// Ranges to take out of one client's grants. Made by [`Grants::plan`], which checks that all of
/// them are granted and that there are enough records.
#[derive(Debug, Default)]
pub(crate) struct Carving {
    pieces: Vec<Run>,
    records: usize,
}

impl Carving {
    /// Free grant records that it needs at most.
    pub(crate) fn records(&self) -> usize {
        self.records
    }
}

#[derive(Debug)]
pub(crate) struct Grants {
    control: Control,
    layout: Layout,
    free: Vec<u32>,
    /// Records that became free since this table was opened.
    freed: u64,
    /// Grants of each client by their start.
    by_client: BTreeMap<u32, BTreeMap<u64, Grant>>,
    /// The client of each grant, by its start.
    client_of: BTreeMap<u64, u32>,
    bytes: u64,
    bytes_by_client: BTreeMap<u32, u64>,
}

impl Grants {
    /// The grants found by [`Grants::read`], made disjoint.
    pub(crate) fn new(control: Control, layout: Layout, in_use: &[FoundGrant]) -> Self {
        let mut is_used = vec![false; layout.grants_max as usize];
        for found in in_use {
            if let Some(used) = is_used.get_mut(found.record as usize) {
                *used = true;
            }
        }
        let free = (0..layout.grants_max).zip(is_used).filter(|(_, used)| !used).map(|(i, _)| i);
        let mut free: Vec<u32> = free.collect();
        free.reverse();
        let (by_client, client_of, bytes_by_client) = Default::default();
        let (freed, bytes) = (0, 0);
        let mut grants =
            Self { control, layout, free, freed, by_client, client_of, bytes, bytes_by_client };
        for found in in_use {
            grants.insert(found.client, found.run, found.record);
        }
        grants
    }

    /// All records whose owner word is set.
    pub(crate) fn read(control: &Control, layout: &Layout) -> Result<Vec<FoundGrant>, StoreError> {
        let mut all = Vec::new();
        for record in 0..layout.grants_max {
            let at = word_of(layout.grants, GRANT_BYTES, record, 0);
            let [owner, start, end, _]: [u64; 4] = control.load_record(at)?;
            if let Some(client) = owner.checked_sub(1) {
                let client = u32::try_from(client).unwrap_or(u32::MAX);
                all.push(FoundGrant { record, client, run: Run { start, end } });
            }
        }
        Ok(all)
    }

    /// Set the record in the region to `run`, or free it if `run` is empty. One store if one end is
    /// unchanged.
    pub(crate) fn mend(
        control: &Control,
        layout: &Layout,
        to: FoundGrant,
    ) -> Result<(), StoreError> {
        let word = |word| word_of(layout.grants, GRANT_BYTES, to.record, word);
        if to.run.len() == 0 {
            return control.store(word(OWNER_WORD), 0);
        }
        for (word, value) in [(word(START_WORD), to.run.start), (word(END_WORD), to.run.end)] {
            if control.load(word)? != value {
                control.store(word, value)?;
            }
        }
        Ok(())
    }

    /// How many records became free since this table was opened.
    pub(crate) fn freed_records(&self) -> u64 {
        self.freed
    }

    /// Whether this many more ranges can be granted.
    ///
    /// # Errors
    /// [`StoreError::TooManyGrants`] with the limit.
    pub(crate) fn check_records(&self, ranges: usize) -> Result<(), StoreError> {
        if ranges > self.free.len() {
            return Err(StoreError::TooManyGrants { max: self.layout.grants_max });
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are granted to one client.
    pub(crate) fn bytes_of(&self, client: u32) -> u64 {
        self.bytes_by_client.get(&client).copied().unwrap_or_default()
    }

    pub(crate) fn count(&self) -> u32 {
        self.layout.grants_max - self.free.len() as u32
    }

    /// Record `run`, just given by the space allocator, as the client's.
    pub(crate) fn add(&mut self, client: u32, run: Run) -> Result<(), StoreError> {
        let max = self.layout.grants_max;
        let record = self.free.pop().ok_or(StoreError::TooManyGrants { max })?;
        self.write(record, client, run)?;
        self.insert(client, run, record);
        Ok(())
    }

    /// Whether one part in this number of the records is free.
    ///
    /// # Errors
    /// [`StoreError::TooManyGrants`] with the limit.
    pub(crate) fn check_records_left(&self, part: u32) -> Result<(), StoreError> {
        self.check_records((self.layout.grants_max / part) as usize + 1)
    }

    /// As [`Self::add`]; a grant of the client that ends or starts there is made longer instead.
    pub(crate) fn extend(&mut self, client: u32, run: Run) -> Result<(), StoreError> {
        let table = self.layout.grants;
        let word = |record, word| word_of(table, GRANT_BYTES, record, word);
        if let Some(before) = run.start.checked_sub(1).and_then(|at| self.containing(client, at)) {
            let record = self.remove(client, before.start).ok_or(not_yours(client, before))?;
            self.insert(client, Run { start: before.start, end: run.end }, record);
            self.control.store(word(record, END_WORD), run.end)?;
            failpoint!("withdraw.extended");
            return Ok(());
        }
        if let Some(after) = self.containing(client, run.end) {
            let record = self.remove(client, after.start).ok_or(not_yours(client, after))?;
            self.insert(client, Run { start: run.start, end: after.end }, record);
            self.control.store(word(record, START_WORD), run.start)?;
            failpoint!("withdraw.extended");
            return Ok(());
        }
        self.add(client, run)
    }

    /// Write the first record of a region that is being created.
    pub(crate) fn write_first(
        control: &Control,
        layout: &Layout,
        client: u32,
        run: Run,
    ) -> Result<(), StoreError> {
        let at = word_of(layout.grants, GRANT_BYTES, 0, OWNER_WORD);
        control.store_record(at, &[u64::from(client) + 1, run.start, run.end])
    }

    /// Grants of a client in order.
    pub(crate) fn of(&self, client: u32) -> impl Iterator<Item = Run> + '_ {
        let grants = self.by_client.get(&client).into_iter().flatten();
        grants.map(|(&start, grant)| Run { start, end: grant.end })
    }

    /// All grants, client by client.
    pub(crate) fn all(&self) -> impl Iterator<Item = Run> + '_ {
        self.by_client.keys().flat_map(|client| self.of(*client))
    }

    /// Grants of clients, client by client.
    pub(crate) fn of_clients(&self) -> impl Iterator<Item = Run> + '_ {
        let clients = self.by_client.keys().filter(|client| **client != WITHDRAWN);
        clients.flat_map(|client| self.of(*client))
    }

    /// The client to which the byte at this offset is granted.
    pub(crate) fn client_at(&self, at: u64) -> Option<u32> {
        let client = *self.client_of.range(..=at).next_back()?.1;
        self.containing(client, at).map(|_| client)
    }

    /// Whether all of a run is granted to a client.
    pub(crate) fn covers(&self, client: u32, run: Run) -> bool {
        let mut at = run.start;
        while at < run.end {
            match self.containing(client, at) {
                Some(grant) => at = grant.end,
                None => return false,
            }
        }
        true
    }

    /// Plan to take `runs` (sorted, disjoint) out of the client's grants. A run may span several
    /// adjacent grants. Nothing changes yet.
    pub(crate) fn plan(&self, client: u32, runs: &[Run]) -> Result<Carving, StoreError> {
        let mut carving = Carving::default();
        // The grant of the last piece, and the start of its remainder.
        let mut current: Option<(Run, u64)> = None;
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let grant = self.containing(client, at).ok_or_else(|| not_yours(client, *run))?;
                let end = grant.end.min(run.end);
                let left = match current {
                    Some((same, left)) if same == grant => left,
                    _ => grant.start,
                };
                // If a remainder is left on both sides, `carve_one` needs one more record.
                if at > left && end < grant.end {
                    carving.records += 1;
                }
                current = Some((grant, end));
                carving.pieces.push(Run { start: at, end });
                at = end;
            }
        }
        self.check_records(carving.records)?;
        Ok(carving)
    }

    /// Take the planned ranges out of the client's grants. The caller decides about their further
    /// use.
    pub(crate) fn carve(&mut self, client: u32, carving: &Carving) -> Result<(), StoreError> {
        for piece in &carving.pieces {
            self.carve_one(client, *piece)?;
        }
        Ok(())
    }

    fn carve_one(&mut self, client: u32, piece: Run) -> Result<(), StoreError> {
        let grant = self.containing(client, piece.start);
        let grant = grant.filter(|grant| piece.end <= grant.end);
        let grant = grant.ok_or_else(|| not_yours(client, piece))?;
        let record = self.remove(client, grant.start).ok_or_else(|| not_yours(client, piece))?;
        let word = |word| word_of(self.layout.grants, GRANT_BYTES, record, word);
        match (grant.start < piece.start, piece.end < grant.end) {
            (false, false) => {
                self.control.store(word(OWNER_WORD), 0)?;
                failpoint!("carve.drop");
                self.free.push(record);
                self.freed += 1;
            }
            (false, true) => {
                self.control.store(word(START_WORD), piece.end)?;
                failpoint!("carve.prefix");
                self.insert(client, Run { start: piece.end, end: grant.end }, record);
            }
            (true, false) => {
                self.control.store(word(END_WORD), piece.start)?;
                failpoint!("carve.suffix");
                self.insert(client, Run { start: grant.start, end: piece.start }, record);
            }
            (true, true) => {
                let end_word = word(END_WORD);
                self.add(client, Run { start: piece.end, end: grant.end })?;
                failpoint!("carve.split.new");
                self.control.store(end_word, piece.start)?;
                failpoint!("carve.split.old");
                self.insert(client, Run { start: grant.start, end: piece.start }, record);
            }
        }
        Ok(())
    }

    /// Subtract `blocks` (disjoint, in order), which have become objects, from the client's grants:
    /// a former home was killed before it did.
    pub(crate) fn take_off(&mut self, client: u32, blocks: &[Run]) -> Result<(), StoreError> {
        let parts: Vec<Run> = self.of(client).flat_map(|grant| inside(blocks, grant)).collect();
        let carving = self.plan(client, &parts)?;
        self.carve(client, &carving)
    }

    /// Take all grants of a client off the table; the caller frees the ranges.
    pub(crate) fn take_all(&mut self, client: u32) -> Result<Vec<Run>, StoreError> {
        let mut runs = Vec::new();
        for (start, grant) in self.by_client.remove(&client).into_iter().flatten() {
            let at = word_of(self.layout.grants, GRANT_BYTES, grant.record, OWNER_WORD);
            self.control.store(at, 0)?;
            failpoint!("client.leave.grant");
            let run = Run { start, end: grant.end };
            self.client_of.remove(&start);
            self.bytes -= run.len();
            self.free.push(grant.record);
            self.freed += 1;
            runs.push(run);
        }
        self.bytes_by_client.remove(&client);
        Ok(runs)
    }

    /// Whether private state and table agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        let found = Self::read(&self.control, &self.layout).map_err(|error| error.to_string())?;
        let known: usize = self.by_client.values().map(BTreeMap::len).sum();
        if known != found.len() || known + self.free.len() != self.layout.grants_max as usize {
            return Err(format!("{known} grants are known, {} are in the table", found.len()));
        }
        for FoundGrant { record, client, run } in found {
            let grant = self.by_client.get(&client).and_then(|grants| grants.get(&run.start));
            if grant != Some(&Grant { end: run.end, record }) {
                return Err(format!("grant record {record} of client {client} is {run:?}"));
            }
            if self.client_of.get(&run.start) != Some(&client) {
                return Err(format!("the grant at {:#x} is not known as {client}'s", run.start));
            }
        }
        if self.client_of.len() != known {
            return Err(format!("{known} grants have {} owners", self.client_of.len()));
        }
        let bytes: u64 = self.all().map(Run::len).sum();
        let of_client = |client: &u32| self.of(*client).map(Run::len).sum::<u64>();
        if self.by_client.keys().any(|client| of_client(client) != self.bytes_of(*client)) {
            return Err(format!("granted to clients: {:?}", self.bytes_by_client));
        }
        if bytes != self.bytes {
            return Err(format!("{bytes} B are granted, accounts say {}", self.bytes));
        }
        Ok(())
    }

    /// The range first, then the owner: until the last store the record is unused.
    fn write(&self, record: u32, client: u32, run: Run) -> Result<(), StoreError> {
        let word = |word| word_of(self.layout.grants, GRANT_BYTES, record, word);
        self.control.store_record(word(START_WORD), &[run.start, run.end])?;
        failpoint!("grant.range");
        self.control.store(word(OWNER_WORD), u64::from(client) + 1)?;
        failpoint!("grant.owner");
        Ok(())
    }

    fn containing(&self, client: u32, at: u64) -> Option<Run> {
        let (&start, grant) = self.by_client.get(&client)?.range(..=at).next_back()?;
        (at < grant.end).then_some(Run { start, end: grant.end })
    }

    fn insert(&mut self, client: u32, run: Run, record: u32) {
        let grants = self.by_client.entry(client).or_default();
        grants.insert(run.start, Grant { end: run.end, record });
        self.client_of.insert(run.start, client);
        self.bytes += run.len();
        *self.bytes_by_client.entry(client).or_default() += run.len();
    }

    fn remove(&mut self, client: u32, start: u64) -> Option<u32> {
        let grant = self.by_client.get_mut(&client)?.remove(&start)?;
        self.client_of.remove(&start);
        let bytes = Run { start, end: grant.end }.len();
        self.bytes -= bytes;
        if let Some(of_client) = self.bytes_by_client.get_mut(&client) {
            *of_client = of_client.saturating_sub(bytes);
        }
        Some(grant.record)
    }
}

fn not_yours(client: u32, run: Run) -> StoreError {
    StoreError::NotYours { span: span_of(run), client }
}

pub(crate) fn span_of(run: Run) -> Span {
    Span::new(Offset(run.start), Length(run.len()))
}

/// None for a span that ends beyond 64 bits.
pub(crate) fn run_of(span: Span) -> Option<Run> {
    Some(Run { start: span.offset.0, end: span.end()?.0 })
}
