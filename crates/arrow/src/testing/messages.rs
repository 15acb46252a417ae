//! Forged Dissociated IPC messages, like `forge` for descriptors.

use super::forge::{ForgeOutcome, assert_inside};
use super::{RegionBytes, SplitMix64, random_array, sample_types};
use crate::dissociated::{BatchMessages, Export, Messages, body_of, import};
use crate::{ArrowObject, BatchData, CopyOut, Kind, SchemaNode};
use arrow_schema::{Field, Schema};
use std::sync::Arc;

/// Imports messages over an arena, without and with the check of contents. Panics if, and only
/// if, a guarantee of Farrow is violated.
pub fn exercise_messages(messages: &Messages, arena: &RegionBytes) -> ForgeOutcome {
    let resolve = |offset: u64, length: u64| arena.resolve(offset, length);
    for batch in &messages.batches {
        let dictionaries = batch.dictionaries.iter();
        dictionaries.chain([&batch.record_batch]).for_each(|message| drop(body_of(message)));
    }
    let Ok(object) = import(messages, &resolve, false) else {
        return ForgeOutcome::Refused;
    };
    object.batches.iter().flat_map(|b| &b.columns).for_each(|c| assert_inside(arena, c));
    match import(messages, &resolve, true) {
        Ok(_) => ForgeOutcome::Good,
        Err(_) => ForgeOutcome::Malformed,
    }
}

/// Valid messages of one sample type, and their arena. `None` for types that IPC lacks.
pub fn message_seed(number: usize) -> Option<(Messages, RegionBytes)> {
    let data_type = sample_types().get(number)?.clone();
    let mut random = SplitMix64::new(number as u64);
    let array = random_array(&mut random, &data_type, 9, true);
    let schema = Schema::new(vec![Field::new("c", data_type, true)]);
    let schema = Arc::new(SchemaNode::try_from(&schema).ok()?);
    let batch = BatchData { rows: array.len(), columns: vec![array] };
    let object = ArrowObject { kind: Kind::Table, schema, batches: vec![batch] };
    let mut arena = RegionBytes::default();
    let export = arena.plan(|locate| Export::new(&object, locate)).ok()?;
    let base = arena.append(export.copy_bytes() as usize, |area| {
        for copy in export.copies() {
            let CopyOut { offset, length, .. } = copy;
            copy.fill(&mut area[offset as usize..(offset + length) as usize]);
        }
    });
    let region_bytes = arena.as_buffer().len() as u64;
    Some((export.messages(base, region_bytes), arena))
}

/// Messages and arena as one input for a fuzzer: three 16-bit lengths (schema, dictionary,
/// record batch), the messages, the arena.
pub fn join_messages(messages: &Messages, arena: &RegionBytes) -> Option<Vec<u8>> {
    let batch = messages.batches.first()?;
    let none = Vec::new();
    let dictionary = batch.dictionaries.first().unwrap_or(&none);
    let parts = [&messages.schema, dictionary, &batch.record_batch];
    let mut input = Vec::new();
    for part in parts {
        input.extend(u16::try_from(part.len()).ok()?.to_le_bytes());
    }
    parts.iter().for_each(|part| input.extend_from_slice(part));
    input.extend_from_slice(arena.as_buffer());
    Some(input)
}

/// The inverse of [`join_messages`]; prefixes are corrected.
pub fn split_messages(input: &[u8]) -> Option<(Messages, RegionBytes)> {
    let (lengths, mut rest) = input.split_first_chunk::<6>()?;
    let mut parts = lengths.chunks_exact(2).map(|length| {
        let length = usize::from(u16::from_le_bytes([length[0], length[1]])).min(rest.len());
        let (part, after) = rest.split_at(length);
        rest = after;
        let mut part = part.to_vec();
        if let Some(metadata) = part.len().checked_sub(8) {
            part[..4].copy_from_slice(&[0xff; 4]);
            part[4..8].copy_from_slice(&(metadata as u32).to_le_bytes());
        }
        part
    });
    let (schema, dictionary, record_batch) = (parts.next()?, parts.next()?, parts.next()?);
    drop(parts);
    let dictionaries = if dictionary.is_empty() { vec![] } else { vec![dictionary] };
    let batches = vec![BatchMessages { dictionaries, record_batch }];
    Some((Messages { schema, batches }, RegionBytes::new(rest)))
}
