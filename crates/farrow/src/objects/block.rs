//! What the block of a value contains, and which buffers stay outside of it, where they are.

use std::collections::BTreeSet;

use farrow_arrow::Plan;
use farrow_memory::{Address, Length, Offset, Span, are_maps_scarce, check_maps, page_bytes};
use farrow_store::encode_extra;
use farrow_wire::EXTRA_BLOCKS_MAX;

use crate::connection::session::Session;
use crate::error::Error;
use crate::memory::arena::SMALL_BYTES_MAX;
use crate::objects::table_statistics::TableCount;
use crate::options::ObjectOptions;
use crate::value::Value;

/// Where memory maps are scarce, pool buffers below this size are copied, as small objects are.
const COPIED_BYTES_MAX: u64 = SMALL_BYTES_MAX;

/// A value that has a descriptor, and the layout of its block.
pub(crate) struct MeasuredValue {
    pub(crate) plan: Plan,
    /// Buffers of the pool that become part of the object.
    pub(crate) pool_pages: Vec<Span>,
    pub(crate) extra: Vec<Span>,
    pub(crate) list: Vec<u8>,
    pub(crate) descriptor_at: u64,
    pub(crate) list_at: u64,
    pub(crate) total: u64,
}

impl MeasuredValue {
    /// `taken`: pool buffers that become part of another object before, and have to be copied.
    pub(crate) fn new(
        session: &Session,
        value: &Value<'_>,
        taken: &BTreeSet<u64>,
    ) -> Result<Self, Error> {
        let (plan, in_place) = plan_of(session, value, taken)?;
        let pool_pages = sorted(in_place.pool);
        let extra = sorted(in_place.sealed.into_iter().chain(pool_pages.iter().copied()).collect());
        let list = encode_extra(&extra);
        // Copies first, at the block's start, then the descriptor, then the list of blocks.
        let descriptor_at = plan.copy_bytes().next_multiple_of(8);
        let list_at = (descriptor_at + plan.descriptor_bytes()).next_multiple_of(8);
        let total = list_at + list.len() as u64;
        Ok(Self { plan, pool_pages, extra, list, descriptor_at, list_at, total })
    }
}

/// Bytes of the block that a value would need after the values before it. `taken` has the offsets of
/// the pool buffers that become part of those.
pub(crate) fn block_bytes(
    session: &Session,
    value: &Value<'_>,
    options: &ObjectOptions<'_>,
    taken: &mut BTreeSet<u64>,
) -> Result<u64, Error> {
    let total = match value {
        Value::Bytes(bytes) => bytes.len() as u64,
        value => {
            let measured = MeasuredValue::new(session, value, taken)?;
            taken.extend(measured.pool_pages.iter().map(|pages| pages.offset.0));
            measured.total
        }
    };
    let metadata = match TableCount::new(value, options) {
        Some(count) => count.placeholder()?.encode(),
        None => options.encoded_metadata(),
    };
    Ok(with_metadata(total, &metadata))
}

/// Blocks that an object refers to in place, found while its buffers are walked.
#[derive(Default)]
pub(crate) struct InPlace<'a> {
    /// Buffers of the pool that are part of another object by then.
    taken: Option<&'a BTreeSet<u64>>,
    /// Buffers of the pool, live.
    pool: Vec<Span>,
    /// Blocks of sealed objects.
    sealed: Vec<Span>,
}

impl<'a> InPlace<'a> {
    fn beside(taken: &'a BTreeSet<u64>) -> Self {
        Self { taken: Some(taken), ..Self::default() }
    }

    fn is_taken(&self, pages: Span) -> bool {
        self.taken.is_some_and(|taken| taken.contains(&pages.offset.0))
    }

    /// Offset of the bytes if they may stay where they are.
    pub(crate) fn locate(
        &mut self,
        session: &Session,
        pointer: *const u8,
        length: usize,
    ) -> Option<u64> {
        // A page is the unit of protection, and a small buffer should not keep a large block alive.
        if (length as u64) < page_bytes() {
            return None;
        }
        let offset = session.region.offset_of(Address(pointer as usize))?;
        let span = Span { offset, length: Length(length as u64) };
        session.region.check(span).ok()?;
        match session.pool.find(span) {
            Some((pages, false)) if self.is_taken(pages) => return None,
            // A copy needs no map of its own, and copying a small buffer is quicker anyway.
            Some((pages, false)) if pages.length.0 < COPIED_BYTES_MAX && are_maps_scarce() => {
                return None;
            }
            Some((_, false)) if check_maps().is_err() => return None,
            Some((pages, false)) => remember(&mut self.pool, pages),
            Some((pages, true)) => remember(&mut self.sealed, pages),
            None => remember(&mut self.sealed, session.blocks.find(span)?),
        }
        Some(offset.0)
    }

    /// All blocks, in order.
    pub(crate) fn into_spans(self) -> Vec<Span> {
        sorted(self.sealed.into_iter().chain(self.pool).collect())
    }
}

fn remember(spans: &mut Vec<Span>, span: Span) {
    // Buffers mostly arrive in order; other duplicates are removed at the end.
    if spans.last() != Some(&span) {
        spans.push(span);
    }
}

fn sorted(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable_by_key(|span| span.offset);
    spans.dedup();
    spans
}

fn plan_of<'a>(
    session: &Session,
    value: &Value<'_>,
    taken: &'a BTreeSet<u64>,
) -> Result<(Plan, InPlace<'a>), Error> {
    let mut in_place = InPlace::beside(taken);
    let mut locate = |pointer: *const u8, length: usize| in_place.locate(session, pointer, length);
    let plan = describe(value, &mut locate)?;
    if in_place.pool.len() + in_place.sealed.len() > EXTRA_BLOCKS_MAX {
        let all = sorted(in_place.pool.iter().chain(&in_place.sealed).copied().collect());
        if all.len() > EXTRA_BLOCKS_MAX {
            // Too many blocks for one object: if copied, the buffers need only one.
            return Ok((describe(value, &mut |_, _| None)?, InPlace::beside(taken)));
        }
    }
    Ok((plan, in_place))
}

pub(crate) fn describe(
    value: &Value<'_>,
    locate: &mut dyn FnMut(*const u8, usize) -> Option<u64>,
) -> Result<Plan, Error> {
    Ok(match value {
        Value::Bytes(_) => return Err(Error::InvalidArgument("bytes have no descriptor".into())),
        Value::NdArray { shape, data } => Plan::ndarray(shape, data, locate)?,
        Value::Array { field, data } => Plan::array(field, data, locate)?,
        Value::ChunkedArray { field, chunks } => Plan::chunked_array(field, chunks, locate)?,
        Value::RecordBatch { schema, batch } => Plan::record_batch(schema, batch, locate)?,
        Value::Table { schema, batches } => Plan::table(schema, batches, locate)?,
    })
}

/// Bytes of a block with `total` bytes of content and metadata at its end.
pub(crate) fn with_metadata(total: u64, metadata: &[u8]) -> u64 {
    if metadata.is_empty() {
        return total;
    }
    // A size that no region has is refused where memory is taken.
    let metadata = (metadata.len() as u64).next_multiple_of(8);
    let all = total.checked_next_multiple_of(8).and_then(|total| total.checked_add(metadata));
    all.unwrap_or(u64::MAX)
}

/// The offset of the metadata in its block.
pub(crate) fn metadata_offset(primary: Span, metadata: &[u8]) -> Offset {
    let end = primary.offset.0 + primary.length.0;
    Offset(end - (metadata.len() as u64).next_multiple_of(8))
}
