//! The caches of one node: lines that move between its copy and memory.

use std::fmt;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use farrow_memory::profile::Upkeep;
use farrow_memory::sync::Ordering;
use farrow_memory::{Length, Maintenance, Offset, Span};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::CacheSettings;
use super::copy::{Copy, CopyFile, LINE_WORDS_MAX, LineWords};
use crate::random::Random;

/// Recently used lines, which the demon picks more often.
const RECENT_MAX: usize = 64;

/// A publish or refresh that is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceCall {
    /// Its node.
    pub node: u32,
    /// Publish or refresh.
    pub what: Upkeep,
    /// Its span.
    pub span: Span,
}

/// Called before each call; false omits the call, as a mutant would. It may block and let other
/// nodes act meanwhile.
pub type CallWatch = Arc<dyn Fn(MaintenanceCall) -> bool + Send + Sync>;

/// The demon, and the lines it prefers.
#[derive(Debug)]
struct Demon {
    random: Random,
    recent: Vec<u64>,
}

/// The caches of one node.
pub struct Caches {
    node: u32,
    own: Copy,
    seen: Copy,
    memory: Copy,
    settings: CacheSettings,
    lines: u64,
    lock: File,
    demon: Mutex<Demon>,
    watch: OnceLock<CallWatch>,
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "caches of node {}, {:?}", self.node, self.settings)
    }
}

/// While this is held, only its owner moves lines.
struct Locked<'a> {
    caches: &'a Caches,
    demon: MutexGuard<'a, Demon>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        rustix::fs::flock(&self.caches.lock, FlockOperation::Unlock).expect("unlock");
    }
}

impl Caches {
    pub(super) fn new(
        node: u32,
        [own, seen, memory]: [&Arc<CopyFile>; 3],
        lock: File,
        settings: CacheSettings,
    ) -> Self {
        let line = settings.line_bytes;
        assert!(matches!(line, 64 | 128), "a line of {line} B");
        assert_eq!(LINE_WORDS_MAX * 8, 128);
        let (own, seen, memory) = (Copy::map(own), Copy::map(seen), Copy::map(memory));
        let random = Random::new(settings.seed ^ u64::from(node) << 32);
        let demon = Mutex::new(Demon { random, recent: Vec::new() });
        let watch = OnceLock::new();
        let bytes = memory.bytes();
        let lines = bytes.0 / u64::from(line);
        Self { node, own, seen, memory, settings, lines, lock, demon, watch }
    }

    pub(super) fn watch(&self, watch: CallWatch) {
        assert!(self.watch.set(watch).is_ok(), "a second watch");
    }

    /// Lets the demon act `acts` times.
    pub fn disturb(&self, acts: u32) {
        self.locked().disturb(acts);
    }

    /// Simulates a power loss: some of the dirty lines reach memory, the others are lost.
    /// Afterwards the node's copy equals memory.
    pub fn power_off(&self) {
        let mut locked = self.locked();
        for number in 0..self.lines {
            let line = self.line(number);
            if self.is_dirty(line) && locked.demon.random.one_in(2) {
                self.write_back(line);
            }
        }
        for number in 0..self.lines {
            let line = self.line(number);
            let memory = self.memory.look(line);
            self.own.put(line, &memory);
            self.seen.put(line, &memory);
        }
    }

    /// How many lines of the span this node wrote without writing them back to memory.
    #[must_use]
    pub fn dirty_lines(&self, span: Span) -> usize {
        let _locked = self.locked();
        self.around(span).filter(|number| self.is_dirty(self.line(*number))).count()
    }

    pub(super) fn memory(&self, span: Span) -> Vec<u64> {
        let _locked = self.locked();
        let words = self.memory.words(span);
        (0..words.len()).filter_map(|index| words.load(index, Ordering::SeqCst)).collect()
    }

