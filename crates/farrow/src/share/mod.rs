//! Values passed by reference: a short message instead of the bytes.
//!
//! A value of this process whose buffers are in mapped memory is sealed once more, in place, as an
//! object with a lease. If its buffers are in the memory of several nodes, each node has one object
//! that retains its part, and a further object lists these parts and has the descriptor. The
//! message names one object. `docs/formats/reference.md` specifies the bytes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use farrow_arrow::{COPY_ALIGNMENT, Decoded, DescriptorStamp, Limits, Plan, Rebuilt, SchemaNode};
use farrow_memory::{Address, Span};
use farrow_store::{Metadata, ObjectId};
use farrow_wire::link::Notification;
use farrow_wire::{EXTRA_BLOCKS_MAX, LEASE_LABEL, LEASE_MS_MAX};

use crate::api::Client;
use crate::clock::millis;
use crate::connection::session::{Session, own_sessions};
use crate::error::Error;
use crate::key::ObjectKey;
use crate::objects::block::{InPlace, describe};
use crate::objects::draft::Draft;
use crate::objects::object::Object;
use crate::options::ObjectOptions;
use crate::value::Value;

mod layout;

use layout::{Form, PartList, ReferenceMessage, place_of, virtual_offset};

/// When a value is shared, and for how long its reference lasts.
#[derive(Debug, Clone, Copy)]
pub struct ShareOptions {
    /// Fewest bytes in mapped memory.
    pub bytes_min: u64,
    /// How long the reference outlives this process, or the [`SharedValue`]; at most an hour.
    pub lease: Duration,
}

/// A reference to a value, and the leases on its objects. When it is dropped, or its process dies,
/// the reference stays valid for the length of the lease.
#[derive(Debug)]
pub struct SharedValue {
    message: Vec<u8>,
    leases: Vec<Lease>,
}

impl SharedValue {
    /// The reference, for [`Client::open_shared`].
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    /// Checks that receivers can open the reference: each node serves the memory that it refers to.
    /// Sends no message while the connections are up, and waits for the successor of a daemon.
    ///
    /// # Errors
    ///
    /// [`Error::NodeReplaced`] when other memory took the place of that of the value;
    /// [`Error::Disconnected`] and [`Error::NodeLost`] when a node has ended.
    pub fn check(&self) -> Result<(), Error> {
        self.leases.iter().try_for_each(|lease| lease.session.check_served())
    }

    /// Puts an empty object with the same lease into the same memory: a marker, which the reader of a
    /// message deletes.
    ///
    /// # Errors
    ///
    /// As [`Client::put`]; nothing was put then.
    pub fn mark(&self) -> Result<Self, Error> {
        let last = self.leases.last().ok_or_else(no_object)?;
        seal_whole(&last.session, &Value::Bytes(b""), last.ms, Duration::ZERO)
    }

    /// Whether the object that the message names was not deleted. Sends no message while the
    /// connection is up. Memory that was replaced has no object any more.
    ///
    /// # Errors
    ///
    /// [`Error::Disconnected`] and [`Error::NodeLost`] when the node has ended and may return.
    pub fn is_there(&self) -> Result<bool, Error> {
        let Some(last) = self.leases.last() else { return Ok(false) };
        match last.session.has(&last.id.into()) {
            Err(Error::NodeReplaced { .. }) => Ok(false),
            found => found,
        }
    }

    /// The socket of the node through which the reference was made.
    pub fn socket(&self) -> &std::path::Path {
        self.leases.last().map_or(std::path::Path::new(""), |lease| &lease.session.socket)
    }
}

fn no_object() -> Error {
    Error::InvalidArgument("a reference without an object".to_owned())
}

/// The lease on one object. It does not hold the object: if it is deleted, its memory comes back.
#[derive(Debug)]
struct Lease {
    session: Arc<Session>,
    id: ObjectId,
    ms: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.session.end_lease(self.id, Duration::from_millis(self.ms));
    }
}

/// The parts of a value while it is being shared. If that fails, no process has a reference to them: a
/// drop deletes them, long before their leases end.
#[derive(Debug, Default)]
struct PendingParts(Vec<Lease>);

impl Drop for PendingParts {
    fn drop(&mut self) {
        for Lease { session, id, .. } in &self.0 {
            session.notify(Notification::Delete(vec![(*id).into()]));
        }
    }
}

/// The sessions in whose memory a value is, each with the blocks that contain it.
struct ValueLocation {
    plan: Plan,
    used: Vec<(Arc<Session>, Vec<Span>)>,
}

