//! One actor runs at a time, and a seed says which: threads that hand on a turn.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use farrow_testkit::random::Random;

/// An actor hands the turn on at one in so many places where it could.
const PASS_ONE_IN: u64 = 3;

thread_local! {
    static ACTOR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    current: usize,
    live: Vec<usize>,
    random: Random,
}

/// An actor that takes part. The turn goes on when it is dropped, also by a panic.
pub(super) struct Part<'a>(&'a Turns);

impl Drop for Part<'_> {
    fn drop(&mut self) {
        let me = ACTOR.take();
        let mut state = self.0.state();
        state.live.retain(|actor| Some(*actor) != me);
        state.choose();
        self.0.changed.notify_all();
    }
}

impl State {
    fn choose(&mut self) {
        let index = self.random.below(self.live.len() as u64) as usize;
        self.current = self.live.get(index).copied().unwrap_or_default();
    }
}

impl Turns {
    pub(super) fn new(actors: usize, seed: u64) -> Arc<Self> {
        let state = State { current: 0, live: (0..actors).collect(), random: Random::new(seed) };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Take part as `actor`, once it is its turn.
    pub(super) fn take_part(&self, actor: usize) -> Part<'_> {
        ACTOR.set(Some(actor));
        self.wait(self.state(), actor);
        Part(self)
    }

    /// A place where others may act. Nothing for a thread that takes no part.
    pub(super) fn may_pass(&self) {
        if let Some(me) = ACTOR.get() {
            let mut state = self.state();
            if state.random.one_in(PASS_ONE_IN) {
                state.choose();
                self.changed.notify_all();
                self.wait(state, me);
            }
        }
    }

    /// A place where others must act, for this one cannot go on without them.
    pub(super) fn must_pass(&self) {
        if let Some(me) = ACTOR.get() {
            let mut state = self.state();
            state.choose();
            self.changed.notify_all();
            self.wait(state, me);
        }
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.current != me {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