    fn locked(&self) -> Locked<'_> {
        let demon = self.demon.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match rustix::fs::flock(&self.lock, FlockOperation::LockExclusive) {
                Ok(()) => return Locked { caches: self, demon },
                Err(Errno::INTR) => {}
                Err(errno) => panic!("lock: {errno}"),
            }
        }
    }

    fn line(&self, number: u64) -> Span {
        let bytes = u64::from(self.settings.line_bytes);
        Span::new(Offset(number * bytes), Length(bytes))
    }

    /// Numbers of the lines around a span.
    fn around(&self, span: Span) -> std::ops::Range<u64> {
        if span.is_empty() {
            return 0..0;
        }
        let bytes = u64::from(self.settings.line_bytes);
        let end = span.end().map_or(u64::MAX, |end| end.0);
        span.offset.0 / bytes..end.div_ceil(bytes).min(self.lines)
    }

    /// The line, if this node did not write it.
    fn clean(&self, line: Span) -> Option<LineWords> {
        let now = self.own.look(line);
        (now == self.seen.look(line)).then_some(now)
    }

    fn is_dirty(&self, line: Span) -> bool {
        self.clean(line).is_none()
    }

    /// Writes the line to memory and returns it.
    fn write_back(&self, line: Span) -> LineWords {
        let now = self.own.look(line);
        self.memory.put(line, &now);
        self.seen.put(line, &now);
        now
    }

    /// Updates the line from memory. `before` is its last content in memory known to this node. A
    /// word that this node stored to since then stays, and is dirty.
    fn fetch(&self, line: Span, before: &LineWords) {
        let memory: LineWords = self.memory.look(line);
        let own = self.own.words(line);
        for (index, (before, memory)) in before.iter().zip(&memory).enumerate() {
            if before != memory {
                own.replace(index, *before, *memory);
            }
        }
        self.seen.put(line, &memory);
    }

    /// Lines of a call, in the order in which they move. `None` if the watch omits the call.
    fn begin(&self, what: Upkeep, span: Span) -> Option<(Locked<'_>, Vec<u64>)> {
        let call = MaintenanceCall { node: self.node, what, span };
        if let Some(watch) = self.watch.get()
            && !watch(call)
        {
            return None;
        }
        let mut locked = self.locked();
        let mut lines: Vec<u64> = self.around(span).collect();
        locked.demon.random.shuffle(&mut lines);
        for line in lines.iter().take(RECENT_MAX) {
            locked.note(*line);
        }
        Some((locked, lines))
    }
}

impl Locked<'_> {
    fn note(&mut self, line: u64) {
        if self.demon.recent.len() < RECENT_MAX {
            self.demon.recent.push(line);
        } else {
            let place = self.demon.random.below(RECENT_MAX as u64) as usize;
            if let Some(known) = self.demon.recent.get_mut(place) {
                *known = line;
            }
        }
    }

    fn disturb(&mut self, acts: u32) {
        for _ in 0..acts {
            let Demon { random, recent } = &mut *self.demon;
            let any = random.below(self.caches.lines);
            let near = recent.get(random.below(recent.len() as u64) as usize).copied();
            let number = near.filter(|_| random.one_in(2)).unwrap_or(any);
            let line = self.caches.line(number);
            if let Some(before) = self.caches.clean(line) {
                self.caches.fetch(line, &before);
            } else if self.demon.random.one_in(2) {
                self.caches.write_back(line);
            }
        }
    }
}

impl Maintenance for Caches {
    fn line_bytes(&self) -> u32 {
        self.settings.line_bytes
    }

    fn publish(&self, span: Span) -> u64 {
        let Some((mut locked, lines)) = self.begin(Upkeep::Publish, span) else {
            return self.around(span).count() as u64;
        };
        for number in &lines {
            let line = self.line(*number);
            // Even a line that looks clean: see the module documentation.
            self.write_back(line);
        }
        locked.disturb(self.settings.acts);
        lines.len() as u64
    }

    fn refresh(&self, span: Span) -> u64 {
        let Some((mut locked, lines)) = self.begin(Upkeep::Refresh, span) else {
            return self.around(span).count() as u64;
        };
        for number in &lines {
            let line = self.line(*number);
            let before = self.clean(line).unwrap_or_else(|| self.write_back(line));
            self.fetch(line, &before);
        }
        locked.disturb(self.settings.acts);
        lines.len() as u64
    }
}
