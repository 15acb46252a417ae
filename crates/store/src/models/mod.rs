//! The algorithms that processes share memory by, run in every order that memory allows.
//!
//! Loom runs a model in all interleavings, with all values that a weakly ordered machine may load.
//! The code is that of the crate; only the words are loom's. Each model has mutants, in which one
//! fence is left out or one order turned round, and which it must catch: a model that cannot fail
//! proves nothing.

mod directory;
mod hold;
mod life;
mod ring;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Threads are taken off a processor so often at most, where an algorithm does not ask for it;
/// errors that need more are rare, and each more costs an order of time.
const PREEMPTIONS_MAX: usize = 3;

/// All orders of a model; panics in one that breaks it.
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
