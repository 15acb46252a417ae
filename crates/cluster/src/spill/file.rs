//! One file, written and read in pieces, so that no object is in memory twice.

use std::time::Duration;

use farrow_memory::{Length, Offset, Region, Span};
use farrow_store::{ObjectId, SPILL_HEAD_BYTES_MIN, SpillFault, SpillHead};
use object_store::{ObjectStoreExt, PutPayload};

use super::SpillStore;
use super::worker::{Stop, fault};
use crate::protocol::WriteFault;

/// Bytes written or read at once. The private memory of the worker is a few of these.
const PIECE_BYTES: u64 = 8 << 20;

/// Time limit of one step, which handles a piece at most.
pub(super) const STEP_MAX: Duration = Duration::from_secs(30);

type Result<T> = std::result::Result<T, WriteFault>;

impl SpillStore {
    /// Checks that a folder has room for a file and some spare bytes. The space of a bucket is
    /// unknown.
    pub(super) fn check_space(&self, bytes: u64, spare_bytes: u64) -> Result<()> {
        let space = self.folder.as_ref().and_then(|folder| rustix::fs::statvfs(folder).ok());
        let Some(space) = space else {
            return Ok(());
        };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free >= bytes.saturating_add(spare_bytes) {
            return Ok(());
        }
        let what = std::io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error());
        let reason = format!(
            "{what}: {free} B are left, of which {spare_bytes} B are for objects that come back"
        );
        Err(WriteFault { is_full: true, reason })
    }

    /// Writes an object. The file exists completely or not at all, even after a failure.
    pub(super) async fn write(
        &self,
        region: &Region,
        head: &SpillHead,
        parts: &[Span],
        stop: &Stop,
    ) -> Result<()> {
        let path = self.path(head.id);
        let mut buffer = head.encode();
        let mut upload = None;
        let mut checksums = Vec::with_capacity(parts.len());
        for part in parts {
            let mut checksum = 0;
            for piece in pieces(*part) {
                let start = buffer.len();
                buffer.resize(start + piece.length.0 as usize, 0);
                let bytes = buffer.get_mut(start..).unwrap_or_default();
                region
                    .read_by_call(piece.offset, bytes)
                    .map_err(|error| fault(error.to_string()))?;
                checksum = crc32c::crc32c_append(checksum, bytes);
                if buffer.len() as u64 >= PIECE_BYTES {
                    if upload.is_none() {
                        upload = Some(stop.step(self.store.put_multipart(&path)).await?);
                    }
                    if let Some(upload) = &mut upload {
                        let bytes = PutPayload::from(std::mem::take(&mut buffer));
                        stop.step(upload.put_part(bytes)).await?;
                    }
                }
            }
            checksums.push(checksum);
        }
        buffer.extend(head.encode_trailer(&checksums));
        match upload {
            None => stop.step(self.store.put(&path, PutPayload::from(buffer))).await.map(drop),
            Some(mut upload) => {
                stop.step(upload.put_part(PutPayload::from(buffer))).await?;
                stop.step(upload.complete()).await.map(drop)
            }
        }
    }

    /// Reads the head of an object's file, and checks the length of the file against it.
    pub(super) async fn look(&self, id: ObjectId, stop: &Stop) -> Result<SpillHead> {
        let found = stop.step(self.store.head(&self.path(id))).await?.size;
        if found < SPILL_HEAD_BYTES_MIN {
            return Err(short(found, SPILL_HEAD_BYTES_MIN));
        }
        let start = self.read(id, 0, SPILL_HEAD_BYTES_MIN, stop).await?;
        let length = SpillHead::length_of(&start).map_err(|wrong| fault(wrong.to_string()))?;
        if found < length {
            return Err(short(found, length));
        }
        let bytes = self.read(id, 0, length, stop).await?;
        let head = SpillHead::decode(&bytes).map_err(|wrong| fault(wrong.to_string()))?;
        if head.id != id {
            return Err(fault(format!("it is of object {}", head.id)));
        }
        if found != head.file_bytes() {
            return Err(short(found, head.file_bytes()));
        }
        Ok(head)
    }

    /// Reads an object into its blocks. Returns descriptor and metadata.
    pub(super) async fn load(
        &self,
        region: &Region,
        head: &SpillHead,
        blocks: &[Span],
        stop: &Stop,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let id = head.id;
        let trailer_at = head.file_bytes() - head.trailer_bytes();
        let trailer = self.read(id, trailer_at, head.trailer_bytes(), stop).await?;
        let stored = head.decode_trailer(&trailer).map_err(|wrong| fault(wrong.to_string()))?;
        let mut at = head.length();
        let (mut own, mut found) = (Vec::new(), Vec::new());
        let before = head.part_bytes().map(|bytes| Span::new(Offset(0), Length(bytes))).take(2);
        for (number, part) in before.chain(blocks.iter().copied()).enumerate() {
            let (mut checksum, mut collected) = (0, Vec::new());
            for piece in pieces(part) {
                let bytes = self.read(id, at, piece.length.0, stop).await?;
                at += piece.length.0;
                checksum = crc32c::crc32c_append(checksum, &bytes);
                if number < 2 {
                    collected.extend_from_slice(&bytes);
                } else {
                    let written = region.write_by_call(piece.offset, &bytes);
                    written.map_err(|error| fault(error.to_string()))?;
                }
            }
            if number < 2 {
                own.push(collected);
            }
            found.push(checksum);
        }
        for (stored, computed) in stored.into_iter().zip(found) {
            if stored != computed {
                let what = "its bytes";
                let wrong = SpillFault::Checksum { what, stored, computed };
                return Err(fault(wrong.to_string()));
            }
        }
        let metadata = own.pop().unwrap_or_default();
        Ok((own.pop().unwrap_or_default(), metadata))
    }

    pub(super) async fn forget(&self, id: ObjectId, stop: &Stop) -> Result<()> {
        stop.step(self.store.delete(&self.path(id))).await
    }

    async fn read(&self, id: ObjectId, at: u64, length: u64, stop: &Stop) -> Result<Vec<u8>> {
        let path = self.path(id);
        let bytes = stop.step(self.store.get_range(&path, at..at + length)).await?;
        if bytes.len() as u64 != length {
            return Err(short(at + bytes.len() as u64, at + length));
        }
        Ok(bytes.into())
    }
}

fn short(found: u64, needed: u64) -> WriteFault {
    fault(SpillFault::Short { found, needed }.to_string())
}

/// Splits a span into pieces of at most [`PIECE_BYTES`].
fn pieces(span: Span) -> impl Iterator<Item = Span> {
    let count = span.length.0.div_ceil(PIECE_BYTES);
    (0..count).map(move |number| {
        let start = number * PIECE_BYTES;
        let length = PIECE_BYTES.min(span.length.0 - start);
        Span::new(Offset(span.offset.0 + start), Length(length))
    })
}
