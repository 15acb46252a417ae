//! Values: well-formed arrays of a given type, with nulls and offsets where the type allows
//! them.

use crate::layout::{ArrayLayout, OffsetWidth, child_count, child_type};
use arrow_array::Array;
use arrow_array::builder::{BinaryViewBuilder, StringViewBuilder};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;

/// A small, fast, deterministic generator (SplitMix64; Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator that yields the same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        SplitMix64(seed)
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.next_u64() % limit as u64) as usize }
    }

    /// True with probability 1/`times`.
    pub fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next_u64() as u8).collect()
    }

    fn text(&mut self) -> String {
        let alphabet = ["a", "Z", "\u{e9}", "\u{20ac}", "\u{1f600}", "0", " "];
        let length = if self.chance(4) { self.below(30) } else { self.below(6) };
        (0..length).map(|_| alphabet[self.below(alphabet.len())]).collect()
    }

    fn value_bytes(&mut self, is_text: bool) -> Vec<u8> {
        if is_text {
            return self.text().into_bytes();
        }
        let length = if self.chance(4) { self.below(40) } else { self.below(6) };
        self.bytes(length)
    }
}

/// A well-formed array of exactly `length` elements. Buffers begin at 64-byte boundaries;
/// some arrays, and some children, have an offset.
pub fn random_array(
    random: &mut SplitMix64,
    data_type: &DataType,
    length: usize,
    nullable: bool,
) -> ArrayData {
    let lead = if random.chance(3) { random.below(11) } else { 0 };
    let array = unsliced(random, data_type, lead + length, nullable);
    // A union without types has no elements, whatever the requested length.
    if lead == 0 || array.is_empty() { array } else { array.slice(lead, length) }
}

fn unsliced(
    random: &mut SplitMix64,
    data_type: &DataType,
    length: usize,
    nullable: bool,
) -> ArrayData {
    let layout = ArrayLayout::of(data_type).expect("generated types have layouts");
    if layout == ArrayLayout::View {
        return views(random, data_type, length, nullable);
    }
    let has_nulls = nullable && layout.has_validity() && random.chance(2);
    let nulls = has_nulls.then(|| random_nulls(random, length));
    let (buffers, children) = match layout {
        ArrayLayout::Null => (vec![], vec![]),
        ArrayLayout::Bits => (vec![Buffer::from(random.bytes(length.div_ceil(8)))], vec![]),
        ArrayLayout::Fixed { bytes, is_dictionary: false, .. } => {
            (vec![values(random, data_type, bytes, length)], vec![])
        }
        ArrayLayout::Fixed { bytes, .. } => dictionary(random, data_type, bytes, length),
        ArrayLayout::Binary(width) => (binary(random, data_type, width, length), vec![]),
        ArrayLayout::List(width) => list(random, data_type, width, length),
        ArrayLayout::ListView(width) => list_view(random, data_type, width, length),
        ArrayLayout::FixedList { items } => {
            (vec![], child_arrays(random, data_type, length * items))
        }
        ArrayLayout::Struct => {
            let extra = random.below(3);
            (vec![], child_arrays(random, data_type, length + extra))
        }
        ArrayLayout::SparseUnion | ArrayLayout::DenseUnion => {
            return union(random, data_type, length);
        }
        ArrayLayout::RunEnd { bytes } => (vec![], runs(random, data_type, bytes, length)),
        ArrayLayout::View => unreachable!("handled above"),
    };
    ArrayData::builder(data_type.clone())
        .len(length)
        .nulls(nulls)
        .buffers(buffers)
        .child_data(children)
        .build()
        .expect("generated arrays are well-formed")
}

fn random_nulls(random: &mut SplitMix64, length: usize) -> NullBuffer {
    let lead = if random.chance(2) { 0 } else { random.below(20) };
    let bits = Buffer::from(random.bytes((lead + length).div_ceil(8)));
    NullBuffer::new(BooleanBuffer::new(bits, lead, length))
}

fn values(random: &mut SplitMix64, data_type: &DataType, bytes: usize, length: usize) -> Buffer {
    let mut raw = random.bytes(bytes * length);
    let is_decimal = data_type.is_decimal();
    for value in raw.chunks_exact_mut(bytes.max(1)).filter(|_| is_decimal) {
        // Small and positive, so that it fits any precision.
        value.iter_mut().skip(1).for_each(|byte| *byte = 0);
    }
    Buffer::from_slice_ref(raw)
}

fn number(width: usize, value: usize) -> Vec<u8> {
    (value as u64).to_le_bytes()[..width].to_vec()
}

fn child_is_nullable(data_type: &DataType, index: usize) -> bool {
    match data_type {
        DataType::Map(_, _) => false,
        DataType::Struct(fields) => fields[index].is_nullable(),
        _ => true,
    }
}

fn child_arrays(random: &mut SplitMix64, data_type: &DataType, length: usize) -> Vec<ArrayData> {
    (0..child_count(data_type))
        .map(|index| {
            let child = child_type(data_type, index).expect("index is below the count");
            random_array(random, child, length, child_is_nullable(data_type, index))
        })
        .collect()
}

