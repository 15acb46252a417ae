//! Publish and refresh: what keeps the caches of several nodes in agreement, and its statistics.

use std::sync::Arc;
use std::time::Instant;

use super::{Access, Region};
use crate::cache::{self, Method};
use crate::error::BoundsError;
use crate::profile::Upkeep;
use crate::profile::all_caches::{ALL_CACHES_BYTES_MIN, AllCaches};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::units::{Length, Span};

/// Statistics of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Cache lines written back by publish. 0 on a coherent fabric.
    pub published_lines: u64,
    /// Cache lines dropped by refresh. 0 on a coherent fabric.
    pub refreshed_lines: u64,
    /// Calls of publish.
    pub publish_calls: u64,
    /// Calls of refresh.
    pub refresh_calls: u64,
    /// Total time of publish, in nanoseconds. 0 on a coherent fabric.
    pub publish_ns: u64,
    /// Total time of refresh, in nanoseconds. 0 on a coherent fabric.
    pub refresh_ns: u64,
    /// How often all caches of the machine were written back instead of single lines.
    pub all_caches_calls: u64,
    /// Bytes that are mapped writable now, in the window and by aliases.
    pub mapped_writable_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct CounterCells {
    published_lines: AtomicU64,
    refreshed_lines: AtomicU64,
    publish_calls: AtomicU64,
    refresh_calls: AtomicU64,
    publish_ns: AtomicU64,
    refresh_ns: AtomicU64,
    all_caches_calls: AtomicU64,
    pub(super) alias_bytes: AtomicU64,
}

