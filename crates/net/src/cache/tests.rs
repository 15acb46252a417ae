//! Room, eviction and adjacent objects, without sockets.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farrow_memory::{FileMap, Length, Offset, Span};
use proptest::prelude::*;
use rustix::fs::MemfdFlags;

use super::{Cache, Mirror, MirrorHold, RemoveOutcome};
use crate::CHUNK_BYTES;
use crate::error::CacheError;

const NO_TIME: Duration = Duration::ZERO;
/// Limit of waits for conditions that must occur.
const LONG: Duration = Duration::from_secs(20);

fn sparse(length: u64) -> Arc<FileMap> {
    let file = rustix::fs::memfd_create("mirror", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, length).unwrap();
    Arc::new(FileMap::new(file, 0, Length(length), true).unwrap())
}

fn span(offset: u64, length: u64) -> Span {
    Span::new(Offset(offset), Length(length))
}

fn chunks(first: u64, count: u64) -> Span {
    span(first * CHUNK_BYTES, count * CHUNK_BYTES)
}

fn setup(limit_chunks: u64) -> (Arc<Cache>, Arc<Mirror>) {
    let cache = Cache::new(Length(limit_chunks * CHUNK_BYTES));
    let mirror = cache.mirror(sparse(256 * CHUNK_BYTES), Length(CHUNK_BYTES)).unwrap();
    (cache, mirror)
}

/// Fetches the ranges of an object, whose bytes are its key.
fn fill(held: &MirrorHold, ranges: &[Span]) -> Result<(), CacheError> {
    let claim = held.claim(ranges, NO_TIME)?;
    for span in claim.spans().to_vec() {
        claim.put(span.offset, &vec![held.key() as u8; span.length.as_usize()])?;
    }
    Ok(())
}

fn bytes_of(mirror: &Mirror, span: Span) -> &[u8] {
    mirror.map().sealed(span).unwrap()
}

#[test]
fn what_is_complete_is_claimed_by_no_thread() {
    let (cache, mirror) = setup(4);
    let held = mirror.insert(7, &[chunks(3, 3)], NO_TIME).unwrap();
    assert!(!held.is_complete(&[chunks(4, 1)]).unwrap());
    let first = held.claim(&[chunks(4, 1)], NO_TIME).unwrap();
    let second = held.claim(&[chunks(3, 3)], NO_TIME).unwrap();
    assert_eq!(first.spans(), [chunks(4, 1)]);
    assert_eq!(second.spans(), [chunks(3, 1), chunks(5, 1)], "the middle is on its way");
    second.complete(chunks(3, 1));
    first.complete(chunks(4, 1));
    assert!(held.is_complete(&[chunks(3, 2)]).unwrap());
    drop(second);
    assert_eq!(cache.stats().used, 2 * CHUNK_BYTES, "what did not come is given back");
    assert_eq!(held.claim(&[chunks(3, 3)], NO_TIME).unwrap().spans(), [chunks(5, 1)]);
    let outside = held.claim(&[chunks(5, 2)], NO_TIME);
    assert!(matches!(outside, Err(CacheError::NotInObject { object: 7, .. })), "{outside:?}");
}

/// Readers may still have the file mapped. Regression test: the ends of blocks within a chunk were
/// freed, and with them pages that clients had mapped.
#[test]
fn a_retained_file_has_its_bytes_after_its_mirror() {
    let unaligned = span(10 * CHUNK_BYTES + 128, CHUNK_BYTES);
    let within_one = span(20 * CHUNK_BYTES + 4096, 8192);
    for (block, is_retained) in [chunks(3, 2), unaligned, within_one]
        .into_iter()
        .flat_map(|block| [(block, false), (block, true)])
    {
        let (cache, mirror) = setup(4);
        if is_retained {
            mirror.keep_file();
        }
        let held = mirror.insert(7, &[block], NO_TIME).unwrap();
        fill(&held, &[block]).unwrap();
        let map = Arc::clone(mirror.map());
        let committed = map.committed().unwrap();
        drop((held, mirror));
        // Before the look at the bytes, which brings pages back.
        let left = if is_retained { committed } else { Length(0) };
        assert_eq!(map.committed().unwrap(), left, "{block}, kept: {is_retained}");
        let expected = if is_retained { 7 } else { 0 };
        let bytes = map.sealed(block).unwrap();
        assert!(bytes.iter().all(|byte| *byte == expected), "{block}, kept: {is_retained}");
        assert_eq!((cache.stats().used, cache.stats().objects), (0, 0));
    }
}

