//! An edge as the stream brought it.

use super::stamp::Stamp;

/// An edge in order of arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<T> {
    pub source: u32,
    pub target: u32,
    pub time: T,
}

impl<T> Record<T> {
    /// Whether an account pays itself.
    pub(crate) fn is_loop(&self) -> bool {
        self.source == self.target
    }
}

/// An edge that is to be taken out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Removal<T> {
    pub record: Record<T>,
    /// Its number of arrival, modulo 2^32.
    pub seq: u32,
}

impl<T: Stamp> Record<T> {
    /// The same with another time.
    pub(crate) fn restamp<S: Stamp>(self, change: &impl Fn(T) -> S) -> Record<S> {
        Record { source: self.source, target: self.target, time: change(self.time) }
    }
}

/// No account has this small number.
pub(crate) const NO_ACCOUNT: u32 = u32::MAX;
