//! The protocol in a small scope, with every order of its steps.
//!
//! Three nodes: the home with a reader of its own, a writer, and a node with a reader and a second
//! writer. Two objects, one after the other in the same range, which is one line. The first writer
//! or the reader on the other node may crash. At any step either may be declared lost while it is
//! only paused. A cache may write a dirty line back, drop a clean one or fetch one at any time.

use stateright::{Model, Property};

/// Nodes: the home's, the first writer's, the one of the second writer.
const HOME: usize = 0;
const FIRST: usize = 1;
const SECOND: usize = 2;
/// Lines: the range, the entry, the claim of the reader on the second node.
const RANGE: usize = 0;
const ENTRY: usize = 1;
const CLAIM: usize = 2;

/// States of the entry.
const FREE: u8 = 0;
const SEALED_1: u8 = 1;
const SEALED_2: u8 = 2;
const RETIRING: u8 = 3;

/// A mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoherenceMutant {
    NoPublishOfPayload,
    NoPublishOfEntry,
    NoPublishOfClaim,
    NoRefreshOfPayload,
    NoRefreshOfEntry,
    NoRefreshOfClaim,
    HeaderBeforePayload,
    TwoObjectsOnOneLine,
    ReuseWithoutQuarantine,
    /// The claim of a reader is ignored once its node is declared lost, although it may only be
    /// paused.
    ForgetOfPausedReader,
}

/// The cached state of a line on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cached {
    Nothing,
    Clean(u8),
    Dirty(u8),
}

/// The first writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstWriter {
    Store,
    Publish,
    Tell,
    /// It asked for the seal and waits.
    Asked,
    /// It was declared lost, and learns of it when it asks.
    Refused,
    Crashed,
    Over,
}

/// The second writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecondWriter {
    Wait,
    Store,
    Publish,
    Tell,
    Asked,
    Over,
}

/// The home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HomeState {
    /// The range is granted to the first writer.
    Granted,
    PublishFirst,
    Live,
    PublishRetiring,
    RefreshClaim,
    Scan,
    /// The first writer is declared lost.
    Quarantine,
    Reuse,
    GrantedAgain,
    PublishSecond,
    Over,
}

