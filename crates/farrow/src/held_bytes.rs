//! Small objects of plain bytes that are got together: one claim on the session and one piece of
//! memory for all of them, and for each no more than a number.

use std::fmt;
use std::sync::Arc;

use farrow_memory::{Length, Span};
use farrow_store::HeldBytes;

use crate::arena::SMALL_BYTES_MAX;
use crate::client::ObjectKey;
use crate::error::Error;
use crate::object::Object;
use crate::session::{Session, named};

/// One of many objects that were got together.
#[derive(Debug)]
pub enum BatchItem {
    /// Plain bytes, small ones mostly.
    Bytes(BatchBytes),
    /// Anything else.
    Object(Object),
}

struct HeldBatch {
    session: Arc<Session>,
    held: HeldBytes,
}

/// Immutable bytes of an object, which they hold until they are dropped. Two words: for who keeps
/// them beyond the reach of Rust.
pub struct BatchBytes {
    batch: Arc<HeldBatch>,
    index: usize,
}

impl BatchBytes {
    /// Their address and length: they are good until this is dropped.
    ///
    /// # Errors
    ///
    /// The object does not lie in the region.
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

/// Finds and holds what is small, plain bytes, and in memory; one for each target. Sends no message
/// but for pages of holds.
pub(crate) fn get(
    session: &Arc<Session>,
    targets: &[ObjectKey],
    now_ns: u64,
) -> Result<Vec<Option<BatchBytes>>, Error> {
    session.check_process()?;
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
