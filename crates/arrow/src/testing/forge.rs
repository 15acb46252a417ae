//! Forged descriptors: their generation, and the properties that must hold for each. The fuzz
//! target and the test for CI run the same code.

use super::{RegionBytes, SplitMix64, random_array, sample_types};
use crate::schema::DEPTH_MAX;
use crate::wire::{HEADER_BYTES, LENGTH_AT, MAGIC, VERSION};
use crate::{
    ArrowObject, BatchData, COPY_ALIGNMENT, Decoded, Limits, PartContents, Plan, Rebuilt, RowSlice,
    SchemaNode, SelectStep, Selected, ffi,
};
use arrow_array::make_array;
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field, Schema};

/// The result of a forged descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForgeOutcome {
    /// The bytes do not parse.
    Refused,
    /// The ranges or sizes do not fit.
    Unfit,
    /// The object was rebuilt, but its contents are not well-formed.
    Malformed,
    /// The object is valid.
    Good,
}

/// Arrays without bytes may have any length, so a walk over them needs a limit.
const LENGTH_TO_WALK_MAX: usize = 1 << 16;

/// Parses, rebuilds, checks and uses a descriptor over an arena. Panics if, and only if, a
/// guarantee of Farrow is violated.
pub fn exercise(descriptor: &[u8], arena: &RegionBytes) -> ForgeOutcome {
    let Ok(decoded) = Decoded::parse(descriptor, &Limits::default()) else {
        return ForgeOutcome::Refused;
    };
    let resolve = |offset: u64, length: u64| arena.resolve(offset, length);
    select_parts(&decoded, descriptor.len(), arena);
    let object = match decoded.rebuild(&resolve) {
        Err(_) => return ForgeOutcome::Unfit,
        Ok(Rebuilt::NdArray(shape, data)) => {
            assert_eq!(shape.bytes(), Some(data.len() as u64));
            return ForgeOutcome::Good;
        }
        Ok(Rebuilt::Arrow(object)) => object,
    };
    for column in object.batches.iter().flat_map(|batch| &batch.columns) {
        assert_inside(arena, column);
    }
    // Typed arrays can be built, even if their contents would mislead a kernel.
    drop(object.record_batches());
    // Describing invalid contents yields an error or a descriptor, never a panic.
    describe_again(&object, arena);
    if decoded.rebuild_checked(&resolve).is_err() {
        return ForgeOutcome::Malformed;
    }
    for batch in &object.batches {
        for column in &batch.columns {
            assert_eq!(column.len(), batch.rows);
            if walkable(column) {
                use_array(column, &object);
            }
        }
    }
    ForgeOutcome::Good
}

/// Checks that a part of a descriptor that parses has a descriptor of bounded length that parses,
/// and that its views stay within the arena.
fn select_parts(decoded: &Decoded, length: usize, arena: &RegionBytes) {
    let names: Vec<String> = match decoded.schema() {
        Some(schema) => schema.children().iter().map(|one| one.name_text().into_owned()).collect(),
        None => Vec::new(),
    };
    let some: Vec<String> = names.iter().rev().step_by(2).cloned().collect();
    for (start, stop) in [(None, None), (Some(1), Some(9)), (Some(-3), None), (Some(4), Some(4))] {
        for columns in [None, Some(some.as_slice())] {
            let rows = RowSlice { start, stop };
            let in_place = decoded.select(columns, rows).ok();
            let cut = select_in_steps(decoded, columns, rows, arena);
            for part in in_place.into_iter().chain(cut) {
                assert!(part.descriptor.len() <= 64 * length, "{} bytes", part.descriptor.len());
                use_part(&part, arena);
            }
        }
    }
}

