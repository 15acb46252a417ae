//! An edge as one of its ends has it.

/// The two ends of an edge. [`Side::Out`] of an account are the edges it is the source of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Out,
    In,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Out => Side::In,
            Side::In => Side::Out,
        }
    }
}

/// One edge as one of its ends sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry<T> {
    pub time: T,
    /// The account at the other end.
    pub other: u32,
    /// The edge's number of arrival, modulo 2^32.
    pub seq: u32,
}
