//! Ranges of the region, as messages write them.

use farrow_memory::{Length, Offset, Span};
use farrow_wire::WireSpan;

pub(crate) fn span((offset, length): WireSpan) -> Span {
    Span { offset: Offset(offset), length: Length(length) }
}

pub(crate) fn wire_span(span: Span) -> WireSpan {
    (span.offset.0, span.length.0)
}
