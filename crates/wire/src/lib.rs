//! The protocol between a client and its daemon over a Unix socket. It decides nothing, and it
//! knows neither Arrow nor how a node serves a request.
//!
//! | Task | Module |
//! | --- | --- |
//! | send a request and receive the reply | [`link`], with [`Request`] and [`Reply`] |
//! | wait for events | [`listener`] |
//! | pass page faults on to the daemon | [`ServeFaults`] |
//! | find the socket of a node | [`paths`] |
//! | end a wait early | [`interrupt`] |
//! | define the rights of a node in a namespace | [`rights`] |
//!
//! A frame is a little-endian `u32` length and that many bytes of a postcard-encoded [`Request`] or
//! [`Reply`]. File descriptors travel only with the replies to `Hello`, `Handover` and `OpenLazy`,
//! and with [`ServeFaults`]. All input is untrusted: lengths of frames and of lists are
//! limited before anything is allocated.

#![forbid(unsafe_code)]

use farrow_memory::{Length, Offset, Span};

mod boot_time;
mod bounded;
mod connecting;
mod drain;
mod error;
pub mod error_texts;
pub mod interrupt;
mod kinds;
pub mod link;
pub mod listener;
mod members;
mod node_stats;
mod object_id;
mod page_faults;
pub mod paths;
mod reply;
mod request;
pub mod rights;
mod settings;
mod spin;

use serde::{Deserialize, Serialize};

pub use boot_time::{BootTime, awake_ns};
pub use drain::*;
pub use error::*;
pub use members::*;
pub use node_stats::*;
pub use object_id::*;
pub use page_faults::*;
pub use reply::*;
pub use request::*;
pub use settings::*;
pub use spin::Spin;

/// Version of this protocol; a peer of another version is refused in `Hello`.
pub const PROTOCOL_VERSION: u32 = 11;

/// Longest frame in bytes: 8192 seal items of about 200 bytes and as many names of 255.
pub const FRAME_BYTES_MAX: usize = 4 << 20;

/// Longest first message of a connection in bytes: a hello with a namespace and a node of 63 bytes
/// each takes less than 200.
pub const HELLO_BYTES_MAX: usize = 1 << 10;

/// Most items of one batch message (seal, delete, wait, release).
pub const BATCH_ITEMS_MAX: usize = 8192;

/// Most extra blocks of one object: its list of 16 bytes each then takes 1 MiB.
pub const EXTRA_BLOCKS_MAX: usize = 65_536;

/// Most columns of a part of an object.
pub const PART_COLUMNS_MAX: usize = 8192;

/// Most bytes of the names of a part's columns.
pub const PART_NAME_BYTES_MAX: usize = 256 << 10;

/// Most blocks of an object whose pages are brought one by one; others are brought whole.
pub const LAZY_BLOCKS_MAX: usize = 4096;

/// Longest descriptor of such an object in bytes: it is sent in one message.
pub const LAZY_DESCRIPTOR_BYTES_MAX: usize = 2 << 20;

/// Most ranges of one request for memory: the node tries whether they all fit.
pub const ROOM_RANGES_MAX: usize = 64;

/// Longest wait in milliseconds that one message may request; a client then asks again.
pub const WAIT_MS_MAX: u64 = 3_600_000;

/// Longest lease of an object in milliseconds: a lease covers messages in flight, not storage.
pub const LEASE_MS_MAX: u64 = 3_600_000;

/// Key of the metadata of an object with a lease, which a restarted daemon reads: milliseconds.
pub const LEASE_LABEL: &str = "farrow.lease_ms";

/// Exit code of a node that found another one serving at its socket.
pub const ALREADY_SERVING_CODE: i32 = 3;

/// (offset, length) in bytes from the start of the region.
pub type WireSpan = (u64, u64);

/// A range of the region, as messages write it.
pub fn wire_span(span: Span) -> WireSpan {
    (span.offset.0, span.length.0)
}

/// The range that a message writes. It is not checked against the region.
pub fn span((offset, length): WireSpan) -> Span {
    Span { offset: Offset(offset), length: Length(length) }
}

/// Why bytes cannot be encoded or decoded as a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The announced length is over the limit.
    #[error("a frame of {bytes} B was announced, the limit is {max} B")]
    TooLong {
        /// Announced length.
        bytes: usize,
        /// Largest allowed length.
        max: usize,
    },
    /// The bytes do not decode.
    #[error("a frame of {bytes} B does not decode: {reason}")]
    Garbled {
        /// Length.
        bytes: usize,
        /// Message of the decoder.
        reason: String,
    },
}

/// Appends a frame with `message` to `out`.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), MessageError> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    if let Err(error) = postcard::to_io(message, &mut *out) {
        out.truncate(start);
        return Err(MessageError::Garbled { bytes: 0, reason: error.to_string() });
    }
    let bytes = out.len() - start - 4;
    if bytes > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(MessageError::TooLong { bytes, max: FRAME_BYTES_MAX });
    }
    if let Some(head) = out.get_mut(start..start + 4) {
        head.copy_from_slice(&(bytes as u32).to_le_bytes());
    }
    Ok(())
}

/// Takes one message off the front of `buffer`; `None` while it is incomplete.
///
/// Returns the message and the number of bytes it took.
pub fn decode<T: for<'a> Deserialize<'a>>(
    buffer: &[u8],
) -> Result<Option<(T, usize)>, MessageError> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let bytes = u32::from_le_bytes(*head) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(MessageError::TooLong { bytes, max: FRAME_BYTES_MAX });
    }
    let Some(body) = rest.get(..bytes) else {
        return Ok(None);
    };
    match postcard::from_bytes(body) {
        Ok(message) => Ok(Some((message, bytes + 4))),
        Err(error) => Err(MessageError::Garbled { bytes, reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_wire_in_any_pieces() {
        let request = Request {
            seq: 7,
            body: RequestBody::Wait {
                targets: vec![
                    WireTarget::Name("a".into()),
                    WireTarget::Id(WireObjectId { hi: 1, lo: 2 }),
                ],
                count: 2,
                timeout_ms: 50,
            },
        };
        let mut bytes = Vec::new();
        encode(&request, &mut bytes).unwrap();
        for cut in 0..bytes.len() {
            assert_eq!(decode::<Request>(&bytes[..cut]).unwrap(), None);
        }
        bytes.push(9);
        let (back, used) = decode::<Request>(&bytes).unwrap().unwrap();
        assert_eq!((back, used), (request, bytes.len() - 1));
    }

    #[test]
    fn too_long_and_garbled_frames_are_refused() {
        let long = ((FRAME_BYTES_MAX + 1) as u32).to_le_bytes();
        assert!(matches!(decode::<Request>(&long), Err(MessageError::TooLong { .. })));
        let garbled = [2, 0, 0, 0, 0xff, 0xff];
        assert!(matches!(decode::<Request>(&garbled), Err(MessageError::Garbled { .. })));
        let huge =
            Request { seq: 1, body: RequestBody::Reserve { names: vec!["x".repeat(5 << 20)] } };
        let mut out = vec![1];
        assert!(matches!(encode(&huge, &mut out), Err(MessageError::TooLong { .. })));
        assert_eq!(out, [1], "a refused message leaves the buffer as it was");
    }
}