impl Region {
    /// Publishes: makes this node's stores to the span visible in memory. Ends with a fence. On a
    /// coherent fabric the fence is all that is needed.
    ///
    /// # Errors
    /// [`BoundsError`] if the span is not inside the region.
    pub fn publish(&self, span: Span) -> Result<(), BoundsError> {
        self.check(span)?;
        self.counters.publish_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(&[span], Upkeep::Publish);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Region::publish`] on a node-local region, with an instruction chosen by the caller.
    pub(crate) fn publish_by(&self, method: Method, span: Span) -> Result<(), BoundsError> {
        self.check(span)?;
        self.counters.publish_calls.fetch_add(1, Ordering::Relaxed);
        self.maintain(&[span], Upkeep::Publish, method);
        Ok(())
    }

    /// As [`Region::publish`] for several small spans, with one pair of fences.
    ///
    /// # Errors
    /// [`BoundsError`] if a span is not inside the region. Then nothing is published.
    pub fn publish_all(&self, spans: &[Span]) -> Result<(), BoundsError> {
        spans.iter().try_for_each(|span| self.check(*span))?;
        self.counters.publish_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(spans, Upkeep::Publish);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Refreshes: drops the span from this node's caches, so that later loads see memory. On a
    /// coherent fabric this is only a fence.
    ///
    /// # Errors
    /// [`BoundsError`] if the span is not inside the region.
    pub fn refresh(&self, span: Span) -> Result<(), BoundsError> {
        self.check(span)?;
        self.counters.refresh_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(&[span], Upkeep::Refresh);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// As [`Region::refresh`] for several small spans, with one pair of fences. The loads that
    /// follow wait for memory in parallel.
    ///
    /// # Errors
    /// [`BoundsError`] if a span is not inside the region. Then nothing is refreshed.
    pub fn refresh_all(&self, spans: &[Span]) -> Result<(), BoundsError> {
        spans.iter().try_for_each(|span| self.check(*span))?;
        self.counters.refresh_calls.fetch_add(1, Ordering::Relaxed);
        if self.is_node_local {
            self.keep_up(spans, Upkeep::Refresh);
        } else {
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    /// Publishes memory that the home reads, if the region is node-local and its home is on another
    /// node. Otherwise does nothing, not even a fence.
    ///
    /// # Errors
    /// As [`Region::publish`].
    #[inline]
    pub fn publish_if_remote(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_remote { self.publish(span) } else { Ok(()) }
    }

    /// Publishes memory that other nodes read, if the region is node-local. Otherwise does nothing,
    /// not even a fence. Use it for stores that are followed by a release store or a message.
    ///
    /// # Errors
    /// As [`Region::publish`].
    #[inline]
    pub fn publish_if_node_local(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_node_local { self.publish(span) } else { Ok(()) }
    }

    /// Refreshes memory that the home writes, if the region is node-local and its home is on
    /// another node. Otherwise does nothing, not even a fence.
    ///
    /// # Errors
    /// As [`Region::refresh`].
    #[inline]
    pub fn refresh_if_remote(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_remote { self.refresh(span) } else { Ok(()) }
    }

    /// Refreshes memory that clients on any node write, if the region is node-local. Otherwise does
    /// nothing, not even a fence.
    ///
    /// # Errors
    /// As [`Region::refresh`].
    #[inline]
    pub fn refresh_if_node_local(&self, span: Span) -> Result<(), BoundsError> {
        if self.is_node_local { self.refresh(span) } else { Ok(()) }
    }

    /// Publishes or refreshes checked spans with the cheapest method.
    #[cold]
    fn keep_up(&self, spans: &[Span], what: Upkeep) {
        let longest = longest(spans);
        if longest >= ALL_CACHES_BYTES_MIN && self.write_back_all(spans, what, longest) {
            return;
        }
        let step = self.profile.step(longest);
        let method = match what {
            Upkeep::Publish => step.publish.0,
            Upkeep::Refresh => step.refresh.0,
        };
        self.maintain(spans, what, method);
    }

    /// Writes back and empties all caches of the machine, if that is possible and cheaper. Returns
    /// whether it was done.
    fn write_back_all(&self, spans: &[Span], what: Upkeep, longest: Length) -> bool {
        if self.fabric.maintenance().is_some() {
            return false;
        }
        let find = || match AllCaches::of_machine() {
            Ok(caches) => Some(Arc::clone(caches)),
            Err(error) => {
                tracing::debug!(%error, "all caches are not written back at once");
                None
            }
        };
        let Some(caches) = self.all_caches.get_or_init(find) else {
            return false;
        };
        let lines = self.profile.estimate(what, longest);
        if !lines.is_some_and(|lines| caches.is_cheaper(lines)) {
            return false;
        }
        let begin = Instant::now();
        if let Err(error) = caches.write_back() {
            tracing::debug!(%error, "all caches are not written back any more");
            return false;
        }
        let lines_of = |span: &Span| {
            cache::lines_around(self.window.pointer(span.offset.0), span.length.as_usize())
        };
        self.counters.all_caches_calls.fetch_add(1, Ordering::Relaxed);
        self.count(what, spans.iter().map(lines_of).sum(), begin);
        true
    }

    /// Publishes or refreshes checked spans line by line: by the fabric's own maintenance if it has
    /// one, else by an instruction of this CPU.
    fn maintain(&self, spans: &[Span], what: Upkeep, by: Method) {
        let begin = Instant::now();
        let ranges = spans
            .iter()
            .map(|span| (self.window.pointer(span.offset.0).cast_const(), span.length.as_usize()));
        let lines = match (self.fabric.maintenance(), what) {
            (Some(caches), Upkeep::Publish) => spans.iter().map(|span| caches.publish(*span)).sum(),
            (Some(caches), Upkeep::Refresh) => spans.iter().map(|span| caches.refresh(*span)).sum(),
            // SAFETY: the spans were checked, and the whole region is mapped.
            (None, Upkeep::Publish) => unsafe { cache::publish_ranges_by(by, ranges) },
            // SAFETY: as above.
            (None, Upkeep::Refresh) => unsafe { cache::refresh_ranges_by(by, ranges) },
        };
        self.count(what, lines, begin);
    }

    fn count(&self, what: Upkeep, count: u64, begin: Instant) {
        let (lines, ns) = match what {
            Upkeep::Publish => (&self.counters.published_lines, &self.counters.publish_ns),
            Upkeep::Refresh => (&self.counters.refreshed_lines, &self.counters.refresh_ns),
        };
        lines.fetch_add(count, Ordering::Relaxed);
        ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Statistics so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let window = self.writable().bytes().0;
        let control = match self.access {
            Access::Home => self.geometry.control.0,
            Access::Client => 0,
        };
        Counters {
            published_lines: load(&self.counters.published_lines),
            refreshed_lines: load(&self.counters.refreshed_lines),
            publish_calls: load(&self.counters.publish_calls),
            refresh_calls: load(&self.counters.refresh_calls),
            publish_ns: load(&self.counters.publish_ns),
            refresh_ns: load(&self.counters.refresh_ns),
            all_caches_calls: load(&self.counters.all_caches_calls),
            mapped_writable_bytes: window + control + load(&self.counters.alias_bytes),
        }
    }
}

fn longest(spans: &[Span]) -> Length {
    spans.iter().map(|span| span.length).max().unwrap_or_default()
}
