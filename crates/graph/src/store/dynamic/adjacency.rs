//! Read access to the newest edges for searches.

use super::DynamicGraph;
use crate::edge::{Adjacency, EdgeEntry, ListCut, Side, Stamp, Vertex, Visibility};

impl<T: Stamp> DynamicGraph<T> {
    /// The entries of a window: exactly the visible ones if edges arrived in order, otherwise these
    /// and possibly others.
    fn window(
        &self,
        account: u32,
        side: Side,
        (from, to): (T, T),
        view: Visibility<T>,
    ) -> &[EdgeEntry<T>] {
        let half = self.half(side);
        if !self.is_ordered() {
            return half.span(account, |one| one.time < from, |one| one.time > to);
        }
        let from = match self.sealed.last {
            Some(last) if self.is_draining() => from.max(T::after(last)),
            _ => from,
        };
        let is_early = |from: T| move |one: EdgeEntry<T>| one.time < from;
        match view.cut((from, to)) {
            ListCut::Times(from, to) => half.span(account, is_early(from), |one| one.time > to),
            ListCut::Arrivals(from) => {
                half.span(account, is_early(from), |one| !view.has_arrived(one.seq))
            }
            ListCut::Each => half.span(
                account,
                |one| (one.time < from) | view.is_evicted(one),
                |one| (one.time > to) | !view.has_arrived(one.seq),
            ),
        }
    }
}

impl<T: Stamp> Adjacency<T> for DynamicGraph<T> {
    fn is_ordered(&self) -> bool {
        match &self.late {
            Some(late) => late.is_empty(),
            None => self.disorder.is_none_or(|number| number < self.head),
        }
    }

    fn has_dropped(&self, entry: EdgeEntry<T>) -> bool {
        (self.head as u32).wrapping_sub(entry.seq).cast_signed() > 0
    }

    fn has_any(&self, account: u32, side: Side) -> bool {
        self.half(side).has_any(account)
    }

    fn touch_any(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.half(side).touch_lists(accounts);
    }

    fn key(&self, account: u32) -> i64 {
        self.accounts.key(account)
    }

    fn order(&self, account: u32) -> u64 {
        self.accounts.order(account)
    }

    fn ascending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = EdgeEntry<T>> {
        let is_exact = self.is_ordered();
        let inside = self.window(account, side, window, view).iter().copied();
        inside.filter(move |one| is_exact || (view.sees(*one) && !self.is_hidden(*one)))
    }

    fn descending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = EdgeEntry<T>> {
        let is_exact = self.is_ordered();
        let inside = self.window(account, side, window, view).iter().rev().copied();
        inside.filter(move |one| is_exact || (view.sees(*one) && !self.is_hidden(*one)))
    }

    fn slice(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> Option<&[EdgeEntry<T>]> {
        self.is_ordered().then(|| self.window(account, side, window, view))
    }

    fn gather(&self, vertex: Vertex<T>, most: usize, into: &mut Vec<EdgeEntry<T>>) -> bool {
        let Vertex { account, side, window, view } = vertex;
        if !self.is_ordered() {
            into.extend(self.ascending(account, side, window, view));
            return true;
        }
        let inside = self.window(account, side, window, view);
        if inside.len() <= most {
            into.extend_from_slice(inside);
        }
        inside.len() <= most
    }

    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.half(side).touch(accounts);
    }

    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, _window: (T, T)) {
        self.half(side).touch(accounts);
    }

    fn touch_rows(&self, _: Side, _: impl Iterator<Item = u32> + Clone, _: (T, T)) {}

    fn count_bound(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        self.at_most(account, side, window, view)
    }

    fn at_most(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        let inside = self.window(account, side, window, view);
        if self.is_ordered() || !self.is_draining() {
            return inside.len();
        }
        inside.iter().filter(|one| !self.is_hidden(**one)).count()
    }

    fn first(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T> {
        self.ascending(account, side, window, view).next().map(|one| one.time)
    }

    fn last(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T> {
        self.descending(account, side, window, view).next().map(|one| one.time)
    }

    fn count(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        let inside = self.window(account, side, window, view);
        if self.is_ordered() {
            inside.len()
        } else {
            inside.iter().filter(|one| view.sees(**one) && !self.is_hidden(**one)).count()
        }
    }

    fn loops(&self, account: u32) -> impl Iterator<Item = EdgeEntry<T>> {
        let all = self.loops.get(account);
        all.iter().copied().filter(|one| !self.is_hidden(*one))
    }
}