#[test]
fn the_least_recently_used_goes_and_nothing_that_is_held_or_arriving() {
    let (cache, mirror) = setup(4);
    let objects: Vec<_> = (0..4).map(|key| chunks(10 * key, 1)).collect();
    let mut held: Vec<_> = (0..4_u64)
        .map(|key| mirror.insert(key, &[objects[key as usize]], NO_TIME).unwrap())
        .collect();
    for (held, object) in held.iter().zip(&objects) {
        fill(held, &[*object]).unwrap();
    }
    let new = mirror.insert(9, &[chunks(100, 2)], NO_TIME).unwrap();
    let refused = new.claim(&[chunks(100, 2)], Duration::from_millis(5));
    assert!(matches!(refused, Err(CacheError::NoRoom { .. })), "{refused:?}");
    // Order of last use: 2, 0, 3, 1.
    for key in [2, 0, 3, 1] {
        drop(mirror.hold(key).unwrap());
    }
    let mut order = std::mem::take(&mut held).into_iter().map(Some).collect::<Vec<_>>();
    for key in [2_usize, 0, 3, 1] {
        order[key] = None;
    }
    let claim = new.claim(&[chunks(100, 2)], NO_TIME).unwrap();
    assert!(mirror.hold(2).is_none() && mirror.hold(0).is_none());
    assert!(mirror.hold(3).is_some() && mirror.hold(1).is_some());
    assert_eq!(cache.stats().evicted_objects, 2);
    assert!(bytes_of(&mirror, objects[2]).iter().all(|byte| *byte == 0));
    // Objects with a claim are not evictable, even without a hold.
    drop(new);
    let large = mirror.insert(10, &[chunks(110, 3)], NO_TIME).unwrap();
    let refused = large.claim(&[chunks(110, 3)], Duration::from_millis(5));
    assert!(matches!(refused, Err(CacheError::NoRoom { .. })), "{refused:?}");
    assert!(mirror.hold(3).is_some(), "all that is needed goes, or nothing");
    drop(claim);
    assert_eq!(large.claim(&[chunks(110, 3)], NO_TIME).unwrap().length(), Length(3 * CHUNK_BYTES));
}

