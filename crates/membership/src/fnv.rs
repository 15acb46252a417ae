//! FNV-1a, 64 bits: for names, not for secrets.

/// The hash of an empty input.
pub const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues `hash` with these bytes.
pub fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
