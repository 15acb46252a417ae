//! Threads of one client take, seal and give back pages while daemons die and another client
//! deletes sealed objects. All steps between a message, its answer and the records run in random
//! order. No page that the client uses is ever owned by the node or another client, and only
//! granted pages are given back.

use super::*;

const PAGES: usize = 6;
const THREADS: usize = 3;
const STEPS: usize = 400;
const RUNS: u64 = 4_000;

/// A missing rule; the test must detect each of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mutant {
    None,
    /// An answer of an earlier daemon is accepted after the records were compared.
    AcceptAlways,
    /// A range removed from the records is given back to a later daemon.
    ReleaseAlways,
    /// The range of a seal without an answer stays doubtful when it is granted again.
    KeepDoubts,
    /// The answer to a seal removes a range from the records that was granted again meanwhile.
    SealedAlways,
    /// The answer to a seal is taken as that to a later seal of the same range.
    NoNumbers,
    /// An object missing from the directory after a kill counts as not sealed.
    NotFoundIsRefused,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Nobody,
    Client,
    Other,
    Object,
}

/// A thread between two steps.
#[derive(Clone, Debug)]
enum Thread {
    Idle,
    /// The node granted this range, or refused.
    Answered(Option<Granted>),
    Has(Span),
    /// Sealed, refused, or no answer.
    Sealed(SealTicket, Option<bool>),
    /// Removed from the records, and to be given back.
    LetGo(Span, u64),
}

struct World {
    mutant: Mutant,
    dice: u64,
    node: [Owner; PAGES],
    state: ExtentsState,
    connection: u64,
    is_alive: bool,
    /// The ranges granted to the client, as reported by the next daemon.
    welcome: Option<Vec<Span>>,
    threads: [Thread; THREADS],
    is_broken: bool,
}

fn page(number: usize) -> Span {
    Span { offset: Offset(number as u64 * page_bytes()), length: Length(page_bytes()) }
}

fn number(span: Span) -> usize {
    (span.offset.0 / page_bytes()) as usize
}

impl World {
    fn new(mutant: Mutant, seed: u64) -> Self {
        let heap = Span { offset: Offset(0), length: Length(PAGES as u64 * page_bytes()) };
        Self {
            mutant,
            dice: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            node: [Owner::Nobody; PAGES],
            state: Extents::new(heap, false).unwrap().state.into_inner().unwrap(),
            connection: FIRST_CONNECTION,
            is_alive: true,
            welcome: None,
            threads: [const { Thread::Idle }; THREADS],
            is_broken: false,
        }
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as usize % sides
    }

    fn release(&mut self, span: Span) {
        match &mut self.node[number(span)] {
            owner @ Owner::Client => *owner = Owner::Nobody,
            _ => self.is_broken = true,
        }
    }

    fn step(&mut self) {
        match self.roll(THREADS + 2) {
            0 => self.step_elsewhere(),
            1 => self.step_daemon(),
            thread => {
                let thread = thread - 2;
                let next = self.step_thread(self.threads[thread].clone());
                self.threads[thread] = next;
            }
        }
        let owned = self.threads.iter().filter_map(|thread| match thread {
            Thread::Has(span) => Some(number(*span)),
            _ => None,
        });
        let free = self.state.free.runs().map(|run| number(run_span(run)));
        let mut seen = [false; PAGES];
        for page in owned.chain(free) {
            let is_twice = std::mem::replace(&mut seen[page], true);
            self.is_broken |= is_twice || self.node[page] != Owner::Client;
        }
    }

    /// Another client deletes an object, takes a page or gives one back.
    fn step_elsewhere(&mut self) {
        let (page, is_asked) = (self.roll(PAGES), self.roll(4) == 0);
        if self.is_alive {
            self.node[page] = match self.node[page] {
                Owner::Object | Owner::Other => Owner::Nobody,
                Owner::Nobody if is_asked => Owner::Other,
                owner => owner,
            };
        }
    }

    /// A kill, the welcome of the next daemon, or the comparison with its records.
    fn step_daemon(&mut self) {
        if self.is_alive {
            self.is_alive = self.roll(4) > 0;
            return;
        }
        let Some(theirs) = self.welcome.take() else {
            let of_client = (0..PAGES).filter(|page| self.node[*page] == Owner::Client);
            self.welcome = Some(of_client.map(page).collect());
            return;
        };
        self.connection += 1;
        self.is_alive = true;
        let ours = self.state.reconcile(self.connection);
        for span in difference(&theirs, &ours) {
            let first = number(crate::spans::span(span));
            (first..first + (span.1 / page_bytes()) as usize).for_each(|n| self.release(page(n)));
        }
    }

