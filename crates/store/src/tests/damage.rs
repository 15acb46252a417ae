//! Regions with wrong words in them: the daemon must not stop, whatever process wrote them.

use std::sync::Arc;

use farrow_memory::{Access, Length, Offset, Region, Span};
use proptest::prelude::*;

use super::support::{TestClient, TestRegion, part, small, table};
use crate::{Held, Home, Reader, RegionOptions, SealRequest, Target};

/// A region with at least one object of each kind.
fn lively() -> (TestRegion, TestClient, Vec<Held>) {
    let world = TestRegion::new(small());
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let extent = home.grant(client.slot, Length(24 << 12), Length(24 << 12)).unwrap();
    let mut all_held = Vec::new();
    for i in 0..4 {
        let at = |from, length| part(extent, i * 20480 + from, length);
        let blocks = [at(4096, 4096), at(8192, 128), at(12288, 128)];
        let name = format!("table-{i}");
        let request = table(&client, at(0, 128), &blocks, Some(&name));
        home.seal(client.slot, &request, i).unwrap();
        let request = SealRequest::bytes(at(128, 128), Length(99), None);
        let id = home.seal(client.slot, &request, i).unwrap();
        if i % 2 == 0 {
            let held = client.reader.hold(&client.holds, Target::Id(id)).unwrap();
            all_held.extend(held);
            home.delete(Target::Id(id)).unwrap();
        }
    }
    (world, client, all_held)
}

/// Try every operation, and check only that it ends.
fn use_all(reader: &Reader) {
    for listed in reader.list("").unwrap_or_default() {
        let _ = reader.blocks(&listed.entry);
        let _ = reader.by_id(listed.entry.id);
    }
    for name in ["table-0", "table-1", "table-2", "table-3", "none"] {
        let _ = reader.find(name);
    }
}

fn write(region: &Arc<Region>, offset: Offset, word: u64) {
    if region.write(offset, &word.to_le_bytes()).is_err() {
        let page = Offset(offset.0 / 4096 * 4096);
        let alias = region.alias(farrow_memory::Span::new(page, Length(4096))).unwrap();
        alias.write(offset, &word.to_le_bytes()).unwrap();
    }
}

/// Words that are more likely to be valid than random ones.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..300u64, Just(u64::MAX), (0..1u64 << 20).prop_map(|n| n * 128)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn wrong_words_in_control_end_in_an_error_or_in_a_region_that_is_right(
        changes in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..20),
    ) {
        let (world, client, _held) = lively();
        let region = world.map(Access::Home);
        let layout = *client.reader.layout();
        for (at, word) in changes {
            // Any word outside the header's checksum, which is tested with the header.
            let first = 512;
            let end = layout.names.end().unwrap().0 / 8;
            write(&region, Offset((first / 8 + at.index((end - first / 8) as usize) as u64) * 8), word);
        }
        use_all(&client.reader);
        if let Ok((mut home, _)) = Home::adopt(region) {
            let _ = home.check();
            for listed in client.reader.list("").unwrap_or_default() {
                let _ = home.delete(Target::Id(listed.entry.id));
            }
            let _ = client.put(&mut home, b"more", Some("more"));
            let _ = home.client_leave(client.slot);
        }
    }

    #[test]
    fn wrong_words_in_data_cost_objects_but_the_region_stays_right(
        changes in prop::collection::vec((any::<prop::sample::Index>(), word()), 1..40),
    ) {
        let (world, client, _held) = lively();
        let region = world.map(Access::Home);
        let layout = *client.reader.layout();
        let hold_block = layout.hold_blocks.offset.0;
        for (at, word) in changes {
            let n = at.index(600) as u64;
            // The hold block, or the first words of one of the four tables' primary blocks.
            let at = match n {
                0..520 => hold_block + n % 512 * 8,
                _ => layout.heap.offset.0 + n % 4 * 20480 + n / 4 % 20 * 8,
            };
            write(&region, Offset(at), word);
        }
        use_all(&client.reader);
        let (mut home, report) = Home::adopt(region).unwrap();
        home.check().unwrap();
        prop_assert_eq!(report.objects as usize + report.dropped.len(), 6);
        home.client_leave(client.slot).unwrap();
        for listed in client.reader.list("").unwrap() {
            prop_assert!(home.delete(Target::Id(listed.entry.id)).unwrap().freed_now);
        }
        let stats = home.stats().unwrap();
        prop_assert_eq!((stats.free, stats.holds), (stats.capacity, 0));
        home.check().unwrap();
    }
}

