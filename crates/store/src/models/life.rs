//! A client that seals without the home, a home that ends lives, a reader: an entry is of one life.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Omission, Record, check, must_break};
use crate::seqlock::{self, RecordWriter};

const WORDS: usize = 2;

struct Entry {
    omission: Omission,
    /// Written by the home.
    life: AtomicU64,
    /// Written by the client.
    words: [AtomicU64; WORDS],
}

impl Entry {
    fn record(&self) -> Record<'_> {
        Record { words: &self.words, omission: self.omission }
    }
}

fn sealed(life: u64) -> u64 {
    life * 8 + 2
}

fn seal(entry: &Entry, life: u64) {
    let Ok(()) = seqlock::fill(&entry.record(), life * 8 + 1, &[life * 100]);
    let Ok(()) = entry.record().store_first(sealed(life));
}

fn read(entry: &Entry) {
    let life = entry.life.load(Ordering::Acquire);
    let is_open = || entry.life.load(Ordering::Acquire) == life;
    if let Some(words) = seqlock::copy_in_life::<WORDS>(&entry.record(), sealed(life), is_open) {
        assert_eq!(words, [sealed(life), life * 100], "an entry of two lives");
    }
}

fn model(omission: Omission) {
    let entry = Arc::new(Entry {
        omission,
        life: AtomicU64::new(1),
        words: [(); WORDS].map(|()| AtomicU64::new(0)),
    });
    seal(&entry, 1);
    let home = {
        let entry = Arc::clone(&entry);
        thread::spawn(move || entry.life.store(2, Ordering::Release))
    };
    let client = {
        let entry = Arc::clone(&entry);
        thread::spawn(move || {
            if entry.life.load(Ordering::Acquire) == 2 {
                seal(&entry, 2);
            }
        })
    };
    read(&entry);
    home.join().expect("the home");
    client.join().expect("the client");
    read(&entry);
}

#[test]
fn no_entry_is_of_two_lives() {
    check(|| model(Omission::None));
}

#[test]
fn a_client_without_its_fence_is_caught() {
    must_break("no fence between opening and filling", || model(Omission::WriterFence));
}

#[test]
fn a_reader_without_its_fence_is_caught() {
    must_break("no fence between copying and looking again", || model(Omission::ReaderFence));
}
