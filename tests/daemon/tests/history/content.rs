//! The bytes of the objects of a history, which say which object they are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use super::common::bytes_of;
use super::record::ObjectDraft;

/// Bytes that say what they are: version, checksum of all others, name, and more.
pub fn content(draft: &ObjectDraft, more: usize) -> Vec<u8> {
    let name = draft.name.as_deref().unwrap_or_default();
    let mut bytes = draft.version.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes.extend(bytes_of(draft.version, more));
    let sum = crc_of(&bytes);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn crc_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..8]), &bytes[12..])
}

/// The version of an object by its bytes, or what is wrong with them.
pub fn version_of(bytes: &[u8], name: Option<&str>) -> Result<u64, String> {
    let wrong = |what: &str| format!("{what}: {} B that begin {:?}", bytes.len(), bytes.get(..64));
    let Some((head, rest)) = bytes.split_first_chunk::<16>() else { return Err(wrong("short")) };
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    if number(8) != crc_of(bytes) {
        return Err(wrong("its checksum is wrong"));
    }
    let found = rest.get(..number(12) as usize);
    if name.is_some_and(|name| found != Some(name.as_bytes())) {
        return Err(wrong(&format!("not {name:?}, but {found:?}")));
    }
    Ok(u64::from(number(0)) | (u64::from(number(4)) << 32))
}

/// The bytes of an object are told from others, by one bit even.
#[test]
fn a_wrong_byte_is_seen() {
    let draft = ObjectDraft { name: Some("n".into()), version: 0x1_0000_0002 };
    let mut bytes = content(&draft, 700);
    assert_eq!(version_of(&bytes, Some("n")), Ok(draft.version));
    version_of(&bytes, Some("m")).unwrap_err();
    for at in [0, 7, 9, 13, 16, 699] {
        bytes[at] ^= 1;
        version_of(&bytes, None).unwrap_err();
        bytes[at] ^= 1;
    }
}