/// Checks that a part's descriptor parses, and that its views stay within the arena and the part's
/// new buffers behind it.
fn use_part(part: &Selected, arena: &RegionBytes) {
    let mut bytes = arena.as_buffer().to_vec();
    bytes.resize(base_of(arena) as usize, 0);
    bytes.extend(&part.new_buffers);
    let arena = RegionBytes::new(&bytes);
    let part = Decoded::parse(&part.descriptor, &Limits::default()).expect("our own");
    let rebuilt = part.rebuild(&|offset, length| arena.resolve(offset, length));
    if let Ok(Rebuilt::Arrow(object)) = rebuilt {
        for column in object.batches.iter().flat_map(|batch| &batch.columns) {
            assert_inside(&arena, column);
        }
    }
}

fn base_of(arena: &RegionBytes) -> u64 {
    (arena.as_buffer().len() as u64).next_multiple_of(COPY_ALIGNMENT)
}

/// A part for which the arena is read; `None`: it lies outside, or contradicts itself.
fn select_in_steps(
    decoded: &Decoded,
    columns: Option<&[String]>,
    rows: RowSlice,
    arena: &RegionBytes,
) -> Option<Selected> {
    let mut contents = PartContents::with_limits(base_of(arena), 0, 1 << 20);
    for _ in 0..=DEPTH_MAX + 1 {
        match decoded.select_step(columns, rows, &contents).ok()? {
            SelectStep::Selected(part) => return Some(part),
            SelectStep::Needed(ranges) => {
                for (offset, length) in ranges {
                    contents.add((offset, length), arena.resolve(offset, length)?.to_vec());
                }
            }
        }
    }
    panic!("more steps than types nest");
}

/// Checks that all views stay within the arena.
pub(super) fn assert_inside(arena: &RegionBytes, array: &ArrayData) {
    let nulls = array.nulls().map(|nulls| nulls.buffer());
    for buffer in array.buffers().iter().chain(nulls) {
        let inside = arena.locate(buffer.as_ptr(), buffer.len()).is_some();
        assert!(inside || buffer.is_empty() || array.is_empty(), "a view leaves the object");
    }
    array.child_data().iter().for_each(|child| assert_inside(arena, child));
}

fn describe_again(object: &ArrowObject, arena: &RegionBytes) -> Option<Plan> {
    let schema = &object.schema;
    let plan = match object.kind.is_tabular() {
        true => arena.plan(|locate| Plan::table(schema, &object.batches, locate)),
        false => {
            let chunks: Vec<_> =
                object.batches.iter().flat_map(|batch| batch.columns.clone()).collect();
            arena.plan(|locate| Plan::chunked_array(schema, &chunks, locate))
        }
    };
    let plan = plan.ok()?;
    assert!(plan.copy_bytes() <= 1 << 24, "copying {} bytes", plan.copy_bytes());
    let mut area = vec![0; plan.copy_bytes() as usize];
    plan.write_copies(&mut area).ok()?;
    Some(plan)
}

fn walkable(array: &ArrayData) -> bool {
    array.len() <= LENGTH_TO_WALK_MAX && array.child_data().iter().all(walkable)
}

fn use_array(column: &ArrayData, object: &ArrowObject) {
    let typed = make_array(column.clone());
    assert_eq!(typed.len(), column.len());
    assert!(has_nan(column) || *column == column.clone(), "an array equals itself");
    let half = typed.slice(column.len() / 2, column.len() - column.len() / 2);
    assert_eq!(half.to_data().len(), half.len());
    let Ok(schema) = ffi::export_schema(&object.schema) else { return };
    // SAFETY: just exported.
    let schema = unsafe { ffi::import_schema(&schema) }.expect("our own schema");
    assert_eq!(&schema, object.schema.as_ref());
    let field = SchemaNode::try_from(&Field::new("f", column.data_type().clone(), true));
    let Ok(field) = field else { return };
    // SAFETY: just exported, and checked to be well-formed.
    let back = unsafe { ffi::import_array(ffi::export_array(column), &field) };
    assert_eq!(back.expect("our own array").len(), column.len());
}

