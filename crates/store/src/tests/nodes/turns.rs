//! One actor runs at a time, chosen by a seed: threads that pass on a turn.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use farrow_testkit::random::Random;

/// An actor passes the turn on at one in this many points where it could.
const PASS_ONE_IN: u64 = 3;

thread_local! {
    static ACTOR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The actor whose turn it is.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<TurnState>,
    changed: Condvar,
}

#[derive(Debug)]
struct TurnState {
    current: usize,
    live: Vec<usize>,
    random: Random,
}

/// Participation of an actor. Dropping it passes the turn on, also during a panic.
pub(super) struct TurnOfActor<'a>(&'a Turns);

impl Drop for TurnOfActor<'_> {
    fn drop(&mut self) {
        let me = ACTOR.take();
        let mut state = self.0.state();
        state.live.retain(|actor| Some(*actor) != me);
        state.choose();
        self.0.changed.notify_all();
    }
}

impl TurnState {
    fn choose(&mut self) {
        let index = self.random.below(self.live.len() as u64) as usize;
        self.current = self.live.get(index).copied().unwrap_or_default();
    }
}

impl Turns {
    pub(super) fn new(actors: usize, seed: u64) -> Arc<Self> {
        let state =
            TurnState { current: 0, live: (0..actors).collect(), random: Random::new(seed) };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Participate as `actor`, once it is its turn.
    pub(super) fn take_part(&self, actor: usize) -> TurnOfActor<'_> {
        ACTOR.set(Some(actor));
        self.wait(self.state(), actor);
        TurnOfActor(self)
    }

    /// A point where other actors may run. No effect for a thread that does not participate.
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

    /// A point where other actors must run, because this one cannot continue without them.
    pub(super) fn must_pass(&self) {
        if let Some(me) = ACTOR.get() {
            let mut state = self.state();
            state.choose();
            self.changed.notify_all();
            self.wait(state, me);
        }
    }

    fn wait(&self, mut state: MutexGuard<'_, TurnState>, me: usize) {
        while state.current != me {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