/// A reader, and the entry state it has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReaderState {
    RefreshEntry,
    LoadEntry,
    Claim(u8),
    PublishClaim(u8),
    RefreshAgain(u8),
    LoadAgain(u8),
    RefreshPayload(u8),
    /// Loads half of the line; the second number is the halves that are left.
    LoadPayload(u8, u8),
    Release,
    PublishRelease,
    Crashed,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoherenceState {
    memory: [u8; 3],
    /// By line, then by node.
    caches: [[Cached; 3]; 3],
    /// The claim of the home's own reader, visible to the home at once.
    near_claim: u8,
    writer: FirstWriter,
    next: SecondWriter,
    home: HomeState,
    readers: [ReaderState; 2],
    /// The first writer's node has no dirty line of the range, and never will.
    is_clean: bool,
    /// The claim of the reader on the other node is ignored.
    is_forgotten: bool,
    /// Whether a reader found wrong bytes.
    wrong: bool,
    has_read: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CoherenceAction {
    Write,
    Crash,
    TakeForLost,
    Clean,
    CrashReader,
    ForgetReader,
    WriteNext,
    KeepHouse,
    Read(usize),
    WriteBack(usize, usize),
    Drop(usize, usize),
    Fetch(usize, usize),
}

/// Whether a node ever loads or stores a line: other lines need not be simulated.
fn uses(line: usize, node: usize) -> bool {
    match line {
        RANGE => true,
        ENTRY | CLAIM => node != FIRST,
        _ => false,
    }
}

impl CoherenceState {
    fn load(&mut self, line: usize, node: usize) -> u8 {
        match self.caches[line][node] {
            Cached::Clean(value) | Cached::Dirty(value) => value,
            Cached::Nothing => {
                self.caches[line][node] = Cached::Clean(self.memory[line]);
                self.memory[line]
            }
        }
    }

    fn store(&mut self, line: usize, node: usize, value: u8) {
        self.caches[line][node] = Cached::Dirty(value);
    }

    fn publish(&mut self, line: usize, node: usize) {
        if let Cached::Dirty(value) = self.caches[line][node] {
            self.memory[line] = value;
            self.caches[line][node] = Cached::Clean(value);
        }
    }

    fn refresh(&mut self, line: usize, node: usize) {
        self.publish(line, node);
        self.caches[line][node] = Cached::Nothing;
    }
}

/// The protocol, or one with a mistake.
#[derive(Clone, Copy, Debug)]
pub struct CoherenceProtocol {
    pub mutant: Option<CoherenceMutant>,
}

impl CoherenceProtocol {
    fn is(&self, mutant: CoherenceMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Both halves of the line belong to the object, or in a mutant one half to each object.
    fn store_object(&self, state: &mut CoherenceState, node: usize, object: u8) {
        let value = if self.is(CoherenceMutant::TwoObjectsOnOneLine) {
            let there = state.load(RANGE, node);
            if object == 1 { there & 0xf0 | 1 } else { there & 0x0f | 0x20 }
        } else {
            object << 4 | object
        };
        state.store(RANGE, node, value);
    }

    fn write(&self, state: &mut CoherenceState) {
        let is_late = self.is(CoherenceMutant::HeaderBeforePayload);
        state.writer = match state.writer {
            FirstWriter::Store => {
                self.store_object(state, FIRST, 1);
                if is_late { FirstWriter::Tell } else { FirstWriter::Publish }
            }
            FirstWriter::Publish => {
                if !self.is(CoherenceMutant::NoPublishOfPayload) {
                    state.publish(RANGE, FIRST);
                }
                if is_late { FirstWriter::Over } else { FirstWriter::Tell }
            }
            FirstWriter::Tell if state.home == HomeState::Granted => FirstWriter::Asked,
            // The home no longer knows it.
            FirstWriter::Tell => FirstWriter::Refused,
            FirstWriter::Refused => {
                state.refresh(RANGE, FIRST);
                state.is_clean = true;
                FirstWriter::Over
            }
            other => other,
        };
    }

    fn write_next(&self, state: &mut CoherenceState) {
        let is_late = self.is(CoherenceMutant::HeaderBeforePayload);
        state.next = match state.next {
            SecondWriter::Store => {
                self.store_object(state, SECOND, 2);
                if is_late { SecondWriter::Tell } else { SecondWriter::Publish }
            }
            SecondWriter::Publish => {
                if !self.is(CoherenceMutant::NoPublishOfPayload) {
                    state.publish(RANGE, SECOND);
                }
                if is_late { SecondWriter::Over } else { SecondWriter::Tell }
            }
            SecondWriter::Tell => SecondWriter::Asked,
            other => other,
        };
    }

    fn publish_entry(&self, state: &mut CoherenceState) {
        if !self.is(CoherenceMutant::NoPublishOfEntry) {
            state.publish(ENTRY, HOME);
        }
    }

    fn keep_house(&self, state: &mut CoherenceState) -> Option<()> {
        let is_late = self.is(CoherenceMutant::HeaderBeforePayload);
        state.home = match state.home {
            HomeState::Granted if state.writer == FirstWriter::Asked => {
                state.store(ENTRY, HOME, SEALED_1);
                state.writer = if is_late { FirstWriter::Publish } else { FirstWriter::Over };
                HomeState::PublishFirst
            }
            HomeState::PublishFirst => {
                self.publish_entry(state);
                HomeState::Live
            }
            HomeState::Live => {
                state.store(ENTRY, HOME, RETIRING);
                HomeState::PublishRetiring
            }
            HomeState::PublishRetiring => {
                self.publish_entry(state);
                HomeState::RefreshClaim
            }
            HomeState::RefreshClaim => {
                if !self.is(CoherenceMutant::NoRefreshOfClaim) {
                    state.refresh(CLAIM, HOME);
                }
                HomeState::Scan
            }
            HomeState::Scan => {
                let is_far_held = state.load(CLAIM, HOME) == 1 && !state.is_forgotten;
                let is_held = is_far_held || state.near_claim == 1;
                if is_held { HomeState::RefreshClaim } else { HomeState::Reuse }
            }
            HomeState::Quarantine
                if state.is_clean || self.is(CoherenceMutant::ReuseWithoutQuarantine) =>
            {
                HomeState::Reuse
            }
            HomeState::Reuse if state.next == SecondWriter::Wait => {
                state.next = SecondWriter::Store;
                HomeState::GrantedAgain
            }
            HomeState::GrantedAgain if state.next == SecondWriter::Asked => {
                state.store(ENTRY, HOME, SEALED_2);
                state.next = if is_late { SecondWriter::Publish } else { SecondWriter::Over };
                HomeState::PublishSecond
            }
            HomeState::PublishSecond => {
                self.publish_entry(state);
                HomeState::Over
            }
            _ => return None,
        };
        Some(())
    }

    fn read(&self, state: &mut CoherenceState, number: usize) {
        let node = if number == 0 { HOME } else { SECOND };
        let is_far = node != HOME;
        let see = |state: &mut CoherenceState| {
            let entry = state.load(ENTRY, node);
            // The words of both objects differ, and so do their sequences.
            matches!(entry, SEALED_1 | SEALED_2).then_some(entry)
        };
        let refresh_entry = |state: &mut CoherenceState| {
            if is_far && !self.is(CoherenceMutant::NoRefreshOfEntry) {
                state.refresh(ENTRY, node);
            }
        };
        let claim = |state: &mut CoherenceState, value| match node {
            HOME => state.near_claim = value,
            _ => state.store(CLAIM, node, value),
        };
        let publish_claim = |state: &mut CoherenceState| {
            if is_far && !self.is(CoherenceMutant::NoPublishOfClaim) {
                state.publish(CLAIM, node);
            }
        };
        state.readers[number] = match state.readers[number] {
            ReaderState::RefreshEntry => {
                refresh_entry(state);
                ReaderState::LoadEntry
            }
            ReaderState::LoadEntry => {
                see(state).map_or(ReaderState::RefreshEntry, ReaderState::Claim)
            }
            ReaderState::Claim(object) => {
                claim(state, object);
                ReaderState::PublishClaim(object)
            }
            ReaderState::PublishClaim(object) => {
                publish_claim(state);
                ReaderState::RefreshAgain(object)
            }
            ReaderState::RefreshAgain(object) => {
                refresh_entry(state);
                ReaderState::LoadAgain(object)
            }
            ReaderState::LoadAgain(object) => match see(state) {
                Some(again) if again == object => ReaderState::RefreshPayload(object),
                _ => ReaderState::Release,
            },
            ReaderState::RefreshPayload(object) => {
                if !self.is(CoherenceMutant::NoRefreshOfPayload) {
                    state.refresh(RANGE, node);
                }
                ReaderState::LoadPayload(object, 2)
            }
            ReaderState::LoadPayload(object, left) => {
                let line = state.load(RANGE, node);
                let is_high = if self.is(CoherenceMutant::TwoObjectsOnOneLine) {
                    object == 2
                } else {
                    left == 1
                };
                let half = if is_high { line >> 4 } else { line & 0x0f };
                state.wrong |= half != object;
                state.has_read[usize::from(object) - 1] = true;
                if left > 1 {
                    ReaderState::LoadPayload(object, left - 1)
                } else {
                    ReaderState::Release
                }
            }
            ReaderState::Release => {
                claim(state, 0);
                ReaderState::PublishRelease
            }
            ReaderState::PublishRelease => {
                publish_claim(state);
                ReaderState::Over
            }
            ReaderState::Crashed | ReaderState::Over => state.readers[number],
        };
    }
}

impl Model for CoherenceProtocol {
    type State = CoherenceState;
    type Action = CoherenceAction;

    fn init_states(&self) -> Vec<CoherenceState> {
        // In one mutant the second writer owns a part of the line from the start.
        let next = if self.is(CoherenceMutant::TwoObjectsOnOneLine) {
            SecondWriter::Store
        } else {
            SecondWriter::Wait
        };
        vec![CoherenceState {
            memory: [0, FREE, 0],
            caches: [[Cached::Nothing; 3]; 3],
            near_claim: 0,
            writer: FirstWriter::Store,
            next,
            home: HomeState::Granted,
            readers: [ReaderState::RefreshEntry; 2],
            is_clean: false,
            is_forgotten: false,
            wrong: false,
            has_read: [false; 2],
        }]
    }

    fn actions(&self, state: &CoherenceState, actions: &mut Vec<CoherenceAction>) {
        use FirstWriter::{Asked, Crashed, Over, Refused};
        if !matches!(state.writer, Asked | Crashed | Over) {
            actions.push(CoherenceAction::Write);
        }
        // One crash is enough for each mistake.
        let has_crashed = state.writer == Crashed || state.readers[1] == ReaderState::Crashed;
        if !has_crashed && !matches!(state.writer, Asked | Over | Refused) {
            actions.push(CoherenceAction::Crash);
        }
        if !has_crashed && state.readers[1] != ReaderState::Over {
            actions.push(CoherenceAction::CrashReader);
        }
        if state.home == HomeState::Granted && state.writer != Asked {
            actions.push(CoherenceAction::TakeForLost);
        }
        if state.writer == Crashed && !state.is_clean {
            actions.push(CoherenceAction::Clean);
        }
        let far = state.readers[1];
        let is_certain =
            far == ReaderState::Crashed || self.is(CoherenceMutant::ForgetOfPausedReader);
        if is_certain && !state.is_forgotten {
            actions.push(CoherenceAction::ForgetReader);
        }
        if matches!(state.next, SecondWriter::Store | SecondWriter::Publish | SecondWriter::Tell) {
            actions.push(CoherenceAction::WriteNext);
        }
        actions.push(CoherenceAction::KeepHouse);
        let reads =
            |n: &usize| !matches!(state.readers[*n], ReaderState::Over | ReaderState::Crashed);
        actions.extend((0..2).filter(reads).map(CoherenceAction::Read));
        for line in [RANGE, ENTRY, CLAIM] {
            for node in [HOME, FIRST, SECOND].into_iter().filter(|node| uses(line, *node)) {
                actions.extend(match state.caches[line][node] {
                    Cached::Nothing => [CoherenceAction::Fetch(line, node)],
                    Cached::Clean(_) => [CoherenceAction::Drop(line, node)],
                    Cached::Dirty(_) => [CoherenceAction::WriteBack(line, node)],
                });
            }
        }
    }

    fn next_state(&self, last: &CoherenceState, action: CoherenceAction) -> Option<CoherenceState> {
        let mut state = last.clone();
        match action {
            CoherenceAction::Write => self.write(&mut state),
            CoherenceAction::Crash => state.writer = FirstWriter::Crashed,
            CoherenceAction::TakeForLost => state.home = HomeState::Quarantine,
            CoherenceAction::Clean => {
                state.refresh(RANGE, FIRST);
                state.is_clean = true;
            }
            CoherenceAction::CrashReader => state.readers[1] = ReaderState::Crashed,
            // Its node has seen its process end, and writes back its cached lines.
            CoherenceAction::ForgetReader => {
                state.publish(CLAIM, SECOND);
                state.is_forgotten = true;
            }
            CoherenceAction::WriteNext => self.write_next(&mut state),
            CoherenceAction::KeepHouse => self.keep_house(&mut state)?,
            CoherenceAction::Read(number) => self.read(&mut state, number),
            CoherenceAction::WriteBack(line, node) => state.publish(line, node),
            CoherenceAction::Drop(line, node) => state.caches[line][node] = Cached::Nothing,
            CoherenceAction::Fetch(line, node) => {
                state.load(line, node);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("readers see what was sealed", |_, state: &CoherenceState| {
                !state.wrong
            }),
            // Canaries: a model in which nothing is ever read would prove nothing.
            Property::sometimes("the first object is read", |_, state: &CoherenceState| {
                state.has_read[0]
            }),
            Property::sometimes(
                "the second object is read after the first",
                |_, state: &CoherenceState| state.has_read == [true; 2],
            ),
            Property::sometimes(
                "a range is used again after a crash",
                |_, state: &CoherenceState| {
                    state.writer == FirstWriter::Crashed && state.has_read[1]
                },
            ),
            Property::sometimes(
                "a range is used again that a reader held as it crashed",
                |_, state: &CoherenceState| {
                    state.readers[1] == ReaderState::Crashed
                        && state.memory[CLAIM] == 1
                        && state.has_read == [true; 2]
                },
            ),
            Property::sometimes(
                "a writer that was only paused is refused",
                |_, state: &CoherenceState| {
                    state.writer == FirstWriter::Refused && state.home == HomeState::Quarantine
                },
            ),
        ]
    }
}
