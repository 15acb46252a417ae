//! An object in use: held, and rebuilt in place over its memory.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arrow_buffer::Buffer;
use bytes::Bytes;
use farrow_arrow::{ArrowObject, Decoded, Limits, NdArray, Rebuilt, RowSlice};
use farrow_memory::{Length, Offset, SealedBytes, Span, fork};
use farrow_store::{Entry, Held, Metadata, ObjectId, ObjectKind, StoreError};
use farrow_wire::PartSpec;

use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::arena::SMALL_BYTES_MAX;

/// The longest descriptor accepted: enough for 16 million nodes.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 30;

/// A sealed object whose memory stays in place while this value, or anything made from it, lives.
#[derive(Debug, Clone)]
pub struct Object {
    hold: Arc<Hold>,
}

/// The hold on an object, released when its last user is dropped. To keep bytes outside the reach
/// of Rust, see [`ObjectBytes::into_hold`].
pub struct Hold {
    held: Held,
    /// All blocks of the object, the primary one first; `None` for a single block.
    blocks: Option<Box<[Span]>>,
    /// The blocks' places at seal, if they have moved since: the descriptor uses these offsets.
    origins: Option<Box<[Span]>>,
    /// The object of another node of which this one is a copy.
    origin: Option<ObjectId>,
    /// One buffer over each block, made at the first rebuild, with the block's span at seal.
    buffers: OnceLock<Vec<(Span, Buffer)>>,
    /// The last field: after the hold is released, its drop checks whether the object was deleted.
    farewell: Farewell,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("entry", self.entry()).finish_non_exhaustive()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let session = &self.farewell.session;
        if let Some(block) = self.farewell.registered.filter(|_| session.is_own_process()) {
            session.blocks.remove(&[block]);
        }
    }
}

impl Hold {
    fn entry(&self) -> &Entry {
        self.held.entry()
    }

    fn session(&self) -> &Arc<Session> {
        &self.farewell.session
    }

    fn blocks(&self) -> &[Span] {
        self.blocks.as_deref().unwrap_or(std::slice::from_ref(&self.entry().primary))
    }
}

/// The work left after the hold is released.
struct Farewell {
    session: Arc<Session>,
    id: ObjectId,
    /// The block of a buffer, registered so that a put in this process may refer to it.
    registered: Option<Span>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.session.released(self.id);
    }
}

impl Object {
    /// Takes over the hold; releases it if the object is damaged.
    pub(crate) fn new(session: &Arc<Session>, held: Held) -> Result<Self, Error> {
        let farewell =
            Farewell { session: Arc::clone(session), id: held.entry().id, registered: None };
        let (blocks, origins, buffers) = (None, None, OnceLock::new());
        let mut hold = Hold { held, blocks, origins, origin: None, buffers, farewell };
        let entry = hold.held.entry();
        hold.origin = session.reader.origin(entry).map_err(damaged)?;
        if entry.is_relocated {
            let places = session.reader.places(entry).map_err(damaged)?;
            hold.blocks = Some(places.iter().map(|place| place.block).collect());
            hold.origins = Some(places.into_iter().map(|place| place.origin).collect());
        } else if entry.extra_count > 0 {
            hold.blocks = Some(session.reader.blocks(entry).map_err(damaged)?.into());
        }
        session.populator.start(&session.region, hold.entry().id, hold.blocks());
        Ok(Self { hold: Arc::new(hold) })
    }

    /// The object's id: that of the original if this is a copy.
    pub fn id(&self) -> ObjectId {
        self.hold.origin.unwrap_or(self.hold.entry().id)
    }

    /// The kind of the object.
    pub fn kind(&self) -> ObjectKind {
        self.hold.entry().kind
    }

    /// Bytes of the object's buffers; for plain bytes, their length.
    pub fn bytes(&self) -> u64 {
        self.hold.entry().size.0
    }

    /// Its metadata.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDescriptor`] when it is damaged.
    pub fn metadata(&self) -> Result<Metadata, Error> {
        let found = self.hold.session().reader.metadata(self.hold.entry()).map_err(damaged)?;
        found.ok_or_else(|| {
            Error::InvalidDescriptor(format!("the metadata of {} cannot be read", self.id()))
        })
    }

    /// The object's blocks in the region.
    pub fn blocks(&self) -> &[Span] {
        self.hold.blocks()
    }

    /// Plain bytes.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for an object of another kind.
    pub fn view(&self) -> Result<ObjectBytes, Error> {
        self.clone().into_view()
    }

    /// As [`Self::view`], for a caller that needs only the bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::view`].
    pub fn into_view(self) -> Result<ObjectBytes, Error> {
        if self.kind() != ObjectKind::Bytes {
            let kind = self.kind().as_str();
            return Err(Error::InvalidArgument(format!("{} is a {kind}, not bytes", self.id())));
        }
        let payload = self.hold.entry().payload();
        if !self.hold.entry().primary.contains(payload) {
            return Err(Error::InvalidDescriptor(format!("{payload} is not in its block")));
        }
        let bytes = self.hold.session().region.sealed(payload)?;
        Ok(ObjectBytes { bytes, hold: self.hold })
    }

