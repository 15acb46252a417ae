//! Each policy compared with a naive model: the same rows stay, within the capacity.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failure is the result

use farrow_bench_network::RowKey;
use farrow_bench_network::cache::{
    CacheLookup, CachedContent, Design, EMPTY_BYTES, Policy, ROW_BYTES, RowCache, RowCacheSettings,
};
use farrow_graph::ListKind;
use std::sync::Arc;

struct LinearCongruential(u64);

impl LinearCongruential {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The thesis' design, without a front.
fn settings(policy: Policy, capacity: usize, banks: usize) -> RowCacheSettings {
    RowCacheSettings {
        policy,
        content: CachedContent::Full,
        capacity,
        banks,
        design: Design::Thesis,
    }
}

fn key(account: u64) -> RowKey {
    RowKey::new(3, account as u32, ListKind::In)
}

fn row(account: u64) -> Arc<[u64]> {
    (0..1 + account % 7).map(|at| account << 8 | at).collect()
}

fn bytes(account: u64) -> usize {
    ROW_BYTES + 8 * row(account).len()
}

/// A naive model of a cache with one bank.
struct Naive {
    policy: Policy,
    capacity: usize,
    /// Account, times of insertion and of last use, number of uses.
    rows: Vec<(u64, u64, u64, u64)>,
    clock: u64,
}

impl Naive {
    fn get(&mut self, account: u64) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let found = self.rows.iter_mut().find(|row| row.0 == account);
        found.map(|row| (row.2, row.3) = (clock, row.3 + 1)).is_some()
    }

    fn put(&mut self, account: u64) {
        self.clock += 1;
        let used =
            |rows: &[(u64, u64, u64, u64)]| rows.iter().map(|row| bytes(row.0)).sum::<usize>();
        while used(&self.rows) + bytes(account) > self.capacity {
            let first = self.rows.iter().enumerate().min_by_key(|(_, row)| match self.policy {
                Policy::Fifo => (0, row.1),
                Policy::Lru => (0, row.2),
                Policy::Lfu => (row.3, row.2),
                Policy::Random => panic!("nobody knows"),
            });
            let first = first.unwrap().0;
            self.rows.remove(first);
        }
        self.rows.push((account, self.clock, self.clock, 1));
    }
}

#[test]
fn each_policy_keeps_the_rows_that_a_naive_model_keeps() {
    for policy in [Policy::Fifo, Policy::Lru, Policy::Lfu] {
        let cache = RowCache::new(settings(policy, 4096, 1));
        // A sixteenth is for empty rows.
        let mut naive = Naive { policy, capacity: 4096 - 256, rows: Vec::new(), clock: 0 };
        let mut random = LinearCongruential(policy as u64 + 1);
        for step in 0..20_000 {
            // Some accounts are requested far more often.
            let range = 1 + random.below(60);
            let account = random.below(range);
            let (found, expected) = (cache.get(key(account)), naive.get(account));
            assert_eq!(
                found != CacheLookup::Missing,
                expected,
                "{policy:?}, step {step}: {account}"
            );
            match found {
                CacheLookup::Row(found) => assert_eq!(found, row(account)),
                _ => {
                    cache.put(key(account), &row(account));
                    naive.put(account);
                }
            }
            let used: usize = naive.rows.iter().map(|row| bytes(row.0)).sum();
            assert_eq!(cache.bytes(), used, "{policy:?}, step {step}");
        }
        let counters = cache.counters();
        assert_eq!(counters.hits + counters.misses, 20_000);
        assert_eq!(counters.evictions, counters.misses - naive.rows.len() as u64);
        assert!(counters.hits > 1000 && counters.evictions > 1000, "{counters:?}");
    }
}

