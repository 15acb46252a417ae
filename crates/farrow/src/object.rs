//! An object in use: held, and rebuilt over the memory where it lies.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use arrow_buffer::Buffer;
use bytes::Bytes;
use farrow_arrow::{ArrowObject, Decoded, Limits, NdArray, Rebuilt, RowSlice};
use farrow_memory::{Length, Offset, SealedBytes, Span};
use farrow_store::{Entry, Held, ObjectId, ObjectKind, StoreError};
use farrow_wire::PartSpec;

use crate::error::Error;
use crate::session::Session;

/// A descriptor longer than this is refused: that of 16 million nodes would fit.
const DESCRIPTOR_BYTES_MAX: u64 = 1 << 30;

/// A sealed object that stays where it is while this, or anything made from it, lives.
#[derive(Debug, Clone)]
pub struct Object {
    hold: Arc<Hold>,
}

/// The claim on an object, given up when nothing made from it is left. For who keeps bytes of it
/// beyond the reach of Rust, see [`ObjectBytes::into_hold`].
pub struct Hold {
    held: Held,
    /// All blocks it lies in, the primary one first, where there are several.
    blocks: Option<Box<[Span]>>,
    /// Where they lay at seal, if those are other places: what the descriptor says counts there.
    origins: Option<Box<[Span]>>,
    /// The object of another node that it is a copy of.
    origin: Option<ObjectId>,
    /// One buffer over each block, made at the first rebuild, with where the block lay at seal.
    buffers: OnceLock<Vec<(Span, Buffer)>>,
    /// After all the others: it looks what became of the object that was let go.
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

/// What is left to do when the claim is gone.
struct Farewell {
    session: Arc<Session>,
    id: ObjectId,
    /// A buffer's block, of which a put in this process may make use.
    registered: Option<Span>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        self.session.released(self.id);
    }
}

impl Object {
    /// Takes the hold over; gives it up again when the object is damaged.
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

    /// Its id, wherever the bytes are that are read here.
    pub fn id(&self) -> ObjectId {
        self.hold.origin.unwrap_or(self.hold.entry().id)
    }

    /// What it is.
    pub fn kind(&self) -> ObjectKind {
        self.hold.entry().kind
    }

    /// Bytes of its buffers, or of itself for plain bytes.
    pub fn bytes(&self) -> u64 {
        self.hold.entry().size.0
    }

    /// The blocks of the region that it lies in.
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

    /// As [`Self::view`], for who needs nothing but the bytes.
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

    /// Arrow arrays, or a NumPy array, over the memory where they lie. Their buffers hold the
    /// object. Costs time by the number of buffers, not of rows.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDescriptor`] when the descriptor is damaged or says what cannot be.
    pub fn rebuild(&self) -> Result<Rebuilt, Error> {
        Ok(self.decoded()?.rebuild(&|offset, length| self.resolve(offset, length))?)
    }

    /// As [`Self::rebuild`], and reads all the data once to see that arrays are well-formed:
    /// for objects of writers that are not trusted.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDescriptor`] also for contents that a kernel could be led astray by.
    pub fn rebuild_checked(&self) -> Result<Rebuilt, Error> {
        Ok(self.decoded()?.rebuild_checked(&|offset, length| self.resolve(offset, length))?)
    }

    /// Some columns and rows of an Arrow object, over the memory where they lie.
    ///
    /// # Errors
    ///
    /// As [`Self::rebuild`]; [`Error::InvalidArgument`] for an object of another kind and for a column that
    /// there is not.
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

    /// An Arrow object over the memory where it lies.
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
        // Offsets of another region would mean other bytes here.
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

    /// The descriptor as its writer left it, once its checksum is right.
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

    /// A range of the object, by where it lay at seal, as a buffer that holds it; `None` when it
    /// is none of the object's.
    fn resolve(&self, offset: u64, length: u64) -> Option<Buffer> {
        let buffers = self.hold.buffers.get_or_init(|| self.block_buffers());
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

    fn block_buffers(&self) -> Vec<(Span, Buffer)> {
        let hold = &self.hold;
        let origins = hold.origins.as_deref().unwrap_or(hold.blocks());
        let mut buffers: Vec<(Span, Buffer)> = hold
            .blocks()
            .iter()
            .zip(origins)
            .filter_map(|(block, origin)| {
                let bytes = hold.session().region.sealed(*block).ok()?;
                // The buffer must not keep the very structure alive that it is retained in.
                let owner = ObjectBytes { bytes, hold: Arc::new(hold.for_buffer(*block)) };
                Some((*origin, Buffer::from(Bytes::from_owner(owner))))
            })
            .collect();
        buffers.sort_unstable_by_key(|(block, _)| block.offset);
        buffers
    }
}

impl Hold {
    /// A second claim on the same object, for a buffer over one of its blocks.
    fn for_buffer(&self, block: Span) -> Self {
        let session = Arc::clone(self.session());
        // In a forked child another thread of the parent may have the lock for ever.
        if session.is_own_process() {
            session.blocks.insert(&[block]);
        }
        Self {
            held: self.held.clone(),
            blocks: Some(Box::new([block])),
            origins: None,
            buffers: OnceLock::new(),
            origin: self.origin,
            farewell: Farewell { session, id: self.entry().id, registered: Some(block) },
        }
    }
}

/// Immutable bytes of an object, which they hold.
#[derive(Debug, Clone)]
pub struct ObjectBytes {
    bytes: SealedBytes,
    hold: Arc<Hold>,
}

impl ObjectBytes {
    /// The object they belong to.
    pub fn id(&self) -> ObjectId {
        self.hold.origin.unwrap_or(self.hold.entry().id)
    }

    /// Their address and length, and what holds them: they are good until that is dropped.
    pub fn into_hold(self) -> (*const u8, usize, Arc<Hold>) {
        (self.bytes.as_ptr(), self.len(), self.hold)
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

/// Bytes that a client wrote before the seal: copied out, then checked, then used.
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

/// What a reader finds wrong with an entry or its list of blocks is the descriptor's fault.
fn damaged(error: StoreError) -> Error {
    Error::InvalidDescriptor(error.to_string())
}
