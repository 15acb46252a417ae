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
pub enum Mutant {
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
pub enum Writer {
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
pub enum Next {
    Wait,
    Store,
    Publish,
    Tell,
    Asked,
    Over,
}

/// The home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
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
pub enum Reader {
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
pub struct State {
    memory: [u8; 3],
    /// By line, then by node.
    caches: [[Cached; 3]; 3],
    /// The claim of the home's own reader, visible to the home at once.
    near_claim: u8,
    writer: Writer,
    next: Next,
    home: Home,
    readers: [Reader; 2],
    /// The first writer's node has no dirty line of the range, and never will.
    is_clean: bool,
    /// The claim of the reader on the other node is ignored.
    is_forgotten: bool,
    /// Whether a reader found wrong bytes.
    wrong: bool,
    has_read: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
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

impl State {
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
pub struct Protocol {
    pub mutant: Option<Mutant>,
}

impl Protocol {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Both halves of the line belong to the object, or in a mutant one half to each object.
    fn store_object(&self, state: &mut State, node: usize, object: u8) {
        let value = if self.is(Mutant::TwoObjectsOnOneLine) {
            let there = state.load(RANGE, node);
            if object == 1 { there & 0xf0 | 1 } else { there & 0x0f | 0x20 }
        } else {
            object << 4 | object
        };
        state.store(RANGE, node, value);
    }

    fn write(&self, state: &mut State) {
        let is_late = self.is(Mutant::HeaderBeforePayload);
        state.writer = match state.writer {
            Writer::Store => {
                self.store_object(state, FIRST, 1);
                if is_late { Writer::Tell } else { Writer::Publish }
            }
            Writer::Publish => {
                if !self.is(Mutant::NoPublishOfPayload) {
                    state.publish(RANGE, FIRST);
                }
                if is_late { Writer::Over } else { Writer::Tell }
            }
            Writer::Tell if state.home == Home::Granted => Writer::Asked,
            // The home no longer knows it.
            Writer::Tell => Writer::Refused,
            Writer::Refused => {
                state.refresh(RANGE, FIRST);
                state.is_clean = true;
                Writer::Over
            }
            other => other,
        };
    }

    fn write_next(&self, state: &mut State) {
        let is_late = self.is(Mutant::HeaderBeforePayload);
        state.next = match state.next {
            Next::Store => {
                self.store_object(state, SECOND, 2);
                if is_late { Next::Tell } else { Next::Publish }
            }
            Next::Publish => {
                if !self.is(Mutant::NoPublishOfPayload) {
                    state.publish(RANGE, SECOND);
                }
                if is_late { Next::Over } else { Next::Tell }
            }
            Next::Tell => Next::Asked,
            other => other,
        };
    }

    fn publish_entry(&self, state: &mut State) {
        if !self.is(Mutant::NoPublishOfEntry) {
            state.publish(ENTRY, HOME);
        }
    }

    fn keep_house(&self, state: &mut State) -> Option<()> {
        let is_late = self.is(Mutant::HeaderBeforePayload);
        state.home = match state.home {
            Home::Granted if state.writer == Writer::Asked => {
                state.store(ENTRY, HOME, SEALED_1);
                state.writer = if is_late { Writer::Publish } else { Writer::Over };
                Home::PublishFirst
            }
            Home::PublishFirst => {
                self.publish_entry(state);
                Home::Live
            }
            Home::Live => {
                state.store(ENTRY, HOME, RETIRING);
                Home::PublishRetiring
            }
            Home::PublishRetiring => {
                self.publish_entry(state);
                Home::RefreshClaim
            }
            Home::RefreshClaim => {
                if !self.is(Mutant::NoRefreshOfClaim) {
                    state.refresh(CLAIM, HOME);
                }
                Home::Scan
            }
            Home::Scan => {
                let is_far_held = state.load(CLAIM, HOME) == 1 && !state.is_forgotten;
                let is_held = is_far_held || state.near_claim == 1;
                if is_held { Home::RefreshClaim } else { Home::Reuse }
            }
            Home::Quarantine if state.is_clean || self.is(Mutant::ReuseWithoutQuarantine) => {
                Home::Reuse
            }
            Home::Reuse if state.next == Next::Wait => {
                state.next = Next::Store;
                Home::GrantedAgain
            }
            Home::GrantedAgain if state.next == Next::Asked => {
                state.store(ENTRY, HOME, SEALED_2);
                state.next = if is_late { Next::Publish } else { Next::Over };
                Home::PublishSecond
            }
            Home::PublishSecond => {
                self.publish_entry(state);
                Home::Over
            }
            _ => return None,
        };
        Some(())
    }

