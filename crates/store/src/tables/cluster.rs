//! The cluster table: bytes that a node retains beyond its own life, and bytes that it publishes
//! for its clients. Only the daemon interprets them.
//!
//! Retained bytes are in two parts, written in turn, so that a kill leaves the previous part.
//! Published bytes are in one part, behind a number that is odd while it changes.

use farrow_memory::sync::{Ordering, fence};
use farrow_memory::{Length, Offset, Region, Span};

use super::control::Control;
use crate::error::StoreError;
use crate::failpoint;
use crate::format::layout::{CLUSTER_PART_BYTES, Layout};

/// Bytes of a part before its contents: its number, then length and checksum.
const HEAD_BYTES: u64 = 16;

/// Most bytes that can be retained, or published.
pub const CLUSTER_BYTES_MAX: u64 = CLUSTER_PART_BYTES - HEAD_BYTES;

/// Parts for retained bytes; the next part is for published bytes.
const RETAINED_PARTS: u64 = 2;

/// Attempts of a reader while the part changes.
const ROUNDS_MAX: u32 = 64;

/// Retain `bytes`, in place of the older of the two parts.
pub(crate) fn keep(control: &Control, layout: &Layout, bytes: &[u8]) -> Result<(), StoreError> {
    check_length(bytes)?;
    let region = control.region();
    let newest = (0..RETAINED_PARTS).filter_map(|part| read_part(region, layout, part).transpose());
    let newest = newest.collect::<Result<Vec<_>, _>>()?;
    let number = newest.iter().map(|(number, _)| *number).max().unwrap_or(0).wrapping_add(1);
    let at = part_at(layout, number % RETAINED_PARTS);
    // From here on the old contents of the part are invalid.
    control.store(at, 0)?;
    fill(control, at, number, bytes)?;
    failpoint!("cluster.keep.filled");
    control.store(at, number)
}

/// The bytes retained last.
pub(crate) fn retained(control: &Control, layout: &Layout) -> Result<Option<Vec<u8>>, StoreError> {
    let mut newest: Option<(u64, Vec<u8>)> = None;
    for part in 0..RETAINED_PARTS {
        if let Some((number, bytes)) = read_part(control.region(), layout, part)?
            && newest.as_ref().is_none_or(|(known, _)| *known < number)
        {
            newest = Some((number, bytes));
        }
    }
    Ok(newest.map(|(_, bytes)| bytes))
}

/// Publish `bytes` for clients.
pub(crate) fn publish(control: &Control, layout: &Layout, bytes: &[u8]) -> Result<(), StoreError> {
    check_length(bytes)?;
    let at = part_at(layout, RETAINED_PARTS);
    let number = (control.load(at)? | 1).wrapping_add(2);
    control.store(at, number)?;
    fence(Ordering::Release);
    fill(control, at, number.wrapping_add(1), bytes)?;
    failpoint!("cluster.publish.filled");
    control.store(at, number.wrapping_add(1))
}

/// Number of the published bytes, which changes with them. 0: none were ever published.
pub(crate) fn number(region: &Region, layout: &Layout) -> Result<u64, StoreError> {
    load(region, part_at(layout, RETAINED_PARTS))
}

/// The published bytes and their number. `None`: there are none, or they keep changing.
pub(crate) fn read(region: &Region, layout: &Layout) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    for _ in 0..ROUNDS_MAX {
        if let Some(published) = read_part(region, layout, RETAINED_PARTS)? {
            return Ok(Some(published));
        }
        if number(region, layout)? == 0 {
            return Ok(None);
        }
        std::hint::spin_loop();
    }
    Ok(None)
}

/// The contents of a part, if they are whole.
fn read_part(
    region: &Region,
    layout: &Layout,
    part: u64,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let at = part_at(layout, part);
    let number = load(region, at)?;
    let is_published = part == RETAINED_PARTS;
    if number == 0 || (is_published && number % 2 == 1) {
        return Ok(None);
    }
    let head = load(region, Offset(at.0 + 8))?;
    let length = u64::from(head as u32);
    if length > CLUSTER_BYTES_MAX {
        return Ok(None);
    }
    let mut bytes = vec![0; length as usize];
    region.copy_out(Offset(at.0 + HEAD_BYTES), &mut bytes)?;
    fence(Ordering::Acquire);
    let is_same = load(region, at)? == number;
    let is_right = checksum(number, &bytes) == (head >> 32) as u32;
    Ok((is_same && is_right).then_some((number, bytes)))
}

fn fill(control: &Control, at: Offset, number: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let head = bytes.len() as u64 | u64::from(checksum(number, bytes)) << 32;
    control.store(Offset(at.0 + 8), head)?;
    if bytes.is_empty() {
        return Ok(());
    }
    control.write_bytes(Offset(at.0 + HEAD_BYTES), bytes)
}

fn checksum(number: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), bytes)
}

fn check_length(bytes: &[u8]) -> Result<(), StoreError> {
    let found = bytes.len() as u64;
    if found > CLUSTER_BYTES_MAX {
        return Err(StoreError::Inconsistent(format!(
            "{found} B for the cluster table, it takes {CLUSTER_BYTES_MAX} B"
        )));
    }
    Ok(())
}

fn part_at(layout: &Layout, part: u64) -> Offset {
    Offset(layout.cluster.offset.0 + part * CLUSTER_PART_BYTES)
}

fn load(region: &Region, at: Offset) -> Result<u64, StoreError> {
    let words = region.words(Span::new(at, Length(8)))?;
    words.load(0, Ordering::Acquire).ok_or_else(|| StoreError::unreachable_word("cluster", at.0))
}
