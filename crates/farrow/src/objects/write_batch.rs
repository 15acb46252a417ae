//! Combines adjacent small writes into one: each write takes a lock, and issues fences where memory
//! is not coherent.

use farrow_memory::{AfterCopy, Offset};
use farrow_store::BLOCK_BYTES;

use crate::connection::session::Session;
use crate::error::Error;

/// Most bytes that are buffered.
const GATHERED_BYTES_MAX: usize = 128 << 10;

/// Writes into unsealed blocks of this client.
pub(crate) struct WriteBatch<'a> {
    session: &'a Session,
    /// The region offset of the first buffered byte.
    start: u64,
    bytes: Vec<u8>,
    most: usize,
    after: Option<AfterCopy<'a>>,
}

impl<'a> WriteBatch<'a> {
    /// A batch for one object: each write takes place at once.
    pub(crate) fn nothing(session: &'a Session) -> Self {
        Self { session, start: 0, bytes: Vec::new(), most: 0, after: None }
    }

    /// A batch for several objects: all writes take effect by [`Self::flush`].
    pub(crate) fn neighbours(session: &'a Session) -> Self {
        Self { most: GATHERED_BYTES_MAX, ..Self::nothing(session) }
    }

    /// As [`Self::nothing`], for an object whose large buffers are seen after they were copied.
    pub(crate) fn seen(session: &'a Session, after: Option<AfterCopy<'a>>) -> Self {
        Self { after, ..Self::nothing(session) }
    }

    /// To be called with each piece of a large buffer right after it was copied.
    pub(crate) fn after(&self) -> Option<AfterCopy<'a>> {
        self.after
    }

    /// Writes bytes to a block, at once or at the next flush.
    pub(crate) fn write(&mut self, offset: Offset, bytes: &[u8]) -> Result<(), Error> {
        let end = self.start + self.bytes.len() as u64;
        // The rest of a line belongs to the block that it began with. The next line may belong to
        // another thread.
        let reach = end..=end.next_multiple_of(BLOCK_BYTES);
        let is_next = !self.bytes.is_empty() && reach.contains(&offset.0);
        let gap = if is_next { (offset.0 - end) as usize } else { 0 };
        if !is_next || self.bytes.len() + gap + bytes.len() > self.most {
            self.flush()?;
            if bytes.len() >= self.most {
                return self.session.arena.write(&self.session.region, offset, bytes);
            }
            self.start = offset.0;
        } else {
            self.bytes.resize(self.bytes.len() + gap, 0);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Performs all buffered writes.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        if !self.bytes.is_empty() {
            self.session.arena.write(&self.session.region, Offset(self.start), &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
