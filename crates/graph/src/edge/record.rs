//! An edge with both of its accounts.

use super::stamp::Stamp;

/// An edge with the small numbers of both of its accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeRecord<T> {
    pub source: u32,
    pub target: u32,
    pub time: T,
}

impl<T> EdgeRecord<T> {
    /// Whether source and target are the same account.
    pub(crate) fn is_loop(&self) -> bool {
        self.source == self.target
    }

    /// Changes the source, the target, or both.
    pub(crate) fn rename(&mut self, account: u32, [source, target]: [bool; 2]) {
        if source {
            self.source = account;
        }
        if target {
            self.target = account;
        }
    }
}

/// An edge to remove.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EdgeRemoval<T> {
    pub record: EdgeRecord<T>,
    /// The edge's sequence number, modulo 2^32.
    pub seq: u32,
}

impl<T: Stamp> EdgeRecord<T> {
    /// The same edge with a time of another type.
    pub(crate) fn restamp<S: Stamp>(self, change: &impl Fn(T) -> S) -> EdgeRecord<S> {
        EdgeRecord { source: self.source, target: self.target, time: change(self.time) }
    }
}

/// A small number that no account has.
pub(crate) const NO_ACCOUNT: u32 = u32::MAX;