    /// Arrow arrays, or a NumPy array, in place over the object's memory. Their buffers hold the
    /// object. The cost depends on the number of buffers, not of rows.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDescriptor`] when the descriptor is damaged or contradicts itself.
    pub fn rebuild(&self) -> Result<Rebuilt, Error> {
        Ok(self.decoded()?.rebuild(&|offset, length| self.resolve(offset, length))?)
    }

    /// As [`Self::rebuild`], and reads all data once to check that the arrays are well-formed: for
    /// objects of untrusted writers.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDescriptor`] also for contents that could mislead a compute kernel.
    pub fn rebuild_checked(&self) -> Result<Rebuilt, Error> {
        Ok(self.decoded()?.rebuild_checked(&|offset, length| self.resolve(offset, length))?)
    }

    /// Some columns and rows of an Arrow object, in place over its memory.
    ///
    /// # Errors
    ///
    /// As [`Self::rebuild`]; [`Error::InvalidArgument`] for an object of another kind and for an
    /// unknown column.
    pub fn rebuild_part(&self, part: &PartSpec) -> Result<ArrowObject, Error> {
        if matches!(self.kind(), ObjectKind::Bytes | ObjectKind::NdArray) {
            let kind = self.kind().as_str();
            let text = format!("{} is a {kind}, which has no columns or Arrow rows", self.id());
            return Err(Error::InvalidArgument(text));
        }
        let rows = RowSlice { start: part.start, stop: part.stop };
        let selected = self.decoded()?.select(part.columns.as_deref(), rows)?;
        let decoded = Decoded::parse(&selected.descriptor, &Limits::default())?;
        arrow_of(decoded.rebuild(&|offset, length| self.resolve(offset, length))?)
    }

    /// An Arrow object, in place over its memory.
    pub(crate) fn rebuild_arrow(&self) -> Result<ArrowObject, Error> {
        arrow_of(self.rebuild()?)
    }

    /// A NumPy array: dtype, shape, and the bytes.
    ///
    /// # Errors
    ///
    /// As [`Self::rebuild`]; [`Error::InvalidArgument`] for an object of another kind.
    pub fn ndarray(&self) -> Result<(NdArray, Buffer), Error> {
        match self.rebuild()? {
            Rebuilt::NdArray(shape, buffer) => Ok((shape, buffer)),
            Rebuilt::Arrow(_) => {
                let kind = self.kind().as_str();
                Err(Error::InvalidArgument(format!("{} is a {kind}, not an array", self.id())))
            }
        }
    }

    fn decoded(&self) -> Result<Decoded, Error> {
        let decoded = Decoded::parse(&self.descriptor()?, &Limits::default())?;
        // Offsets of another region would refer to other bytes here.
        let ours = self.hold.origin.map_or(self.hold.session().region_uid(), |id| id.hi);
        let theirs = decoded.stamp().region;
        if theirs != ours {
            let reason = format!("offsets in region {theirs:#018x}, it lies in {ours:#018x}");
            return Err(Error::InvalidDescriptor(reason));
        }
        let (theirs, ours) = (decoded.kind() as u8, self.kind());
        if theirs != ours as u8 {
            let theirs = ObjectKind::from_u8(theirs).map_or("of no kind", ObjectKind::as_str);
            let reason =
                format!("it is {theirs} by its descriptor, {} by its entry", ours.as_str());
            return Err(Error::InvalidDescriptor(reason));
        }
        Ok(decoded)
    }

    /// The descriptor, copied out and checked against its checksum.
    fn descriptor(&self) -> Result<Vec<u8>, Error> {
        let Entry { descriptor, primary, descriptor_crc, kind, .. } = *self.hold.entry();
        if kind == ObjectKind::Bytes {
            return Err(Error::InvalidArgument(format!("{} is plain bytes", self.id())));
        }
        if !primary.contains(descriptor) || descriptor.length.0 > DESCRIPTOR_BYTES_MAX {
            let reason = format!("descriptor {descriptor} of an object at {primary}");
            return Err(Error::InvalidDescriptor(reason));
        }
        copy_checked(self.hold.session(), descriptor, descriptor_crc, "descriptor")
    }

    /// A range of the object, by its offset at seal, as a buffer that holds the object; `None` if
    /// the range is outside the object.
    #[must_use]
    pub fn resolve(&self, offset: u64, length: u64) -> Option<Buffer> {
        let buffers = self.buffers();
        let wanted = Span { offset: Offset(offset), length: Length(length) };
        // Sorted by offset: the last block that starts at or before the range.
        let after = buffers.partition_point(|(block, _)| block.offset.0 <= offset);
        let (block, buffer) = buffers.get(after.checked_sub(1)?)?;
        if !block.contains(wanted) {
            return None;
        }
        let start = usize::try_from(offset - block.offset.0).ok()?;
        Some(buffer.slice_with_length(start, usize::try_from(length).ok()?))
    }

