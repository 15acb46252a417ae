//! One account's entries from segments and from the newest edges, in one iterator.

use crate::edge::{EdgeEntry, Stamp};
use std::iter::Peekable;

/// Entries of segments and the newest ones, in order of time or, with `BACKWARD`, in reverse.
pub(super) enum EntryWalk<S: Iterator, N: Iterator, const BACKWARD: bool> {
    /// No segments.
    Newest(N),
    /// All entries of segments are older than the newest edges.
    Chained(S, N),
    /// Some of the newest edges arrived late. Within an instant, entries of segments are first.
    Merged(Peekable<S>, Peekable<N>),
}

impl<T, S, N, const BACKWARD: bool> EntryWalk<S, N, BACKWARD>
where
    S: Iterator<Item = EdgeEntry<T>>,
    N: Iterator<Item = EdgeEntry<T>>,
{
    #[inline]
    pub(super) fn new(sealed: Option<S>, newest: N, is_ordered: bool) -> Self {
        match sealed {
            None => EntryWalk::Newest(newest),
            Some(sealed) if is_ordered => EntryWalk::Chained(sealed, newest),
            Some(sealed) => EntryWalk::Merged(sealed.peekable(), newest.peekable()),
        }
    }
}

impl<T, S, N, const BACKWARD: bool> Iterator for EntryWalk<S, N, BACKWARD>
where
    T: Stamp,
    S: Iterator<Item = EdgeEntry<T>>,
    N: Iterator<Item = EdgeEntry<T>>,
{
    type Item = EdgeEntry<T>;

    #[inline]
    fn next(&mut self) -> Option<EdgeEntry<T>> {
        match self {
            EntryWalk::Newest(newest) => newest.next(),
            EntryWalk::Chained(sealed, newest) if BACKWARD => {
                newest.next().or_else(|| sealed.next())
            }
            EntryWalk::Chained(sealed, newest) => sealed.next().or_else(|| newest.next()),
            EntryWalk::Merged(sealed, newest) => {
                let is_sealed_first = match (sealed.peek(), newest.peek()) {
                    (Some(sealed), Some(newest)) if BACKWARD => sealed.time > newest.time,
                    (Some(sealed), Some(newest)) => sealed.time <= newest.time,
                    (sealed, _) => sealed.is_some(),
                };
                if is_sealed_first { sealed.next() } else { newest.next() }
            }
        }
    }

    #[inline]
    fn fold<B, F: FnMut(B, EdgeEntry<T>) -> B>(self, init: B, mut add: F) -> B {
        match self {
            EntryWalk::Newest(newest) => newest.fold(init, add),
            EntryWalk::Chained(sealed, newest) if BACKWARD => {
                sealed.fold(newest.fold(init, &mut add), add)
            }
            EntryWalk::Chained(sealed, newest) => newest.fold(sealed.fold(init, &mut add), add),
            merged => {
                let mut all = init;
                for entry in merged {
                    all = add(all, entry);
                }
                all
            }
        }
    }
}
