//! The engine of either width. Most streams fit into 32-bit timestamps, which take less memory.

use crate::edge::Stamp;
use crate::memory::{AllocationFailed, probe};
use crate::settings::Settings;
use crate::stream::StreamEngine;

/// Room for older rows that arrive later: a quarter of the span of narrow stamps.
const SLACK: i64 = 1 << 30;

/// The engine of a stream. The first rows determine its width; later rows may widen it.
#[derive(Debug)]
pub(super) enum Engine {
    Empty,
    Narrow(Box<StreamEngine<u32>>),
    Wide(Box<StreamEngine<u64>>),
}

/// Evaluates an expression on the engine of either width, or another one if there is none.
macro_rules! with_engine {
    ($engine:expr, |$name:ident| $body:expr, $empty:expr) => {
        match $engine {
            $crate::features::engine::Engine::Empty => $empty,
            $crate::features::engine::Engine::Narrow($name) => $body,
            $crate::features::engine::Engine::Wide($name) => $body,
        }
    };
}
pub(super) use with_engine;

impl Engine {
    /// An engine whose stamps cover the times from `first` to `last`.
    pub(super) fn spanning(settings: &Settings, first: i64, last: i64) -> Engine {
        match narrow_base(first, last) {
            Some(base) => Engine::Narrow(Box::new(StreamEngine::new(settings, base))),
            None => Engine::Wide(Box::new(StreamEngine::new(settings, i64::MIN))),
        }
    }

    /// A narrow engine with room before and after a time.
    pub(super) fn around(settings: &Settings, time: i64) -> Engine {
        let base = time.saturating_sub(SLACK);
        Engine::Narrow(Box::new(StreamEngine::new(settings, base)))
    }

    /// The same engine with stamps that also cover the times from `first` to `last`. Without memory
    /// for a copy, it is unchanged.
    pub(super) fn reaching(
        self,
        settings: &Settings,
        first: i64,
        last: i64,
    ) -> (Engine, Result<(), AllocationFailed>) {
        let engine = match self {
            Engine::Empty => return (Engine::spanning(settings, first, last), Ok(())),
            Engine::Narrow(engine) if !(engine.holds(first) && engine.holds(last)) => engine,
            other => return (other, Ok(())),
        };
        // During the copy, the old engine exists too.
        if let Err(full) = probe(engine.bytes().saturating_mul(2)) {
            return (Engine::Narrow(engine), Err(full));
        }
        let oldest = engine.graph.earliest().unwrap_or(first).min(first);
        let newest = engine.now.unwrap_or(last).max(last);
        let restamped = match narrow_base(oldest, newest) {
            Some(base) => Engine::Narrow(Box::new(engine.restamp(settings, base))),
            None => Engine::Wide(Box::new(engine.restamp(settings, i64::MIN))),
        };
        (restamped, Ok(()))
    }
}

impl<T: Stamp> StreamEngine<T> {
    /// The number of sequence numbers from the oldest edge to the newest.
    pub(super) fn span(&self) -> usize {
        (self.graph.next() - self.graph.head()) as usize
    }

    /// Whether a stamp can hold a time.
    fn holds(&self, time: i64) -> bool {
        self.graph.stamp(time).is_some()
    }
}

/// A base from which narrow stamps cover these times, with room before and after them.
fn narrow_base(first: i64, last: i64) -> Option<i64> {
    let base = first.saturating_sub(SLACK);
    let span = i128::from(last) - i128::from(base);
    (span <= i128::from(u32::OFFSET_MAX) - i128::from(SLACK)).then_some(base)
}
