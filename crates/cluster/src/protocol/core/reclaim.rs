//! When deleted objects that were held are freed.

use farrow_store::{Home, RECLAIMED_MAX, Room};

/// First pause before deleted objects that are held are checked again. Clients announce releases;
/// the timer is for clients that died or failed to.
const RECLAIM_MS_MIN: u64 = 5;
/// Longest such pause; it doubles with each check.
const RECLAIM_MS_MAX: u64 = 200;

/// The timer for deleted objects that are held.
#[derive(Debug)]
pub(in crate::protocol) struct Reclaim {
    at_ms: Option<u64>,
    wait_ms: u64,
}

impl Reclaim {
    pub(in crate::protocol) fn new(now_ms: u64) -> Self {
        Self { at_ms: Some(now_ms), wait_ms: RECLAIM_MS_MIN }
    }

    /// Has the objects checked at the next tick: a hold may have ended.
    pub(in crate::protocol) fn soon(&mut self, home: &Home, now_ms: u64) {
        if home.has_retiring() {
            self.wait_ms = RECLAIM_MS_MIN;
            self.at_ms = Some(now_ms);
        }
    }

    /// Has the objects checked in the next turn: one was deleted while it was held, and the hold may
    /// have ended since.
    pub(in crate::protocol) fn next_turn(&mut self) {
        self.wait_ms = RECLAIM_MS_MIN;
        self.at_ms = Some(0);
    }

    /// Frees what no client holds any more, if it is time. Of many objects some, and the rest in the
    /// next turns.
    pub(in crate::protocol) fn tick(&mut self, home: &mut Home, now_ms: u64) {
        if self.at_ms.is_none_or(|at| at > now_ms) {
            return;
        }
        let freed = home.reclaim_some(RECLAIMED_MAX).map(|reclaimed| reclaimed.objects as usize);
        if let Err(error) = &freed {
            tracing::error!(%error, "deleted objects cannot be reclaimed");
        }
        if freed.is_ok_and(|objects| objects == RECLAIMED_MAX) {
            return self.next_turn();
        }
        self.at_ms = home.has_retiring().then(|| {
            self.wait_ms = (self.wait_ms * 2).min(RECLAIM_MS_MAX);
            now_ms.saturating_add(self.wait_ms)
        });
    }

    pub(in crate::protocol) fn next_deadline_ms(&self) -> Option<u64> {
        self.at_ms
    }
}

/// Frees deleted objects that are held no more, until there is room.
pub(in crate::protocol) fn reclaim_for(home: &mut Home, room: &Room) {
    if let Err(error) = home.reclaim_until(|home| home.has_room(room)) {
        tracing::error!(%error, "deleted objects cannot be reclaimed");
    }
}

/// Frees all deleted objects that are held no more.
pub(in crate::protocol) fn reclaim(home: &mut Home) {
    if let Err(error) = home.reclaim() {
        tracing::error!(%error, "deleted objects cannot be reclaimed");
    }
}
