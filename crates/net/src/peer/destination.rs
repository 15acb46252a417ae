//! Destinations of fetched bytes: the same offsets of a mirror, or given offsets of a map.

use std::sync::Arc;

use farrow_memory::{AccessError, FileMap, Length, Offset, Span};

use crate::cache::FetchClaim;
use crate::error::FrameError;

/// A range of the peer's data section, and the destination of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Range at the peer.
    pub from: Span,
    /// Offset in the map.
    pub to: Offset,
}

/// Ranges that are copied to other offsets of a map. The caller ensures that no other thread
/// accesses these offsets meanwhile.
#[derive(Debug)]
pub struct Placement {
    map: Arc<FileMap>,
    /// Sorted by their offset at the peer, where they do not overlap.
    pieces: Vec<Piece>,
    spans: Vec<Span>,
}

impl Placement {
    /// A placement of pieces in a map.
    ///
    /// # Errors
    /// [`FrameError::Overlap`] if two pieces share a byte at the peer; [`FrameError::Place`] if one
    /// exceeds the map.
    pub fn new(map: Arc<FileMap>, mut pieces: Vec<Piece>) -> Result<Self, FrameError> {
        pieces.retain(|piece| !piece.from.is_empty());
        pieces.sort_unstable_by_key(|piece| piece.from);
        for piece in &pieces {
            let to = Span::new(piece.to, piece.from.length);
            map.check(to).map_err(FrameError::Place)?;
        }
        let mut pairs = pieces.iter().zip(pieces.iter().skip(1));
        if let Some((a, b)) = pairs.find(|(a, b)| a.from.overlaps(b.from)) {
            return Err(FrameError::Overlap { a: a.from, b: b.from });
        }
        let spans = pieces.iter().map(|piece| piece.from).collect();
        Ok(Self { map, pieces, spans })
    }

    /// Destination of a range; `None` if it is not within one piece.
    fn place(&self, range: Span) -> Option<Span> {
        let behind = self.pieces.partition_point(|piece| piece.from.offset <= range.offset);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        let skip = range.offset.0 - piece.from.offset.0;
        piece.from.contains(range).then(|| Span::new(Offset(piece.to.0 + skip), range.length))
    }
}

/// Destination of a fetch.
#[derive(Debug)]
pub(super) enum Destination {
    Mirror(FetchClaim),
    Placed(Placement),
}

impl Destination {
    /// The requested ranges, in order.
    pub(super) fn spans(&self) -> &[Span] {
        match self {
            Self::Mirror(claim) => claim.spans(),
            Self::Placed(placement) => &placement.spans,
        }
    }

    /// Total number of bytes.
    pub(super) fn length(&self) -> Length {
        Length(self.spans().iter().map(|span| span.length.0).sum())
    }

    pub(super) fn map(&self) -> &FileMap {
        match self {
            Self::Mirror(claim) => claim.map(),
            Self::Placed(placement) => &placement.map,
        }
    }

    /// Destination of a requested range of the peer.
    pub(super) fn place(&self, range: Span) -> Option<Span> {
        match self {
            Self::Mirror(_) => Some(range),
            Self::Placed(placement) => placement.place(range),
        }
    }

    /// The map and the pieces of a placement.
    #[cfg(feature = "rdma")]
    pub(super) fn placed(&self) -> Option<(&Arc<FileMap>, &[Piece])> {
        match self {
            Self::Mirror(_) => None,
            Self::Placed(placement) => Some((&placement.map, &placement.pieces)),
        }
    }

    /// Records that a range of the peer is in place.
    pub(super) fn complete(&self, range: Span) {
        if let Self::Mirror(claim) = self {
            claim.complete(range);
        }
    }

    pub(super) fn commit_ahead(&self, is_done: &dyn Fn() -> bool) -> Result<(), AccessError> {
        match self {
            Self::Mirror(claim) => claim.commit_ahead(is_done),
            Self::Placed(_) => Ok(()),
        }
    }

    /// Ends the claim, if any. No thread may write its bytes any more.
    pub(super) fn end(&self) {
        if let Self::Mirror(claim) = self {
            claim.end();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failure is the result
mod tests {
    use super::*;

    fn span(offset: u64, length: u64) -> Span {
        Span::new(Offset(offset), Length(length))
    }

    fn placement(pieces: &[(u64, u64, u64)]) -> Result<Placement, FrameError> {
        let file = rustix::fs::memfd_create("net-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 16).unwrap();
        let map = Arc::new(FileMap::new(file, 0, Length(1 << 16), true).unwrap());
        let pieces = pieces
            .iter()
            .map(|(from, length, to)| Piece { from: span(*from, *length), to: Offset(*to) });
        Placement::new(map, pieces.collect())
    }

    #[test]
    fn each_range_goes_to_the_place_of_its_piece() {
        let placed = placement(&[(5000, 100, 0), (1000, 50, 300), (2000, 0, 7)]).unwrap();
        assert_eq!(placed.spans, [span(1000, 50), span(5000, 100)]);
        assert_eq!(placed.place(span(1000, 50)), Some(span(300, 50)));
        assert_eq!(placed.place(span(5010, 90)), Some(span(10, 90)));
        for outside in [span(999, 1), span(1049, 2), span(2000, 1), span(5100, 1)] {
            assert_eq!(placed.place(outside), None, "{outside}");
        }
    }

    #[test]
    fn pieces_that_overlap_or_leave_the_map_are_refused() {
        let overlap = placement(&[(0, 100, 0), (99, 10, 200)]);
        assert!(matches!(overlap, Err(FrameError::Overlap { .. })), "{overlap:?}");
        let outside = placement(&[(0, 100, (1 << 16) - 99)]);
        assert!(matches!(outside, Err(FrameError::Place(_))), "{outside:?}");
    }
}
