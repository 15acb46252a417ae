//! Memory that simulates a region: 64-byte aligned, with offsets from its start. Buffers in it
//! are in place.

use super::SplitMix64;
use crate::{CopyOut, DescribeError, DescriptorStamp, Locate, Plan};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer};
use arrow_data::ArrayData;

/// Bytes that simulate a region.
#[derive(Debug, Clone)]
pub struct RegionBytes {
    bytes: Buffer,
    used: usize,
}

impl Default for RegionBytes {
    fn default() -> Self {
        RegionBytes::new(&[])
    }
}

impl RegionBytes {
    /// An arena that begins with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        RegionBytes { bytes: Buffer::from_slice_ref(bytes), used: bytes.len() }
    }

    /// The bytes.
    pub fn as_buffer(&self) -> &Buffer {
        &self.bytes
    }

    /// The bytes `offset..offset + length`; `None` if they exceed the arena.
    pub fn resolve(&self, offset: u64, length: u64) -> Option<Buffer> {
        let start = usize::try_from(offset).ok()?;
        let length = usize::try_from(length).ok()?;
        let end = start.checked_add(length)?;
        (end <= self.bytes.len()).then(|| self.bytes.slice_with_length(start, length))
    }

    /// Offset of bytes; `None` if they are outside the arena.
    pub fn locate(&self, pointer: *const u8, length: usize) -> Option<u64> {
        let start = pointer.addr().checked_sub(self.bytes.as_ptr().addr())?;
        (start.checked_add(length)? <= self.bytes.len()).then_some(start as u64)
    }

    /// The same arena with some bytes changed.
    pub fn with_noise(&self, random: &mut SplitMix64) -> RegionBytes {
        let mut bytes = self.bytes.to_vec();
        for _ in 0..1 + random.below(6) {
            let at = random.below(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.next_u64() as u8;
            }
        }
        RegionBytes::new(&bytes)
    }

    /// Appends 64-byte aligned space, fills it, and returns its offset. Earlier buffers of the
    /// arena retain the old bytes.
    pub fn append(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> u64 {
        let start = self.used.next_multiple_of(64);
        let mut bytes = MutableBuffer::from_len_zeroed(start + length);
        bytes.as_slice_mut()[..self.used].copy_from_slice(&self.bytes[..self.used]);
        fill(&mut bytes.as_slice_mut()[start..]);
        self.bytes = bytes.into();
        self.used = start + length;
        start as u64
    }

    /// Performs the copies of a plan, and returns its descriptor.
    pub fn write(&mut self, plan: &Plan) -> Result<Vec<u8>, DescribeError> {
        let mut result = Ok(());
        let base = self.append(plan.copy_bytes() as usize, |area| {
            result = plan.write_copies(area);
            let ends = plan.copies().map(|CopyOut { offset, length, .. }| offset + length);
            assert!(ends.max().unwrap_or(0) <= plan.copy_bytes());
        });
        result?;
        Ok(plan.descriptor(DescriptorStamp { region: 0x1234, epoch: 5 }, base))
    }

    /// Equal arrays whose buffers are in the arena: all buffers, or those that `choose` selects.
    /// Earlier adopted arrays are no longer in the arena, since it moves as it grows.
    pub fn adopt_all(
        &mut self,
        arrays: &[ArrayData],
        choose: &mut dyn FnMut() -> bool,
    ) -> Vec<ArrayData> {
        let mut moved = Vec::new();
        for array in arrays {
            collect(array, &mut |buffer| {
                let offset =
                    choose().then(|| self.append(buffer.len(), |to| to.copy_from_slice(buffer)));
                moved.push(offset);
            });
        }
        let mut moved = moved.into_iter();
        arrays.iter().map(|array| self.rebuild(array, &mut || moved.next().flatten())).collect()
    }

    /// One array, as [`RegionBytes::adopt_all`].
    pub fn adopt(&mut self, array: &ArrayData, choose: &mut dyn FnMut() -> bool) -> ArrayData {
        let mut adopted = self.adopt_all(std::slice::from_ref(array), choose);
        adopted.pop().expect("one array gives one array")
    }

    fn rebuild(&self, array: &ArrayData, next: &mut dyn FnMut() -> Option<u64>) -> ArrayData {
        let mut place = |buffer: &Buffer| match next() {
            Some(at) => self.bytes.slice_with_length(at as usize, buffer.len()),
            None => buffer.clone(),
        };
        let nulls = array.nulls().map(|nulls| {
            let bits = BooleanBuffer::new(place(nulls.buffer()), nulls.offset(), nulls.len());
            NullBuffer::new(bits)
        });
        let buffers = array.buffers().iter().map(&mut place).collect();
        let children = array.child_data().iter().map(|child| self.rebuild(child, next)).collect();
        ArrayData::builder(array.data_type().clone())
            .len(array.len())
            .offset(array.offset())
            .nulls(nulls)
            .buffers(buffers)
            .child_data(children)
            .build()
            .expect("the same array at another place")
    }

    /// A [`Locate`] callback for this arena.
    pub fn locating(&self) -> impl FnMut(*const u8, usize) -> Option<u64> + use<'_> {
        |pointer, length| self.locate(pointer, length)
    }

    /// Calls `make` with this arena as the region.
    pub fn plan<T>(&self, make: impl FnOnce(Locate<'_>) -> T) -> T {
        make(&mut self.locating())
    }
}

fn collect(array: &ArrayData, each: &mut dyn FnMut(&Buffer)) {
    if let Some(nulls) = array.nulls() {
        each(nulls.buffer());
    }
    array.buffers().iter().for_each(&mut *each);
    array.child_data().iter().for_each(|child| collect(child, each));
}