/// Whether an array may hold a NaN. arrow-rs compares floats by value inside some types, so a NaN
/// differs from itself.
fn has_nan(array: &ArrayData) -> bool {
    array.data_type().is_floating() || array.child_data().iter().any(has_nan)
}

/// A valid descriptor and its arena, of one sample type or of a table of several.
pub fn seed(number: usize) -> (Vec<u8>, RegionBytes) {
    let types = sample_types();
    let mut random = SplitMix64::new(number as u64);
    let mut arena = RegionBytes::default();
    let pick =
        |random: &mut SplitMix64, types: &[DataType]| types[random.below(types.len())].clone();
    let plan = match types.get(number) {
        Some(data_type) => {
            let field = SchemaNode::try_from(&Field::new("f", data_type.clone(), true));
            let array = random_array(&mut random, data_type, 9, true);
            Plan::array(&field.expect("a sample type"), &array, &mut |_, _| None)
        }
        None => {
            let fields: Vec<Field> = (0..3)
                .map(|index| Field::new(format!("c{index}"), pick(&mut random, &types), true))
                .filter(|field| !matches!(field.data_type(), DataType::Union(u, _) if u.is_empty()))
                .collect();
            let batches: Vec<BatchData> = (0..2)
                .map(|_| {
                    let columns =
                        fields.iter().map(|f| random_array(&mut random, f.data_type(), 5, true));
                    BatchData { rows: 5, columns: columns.collect() }
                })
                .collect();
            let schema = SchemaNode::try_from(&Schema::new(fields)).expect("sample types");
            Plan::table(&schema, &batches, &mut |_, _| None)
        }
    };
    let descriptor = arena.write(&plan.expect("a good array")).expect("it fits");
    (descriptor, arena)
}

/// Mutates a descriptor at random: flips, new values, cuts, insertions, copies of parts. The
/// header mostly stays plausible, so that mutations reach the code after it.
pub fn mutate(random: &mut SplitMix64, descriptor: &[u8]) -> Vec<u8> {
    let mut bytes = descriptor.to_vec();
    let changes = if random.chance(2) { 1 } else { random.below(4) };
    for _ in 0..changes {
        let at = if random.chance(8) { 0 } else { HEADER_BYTES.min(bytes.len()) };
        let at = at + random.below(bytes.len() - at);
        let interesting = [0, 1, 2, 7, 8, 0x7f, 0x80, 0xff];
        match random.below(9) {
            _ if bytes.is_empty() || at >= bytes.len() => {}
            0 | 6 => bytes[at] ^= 1 << random.below(8),
            7 => bytes[at] = bytes[at].wrapping_add(1),
            8 => bytes[at] = bytes[at].wrapping_sub(1),
            1 => bytes[at] = interesting[random.below(interesting.len())],
            2 => bytes.insert(at, random.next_u64() as u8),
            3 => drop(bytes.remove(at)),
            4 => {
                let from = random.below(bytes.len());
                let part = bytes[from..bytes.len().min(from + random.below(12))].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                let long = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
                let count = 1 + random.below(long.len());
                bytes.splice(at..=at, long[long.len() - count..].iter().copied());
            }
        }
    }
    if !random.chance(10) {
        patch_header(&mut bytes);
    }
    bytes
}

/// Corrects magic, version and length.
fn patch_header(bytes: &mut [u8]) {
    let length = (bytes.len() as u64).to_le_bytes();
    if bytes.len() >= HEADER_BYTES {
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[7] = 0;
        bytes[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&length);
    }
}

/// Splits a fuzzer's input into a descriptor (with a corrected header) and an arena: two bytes
/// of length, the descriptor, the arena.
pub fn split_input(input: &[u8]) -> Option<(Vec<u8>, RegionBytes)> {
    let (length, rest) = input.split_first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (descriptor, arena) = rest.split_at(length);
    let mut descriptor = descriptor.to_vec();
    patch_header(&mut descriptor);
    Some((descriptor, RegionBytes::new(arena)))
}
