//! Models of the algorithms on shared memory, run in every order that the memory model allows.
//!
//! Loom runs a model in all interleavings, with all values that a weakly ordered machine may load.
//! The code is that of the crate; only the words are loom's. Each model has mutants that leave out
//! one fence or reverse one order, and must catch each of them: a model that cannot fail proves
//! nothing.

mod directory;
mod hold;
mod life;
mod ring;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::atomic::{AtomicU64, Ordering, fence};

use crate::seqlock::{RecordReader, RecordWriter};

/// Most preemptions in a run, besides the yields of the algorithm. Errors that need more are rare,
/// and each additional one multiplies the time.
const PREEMPTIONS_MAX: usize = 3;

/// Runs all orders of a model; panics in one that breaks it.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// A mutant must break its model.
fn must_break(mutant: &str, model: impl Fn() + Sync + Send + 'static) {
    let result = catch_unwind(AssertUnwindSafe(|| check(model)));
    assert!(result.is_err(), "the model does not see: {mutant}");
}

/// The part of a record's ordering that a mutant leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Omission {
    None,
    WriterFence,
    ReaderFence,
    /// The first word is stored without an order.
    Release,
}

/// Loom's words in place of mapped memory.
struct Record<'a> {
    words: &'a [AtomicU64],
    omission: Omission,
}

impl RecordWriter for Record<'_> {
    type Error = Infallible;

    fn store_first(&self, word: u64) -> Result<(), Infallible> {
        let is_relaxed = self.omission == Omission::Release;
        self.words[0].store(word, if is_relaxed { Ordering::Relaxed } else { Ordering::Release });
        Ok(())
    }

    fn store_rest(&self, words: &[u64]) -> Result<(), Infallible> {
        for (at, word) in (1..).zip(words) {
            self.words[at].store(*word, Ordering::Relaxed);
        }
        Ok(())
    }

    fn fence(&self) {
        if self.omission != Omission::WriterFence {
            fence(Ordering::Release);
        }
    }
}

impl RecordReader for Record<'_> {
    fn first(&self, order: Ordering) -> Option<u64> {
        Some(self.words[0].load(order))
    }

    fn word(&self, index: usize) -> Option<u64> {
        Some(self.words[index].load(Ordering::Relaxed))
    }

    fn fence(&self) {
        if self.omission != Omission::ReaderFence {
            fence(Ordering::Acquire);
        }
    }
}
