//! Hash functions of account numbers.

/// Spreads consecutive numbers over a table (the finalizer of SplitMix64).
pub(crate) fn hash(key: i64) -> u64 {
    let mut hash = key.cast_unsigned().wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Hashes small numbers of accounts. They are dense, and no caller can choose them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccountHash;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccountHasher(u64);

impl std::hash::BuildHasher for AccountHash {
    type Hasher = AccountHasher;

    fn build_hasher(&self) -> AccountHasher {
        AccountHasher(0)
    }
}

impl std::hash::Hasher for AccountHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = hash((self.0 << 32 ^ u64::from(number)).cast_signed());
    }

    fn write_i64(&mut self, key: i64) {
        self.0 = hash(key ^ self.0.cast_signed());
    }
}
