//! A client that seals without the home, a home that ends lives, a reader: an entry is of one life,
//! and so is the forward of an object that the home took over.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Omission, Record, check, must_break};
use crate::seqlock::{self, RecordWriter};

const WORDS: usize = 2;

struct LifeEntry {
    omission: Omission,
    /// Written by the home.
    life: AtomicU64,
    /// Written by the client.
    words: [AtomicU64; WORDS],
}

impl LifeEntry {
    fn record(&self) -> Record<'_> {
        Record { words: &self.words, omission: self.omission }
    }
}

fn sealed(life: u64) -> u64 {
    life * 8 + 2
}

fn seal(entry: &LifeEntry, life: u64) {
    let Ok(()) = seqlock::fill(&entry.record(), life * 8 + 1, &[life * 100]);
    let Ok(()) = entry.record().store_first(sealed(life));
}

fn read(entry: &LifeEntry) {
    let life = entry.life.load(Ordering::Acquire);
    let is_open = || entry.life.load(Ordering::Acquire) == life;
    if let Some(words) = seqlock::copy_in_life::<WORDS>(&entry.record(), sealed(life), is_open) {
        assert_eq!(words, [sealed(life), life * 100], "an entry of two lives");
    }
}

fn model(omission: Omission) {
    let entry = Arc::new(LifeEntry {
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

/// Where the home takes the object of a life over to.
const MOVED: u64 = 200;

/// A home that ends life 1, in which nothing was moved, and moves the object of life 2; a reader. With
/// `looks_twice` it is the crate's.
fn forward_model(looks_twice: bool) {
    let words = Arc::new((AtomicU64::new(1), AtomicU64::new(0)));
    let home = {
        let words = Arc::clone(&words);
        thread::spawn(move || {
            words.0.store(2, Ordering::Release);
            words.1.store(MOVED, Ordering::Release);
        })
    };
    let life = || words.0.load(Ordering::Acquire);
    let forward = || words.1.load(Ordering::Acquire);
    let seen = match looks_twice {
        true => seqlock::forward_in_life(life, forward),
        false => Some((life(), forward())),
    };
    if let Some((life, to)) = seen {
        assert!(life == 2 || to == 0, "life {life} has the forward of the next one");
    }
    home.join().expect("the home");
}

#[test]
fn no_forward_is_of_another_life() {
    check(|| forward_model(true));
}

#[test]
fn a_reader_without_its_second_look_is_caught() {
    must_break("no second look at the life", || forward_model(false));
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
