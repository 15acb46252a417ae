//! Arithmetic of ranges: whole pages, parts of a range, differences.

use farrow_memory::{Length, Offset, Span, page_bytes};
use farrow_store::Run;
use farrow_wire::WireSpan;

use crate::error::Error;

pub(super) fn whole_pages(bytes: u64) -> Result<u64, Error> {
    let too_much = || Error::InvalidArgument(format!("{bytes} B are more than memory can hold"));
    bytes.max(1).checked_next_multiple_of(page_bytes()).ok_or_else(too_much)
}

pub(super) fn all_whole_pages(sizes: &[u64]) -> Result<Vec<u64>, Error> {
    let whole: Vec<u64> = sizes.iter().map(|size| whole_pages(*size)).collect::<Result<_, _>>()?;
    let all = whole.iter().try_fold(0u64, |sum, size| sum.checked_add(*size));
    whole_pages(all.unwrap_or(u64::MAX)).map(|_| whole)
}

/// Cuts a range into parts of these sizes, in order; the last part includes the remainder.
pub(super) fn cut(range: Span, sizes: &[u64]) -> Vec<Span> {
    let mut left = range;
    let mut spans: Vec<Span> = Vec::with_capacity(sizes.len());
    for size in sizes {
        let (head, rest) = split(left, *size);
        spans.push(head);
        left = rest.unwrap_or(Span { length: Length(0), ..left });
    }
    if let Some(last) = spans.last_mut() {
        last.length.0 += left.length.0;
    }
    spans
}

/// The total size of each group.
pub(super) fn group_sizes(sizes: &[u64], groups: &[usize]) -> Vec<u64> {
    let mut left = sizes.iter();
    groups.iter().map(|count| left.by_ref().take(*count).sum()).collect()
}

/// Ranges of a huge page or more are aligned to one where that costs nothing.
pub(super) fn alignment_for(bytes: u64) -> u64 {
    if bytes >= farrow_store::HUGE_GRANT_BYTES { farrow_store::HUGE_GRANT_BYTES } else { 1 }
}

pub(super) fn split(span: Span, bytes: u64) -> (Span, Option<Span>) {
    let head = Span { offset: span.offset, length: Length(bytes.min(span.length.0)) };
    let rest = span.length.0.saturating_sub(bytes);
    let offset = Offset(span.offset.0 + head.length.0);
    (head, (rest > 0).then_some(Span { offset, length: Length(rest) }))
}

pub(crate) fn run_span(run: Run) -> Span {
    Span { offset: Offset(run.start), length: Length(run.end.saturating_sub(run.start)) }
}

pub(crate) fn span_run(span: Span) -> Run {
    Run { start: span.offset.0, end: span.offset.0.saturating_add(span.length.0) }
}

/// The parts of `theirs` that are in none of `ours`.
pub(crate) fn difference(theirs: &[Span], ours: &[Span]) -> Vec<WireSpan> {
    let mut ours: Vec<Run> = ours.iter().copied().map(span_run).collect();
    ours.sort_unstable();
    let mut left = Vec::new();
    for span in theirs {
        let Run { mut start, end } = span_run(*span);
        for our in &ours {
            if our.end <= start || our.start >= end {
                continue;
            }
            if our.start > start {
                left.push((start, our.start - start));
            }
            start = start.max(our.end);
        }
        if start < end {
            left.push((start, end - start));
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(start: u64, end: u64) -> Span {
        run_span(Run { start, end })
    }

    #[test]
    fn what_the_node_granted_and_we_do_not_know_is_found() {
        let ours = [of(10, 20), of(30, 40)];
        assert_eq!(difference(&[of(10, 20)], &ours), []);
        assert_eq!(difference(&[of(0, 50)], &ours), [(0, 10), (20, 10), (40, 10)]);
        assert_eq!(difference(&[of(15, 35)], &ours), [(20, 10)]);
        assert_eq!(difference(&[of(1, 2), of(38, 45)], &ours), [(1, 1), (40, 5)]);
    }
}