impl ValueLocation {
    /// Describes a value over the memory of all sessions. `None`: too little of it is there.
    fn new(value: &Value<'_>, options: &ShareOptions) -> Result<Option<Self>, Error> {
        let sessions = own_sessions();
        if !may_lie_in(value, &sessions, options.bytes_min) {
            return Ok(None);
        }
        let mut found: Vec<(Arc<Session>, InPlace<'_>)> =
            sessions.into_iter().map(|session| (session, InPlace::default())).collect();
        // The index of a session counts those that are used, in the order of their first use.
        let mut used: Vec<usize> = Vec::new();
        let mut locate = |pointer: *const u8, length: usize| {
            let mut all = found.iter_mut().enumerate();
            let (number, offset) = all.find_map(|(number, (session, in_place))| {
                Some((number, in_place.locate(session, pointer, length)?))
            })?;
            let index = used.iter().position(|one| *one == number).unwrap_or_else(|| {
                used.push(number);
                used.len() - 1
            });
            virtual_offset(index, offset)
        };
        let plan = describe(value, &mut locate)?;
        if plan.in_place_bytes() < options.bytes_min.max(1)
            || plan.copy_bytes() > plan.in_place_bytes()
        {
            return Ok(None);
        }
        let of_use = |number: usize| {
            let (session, in_place) = found.get_mut(number)?;
            Some((Arc::clone(session), std::mem::take(in_place).into_spans()))
        };
        let used: Vec<_> = used.into_iter().filter_map(of_use).collect();
        if used.iter().any(|(_, spans)| spans.len() > EXTRA_BLOCKS_MAX) {
            return Ok(None);
        }
        Ok(Some(Self { plan, used }))
    }
}

/// Whether enough bytes of a value are in the regions of the sessions, without reading any data.
fn may_lie_in(value: &Value<'_>, sessions: &[Arc<Session>], bytes_min: u64) -> bool {
    let mut bytes = 0u64;
    let mut count = |buffer: &Buffer| {
        let address = Address(buffer.as_ptr() as usize);
        if sessions.iter().any(|session| session.region.offset_of(address).is_some()) {
            bytes = bytes.saturating_add(buffer.len() as u64);
        }
    };
    match value {
        Value::Bytes(_) => {}
        Value::NdArray { data, .. } => count(data),
        Value::Array { data, .. } => each_buffer(data, &mut count),
        Value::ChunkedArray { chunks, .. } => {
            chunks.iter().for_each(|chunk| each_buffer(chunk, &mut count));
        }
        Value::RecordBatch { batch, .. } => {
            batch.columns.iter().for_each(|column| each_buffer(column, &mut count));
        }
        Value::Table { batches, .. } => {
            let columns = batches.iter().flat_map(|batch| &batch.columns);
            columns.for_each(|column| each_buffer(column, &mut count));
        }
    }
    bytes >= bytes_min.max(1)
}

fn each_buffer(data: &ArrayData, count: &mut dyn FnMut(&Buffer)) {
    data.buffers().iter().for_each(&mut *count);
    data.child_data().iter().for_each(|child| each_buffer(child, count));
}

/// Shares a value whose buffers are in memory that this process maps: in held objects, in a pool, on
/// one node or several. Copies only buffers that are smaller than a page or lie elsewhere. `None`:
/// fewer than `bytes_min` bytes are there, or fewer than half.
///
/// # Errors
///
/// As [`Client::put`]; nothing was shared then.
pub fn share(value: &Value<'_>, options: &ShareOptions) -> Result<Option<SharedValue>, Error> {
    let Some(ValueLocation { plan, used }) = ValueLocation::new(value, options)? else {
        return Ok(None);
    };
    let ms = lease_ms(options.lease);
    if let [(session, _)] = used.as_slice() {
        return seal_whole(session, value, ms, Duration::ZERO).map(Some);
    }
    let mut parts = PendingParts::default();
    for (session, spans) in &used {
        let (lease, extra_count) = seal_part(session, spans, ms)?;
        parts.0.push(lease);
        if extra_count != spans.len() {
            // Memory maps are scarce, and a block was copied to another place.
            return Ok(None);
        }
    }
    // The list is best in the memory of the client's own node.
    let own = used.iter().find(|(session, _)| !session.is_elsewhere()).or(used.first());
    let Some((session, _)) = own else { return Ok(None) };
    let list = list_of(&plan, &parts.0, session.region_uid())?;
    parts.0.push(seal(session, &Value::Bytes(&list), ms, Duration::ZERO)?.0);
    let leases = std::mem::take(&mut parts.0);
    Ok(Some(SharedValue { message: message(Form::Parts, &leases), leases }))
}

fn lease_ms(lease: Duration) -> u64 {
    millis(lease).clamp(1, LEASE_MS_MAX)
}

/// Shares a value by one object that has all of it.
fn seal_whole(
    session: &Arc<Session>,
    value: &Value<'_>,
    ms: u64,
    wait: Duration,
) -> Result<SharedValue, Error> {
    let leases = vec![seal(session, value, ms, wait)?.0];
    Ok(SharedValue { message: message(Form::Value, &leases), leases })
}

/// The last lease is that of the object that the message names.
fn message(form: Form, leases: &[Lease]) -> Vec<u8> {
    let id = leases.last().map(|lease| lease.id);
    ReferenceMessage { form, id: id.unwrap_or(ObjectId { hi: 0, lo: 0 }) }.encode()
}

/// Seals a value with a lease. Also returns the number of its blocks besides the primary one.
fn seal(
    session: &Arc<Session>,
    value: &Value<'_>,
    ms: u64,
    wait: Duration,
) -> Result<(Lease, usize), Error> {
    let wrong = |error: farrow_store::MetadataError| Error::InvalidArgument(error.to_string());
    let metadata = Metadata::new([(LEASE_LABEL, ms.to_string())]).map_err(wrong)?;
    let options = ObjectOptions { metadata: Some(&metadata), wait, ..ObjectOptions::default() };
    let held = Draft::new(session, value, &options, None)?.lease(ms)?;
    let lease = Lease { session: Arc::clone(session), id: held.id(), ms };
    Ok((lease, held.extra_count()))
}

/// Seals an object that retains blocks of one node: an array of bytes over each. Also returns how
/// many of them are blocks of the object.
fn seal_part(session: &Arc<Session>, spans: &[Span], ms: u64) -> Result<(Lease, usize), Error> {
    let chunk = |span: &Span| -> Result<ArrayData, Error> {
        let buffer = Buffer::from(Bytes::from_owner(session.region.sealed(*span)?));
        let built = ArrayData::builder(DataType::UInt8).len(buffer.len()).add_buffer(buffer);
        built.build().map_err(|error| Error::InvalidArgument(error.to_string()))
    };
    let chunks: Vec<ArrayData> = spans.iter().map(chunk).collect::<Result<_, _>>()?;
    let field = SchemaNode::try_from(&Field::new("", DataType::UInt8, false));
    let field = field.map_err(|error| Error::InvalidArgument(error.to_string()))?;
    let value = Value::ChunkedArray { field: &field, chunks: &chunks };
    seal(session, &value, ms, Duration::ZERO)
}

/// The content of the object that lists the parts.
fn list_of(plan: &Plan, leases: &[Lease], region: u64) -> Result<Vec<u8>, Error> {
    let ids: Vec<ObjectId> = leases.iter().map(|lease| lease.id).collect();
    let mut parts = PartList::new(ids, plan.copy_bytes(), plan.descriptor_bytes());
    let base = virtual_offset(leases.len(), parts.copies_at()).unwrap_or_default();
    let stamp = DescriptorStamp { region, epoch: 0 };
    plan.write_copies(parts.copies_mut())?;
    parts.set_descriptor(&plan.descriptor(stamp, base));
    Ok(parts.into_bytes())
}

/// The value of a reference.
#[derive(Debug)]
pub enum OpenedValue {
    /// An object that has the whole value.
    Object(Object),
    /// A value over objects of several nodes.
    Rebuilt(Rebuilt),
}

impl Client {
    /// Puts a value into the memory of this client's node and makes a reference to it, in one step: the
    /// object has a lease from the moment at which it exists. `wait`: how long the node may take to make
    /// room.
    ///
    /// # Errors
    ///
    /// As [`Client::put`]; nothing was put then.
    pub fn put_shared(
        &self,
        value: &Value<'_>,
        lease: Duration,
        wait: Duration,
    ) -> Result<SharedValue, Error> {
        seal_whole(self.session(), value, lease_ms(lease), wait)
    }