fn dictionary(
    random: &mut SplitMix64,
    data_type: &DataType,
    bytes: usize,
    length: usize,
) -> (Vec<Buffer>, Vec<ArrayData>) {
    let entries = 1 + random.below(9);
    let values = child_arrays(random, data_type, entries);
    let keys: Vec<u8> = (0..length).flat_map(|_| number(bytes, random.below(entries))).collect();
    (vec![Buffer::from_slice_ref(keys)], values)
}

fn binary(
    random: &mut SplitMix64,
    data_type: &DataType,
    width: OffsetWidth,
    length: usize,
) -> Vec<Buffer> {
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
    let mut bytes = Vec::new();
    let mut offsets = number(width.bytes(), 0);
    for _ in 0..length {
        bytes.extend(random.value_bytes(is_text));
        offsets.extend(number(width.bytes(), bytes.len()));
    }
    vec![Buffer::from_slice_ref(offsets), Buffer::from_slice_ref(bytes)]
}

fn views(
    random: &mut SplitMix64,
    data_type: &DataType,
    length: usize,
    nullable: bool,
) -> ArrayData {
    let nulls = nullable && random.chance(2);
    let block = if random.chance(2) { 64 } else { 8192 };
    if *data_type == DataType::Utf8View {
        let mut builder = StringViewBuilder::new().with_fixed_block_size(block);
        for _ in 0..length {
            let text = random.text();
            builder.append_option((!(nulls && random.chance(4))).then_some(text));
        }
        return builder.finish().to_data();
    }
    let mut builder = BinaryViewBuilder::new().with_fixed_block_size(block);
    for _ in 0..length {
        let bytes = random.value_bytes(false);
        builder.append_option((!(nulls && random.chance(4))).then_some(bytes));
    }
    builder.finish().to_data()
}

fn list(
    random: &mut SplitMix64,
    data_type: &DataType,
    width: OffsetWidth,
    length: usize,
) -> (Vec<Buffer>, Vec<ArrayData>) {
    let mut at = random.below(4);
    let mut offsets = number(width.bytes(), at);
    for _ in 0..length {
        at += random.below(4);
        offsets.extend(number(width.bytes(), at));
    }
    let extra = random.below(4);
    (vec![Buffer::from_slice_ref(offsets)], child_arrays(random, data_type, at + extra))
}

fn list_view(
    random: &mut SplitMix64,
    data_type: &DataType,
    width: OffsetWidth,
    length: usize,
) -> (Vec<Buffer>, Vec<ArrayData>) {
    let items = random.below(12);
    let (mut offsets, mut sizes) = (Vec::new(), Vec::new());
    for _ in 0..length {
        let offset = random.below(items + 1);
        offsets.extend(number(width.bytes(), offset));
        sizes.extend(number(width.bytes(), random.below(items - offset + 1)));
    }
    let buffers = vec![Buffer::from_slice_ref(offsets), Buffer::from_slice_ref(sizes)];
    (buffers, child_arrays(random, data_type, items))
}

fn union(random: &mut SplitMix64, data_type: &DataType, length: usize) -> ArrayData {
    let DataType::Union(fields, _) = data_type else { unreachable!("only called for unions") };
    let is_dense = ArrayLayout::of(data_type) == Some(ArrayLayout::DenseUnion);
    // A union without types has no elements.
    let length = if fields.is_empty() { 0 } else { length };
    let codes: Vec<i8> = fields.iter().map(|(code, _)| code).collect();
    let mut used = vec![0usize; codes.len()];
    let (mut ids, mut offsets) = (Vec::new(), Vec::new());
    for _ in 0..length {
        let child = random.below(codes.len());
        ids.push(codes[child] as u8);
        offsets.extend(number(4, used[child]));
        used[child] += 1;
    }
    let children = (0..codes.len()).map(|index| {
        let child = child_type(data_type, index).expect("index is below the count");
        let needed = if is_dense { used[index] } else { length };
        let extra = random.below(3);
        random_array(random, child, needed + extra, true)
    });
    let children: Vec<ArrayData> = children.collect();
    let mut buffers = vec![Buffer::from(ids)];
    if is_dense {
        buffers.push(Buffer::from_slice_ref(offsets));
    }
    ArrayData::builder(data_type.clone())
        .len(length)
        .buffers(buffers)
        .child_data(children)
        .build()
        .expect("generated unions are well-formed")
}

fn runs(
    random: &mut SplitMix64,
    data_type: &DataType,
    bytes: usize,
    length: usize,
) -> Vec<ArrayData> {
    let mut ends = Vec::new();
    let (mut end, mut count) = (0, 0);
    while end < length {
        end += 1 + random.below(5);
        ends.extend(number(bytes, end));
        count += 1;
    }
    let ends_type = child_type(data_type, 0).expect("runs have ends");
    let ends = ArrayData::builder(ends_type.clone())
        .len(count)
        .add_buffer(Buffer::from_slice_ref(ends))
        .build()
        .expect("generated run ends are well-formed");
    let values = child_type(data_type, 1).expect("runs have values");
    vec![ends, random_array(random, values, count, true)]
}
