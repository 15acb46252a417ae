//! Bytes of the descriptor: the fixed header, LEB128 numbers, byte strings.

use crate::error::InvalidDescriptor;

/// First four bytes of every descriptor.
pub const MAGIC: [u8; 4] = *b"FRWD";
/// The only format version this build reads and writes.
pub const VERSION: u16 = 1;
/// Bytes of the fixed header: magic, version, kind, flags, region, epoch, base, length.
pub const HEADER_BYTES: usize = 40;
/// Position of the region field within the header.
pub(crate) const REGION_AT: usize = 8;
/// Position of the epoch field within the header.
pub(crate) const EPOCH_AT: usize = 16;
/// Position of the base field within the header.
pub(crate) const BASE_AT: usize = 24;
/// Position of the length field within the header.
pub(crate) const LENGTH_AT: usize = 32;
/// LEB128 bytes of the largest 64-bit number.
const VARINT_BYTES_MAX: u32 = 10;

/// Appends to a descriptor.
#[derive(Debug, Default)]
pub(crate) struct DescriptorWriter {
    pub bytes: Vec<u8>,
}

impl DescriptorWriter {
    pub fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub fn text(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    pub fn fixed(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }
}

/// Reads a descriptor; never reads past its end.
#[derive(Debug)]
pub(crate) struct DescriptorReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> DescriptorReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        DescriptorReader { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn truncated(&self) -> InvalidDescriptor {
        InvalidDescriptor::Truncated { at: self.at, length: self.bytes.len() }
    }

    pub fn bad(&self, what: &'static str, value: u64) -> InvalidDescriptor {
        InvalidDescriptor::BadValue { what, at: self.at, value }
    }

    pub fn byte(&mut self) -> Result<u8, InvalidDescriptor> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.truncated())?;
        self.at += 1;
        Ok(byte)
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], InvalidDescriptor> {
        let end = self.at.checked_add(count).ok_or_else(|| self.truncated())?;
        let taken = self.bytes.get(self.at..end).ok_or_else(|| self.truncated())?;
        self.at = end;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidDescriptor> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// A LEB128 number. Only the shortest encoding is accepted, so that equal objects have
    /// equal descriptors.
    pub fn number(&mut self) -> Result<u64, InvalidDescriptor> {
        let mut value = 0u64;
        for index in 0..VARINT_BYTES_MAX {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            let shift = 7 * index;
            if shift == 63 && bits > 1 {
                return Err(self.bad("number", bits));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(self.bad("number (not shortest)", value));
                }
                return Ok(value);
            }
        }
        Err(self.bad("number", value))
    }

    /// A count of the items that follow, of at least `least_bytes` each. A count that cannot fit
    /// into the remaining bytes is rejected before anything is allocated for it.
    pub fn count(
        &mut self,
        what: &'static str,
        least_bytes: usize,
    ) -> Result<usize, InvalidDescriptor> {
        let count = self.number()?;
        let fits = (self.remaining() / least_bytes.max(1)) as u64;
        if count > fits {
            return Err(self.bad(what, count));
        }
        Ok(count as usize)
    }

    pub fn text(&mut self) -> Result<&'a [u8], InvalidDescriptor> {
        let length = self.count("text length", 1)?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive() {
        for value in [0, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX] {
            let mut writer = DescriptorWriter::default();
            writer.number(value);
            let mut reader = DescriptorReader::new(&writer.bytes);
            assert_eq!(reader.number(), Ok(value));
            assert_eq!(reader.remaining(), 0);
        }
    }

    #[test]
    fn long_and_overlong_numbers_are_refused() {
        for bytes in [
            &[0x80, 0x00][..],
            &[0xff; 11],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
        ] {
            assert!(DescriptorReader::new(bytes).number().is_err(), "{bytes:02x?}");
        }
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused() {
        let mut writer = DescriptorWriter::default();
        writer.number(1 << 40);
        assert!(DescriptorReader::new(&writer.bytes).count("things", 1).is_err());
    }
}