/// Flips some of the bits `free`, each a byte and a bit of it, so that the crc32c is `wanted`.
fn forge_checksum(bytes: &mut [u8], free: &[(usize, u8)], wanted: u32) {
    // crc32c is linear, so 32 bits of freedom reach every value: solve by the effect of each bit.
    let base = crc32c::crc32c(bytes);
    let effect_of = |(i, (byte, bit)): (usize, &(usize, u8))| {
        let mut other = bytes.to_vec();
        other[*byte] ^= 1 << bit;
        (crc32c::crc32c(&other) ^ base, 1_u64 << i)
    };
    let mut rows: Vec<(u32, u64)> = free.iter().enumerate().map(effect_of).collect();
    let (mut left, mut flips) = (base ^ wanted, 0);
    for bit in (0..32).rev() {
        let Some(i) = rows.iter().position(|(effect, _)| effect >> bit & 1 == 1) else { continue };
        let (effect, source) = rows.swap_remove(i);
        for row in rows.iter_mut().filter(|row| row.0 >> bit & 1 == 1) {
            *row = (row.0 ^ effect, row.1 ^ source);
        }
        if left >> bit & 1 == 1 {
            (left, flips) = (left ^ effect, flips ^ source);
        }
    }
    assert_eq!(left, 0);
    for (i, (byte, bit)) in free.iter().enumerate() {
        bytes[*byte] ^= u8::from(flips >> i & 1 == 1) << bit;
    }
    assert_eq!(crc32c::crc32c(bytes), wanted, "the forgery is good");
}

#[test]
fn a_forged_list_with_a_good_checksum_takes_nothing_from_others() {
    let (world, client, _held) = lively();
    let entry = client.reader.find("table-0").unwrap().unwrap();
    let victim = client.reader.find("table-1").unwrap().unwrap();
    let list = entry.extra_list().unwrap();
    // crc32c is not a signature: write other blocks and restore the checksum by adjusting four
    // bytes. The blocks overlap the victim's primary block, and memory that is not granted.
    let forged = [part(victim.primary, 0, 128 * 2), part(victim.primary, 16384, 128)];
    let mut bytes = crate::format::entry::encode_extra(&forged);
    bytes.resize(list.length.0 as usize, 0);
    bytes[32..40].copy_from_slice(&(victim.primary.offset.0 + 32768).to_le_bytes());
    let free: Vec<(usize, u8)> = (0..32).map(|i| (40 + i / 8, (i % 8) as u8)).collect();
    forge_checksum(&mut bytes, &free, entry.extra_crc);
    client.write(list.offset, &bytes);

    let (home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    home.check().unwrap();
    assert_eq!(report.dropped.len(), 1);
    assert_eq!(report.dropped[0].id, Some(entry.id));
    assert_eq!(home.find(Target::Name("table-1")).unwrap(), victim);
    assert!(home.find(Target::Name("table-0")).is_err());
}

/// Once there were not enough grant records for such a list, no home could adopt the region.
#[test]
fn a_forged_list_of_many_pieces_of_its_own_grants_costs_that_object_only() {
    let world = TestRegion::new(RegionOptions { grants_max: 4, ..small() });
    let mut home = world.create();
    let client = TestClient::join(&world, &mut home).unwrap();
    let extent = home.grant(client.slot, Length(16 << 12), Length(16 << 12)).unwrap();
    // Side by side, so that they need no further record.
    let blocks: Vec<Span> = (0..8).map(|n| part(extent, 4096 + n * 128, 128)).collect();
    let request = table(&client, part(extent, 0, 4096), &blocks, Some("table"));
    home.seal(client.slot, &request, 1).unwrap();
    client.put(&mut home, b"other", Some("other")).unwrap();
    let entry = client.reader.find("table").unwrap().unwrap();
    let list = entry.extra_list().unwrap();
    let forged: Vec<Span> = (2..10).map(|n| part(extent, n * 4096, 128)).collect();
    let mut bytes = crate::format::entry::encode_extra(&forged);
    assert_eq!(bytes.len() as u64, list.length.0);
    // Each may begin at any of the 32 blocks of its page.
    let places = [(0, 7), (1, 0), (1, 1), (1, 2), (1, 3)];
    let free: Vec<(usize, u8)> =
        (0..8).flat_map(|n| places.map(|(byte, bit)| (n * 16 + byte, bit))).collect();
    forge_checksum(&mut bytes, &free, entry.extra_crc);
    client.write(list.offset, &bytes);
    let (home, report) = Home::adopt(world.map(Access::Home)).unwrap();
    home.check().unwrap();
    assert_eq!(report.dropped.iter().map(|one| one.id).collect::<Vec<_>>(), [Some(entry.id)]);
    assert!(home.find(Target::Name("other")).is_ok());
}