#[test]
fn random_replacement_takes_any_row_and_only_rows_that_are_there() {
    let cache = RowCache::new(settings(Policy::Random, 4096, 1));
    let mut random = LinearCongruential(9);
    let (mut present, mut quarters) = (Vec::new(), Vec::new());
    for _ in 0..5_000 {
        let account = random.below(200);
        if cache.knows(key(account)) {
            continue;
        }
        cache.put(key(account), &row(account));
        let count = present.len();
        let gone = |(at, known): (usize, &u64)| (!cache.knows(key(*known))).then(|| at * 4 / count);
        quarters.extend(present.iter().enumerate().filter_map(gone));
        present.retain(|&known| cache.knows(key(known)));
        present.push(account);
        assert_eq!(cache.bytes(), present.iter().map(|&known| bytes(known)).sum::<usize>());
    }
    assert_eq!(cache.counters().evictions, quarters.len() as u64);
    // Old ones and young ones alike.
    for quarter in 0..4 {
        let share = quarters.iter().filter(|one| **one == quarter).count();
        assert!(share * 5 > quarters.len(), "{share} of {} in {quarter}", quarters.len());
    }
}

#[test]
fn no_cache_grows_beyond_its_capacity() {
    for policy in Policy::ALL {
        for (capacity, banks) in [(0, 1), (100, 1), (5_000, 3), (40_000, 16)] {
            for (content, design) in [
                (CachedContent::Full, Design::Ours),
                (CachedContent::Full, Design::Thesis),
                (CachedContent::Vertices, Design::Ours),
            ] {
                let cache = RowCache::new(RowCacheSettings {
                    content,
                    design,
                    ..settings(policy, capacity, banks)
                });
                let mut random = LinearCongruential(5);
                for _ in 0..3_000 {
                    let account = random.below(2_000);
                    if cache.get(key(account)) == CacheLookup::Missing {
                        let is_empty = random.below(3) == 0;
                        let row = if is_empty { Arc::new([]) } else { row(account) };
                        cache.put(key(account), &row);
                    }
                    assert!(
                        cache.bytes() <= capacity,
                        "{policy:?}: {} of {capacity}",
                        cache.bytes()
                    );
                }
                assert_eq!(cache.bytes() > 0, capacity > 100, "{policy:?} of {capacity} bytes");
            }
        }
    }
}

#[test]
fn empty_rows_push_out_each_other_and_nothing_else() {
    let capacity = 16 * 24 * 10;
    let cache = RowCache::new(settings(Policy::Lru, capacity, 1));
    let empty: Arc<[u64]> = Arc::new([]);
    cache.put(key(1), &row(1));
    for account in 100..200 {
        assert_eq!(cache.get(key(account)), CacheLookup::Missing);
        cache.put(key(account), &empty);
    }
    assert_eq!(cache.get(key(1)), CacheLookup::Row(row(1)));
    let empties = (100..200).filter(|&account| cache.knows(key(account)));
    assert_eq!(empties.collect::<Vec<_>>(), (190..200).collect::<Vec<_>>(), "the newest ten");
    assert_eq!(cache.get(key(195)), CacheLookup::Row(Arc::new([])));
    let counters = cache.counters();
    assert_eq!((counters.hits, counters.negative_hits), (1, 1));
    assert_eq!((counters.negative_evictions, counters.evictions), (90, 0));
    assert_eq!(cache.bytes(), bytes(1) + 10 * EMPTY_BYTES);
}

#[test]
fn vertices_are_lengths_and_the_thesis_copies() {
    let vertices =
        RowCacheSettings { content: CachedContent::Vertices, ..settings(Policy::Lru, 4096, 2) };
    let cache = RowCache::new(vertices);
    cache.put(key(6), &row(6));
    assert_eq!(cache.get(key(6)), CacheLookup::Length(7));
    assert_eq!((cache.counters().hits, cache.counters().misses), (0, 1));
    for design in [Design::Ours, Design::Thesis] {
        let cache = RowCache::new(RowCacheSettings { design, ..settings(Policy::Lru, 4096, 2) });
        let kept = row(6);
        cache.put(key(6), &kept);
        let CacheLookup::Row(found) = cache.get(key(6)) else { panic!("it is there") };
        assert_eq!(found, kept);
        assert_eq!(Arc::ptr_eq(&found, &kept), design == Design::Ours);
    }
}