    fn buffers(&self) -> &[(Span, Buffer)] {
        let cell = &self.hold.buffers;
        if cell.get().is_none() {
            let made = self.block_buffers();
            // A child would wait for a thread that it does not have. A second set is dropped.
            let _steady = fork::without_fork();
            let _ = cell.set(made);
        }
        cell.get().map(Vec::as_slice).unwrap_or_default()
    }

    fn block_buffers(&self) -> Vec<(Span, Buffer)> {
        #[cfg(feature = "failpoints")]
        fork::trial::pass(fork::trial::ForkSection::Buffers);
        let hold = &self.hold;
        let origins = hold.origins.as_deref().unwrap_or(hold.blocks());
        let mut buffers: Vec<(Span, Buffer)> = hold
            .blocks()
            .iter()
            .zip(origins)
            .filter_map(|(block, origin)| {
                let bytes = hold.session().region.sealed(*block).ok()?;
                // A buffer that held this `Hold`, which stores it, would be a reference cycle.
                let owner = ObjectBytes { bytes, hold: Arc::new(hold.for_buffer(*block)) };
                Some((*origin, Buffer::from(Bytes::from_owner(owner))))
            })
            .collect();
        buffers.sort_unstable_by_key(|(block, _)| block.offset);
        buffers
    }
}

impl Hold {
    /// A second hold on the same object, for a buffer over one of its blocks.
    fn for_buffer(&self, block: Span) -> Self {
        let session = Arc::clone(self.session());
        let mut hold = Self {
            held: self.held.clone(),
            blocks: Some(Box::new([block])),
            origins: None,
            buffers: OnceLock::new(),
            origin: self.origin,
            farewell: Farewell { session, id: self.entry().id, registered: None },
        };
        hold.register(block);
        hold
    }

    /// Lets a put find the block until this hold is dropped.
    fn register(&mut self, block: Span) {
        // In a forked child the lock may have been held by another thread of the parent.
        if self.session().is_own_process() {
            self.session().blocks.insert(&[block]);
            self.farewell.registered = Some(block);
        }
    }
}

/// Immutable bytes of an object. They hold the object.
#[derive(Debug, Clone)]
pub struct ObjectBytes {
    bytes: SealedBytes,
    hold: Arc<Hold>,
}

impl ObjectBytes {
    /// The id of the object that contains the bytes.
    pub fn id(&self) -> ObjectId {
        self.hold.origin.unwrap_or(self.hold.entry().id)
    }

    /// The bytes' address and length, and their hold: the address is valid until the hold is
    /// dropped.
    pub fn into_hold(mut self) -> (*const u8, usize, Arc<Hold>) {
        // A put or a reference may use the bytes in place; smaller ones are copied as quickly.
        if self.len() as u64 > SMALL_BYTES_MAX {
            let block = self.hold.entry().primary;
            match Arc::get_mut(&mut self.hold) {
                // The usual case: nothing else uses the hold.
                Some(hold) if hold.farewell.registered.is_none() => hold.register(block),
                _ => self.hold = Arc::new(self.hold.for_buffer(block)),
            }
        }
        (self.bytes.as_ptr(), self.bytes.as_slice().len(), self.hold)
    }
}

impl Deref for ObjectBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

impl AsRef<[u8]> for ObjectBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_slice()
    }
}

fn arrow_of(rebuilt: Rebuilt) -> Result<ArrowObject, Error> {
    match rebuilt {
        Rebuilt::Arrow(arrow) => Ok(arrow),
        Rebuilt::NdArray(..) => {
            Err(Error::InvalidDescriptor("a NumPy array under the kind of an Arrow object".into()))
        }
    }
}

/// Copies out bytes that a client wrote before the seal, and verifies their checksum.
fn copy_checked(
    session: &Session,
    span: Span,
    crc: u32,
    what: &'static str,
) -> Result<Vec<u8>, Error> {
    let length = usize::try_from(span.length.0)
        .map_err(|_| Error::InvalidDescriptor(format!("{what} of {} B", span.length.0)))?;
    let mut bytes = vec![0; length];
    session.region.copy_out(span.offset, &mut bytes)?;
    let found = crc32c::crc32c(&bytes);
    if found != crc {
        let reason = format!("{what} at {span}: checksum {found:#010x}, not {crc:#010x}");
        return Err(Error::InvalidDescriptor(reason));
    }
    Ok(bytes)
}

/// A store error about an entry or its list of blocks, reported as an invalid descriptor.
fn damaged(error: StoreError) -> Error {
    Error::InvalidDescriptor(error.to_string())
}
