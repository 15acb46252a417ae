//! A home that publishes, changes and publishes again in one slot; a reader that looks it up.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::{Omission, Record, check, must_break};
use crate::seqlock::{self, Copied, RecordWriter};

const WORDS: usize = 3;
/// State sealed, in the low bits of this model's first word.
const SEALED: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectoryMutant {
    Order(Omission),
    SealedFirst,
}

struct DirectorySlot {
    mutant: DirectoryMutant,
    words: [AtomicU64; WORDS],
}

impl DirectorySlot {
    fn record(&self) -> Record<'_> {
        let omission = match self.mutant {
            DirectoryMutant::Order(omission) => omission,
            DirectoryMutant::SealedFirst => Omission::None,
        };
        Record { words: &self.words, omission }
    }
}

fn publish(slot: &DirectorySlot, life: u64) {
    let sealed = life * 8 + SEALED;
    let opened = if slot.mutant == DirectoryMutant::SealedFirst { sealed } else { life * 8 + 1 };
    let Ok(()) = seqlock::fill(&slot.record(), opened, &[life * 100, life * 100 + 1]);
    let Ok(()) = slot.record().store_first(sealed);
}

fn look(slot: &DirectorySlot) {
    match seqlock::copy::<WORDS>(&slot.record(), |first| first & 7 == SEALED).expect("memory") {
        Copied::Other | Copied::Changed => {}
        Copied::Words([first, one, other]) => {
            let life = first / 8;
            assert_eq!([one, other], [life * 100, life * 100 + 1], "a torn entry");
        }
    }
}

fn model(mutant: DirectoryMutant) {
    let slot = Arc::new(DirectorySlot { mutant, words: [(); WORDS].map(|()| AtomicU64::new(0)) });
    let home = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || {
            publish(&slot, 1);
            // Retired, freed, and used for another object.
            let Ok(()) = slot.record().store_first(8 + 4);
            publish(&slot, 2);
        })
    };
    look(&slot);
    look(&slot);
    home.join().expect("the home");
    let found = seqlock::copy::<WORDS>(&slot.record(), |first| first & 7 == SEALED);
    assert_eq!(found, Some(Copied::Words([18, 200, 201])), "what was published is found");
}

#[test]
fn no_entry_is_torn_in_any_life() {
    check(|| model(DirectoryMutant::Order(Omission::None)));
}

#[test]
fn a_writer_without_its_fence_is_caught() {
    must_break("no fence between opening and filling", || {
        model(DirectoryMutant::Order(Omission::WriterFence))
    });
}

#[test]
fn a_reader_without_its_fence_is_caught() {
    must_break("no fence between copying and looking again", || {
        model(DirectoryMutant::Order(Omission::ReaderFence))
    });
}

#[test]
fn a_publication_without_order_is_caught() {
    must_break("state sealed, relaxed", || model(DirectoryMutant::Order(Omission::Release)));
}

#[test]
fn an_entry_that_is_never_opened_is_caught() {
    must_break("state sealed before the words", || model(DirectoryMutant::SealedFirst));
}
