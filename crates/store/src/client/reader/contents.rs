//! What an object consists of: its blocks, its metadata, and the object that it is a copy of.

use farrow_memory::Span;
use farrow_memory::sync::{Ordering, fence};

use super::Reader;
use super::look::Look;
use crate::error::StoreError;
use crate::format::entry::{Entry, EntryState, REPLICA_ORIGIN_BYTES, decode_list, decode_origin};
use crate::format::ids::ObjectId;
use crate::format::metadata::{METADATA_BYTES_MAX, Metadata};

/// A block of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLocation {
    /// Its span.
    pub block: Span,
    /// Its span at seal: offsets in the descriptor are relative to it.
    pub origin: Span,
}

impl Reader {
    /// All blocks of an object, the primary one first. The caller holds the object.
    ///
    /// # Errors
    /// [`StoreError::BlockListDamaged`] or [`StoreError::Corrupt`] if the list in the data section
    /// differs from the sealed one.
    pub fn blocks(&self, entry: &Entry) -> Result<Vec<Span>, StoreError> {
        if entry.extra_count == 0 {
            return Ok(vec![entry.primary]);
        }
        Ok(self.places(entry)?.into_iter().map(|place| place.block).collect())
    }

    /// All blocks of an object and their spans at seal, the primary one first. The caller holds the
    /// object.
    ///
    /// # Errors
    /// As [`Reader::blocks`].
    pub fn places(&self, entry: &Entry) -> Result<Vec<BlockLocation>, StoreError> {
        let mut places = vec![BlockLocation { block: entry.primary, origin: entry.primary }];
        if entry.extra_count == 0 && !entry.is_relocated {
            return Ok(places);
        }
        let slot = entry.id.slot();
        let corrupt = |reason| StoreError::Corrupt { slot, reason };
        entry.validate(self.layout()).map_err(corrupt)?;
        let list = entry.extra_list().ok_or_else(|| corrupt("its block list leaves 64 bits"))?;
        let mut bytes = vec![0; list.length.0 as usize];
        self.region.refresh_if_node_local(list)?;
        self.region.copy_out(list.offset, &mut bytes)?;
        let (stored, computed) = (entry.extra_crc, crc32c::crc32c(&bytes));
        if stored != computed {
            return Err(StoreError::BlockListDamaged { id: entry.id, stored, computed });
        }
        let (extra, origins) = decode_list(&bytes, entry, self.layout()).map_err(corrupt)?;
        places.extend(extra.into_iter().map(|block| BlockLocation { block, origin: block }));
        for (place, offset) in places.iter_mut().zip(origins) {
            place.origin.offset = offset;
        }
        if let Some(primary) = places.first_mut() {
            primary.origin.length = entry.primary_bytes_at_seal();
        }
        Ok(places)
    }

    /// The object of which a held replica is a copy; none if it is not a replica.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the origin in its block was changed.
    pub fn origin(&self, entry: &Entry) -> Result<Option<ObjectId>, StoreError> {
        if !entry.is_replica {
            return Ok(None);
        }
        let corrupt = |reason| StoreError::Corrupt { slot: entry.id.slot(), reason };
        let span = entry.origin().ok_or_else(|| corrupt("its origin leaves its block"))?;
        let mut bytes = [0; REPLICA_ORIGIN_BYTES as usize];
        self.region.refresh_if_node_local(span)?;
        self.region.copy_out(span.offset, &mut bytes)?;
        decode_origin(&bytes).map(Some).map_err(corrupt)
    }

    /// The object of which a sealed object is a copy; none if it is not a replica, not of this region,
    /// or no longer there. The caller need not hold it.
    ///
    /// # Errors
    /// As [`Reader::origin`].
    pub fn origin_of(&self, id: ObjectId) -> Result<Option<ObjectId>, StoreError> {
        // Clients seal no replicas by themselves.
        if id.region() != self.header.uid || id.slot().0 >= self.layout().objects_max {
            return Ok(None);
        }
        let directory = self.region.words(self.layout().directory)?;
        let Look::Sealed(entry) = self.look(&directory, id.slot())? else {
            return Ok(None);
        };
        if entry.id != id {
            return Ok(None);
        }
        let origin = self.origin(&entry);
        fence(Ordering::Acquire);
        // Without a hold the memory may be another object's by now.
        match self.is_still(&directory, &entry)? {
            true => origin,
            false => Ok(None),
        }
    }

    /// The metadata of an object; none if the object is no longer there.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if it is not the metadata that the creator sealed.
    pub fn metadata(&self, entry: &Entry) -> Result<Option<Metadata>, StoreError> {
        if entry.metadata_bytes == 0 {
            return Ok(Some(Metadata::default()));
        }
        let corrupt = |reason| StoreError::Corrupt { slot: entry.id.slot(), reason };
        if entry.metadata_bytes > METADATA_BYTES_MAX {
            return Err(corrupt("its metadata is too long"));
        }
        let span = entry.metadata().ok_or_else(|| corrupt("its metadata leaves its block"))?;
        let mut bytes = vec![0; span.length.0 as usize];
        self.region.refresh_if_node_local(span)?;
        self.region.copy_out(span.offset, &mut bytes)?;
        // Without a hold the memory may be another object's by now.
        let directory = self.region.words(self.layout().directory)?;
        fence(Ordering::Acquire);
        let is_there = match self.layout().client_entry(entry.id.slot()) {
            Some(_) => self.is_still(&directory, entry)?,
            None => {
                let now = self.sequence(&directory, entry.id.slot(), Ordering::Relaxed)?;
                now == entry.sequence() || now == entry.sequence().with(EntryState::Leaving)
            }
        };
        if !is_there {
            return Ok(None);
        }
        if crc32c::crc32c(&bytes) != entry.metadata_crc {
            return Err(corrupt("the checksum of its metadata differs"));
        }
        Metadata::decode(&bytes).map(Some).map_err(|_| corrupt("its metadata does not decode"))
    }
}