    fn read(&self, state: &mut State, number: usize) {
        let node = if number == 0 { HOME } else { SECOND };
        let is_far = node != HOME;
        let see = |state: &mut State| {
            let entry = state.load(ENTRY, node);
            // The words of both objects differ, and so do their sequences.
            matches!(entry, SEALED_1 | SEALED_2).then_some(entry)
        };
        let refresh_entry = |state: &mut State| {
            if is_far && !self.is(Mutant::NoRefreshOfEntry) {
                state.refresh(ENTRY, node);
            }
        };
        let claim = |state: &mut State, value| match node {
            HOME => state.near_claim = value,
            _ => state.store(CLAIM, node, value),
        };
        let publish_claim = |state: &mut State| {
            if is_far && !self.is(Mutant::NoPublishOfClaim) {
                state.publish(CLAIM, node);
            }
        };
        state.readers[number] = match state.readers[number] {
            Reader::RefreshEntry => {
                refresh_entry(state);
                Reader::LoadEntry
            }
            Reader::LoadEntry => see(state).map_or(Reader::RefreshEntry, Reader::Claim),
            Reader::Claim(object) => {
                claim(state, object);
                Reader::PublishClaim(object)
            }
            Reader::PublishClaim(object) => {
                publish_claim(state);
                Reader::RefreshAgain(object)
            }
            Reader::RefreshAgain(object) => {
                refresh_entry(state);
                Reader::LoadAgain(object)
            }
            Reader::LoadAgain(object) => match see(state) {
                Some(again) if again == object => Reader::RefreshPayload(object),
                _ => Reader::Release,
            },
            Reader::RefreshPayload(object) => {
                if !self.is(Mutant::NoRefreshOfPayload) {
                    state.refresh(RANGE, node);
                }
                Reader::LoadPayload(object, 2)
            }
            Reader::LoadPayload(object, left) => {
                let line = state.load(RANGE, node);
                let is_high =
                    if self.is(Mutant::TwoObjectsOnOneLine) { object == 2 } else { left == 1 };
                let half = if is_high { line >> 4 } else { line & 0x0f };
                state.wrong |= half != object;
                state.has_read[usize::from(object) - 1] = true;
                if left > 1 { Reader::LoadPayload(object, left - 1) } else { Reader::Release }
            }
            Reader::Release => {
                claim(state, 0);
                Reader::PublishRelease
            }
            Reader::PublishRelease => {
                publish_claim(state);
                Reader::Over
            }
            Reader::Crashed | Reader::Over => state.readers[number],
        };
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        // In one mutant the second writer owns a part of the line from the start.
        let next = if self.is(Mutant::TwoObjectsOnOneLine) { Next::Store } else { Next::Wait };
        vec![State {
            memory: [0, FREE, 0],
            caches: [[Cached::Nothing; 3]; 3],
            near_claim: 0,
            writer: Writer::Store,
            next,
            home: Home::Granted,
            readers: [Reader::RefreshEntry; 2],
            is_clean: false,
            is_forgotten: false,
            wrong: false,
            has_read: [false; 2],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Writer::{Asked, Crashed, Over, Refused};
        if !matches!(state.writer, Asked | Crashed | Over) {
            actions.push(Action::Write);
        }
        // One crash is enough for each mistake.
        let has_crashed = state.writer == Crashed || state.readers[1] == Reader::Crashed;
        if !has_crashed && !matches!(state.writer, Asked | Over | Refused) {
            actions.push(Action::Crash);
        }
        if !has_crashed && state.readers[1] != Reader::Over {
            actions.push(Action::CrashReader);
        }
        if state.home == Home::Granted && state.writer != Asked {
            actions.push(Action::TakeForLost);
        }
        if state.writer == Crashed && !state.is_clean {
            actions.push(Action::Clean);
        }
        let far = state.readers[1];
        let is_certain = far == Reader::Crashed || self.is(Mutant::ForgetOfPausedReader);
        if is_certain && !state.is_forgotten {
            actions.push(Action::ForgetReader);
        }
        if matches!(state.next, Next::Store | Next::Publish | Next::Tell) {
            actions.push(Action::WriteNext);
        }
        actions.push(Action::KeepHouse);
        let reads = |n: &usize| !matches!(state.readers[*n], Reader::Over | Reader::Crashed);
        actions.extend((0..2).filter(reads).map(Action::Read));
        for line in [RANGE, ENTRY, CLAIM] {
            for node in [HOME, FIRST, SECOND].into_iter().filter(|node| uses(line, *node)) {
                actions.extend(match state.caches[line][node] {
                    Cached::Nothing => [Action::Fetch(line, node)],
                    Cached::Clean(_) => [Action::Drop(line, node)],
                    Cached::Dirty(_) => [Action::WriteBack(line, node)],
                });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Write => self.write(&mut state),
            Action::Crash => state.writer = Writer::Crashed,
            Action::TakeForLost => state.home = Home::Quarantine,
            Action::Clean => {
                state.refresh(RANGE, FIRST);
                state.is_clean = true;
            }
            Action::CrashReader => state.readers[1] = Reader::Crashed,
            // Its node has seen its process end, and writes back its cached lines.
            Action::ForgetReader => {
                state.publish(CLAIM, SECOND);
                state.is_forgotten = true;
            }
            Action::WriteNext => self.write_next(&mut state),
            Action::KeepHouse => self.keep_house(&mut state)?,
            Action::Read(number) => self.read(&mut state, number),
            Action::WriteBack(line, node) => state.publish(line, node),
            Action::Drop(line, node) => state.caches[line][node] = Cached::Nothing,
            Action::Fetch(line, node) => {
                state.load(line, node);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("readers see what was sealed", |_, state: &State| !state.wrong),
            // Canaries: a model in which nothing is ever read would prove nothing.
            Property::sometimes("the first object is read", |_, state: &State| state.has_read[0]),
            Property::sometimes("the second object is read after the first", |_, state: &State| {
                state.has_read == [true; 2]
            }),
            Property::sometimes("a range is used again after a crash", |_, state: &State| {
                state.writer == Writer::Crashed && state.has_read[1]
            }),
            Property::sometimes(
                "a range is used again that a reader held as it crashed",
                |_, state: &State| {
                    state.readers[1] == Reader::Crashed
                        && state.memory[CLAIM] == 1
                        && state.has_read == [true; 2]
                },
            ),
            Property::sometimes("a writer that was only paused is refused", |_, state: &State| {
                state.writer == Writer::Refused && state.home == Home::Quarantine
            }),
        ]
    }
}
