//! Small plain-bytes objects that are held together: all share one reference to the session and one
//! allocation, and each adds only an index.

use std::fmt;
use std::sync::Arc;

use farrow_memory::{Length, Span};
use farrow_store::HeldBytes;

use crate::connection::session::Session;
use crate::error::Error;
use crate::error::named;
use crate::key::ObjectKey;
use crate::memory::arena::SMALL_BYTES_MAX;
use crate::objects::object::Object;

/// An object of a batch.
#[derive(Debug)]
pub enum BatchItem {
    /// Plain bytes, mostly small.
    Bytes(BatchBytes),
    /// An object of any other kind.
    Object(Object),
}

struct HeldBatch {
    session: Arc<Session>,
    held: HeldBytes,
}

/// Immutable bytes of an object, which they hold until dropped. Two words in size: suited to keep
/// bytes outside the reach of Rust.
pub struct BatchBytes {
    batch: Arc<HeldBatch>,
    index: usize,
}

impl BatchBytes {
    /// The bytes' address and length, valid until this value is dropped.
    ///
    /// # Errors
    ///
    /// The bytes are outside the region.
    pub fn place(&self) -> Result<(*const u8, usize), Error> {
        let payload = self.batch.held.get(self.index).map_or(Span::default(), |(_, at)| at);
        let start = self.batch.session.region.pointer_of(payload)?;
        Ok((start, payload.length.as_usize()))
    }
}

impl fmt::Debug for BatchBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BatchBytes").field(&self.batch.held.get(self.index)).finish()
    }
}

impl Drop for BatchBytes {
    fn drop(&mut self) {
        let session = &self.batch.session;
        if let Some(id) = self.batch.held.let_go(self.index) {
            session.released(id);
        }
    }
}

/// Finds and holds small plain-bytes objects in memory; one result for each target. Sends messages
/// only for pages of holds.
pub(crate) fn get(
    session: &Arc<Session>,
    targets: &[ObjectKey],
    now_ns: u64,
) -> Result<Vec<Option<BatchBytes>>, Error> {
    session.check()?;
    let mut failed = None;
    let more = |slots| match session.add_hold_block(slots) {
        Ok(()) => true,
        Err(error) => {
            failed = Some(error);
            false
        }
    };
    let all: Vec<_> = targets.iter().map(ObjectKey::store).collect();
    let small = Length(SMALL_BYTES_MAX);
    let held = session.reader.hold_bytes(&session.holds, &all, small, more).map_err(named)?;
    if let Some(error) = failed {
        return Err(error);
    }
    let batch = Arc::new(HeldBatch { session: Arc::clone(session), held });
    let one = |index| {
        let (id, _) = batch.held.get(index)?;
        session.touch(id, now_ns);
        Some(BatchBytes { batch: Arc::clone(&batch), index })
    };
    Ok((0..targets.len()).map(one).collect())
}
