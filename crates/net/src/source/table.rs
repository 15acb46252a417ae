//! A source and a push target over a table in memory, for tests and benchmarks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farrow_memory::{FileMap, Length, Span};

use super::{GrantId, Guard, HoldId, MemberLife, PushTarget, Source, SourceRefusal};
use crate::frame::{ErrorCode, INLINE_BYTES_MAX, Opened};

/// Objects by key, holds and grants by member.
#[derive(Debug)]
pub struct TableSource {
    map: Arc<FileMap>,
    state: Arc<Mutex<SourceState>>,
}

#[derive(Debug, Default)]
struct SourceState {
    objects: HashMap<u64, Vec<Span>>,
    holds: BTreeMap<(MemberLife, HoldId), u64>,
    grants: HashMap<GrantId, (MemberLife, Span)>,
    written: HashMap<GrantId, Vec<Span>>,
    guards: usize,
    seen: Vec<(MemberLife, u64)>,
}

impl TableSource {
    /// An empty table over a map.
    #[must_use]
    pub fn new(map: Arc<FileMap>) -> Arc<Self> {
        Arc::new(Self { map, state: Arc::default() })
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sealed object.
    pub fn add(&self, key: u64, blocks: Vec<Span>) {
        self.lock().objects.insert(key, blocks);
    }

    /// Deletes an object, which can then no longer be opened.
    pub fn delete(&self, key: u64) {
        self.lock().objects.remove(&key);
    }

    /// Adds a grant of a range to a member.
    pub fn grant(&self, grant: GrantId, member: &MemberLife, span: Span) {
        self.lock().grants.insert(grant, (member.clone(), span));
    }

    /// Ends holds and grants of a member. Call [`crate::server::DataServer::cut`] first.
    pub fn forget(&self, member: &MemberLife) {
        let mut state = self.lock();
        state.holds.retain(|(of, _), _| of != member);
        state.grants.retain(|_, (of, _)| of != member);
    }

    /// Number of holds of peers.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.lock().holds.len()
    }

    /// Number of requests that currently read or write ranges.
    #[must_use]
    pub fn guards(&self) -> usize {
        self.lock().guards
    }

    /// Acknowledged ranges of a grant.
    #[must_use]
    pub fn written(&self, grant: GrantId) -> Vec<Span> {
        self.lock().written.get(&grant).cloned().unwrap_or_default()
    }

    /// Received answers to notices.
    #[must_use]
    pub fn seen(&self) -> Vec<(MemberLife, u64)> {
        self.lock().seen.clone()
    }

    fn guard(&self, state: &mut SourceState) -> Guard {
        state.guards += 1;
        Box::new(TableGuard(Arc::clone(&self.state)))
    }
}

struct TableGuard(Arc<Mutex<SourceState>>);

impl Drop for TableGuard {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).guards -= 1;
    }
}

/// The encoding of a request to open an object of this table.
#[must_use]
pub fn want(key: u64) -> [u8; 8] {
    key.to_le_bytes()
}

impl Source for TableSource {
    fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    fn open(
        &self,
        member: &MemberLife,
        hold: HoldId,
        want: &[u8],
    ) -> Result<Opened, SourceRefusal> {
        let refused = |text: String| SourceRefusal::new(ErrorCode::NotFound, text);
        let want = want.try_into().map_err(|_| refused(format!("want of {} B", want.len())))?;
        let key = u64::from_le_bytes(want);
        let mut state = self.lock();
        let blocks = state.objects.get(&key).cloned();
        let blocks = blocks.ok_or_else(|| refused(format!("no object {key}")))?;
        if state.holds.contains_key(&(member.clone(), hold)) {
            let text = format!("{member} has a hold {} already", hold.0);
            return Err(SourceRefusal::new(ErrorCode::Other, text));
        }
        let total: Length = Length(blocks.iter().map(|block| block.length.0).sum());
        let mut inline = Vec::new();
        if total.0 <= INLINE_BYTES_MAX {
            for block in &blocks {
                let bytes = self.map.sealed(*block);
                inline.extend_from_slice(bytes.map_err(|error| refused(error.to_string()))?);
            }
        }
        state.holds.insert((member.clone(), hold), key);
        Ok(Opened { blocks, entry: key.to_le_bytes().to_vec(), inline })
    }

    fn read(
        &self,
        member: &MemberLife,
        hold: HoldId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal> {
        let mut state = self.lock();
        let Some(key) = state.holds.get(&(member.clone(), hold)).copied() else {
            let text = format!("{member} has no hold {}", hold.0);
            return Err(SourceRefusal::new(ErrorCode::NotHeld, text));
        };
        let blocks = state.objects.get(&key).map(Vec::as_slice).unwrap_or_default();
        let outside = |range: &&Span| !blocks.iter().any(|block| block.contains(**range));
        if let Some(range) = ranges.iter().find(outside) {
            let text = format!("{range} does not lie in a block of object {key}");
            return Err(SourceRefusal::new(ErrorCode::NotHeld, text));
        }
        Ok(self.guard(&mut state))
    }

    fn release(&self, member: &MemberLife, hold: HoldId) {
        self.lock().holds.remove(&(member.clone(), hold));
    }

    fn on_invalidated(&self, member: &MemberLife, object: u64) {
        self.lock().seen.push((member.clone(), object));
    }
}

impl PushTarget for TableSource {
    fn map(&self) -> &Arc<FileMap> {
        &self.map
    }

    fn write(
        &self,
        member: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<Guard, SourceRefusal> {
        let mut state = self.lock();
        let span = match state.grants.get(&grant) {
            Some((of, span)) if of == member => *span,
            _ => {
                let text = format!("{member} has no grant {}", grant.0);
                return Err(SourceRefusal::new(ErrorCode::NotHeld, text));
            }
        };
        if let Some(range) = ranges.iter().find(|range| !span.contains(**range)) {
            let text = format!("{range} does not lie in grant {} of {span}", grant.0);
            return Err(SourceRefusal::new(ErrorCode::NotHeld, text));
        }
        Ok(self.guard(&mut state))
    }

    fn written(
        &self,
        _: &MemberLife,
        grant: GrantId,
        ranges: &[Span],
    ) -> Result<(), SourceRefusal> {
        self.lock().written.entry(grant).or_default().extend(ranges);
        Ok(())
    }
}
