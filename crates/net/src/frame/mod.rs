//! The frames of the data path: a header of 32 bytes, little-endian, and a body.
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0 | op | [`Op`] |
//! | 1 | flags | bit 0: the checksum is set; the others are zero |
//! | 2..4 | | zero |
//! | 4..8 | crc | CRC-32C of the header with zeros here, and of the body; zero without the flag |
//! | 8..16 | id | the request that the frame belongs to |
//! | 16..24 | offset | by op: an offset in the data section, a hold, a grant, a version |
//! | 24..32 | length | bytes of the body |
//!
//! | op | sent by | offset | body |
//! | --- | --- | --- | --- |
//! | Hello | client | version | a ticket and the class of the connection |
//! | Welcome | server | version | length of the data section; bit 0 of the id: [`CAN_PACK`] |
//! | Open | client | hold, a new number | the request, which the daemon interprets |
//! | Opened | server | hold | [`Opened`] |
//! | Read | client | hold | 1 to 256 ranges, answered by Data for each [`piece`] in order |
//! | Data | both | offset of the bytes | the bytes |
//! | ReadPacked | client | hold | 8 bytes of a [wish], ranges; answered by Data or Packed for each piece |
//! | Packed | server | offset of the bytes | CRC-32C of the bytes, 4 bytes; an LZ4 block shorter than they |
//! | Release | client | hold | none |
//! | Released | server | hold | none |
//! | Push | client | grant | 1 to 256 ranges; Data for each piece follows, Pushed answers |
//! | Pushed | server | grant | none |
//! | Invalidate | server | object | none; the id is that of the notice |
//! | Invalidated | client | object | none |
//! | Error | server | code | a text |
//! | Meet, Met | client, server | none | where a network card's end of the connection is |
//! | Expose | client | hold | 1 to 256 ranges |
//! | Exposed | server | hold | a key for each range |
//! | Conceal | client | none | none |
//!
//! [wish]: crate::pack::PackWish
//!
//! The decoders check all input of a peer against limits, and the caller checks it against its
//! requests. The decoders read no clock and no socket, so a fuzzer can drive them.

mod body;
mod expected_ranges;
mod header;
#[cfg(test)]
mod tests;

pub use body::{
    ConnectionClass, ENDPOINT_BYTES, ENTRY_BYTES_MAX, ERROR_TEXT_BYTES_MAX, ErrorCode,
    INLINE_BYTES_MAX, KEY_BYTES, Opened, PeerHello, RANGES_MAX, READ_BYTES_MAX,
    decode_exposed_ranges, decode_packed_read, decode_ranges, encode_packed_read, encode_ranges,
};
pub use expected_ranges::{ExpectedRanges, behind, piece};
pub use header::{CAN_PACK, FrameHeader, HEADER_BYTES, OPEN_BYTES_MAX, Op, VERSION};
