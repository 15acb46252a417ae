//! One writer of events and one reader: no event is torn or silently lost.

use std::convert::Infallible;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Omission, Record, check, must_break};
use crate::events::ring::{self, Pulled, RingRead, RingWrite};
use crate::seqlock::{RecordReader, RecordWriter};

const WORDS: usize = 3;
const CAPACITY: u32 = 1;
const EVENTS: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum RingMutant {
    Order(Omission),
    HeadFirst,
}

struct Ring {
    mutant: RingMutant,
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Ring {
    fn record(&self, first: usize) -> Record<'_> {
        let omission = match self.mutant {
            RingMutant::Order(omission) => omission,
            RingMutant::HeadFirst => Omission::None,
        };
        Record { words: &self.words[first..], omission }
    }
}

impl RingRead for Ring {
    fn head(&self) -> Option<u64> {
        Some(self.head.load(Ordering::Acquire))
    }

    fn place(&self, first: usize) -> impl RecordReader {
        self.record(first)
    }
}

impl RingWrite for Ring {
    type Error = Infallible;

    fn place(&self, first: usize) -> impl RecordWriter<Error = Infallible> {
        self.record(first)
    }

    fn store_head(&self, head: u64) -> Result<(), Infallible> {
        self.head.store(head, Ordering::Release);
        Ok(())
    }
}

fn write(ring: &Ring) {
    for number in 0..EVENTS {
        if ring.mutant == RingMutant::HeadFirst {
            let Ok(()) = ring.store_head(number + 1);
        }
        let Ok(()) = ring::draft(ring, number, CAPACITY, &[0, 10 + number, 20 + number]);
        let Ok(()) = ring::publish::<_, WORDS>(ring, number, CAPACITY);
    }
}

/// Reads until the end, or at most [`EVENTS`] times.
fn read(ring: &Ring, cursor: &mut u64, seen: &mut u64) {
    for _ in 0..EVENTS {
        match ring::pull::<WORDS>(ring, *cursor, CAPACITY).expect("memory") {
            Pulled::Nothing => return,
            Pulled::Words(words) => {
                assert_eq!(words[1..], [10 + *cursor, 20 + *cursor], "a torn event");
                *cursor += 1;
                *seen += 1;
            }
            Pulled::Lapped(oldest) => {
                assert!(oldest > *cursor, "no way on");
                // Nothing overwrites the last event.
                assert!(oldest < EVENTS, "an event was called missed that was to come");
                *seen += oldest - *cursor;
                *cursor = oldest;
            }
        }
    }
}

fn model(mutant: RingMutant) {
    let ring = Arc::new(Ring {
        mutant,
        head: AtomicU64::new(0),
        words: [(); WORDS].map(|()| AtomicU64::new(0)),
    });
    let writer = {
        let ring = Arc::clone(&ring);
        thread::spawn(move || write(&ring))
    };
    let (mut cursor, mut seen) = (0, 0);
    read(&ring, &mut cursor, &mut seen);
    writer.join().expect("the writer");
    read(&ring, &mut cursor, &mut seen);
    assert_eq!((cursor, seen), (EVENTS, EVENTS), "events seen and told to be missed");
    // A new reader finds the last event.
    assert!(matches!(ring::pull::<WORDS>(&*ring, EVENTS - 1, CAPACITY), Some(Pulled::Words(_))));
}

#[test]
fn no_event_is_torn_or_lost_unsaid() {
    check(|| model(RingMutant::Order(Omission::None)));
}

#[test]
fn a_writer_without_its_fence_is_caught() {
    must_break("no fence between opening and filling", || {
        model(RingMutant::Order(Omission::WriterFence))
    });
}

#[test]
fn a_reader_without_its_fence_is_caught() {
    must_break("no fence between copying and looking again", || {
        model(RingMutant::Order(Omission::ReaderFence))
    });
}

#[test]
fn a_head_that_runs_ahead_is_caught() {
    must_break("the head before the event", || model(RingMutant::HeadFirst));
}
