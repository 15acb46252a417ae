//! SipHash-1-3, the hash of names (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012).
//!
//! Implemented here because hash values are stored in memory that programs of different versions
//! share, and the standard library guarantees no fixed algorithm.

/// The key of one region's hash, so that names that collide in one region do not collide in
/// another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKey(pub [u64; 2]);

/// The hash of a name in directory entries and in the name index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NameHash(pub u64);

impl NameHash {
    /// Hash `name` for the region with `key`.
    #[must_use]
    pub fn of(key: HashKey, name: &[u8]) -> Self {
        Self(siphash::<1, 3>(key.0, name))
    }
}

/// SipHash with `C` rounds per word and `D` final rounds.
fn siphash<const C: usize, const D: usize>(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        compress::<C>(&mut v, u64::from_le_bytes(*word));
    }
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    compress::<C>(&mut v, u64::from_le_bytes(last));
    v[2] ^= 0xff;
    for _ in 0..D {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn compress<const C: usize>(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    for _ in 0..C {
        round(v);
    }
    v[0] ^= word;
}

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// CRC-32C of the first `BYTES` bytes of words, in little-endian order.
pub(crate) fn crc_of_words<const BYTES: usize>(words: &[u64]) -> u64 {
    let mut bytes = [0u8; BYTES];
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    u64::from(crc32c::crc32c(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[test]
    fn agrees_with_the_paper() {
        // Appendix A of the paper: key 00..0f, message 00..0e, SipHash-2-4.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash::<2, 4>(key, &message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn agrees_with_the_standard_library_of_today() {
        for length in 0..64u8 {
            let message: Vec<u8> = (0..length).map(|i| i.wrapping_mul(37)).collect();
            let mut std = std::collections::hash_map::DefaultHasher::new();
            std.write(&message);
            assert_eq!(siphash::<1, 3>([0, 0], &message), std.finish());
        }
    }

    #[test]
    fn the_key_matters() {
        let one = NameHash::of(HashKey([1, 2]), b"name");
        assert_ne!(one, NameHash::of(HashKey([1, 3]), b"name"));
        assert_eq!(one, NameHash::of(HashKey([1, 2]), b"name"));
    }
}