    fn step_thread(&mut self, thread: Thread) -> Thread {
        match thread {
            Thread::Idle if self.is_alive => {
                let free = (0..PAGES).find(|page| self.node[*page] == Owner::Nobody);
                let Some(free) = free else {
                    return Thread::Answered(None);
                };
                self.node[free] = Owner::Client;
                let ranges = vec![page(free)];
                let granted = Granted { ranges, connection: self.connection };
                // The answer may be lost with the daemon.
                self.is_alive = self.roll(8) > 0;
                Thread::Answered(self.is_alive.then_some(granted))
            }
            Thread::Idle | Thread::Answered(None) => Thread::Idle,
            Thread::Answered(Some(granted)) => self.accept(&granted),
            Thread::Has(span) => match self.roll(3) {
                0 => {
                    let connection = self.state.let_go(&[span]);
                    Thread::LetGo(span, connection)
                }
                _ => self.ask_to_seal(span),
            },
            Thread::LetGo(span, connection) => {
                let is_current =
                    connection == self.connection || self.mutant == Mutant::ReleaseAlways;
                if is_current && self.is_alive {
                    self.release(span);
                }
                Thread::Idle
            }
            Thread::Sealed(ticket, answer) => self.sealed(ticket, answer),
        }
    }

    fn accept(&mut self, granted: &Granted) -> Thread {
        let span = granted.ranges[0];
        let doubt = self.state.asked.remove(&span.offset.0);
        if self.mutant == Mutant::AcceptAlways {
            self.state.insert_granted(span);
        } else if !self.state.accept(granted) {
            self.state.asked.extend(doubt.map(|doubt| (span.offset.0, doubt)));
            return Thread::Idle;
        }
        if self.mutant == Mutant::KeepDoubts {
            self.state.asked.extend(doubt.map(|doubt| (span.offset.0, doubt)));
        }
        Thread::Has(self.state.hand_out(span, page_bytes()))
    }

    fn ask_to_seal(&mut self, span: Span) -> Thread {
        let ticket = self.state.asked_to_seal(span);
        if !self.is_alive {
            return Thread::Sealed(ticket, Some(false));
        }
        let is_refused = self.roll(4) == 0;
        if !is_refused {
            self.is_broken |= self.node[number(span)] != Owner::Client;
            self.node[number(span)] = Owner::Object;
        }
        self.is_alive = self.roll(4) > 0;
        Thread::Sealed(ticket, self.is_alive.then_some(!is_refused))
    }

    fn sealed(&mut self, mut ticket: SealTicket, answer: Option<bool>) -> Thread {
        if self.mutant == Mutant::NoNumbers {
            let now = self.state.asked.get(&ticket.span.offset.0);
            ticket.number = now.map_or(ticket.number, |asked| asked.number);
        }
        let span = ticket.span;
        let is_found = self.node[number(span)] == Owner::Object;
        match answer {
            Some(true) if self.mutant == Mutant::SealedAlways => self.state.remove_granted(span),
            Some(true) => self.state.sealed(ticket),
            None if self.mutant != Mutant::NotFoundIsRefused || is_found => {
                self.state.in_limbo(ticket);
            }
            Some(false) | None => {
                self.state.end_seal(ticket);
                return Thread::Has(span);
            }
        }
        Thread::Idle
    }
}

/// Whether some order breaks the invariant.
fn is_broken(mutant: Mutant) -> bool {
    (0..RUNS).any(|seed| {
        let mut world = World::new(mutant, seed + 1);
        (0..STEPS).any(|_| {
            world.step();
            world.is_broken
        })
    })
}

#[test]
fn nothing_is_taken_for_own_that_is_not() {
    assert!(!is_broken(Mutant::None));
}

#[test]
fn each_rule_is_needed() {
    assert!(is_broken(Mutant::AcceptAlways), "answers of an earlier daemon");
    assert!(is_broken(Mutant::ReleaseAlways), "releases to a later daemon");
    assert!(is_broken(Mutant::KeepDoubts), "seals without an answer");
    assert!(is_broken(Mutant::SealedAlways), "seals answered late");
    assert!(is_broken(Mutant::NoNumbers), "seals of the same range");
    assert!(is_broken(Mutant::NotFoundIsRefused), "objects that are gone again");
}
