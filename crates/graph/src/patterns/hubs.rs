//! Windows of accounts with many edges, carried from batch to batch.
//!
//! This needs a graph in order of time, so that successive triggers see almost the same edges. A
//! worker takes a window out, advances it, and puts it back.

use super::legs::Legs;
use crate::accounts::AccountHash;
use crate::edge::Side;
use crate::edge::{Stamp, Visibility};
pub(crate) use crate::statistics::LENGTH_MIN;
use crate::statistics::SlidingWindow;
use hashbrown::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Legs are retained for accounts with at least this many edges. For fewer, a scan at each call
/// costs less than the memory.
pub(crate) const LEGS_RETAINED_MIN: usize = if cfg!(debug_assertions) { LENGTH_MIN } else { 512 };

/// The smallest number of windows above which stale ones are removed.
const VIEWS_MIN: usize = if cfg!(debug_assertions) { 2 } else { 64 };

/// The most `Legs` retained for one account: enough for the workers that share its triggers.
const LEGS_MAX: usize = 16;

/// An account, its side, and the width of the window.
pub(crate) type HubKey = (u32, bool, u64);

pub(crate) fn hub_key(account: u32, side: Side, window: u64) -> HubKey {
    (account, side == Side::Out, window)
}

#[derive(Debug)]
struct HubViews<T> {
    stars: HashMap<HubKey, SlidingWindow<T>, AccountHash>,
    legs: HashMap<HubKey, Vec<Legs<T>>, AccountHash>,
    most: usize,
}

#[derive(Debug)]
pub(crate) struct Hubs<T> {
    views: Mutex<HubViews<T>>,
}

impl<T> Default for Hubs<T> {
    fn default() -> Hubs<T> {
        let (stars, legs) = (HashMap::default(), HashMap::default());
        Hubs { views: Mutex::new(HubViews { stars, legs, most: VIEWS_MIN }) }
    }
}

impl<T: Stamp> Hubs<T> {
    fn lock(&self) -> MutexGuard<'_, HubViews<T>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take_star(&self, place: HubKey) -> Option<SlidingWindow<T>> {
        self.lock().stars.remove(&place)
    }

    pub(crate) fn put_star(&self, place: HubKey, star: SlidingWindow<T>) {
        self.lock().stars.insert(place, star);
    }

    /// Legs without edges that `view` does not see. Another worker may already have reached a later
    /// part of the account's triggers.
    pub(crate) fn take_legs(&self, place: HubKey, view: Visibility<T>) -> Option<Legs<T>> {
        let mut views = self.lock();
        let all = views.legs.get_mut(&place)?;
        let at =
            all.iter().rposition(|one| one.last().is_none_or(|last| view.has_arrived(last)))?;
        Some(all.swap_remove(at))
    }

    pub(crate) fn put_legs(&self, place: HubKey, legs: Legs<T>) {
        let mut views = self.lock();
        let all = views.legs.entry(place).or_default();
        if all.len() < LEGS_MAX {
            all.push(legs);
        }
    }

    /// Drops windows whose last edge no later trigger sees; drops all if edges are out of order.
    pub(crate) fn forget(&mut self, oldest: T, is_ordered: bool) {
        let HubViews { stars, legs, most } =
            self.views.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !is_ordered {
            stars.clear();
            legs.clear();
        }
        if stars.len() + legs.len() > *most {
            stars.retain(|_, one| one.newest().is_some_and(|newest| newest >= oldest));
            legs.retain(|_, all| {
                all.retain(|one| one.newest() >= oldest);
                !all.is_empty()
            });
            *most = (2 * (stars.len() + legs.len())).max(VIEWS_MIN);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let views = self.lock();
        views.stars.values().map(SlidingWindow::bytes).sum::<usize>()
            + views.legs.values().flatten().map(Legs::bytes).sum::<usize>()
    }
}
