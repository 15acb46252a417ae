//! A client that seals by itself, a home that ends lives, a reader: an entry is of one life.

use std::convert::Infallible;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use super::{check, must_break};
use crate::seqlock::{self, RecordReader, RecordWriter};

const WORDS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    ClientWithoutFence,
    ReaderWithoutFence,
}

struct Entry {
    mutant: Mutant,
    /// Written by the home.
    life: AtomicU64,
    /// Written by the client.
    words: [AtomicU64; WORDS],
}

impl RecordWriter for Entry {
    type Error = Infallible;

    fn store_first(&self, word: u64) -> Result<(), Infallible> {
        self.words[0].store(word, Ordering::Release);
        Ok(())
    }

    fn store_rest(&self, words: &[u64]) -> Result<(), Infallible> {
        for (at, word) in (1..).zip(words) {
            self.words[at].store(*word, Ordering::Relaxed);
        }
        Ok(())
    }

    fn fence(&self) {
        if self.mutant != Mutant::ClientWithoutFence {
            fence(Ordering::Release);
        }
    }
}

impl RecordReader for Entry {
    fn first(&self, order: Ordering) -> Option<u64> {
        Some(self.words[0].load(order))
    }

    fn word(&self, index: usize) -> Option<u64> {
        Some(self.words[index].load(Ordering::Relaxed))
    }

    fn fence(&self) {
        if self.mutant != Mutant::ReaderWithoutFence {
            fence(Ordering::Acquire);
        }
    }
}

fn sealed(life: u64) -> u64 {
    life * 8 + 2
}

fn seal(entry: &Entry, life: u64) {
    let Ok(()) = seqlock::fill(entry, life * 8 + 1, &[life * 100]);
    let Ok(()) = entry.store_first(sealed(life));
}

fn read(entry: &Entry) {
    let life = entry.life.load(Ordering::Acquire);
    let is_open = || entry.life.load(Ordering::Acquire) == life;
    if let Some(words) = seqlock::copy_in_life::<WORDS>(entry, sealed(life), is_open) {
        assert_eq!(words, [sealed(life), life * 100], "an entry of two lives");
    }
}

fn model(mutant: Mutant) {
    let entry = Arc::new(Entry {
        mutant,
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
    check(|| model(Mutant::None));
}

#[test]
fn a_client_without_its_fence_is_caught() {
    must_break("no fence between opening and filling", || model(Mutant::ClientWithoutFence));
}

#[test]
fn a_reader_without_its_fence_is_caught() {
    must_break("no fence between copying and looking again", || model(Mutant::ReaderWithoutFence));
}
