//! An edge as an entry in the list of one of its accounts.

/// One side of an account: the edges that the account is the source of, or the target of.
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

/// An edge in the list of one of its accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EdgeEntry<T> {
    pub time: T,
    /// The account at the other end.
    pub other: u32,
    /// The edge's sequence number, modulo 2^32.
    pub seq: u32,
}
