//! Read access to the newest edges and the segments together, for searches.

use super::HybridGraph;
use super::walk::EntryWalk;
use crate::edge::{Adjacency, EdgeEntry, Side, Stamp, Vertex, Visibility};
use crate::segment::ListKind;

/// Accounts whose rows are prefetched together.
const TOUCHED: usize = 32;

/// Accounts with more entries are not prefetched: searches visit them repeatedly, or in part.
const READ_MAX: usize = 64;

impl<T: Stamp> Adjacency<T> for HybridGraph<T> {
    fn is_ordered(&self) -> bool {
        self.dynamic.is_ordered()
    }

    fn has_dropped(&self, entry: EdgeEntry<T>) -> bool {
        if self.dynamic.is_sealed(self.dynamic.number(entry.seq)) {
            // Older edges are hidden, even if their segment is still attached.
            entry.time < self.floor
        } else {
            self.dynamic.has_dropped(entry)
        }
    }

    fn has_any(&self, account: u32, side: Side) -> bool {
        self.dynamic.has_any(account, side)
            || (!self.parts.is_empty() && self.indexes.may_have(account, side))
    }

    fn touch_any(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.dynamic.touch_any(side, accounts.clone());
        self.touch_totals(side, accounts);
    }

    fn key(&self, account: u32) -> i64 {
        self.dynamic.key(account)
    }

    fn order(&self, account: u32) -> u64 {
        self.dynamic.order(account)
    }

    fn ascending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = EdgeEntry<T>> {
        let newest = self.dynamic.ascending(account, side, window, view);
        let sealed = || self.older::<false>(account, side, window, view);
        let sealed = (!self.parts.is_empty()).then(sealed);
        EntryWalk::<_, _, false>::new(sealed, newest, self.is_ordered())
    }

    fn descending(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> impl Iterator<Item = EdgeEntry<T>> {
        let newest = self.dynamic.descending(account, side, window, view);
        let sealed = || self.older::<true>(account, side, window, view);
        let sealed = (!self.parts.is_empty()).then(sealed);
        EntryWalk::<_, _, true>::new(sealed, newest, self.is_ordered())
    }

    fn slice(
        &self,
        account: u32,
        side: Side,
        window: (T, T),
        view: Visibility<T>,
    ) -> Option<&[EdgeEntry<T>]> {
        if self.parts.is_empty() { self.dynamic.slice(account, side, window, view) } else { None }
    }

    fn gather(&self, vertex: Vertex<T>, most: usize, into: &mut Vec<EdgeEntry<T>>) -> bool {
        let Vertex { account, side, window, view } = vertex;
        if self.parts.is_empty() {
            return self.dynamic.gather(vertex, most, into);
        }
        if !self.is_ordered() {
            into.extend(self.ascending(account, side, window, view));
            return true;
        }
        // The entries of a hub are not copied.
        if self.count_bound(account, side, window, view) > most
            && self.at_most(account, side, window, view) > most
        {
            return false;
        }
        for (part, row, inside) in self.rows(account, side, self.window(window, view)) {
            let inside = row.get(inside).unwrap_or_default();
            into.extend(inside.iter().map(|&packed| part.entry(packed)));
        }
        self.dynamic.gather(vertex, usize::MAX, into)
    }

    fn touch_counts(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone) {
        self.dynamic.touch_counts(side, accounts.clone());
        self.touch_totals(side, accounts);
    }

    fn touch(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T)) {
        self.dynamic.touch(side, accounts.clone(), window);
        self.touch_rows(side, accounts, window);
    }

    fn touch_rows(&self, side: Side, accounts: impl Iterator<Item = u32> + Clone, window: (T, T)) {
        let (start, parts) = self.between(window);
        if parts.is_empty() {
            return;
        }
        let mut rest = accounts;
        loop {
            let mut some = [0; TOUCHED];
            let count = some.iter_mut().zip(&mut rest).map(|(to, account)| *to = account).count();
            let some = some.get(..count).unwrap_or_default();
            let looks = some.iter().map(|&account| self.indexes.look(account, side));
            let touched = looks.clone().map(|look| look.touch(start));
            std::hint::black_box(touched.fold(0, |all, one| all ^ one));
            for (at, part) in (start..).zip(parts) {
                let (mut rows, mut found) = ([0; TOUCHED], 0);
                for look in looks.clone() {
                    if let Some(row) = rows.get_mut(found) {
                        *row = look.row(at);
                        // No branch, because it could not be predicted.
                        found += usize::from(look.is_present(at) & (look.total() <= READ_MAX));
                    }
                }
                let rows = rows.get(..found).unwrap_or_default();
                if part.first < window.0 {
                    let from = window.0.offset().saturating_sub(part.base);
                    part.segment.touch(side.into(), rows, |length| part.guess(from, length));
                } else {
                    part.segment.touch(side.into(), rows, |_| 0);
                }
            }
            if count < TOUCHED {
                return;
            }
        }
    }

    fn count_bound(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        if self.shown.is_some() || !self.indexes.has_totals() {
            return self.at_most(account, side, window, view);
        }
        let sealed = self.indexes.total(account, side) as usize;
        self.dynamic.at_most(account, side, window, view) + sealed
    }

    fn at_most(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        self.dynamic.at_most(account, side, window, view)
            + self.sealed_count(account, side, window, view)
    }

    fn first(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T> {
        let sealed = || self.older::<false>(account, side, window, view).next().map(|one| one.time);
        let sealed = if self.parts.is_empty() { None } else { sealed() };
        if sealed.is_some() && self.is_ordered() {
            return sealed;
        }
        let newest = self.dynamic.first(account, side, window, view);
        [sealed, newest].into_iter().flatten().min()
    }

    fn last(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> Option<T> {
        let newest = self.dynamic.last(account, side, window, view);
        if self.parts.is_empty() || (newest.is_some() && self.is_ordered()) {
            return newest;
        }
        let sealed = self.older::<true>(account, side, window, view).next().map(|one| one.time);
        [sealed, newest].into_iter().flatten().max()
    }

    fn count(&self, account: u32, side: Side, window: (T, T), view: Visibility<T>) -> usize {
        self.dynamic.count(account, side, window, view)
            + self.sealed_count(account, side, window, view)
    }

    fn loops(&self, account: u32) -> impl Iterator<Item = EdgeEntry<T>> {
        let word = self.looped.get(account as usize / 64).copied().unwrap_or_default();
        let parts = if word & (1 << (account % 64)) == 0 { &[] } else { self.parts() };
        let sealed = parts.iter().flat_map(move |part| {
            let row = part.segment.row(account, ListKind::Loops);
            (0..row.len()).filter_map(move |at| Some(part.entry(*row.get(at)?)))
        });
        let sealed = sealed.skip_while(|one| one.time < self.floor);
        let sealed = (!parts.is_empty()).then_some(sealed);
        EntryWalk::<_, _, false>::new(sealed, self.dynamic.loops(account), self.is_ordered())
    }
}
