//! What is kept of accounts with many edges from one batch to the next.
//!
//! Only a graph in order of time keeps anything: each trigger then sees what the one before it saw
//! and a little more. A worker takes a view out, moves it on, and puts it back.

use super::scatter_gather::Legs;
use crate::graph::{Side, Spread, Stamp};
pub(crate) use crate::running::LENGTH_MIN;
use crate::running::Running;
use hashbrown::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many views are looked through for those that are over.
const VIEWS_MIN: usize = if cfg!(debug_assertions) { 2 } else { 64 };

/// An account, its side, and the window.
pub(crate) type Place = (u32, bool, u64);

pub(crate) fn place(account: u32, side: Side, window: u64) -> Place {
    (account, side == Side::Out, window)
}

#[derive(Debug)]
struct Views<T> {
    stars: HashMap<Place, Running<T>, Spread>,
    legs: HashMap<Place, Legs<T>, Spread>,
    most: usize,
}

#[derive(Debug)]
pub(crate) struct Hubs<T> {
    views: Mutex<Views<T>>,
}

impl<T> Default for Hubs<T> {
    fn default() -> Hubs<T> {
        let (stars, legs) = (HashMap::default(), HashMap::default());
        Hubs { views: Mutex::new(Views { stars, legs, most: VIEWS_MIN }) }
    }
}

impl<T: Stamp> Hubs<T> {
    fn lock(&self) -> MutexGuard<'_, Views<T>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take_star(&self, place: Place) -> Option<Running<T>> {
        self.lock().stars.remove(&place)
    }

    pub(crate) fn put_star(&self, place: Place, star: Running<T>) {
        self.lock().stars.insert(place, star);
    }

    pub(crate) fn take_legs(&self, place: Place) -> Option<Legs<T>> {
        self.lock().legs.remove(&place)
    }

    pub(crate) fn put_legs(&self, place: Place, legs: Legs<T>) {
        self.lock().legs.insert(place, legs);
    }

    /// Forgets accounts whose last edge is older than all that a later trigger sees, and all of
    /// them where edges did not come in order.
    pub(crate) fn forget(&mut self, oldest: T, is_ordered: bool) {
        let Views { stars, legs, most } =
            self.views.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !is_ordered {
            stars.clear();
            legs.clear();
        }
        if stars.len() + legs.len() > *most {
            stars.retain(|_, one| one.newest().is_some_and(|newest| newest >= oldest));
            legs.retain(|_, one| one.newest() >= oldest);
            *most = (2 * (stars.len() + legs.len())).max(VIEWS_MIN);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let views = self.lock();
        views.stars.values().map(Running::bytes).sum::<usize>()
            + views.legs.values().map(Legs::bytes).sum::<usize>()
    }
}