#[test]
fn more_than_the_cache_is_refused_at_once_with_both_numbers() {
    let (_, mirror) = setup(2);
    let held = mirror.insert(1, &[chunks(0, 3)], NO_TIME).unwrap();
    let (requested, limit) = (Length(3 * CHUNK_BYTES), Length(2 * CHUNK_BYTES));
    match held.claim(&[chunks(0, 3)], LONG) {
        Err(CacheError::TooLarge { requested: a, limit: l }) => {
            assert_eq!((a, l), (requested, limit))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_waits_for_room_gets_it_in_the_order_of_arrival() {
    let (cache, mirror) = setup(4);
    let first = mirror.insert(1, &[chunks(0, 4)], NO_TIME).unwrap();
    fill(&first, &[chunks(0, 4)]).unwrap();
    let (sender, order) = channel();
    let mut threads = Vec::new();
    // The second would fit where the first does not.
    for (key, count) in [(2, 3), (3, 2)] {
        let held = mirror.insert(key, &[chunks(10 * key, count)], NO_TIME).unwrap();
        let sender = sender.clone();
        threads.push(thread::spawn(move || {
            let claim = held.claim(&[chunks(10 * key, count)], LONG).unwrap();
            sender.send(key).unwrap();
            claim
        }));
        while cache.stats().waiters < key - 1 {
            thread::yield_now();
        }
    }
    assert!(order.try_recv().is_err());
    drop(first);
    assert_eq!(order.recv_timeout(LONG), Ok(2));
    assert!(order.try_recv().is_err());
    drop(threads.remove(0).join().unwrap());
    assert_eq!(order.recv_timeout(LONG), Ok(3));
    drop(threads.remove(0).join().unwrap());
}

#[test]
fn a_waiter_that_gives_up_lets_the_next_pass() {
    let (cache, mirror) = setup(4);
    let retained = mirror.insert(1, &[chunks(0, 2)], NO_TIME).unwrap();
    fill(&retained, &[chunks(0, 2)]).unwrap();
    let large = mirror.insert(2, &[chunks(10, 3)], NO_TIME).unwrap();
    let waits =
        thread::spawn(move || large.claim(&[chunks(10, 3)], Duration::from_millis(200)).map(drop));
    while cache.stats().waiters == 0 {
        thread::yield_now();
    }
    let small = mirror.insert(3, &[chunks(20, 1)], NO_TIME).unwrap();
    assert_eq!(small.claim(&[chunks(20, 1)], LONG).unwrap().length().0, CHUNK_BYTES);
    let gave_up = waits.join().unwrap();
    assert!(matches!(gave_up, Err(CacheError::NoRoom { .. })), "{gave_up:?}");
    assert_eq!(cache.stats().waiters, 0);
}

/// Regression test: the blocks of such an object were claimed as one span. The home refused it, and
/// the parts stayed arriving for ever.
#[test]
fn adjacent_blocks_of_one_object_are_claimed_apart() {
    let (cache, mirror) = setup(12);
    let blocks = [span(0, 100_000), span(100_000, 100_000)];
    let held = mirror.insert(1, &blocks, NO_TIME).unwrap();
    for _ in 0..2 {
        let claim = held.claim(&blocks, NO_TIME).unwrap();
        assert_eq!(claim.spans(), blocks);
        drop(claim);
        assert_eq!(cache.stats().used, 0);
    }
    fill(&held, &blocks).unwrap();
    assert!(held.is_complete(&blocks).unwrap());
}

/// The end of one object and the start of the next share a chunk; small objects share a page.
#[test]
fn neighbours_keep_their_bytes() {
    let (cache, mirror) = setup(8);
    let spans = [span(100, 200), span(300, 70_000), span(70_300, 128), span(70_428, 1000)];
    let mut all: Vec<_> = (1..)
        .zip(spans)
        .map(|(key, span)| Some(mirror.insert(key, &[span], NO_TIME).unwrap()))
        .collect();
    for (held, span) in all.iter().flatten().zip(spans) {
        fill(held, &[span]).unwrap();
    }
    assert_eq!(cache.stats().used, 2 * CHUNK_BYTES, "shared chunks count once");
    all[1] = None;
    assert_eq!(mirror.remove(2), RemoveOutcome::Removed);
    for (key, span) in (1..).zip(spans) {
        let expected = if key == 2 { 0 } else { key };
        assert!(bytes_of(&mirror, span).iter().all(|byte| *byte == expected), "object {key}");
    }
    assert_eq!(cache.stats().used, 2 * CHUNK_BYTES);
    all.clear();
    for key in [1, 3, 4] {
        assert_eq!(mirror.remove(key), RemoveOutcome::Removed);
    }
    assert_eq!(cache.stats().used, 0);
    assert_eq!(mirror.map().committed().unwrap(), Length(0), "and so does the file");
}

#[test]
fn a_new_object_replaces_deleted_ones_but_never_bytes_that_are_held() {
    let (_, mirror) = setup(8);
    let old = mirror.insert(1, &[chunks(0, 2)], NO_TIME).unwrap();
    fill(&old, &[chunks(0, 2)]).unwrap();
    let refused = mirror.insert(2, &[chunks(1, 2)], NO_TIME);
    assert!(matches!(refused, Err(CacheError::Overlap { other: 1, .. })), "{refused:?}");
    let other_blocks = mirror.insert(1, &[chunks(0, 3)], NO_TIME);
    assert!(matches!(other_blocks, Err(CacheError::OtherBlocks { object: 1 })));
    assert_eq!(mirror.remove(1), RemoveOutcome::InUse);
    assert!(mirror.hold(1).is_none(), "deleted");
    assert!(matches!(mirror.insert(1, &[chunks(0, 2)], NO_TIME), Err(CacheError::Removed { .. })));
    assert!(bytes_of(&mirror, chunks(0, 2)).iter().all(|byte| *byte == 1), "but held");
    drop(old);
    assert_eq!(mirror.remove(1), RemoveOutcome::Unknown);
    let new = mirror.insert(2, &[chunks(1, 2)], NO_TIME).unwrap();
    assert!(!new.is_complete(&[chunks(1, 1)]).unwrap(), "nothing of the old one counts");
    assert!(mirror.insert(3, &[chunks(9, 2), chunks(10, 1)], NO_TIME).is_err(), "overlaps itself");
    assert!(mirror.insert(4, &[chunks(255, 2)], NO_TIME).is_err(), "outside");
}

#[test]
fn a_mirror_that_ends_gives_its_room_back() {
    let (cache, mirror) = setup(4);
    let held = mirror.insert(1, &[chunks(0, 4)], NO_TIME).unwrap();
    fill(&held, &[chunks(0, 4)]).unwrap();
    drop(mirror);
    assert_eq!(cache.stats().used, 4 * CHUNK_BYTES, "held");
    drop(held);
    assert_eq!(cache.stats(), super::CacheStats { limit: 4 * CHUNK_BYTES, ..Default::default() });
}

#[derive(Debug, Clone)]
enum CacheStep {
    Insert { key: u64, at: u64, length: u64 },
    Release { which: usize },
    Fill { which: usize, from: u64, length: u64 },
    Abandon { which: usize },
    Remove { key: u64 },
}

fn step() -> impl Strategy<Value = CacheStep> {
    let length = prop_oneof![1..2000_u64, 1..5 * CHUNK_BYTES];
    prop_oneof![
        3 => (1..200_u64, 0..48 * CHUNK_BYTES, length)
            .prop_map(|(key, at, length)| CacheStep::Insert { key, at, length }),
        2 => any::<usize>().prop_map(|which| CacheStep::Release { which }),
        4 => (any::<usize>(), 0..5 * CHUNK_BYTES, 1..5 * CHUNK_BYTES)
            .prop_map(|(which, from, length)| CacheStep::Fill { which, from, length }),
        1 => any::<usize>().prop_map(|which| CacheStep::Abandon { which }),
        1 => (1..200_u64).prop_map(|key| CacheStep::Remove { key }),
    ]
}

/// A reader's hold, and the bytes that it knows to be complete.
struct CacheReader {
    held: MirrorHold,
    block: Span,
    complete: Vec<Span>,
}

fn within(block: Span, from: u64, length: u64) -> Option<Span> {
    span(block.offset.0 + from, length).intersection(block)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Memory always stays within the limit, and complete parts of held objects have the right
    /// bytes. An abandoned claim leaves partly written bytes.
    #[test]
    fn the_limit_holds_and_bytes_are_right(
        steps in proptest::collection::vec(step(), 1..80),
        limit_chunks in 3..16_u64,
        grain_chunks in prop_oneof![Just(1_u64), Just(4)],
    ) {
        let limit = limit_chunks * CHUNK_BYTES;
        let cache = Cache::new(Length(limit));
        let map = sparse(64 * CHUNK_BYTES);
        let mirror = cache.mirror(map, Length(grain_chunks * CHUNK_BYTES));
        prop_assume!(mirror.is_ok());
        let mirror = mirror.unwrap();
        let mut readers: Vec<CacheReader> = Vec::new();
        for step in steps {
            match step {
                CacheStep::Insert { key, at, length } => {
                    let block = span(at, length);
                    if let Ok(held) = mirror.insert(key, &[block], NO_TIME) {
                        readers.push(CacheReader { held, block, complete: Vec::new() });
                    }
                }
                CacheStep::Release { which } if !readers.is_empty() => {
                    readers.swap_remove(which % readers.len());
                }
                CacheStep::Fill { which, from, length } if !readers.is_empty() => {
                    let at = which % readers.len();
                    let reader = &mut readers[at];
                    if let Some(range) = within(reader.block, from, length)
                        && fill(&reader.held, &[range]).is_ok()
                    {
                        prop_assert!(reader.held.is_complete(&[range]).unwrap());
                        reader.complete.push(range);
                    }
                }
                CacheStep::Abandon { which } if !readers.is_empty() => {
                    let reader = &readers[which % readers.len()];
                    if let Ok(claim) = reader.held.claim(&[reader.block], NO_TIME) {
                        for span in claim.spans() {
                            claim.map().write(span.offset, &vec![0xFF; span.length.as_usize()])
                                .unwrap();
                        }
                    }
                }
                CacheStep::Remove { key } => drop(mirror.remove(key)),
                _ => {}
            }
            let committed = mirror.map().committed().unwrap().0;
            let stats = cache.stats();
            prop_assert!(committed <= stats.used, "{committed} {stats:?}");
            prop_assert!(stats.used <= limit, "{stats:?}");
        }
        for reader in &readers {
            for range in &reader.complete {
                let key = reader.held.key() as u8;
                prop_assert!(reader.held.is_complete(&[*range]).unwrap());
                prop_assert!(bytes_of(&mirror, *range).iter().all(|byte| *byte == key));
            }
        }
        drop(readers);
        drop(mirror);
        prop_assert_eq!(cache.stats().used, 0);
    }
}

/// Threads fetch, read and abandon more objects than fit.
#[test]
fn threads_never_see_wrong_bytes_or_exceed_the_limit() {
    let (cache, mirror) = setup(12);
    let threads: Vec<_> = (0..4_u64)
        .map(|seed| {
            let (mirror, cache) = (Arc::clone(&mirror), Arc::clone(&cache));
            thread::spawn(move || {
                let mut random = seed * 7 + 1;
                for _ in 0..400 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let key = 1 + (random >> 40) % 10;
                    // Unaligned, so that adjacent objects share chunks.
                    let block = span(key * 150_000, 150_000);
                    let held = mirror.insert(key, &[block], LONG).unwrap();
                    let is_to_fail = (random >> 60) == 0;
                    while !held.is_complete(&[block]).unwrap() {
                        let claim = held.claim(&[block], LONG).unwrap();
                        for span in claim.spans().to_vec() {
                            let byte = if is_to_fail { 0xFF } else { key as u8 };
                            let bytes = vec![byte; span.length.as_usize()];
                            claim.map().write(span.offset, &bytes).unwrap();
                            if !is_to_fail {
                                claim.complete(span);
                            }
                        }
                        drop(claim);
                        if is_to_fail {
                            break;
                        }
                        held.wait_for_fetches(&[block], LONG).unwrap();
                    }
                    if held.is_complete(&[block]).unwrap() {
                        let bytes = mirror.map().sealed(block).unwrap();
                        assert!(bytes.iter().all(|byte| *byte == key as u8), "object {key}");
                    }
                    assert!(cache.stats().used <= 12 * CHUNK_BYTES);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(cache.stats().evicted_objects > 0);
}