    /// Finds and holds the objects of a reference, and rebuilds the value over them. The reference is
    /// untrusted.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidDescriptor`] for bytes that are no reference; [`Error::NotFound`] when its
    /// lease is over; else as [`Client::get`].
    pub fn open_shared(&self, message: &[u8]) -> Result<OpenedValue, Error> {
        let ReferenceMessage { form, id } = ReferenceMessage::decode(message)?;
        let object = self.get(&ObjectKey::Id(id), Duration::ZERO)?;
        match form {
            Form::Value => Ok(OpenedValue::Object(object)),
            Form::Parts => self.open_parts(&object).map(OpenedValue::Rebuilt),
        }
    }

    fn open_parts(&self, list: &Object) -> Result<Rebuilt, Error> {
        let bytes = list.view()?;
        // Other processes of this user can write to the memory: a copy is checked and used.
        let parts = PartList::decode(&bytes)?;
        let keys: Vec<ObjectKey> = parts.ids().iter().copied().map(ObjectKey::Id).collect();
        let objects = self.get_many(&keys, Duration::ZERO)?;
        let own = Buffer::from(Bytes::from_owner(bytes));
        let resolve = |offset: u64, length: u64| {
            let (index, offset) = place_of(offset);
            if let Some(object) = objects.get(index) {
                return object.resolve(offset, length);
            }
            let end = offset.checked_add(length)?;
            if index != objects.len() || end > own.len() as u64 {
                return None;
            }
            let start = usize::try_from(offset).ok()?;
            Some(own.slice_with_length(start, usize::try_from(length).ok()?))
        };
        let decoded = Decoded::parse(parts.descriptor(), &Limits::default())?;
        Ok(decoded.rebuild(&resolve)?)
    }
}

impl fmt::Debug for ValueLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueLocation").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The copies in a list are aligned as those in any object.
const _: () = assert!(COPY_ALIGNMENT == layout::ALIGNMENT);
