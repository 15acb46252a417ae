//! Threads of one client take, seal and give back pages while daemons die and another client
//! deletes sealed objects. All steps between a message, its answer and the records run in random
//! order; some seals are carried out and answered after their calls have ended. No page that the
//! client uses is ever owned by the node or another client, only granted pages are given back, and
//! in the end the client knows all of them.

use farrow_memory::Length;

use super::*;
use crate::memory::node::FIRST_CONNECTION;

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
    /// The range of a seal without an answer is given back at once.
    ReturnUnanswered,
    /// A refused range is given back while the client still uses it.
    ReturnInUse,
    /// Late answers change nothing.
    IgnoreLate,
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
    Sealed(SealTicket, Option<bool>, u64),
    /// No answer on that connection, and the page stays in use.
    Unanswered(SealTicket, u64),
    /// Removed from the records, and to be given back.
    LetGo(Span, u64),
    /// Uses a page with a seal that was not answered.
    Uses(SealTicket),
}

/// A seal whose call has ended, at a daemon that lives.
#[derive(Clone, Copy)]
enum LateSeal {
    Queued(SealTicket),
    Served(SealTicket, bool),
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
    late: Vec<LateSeal>,
    /// No client deletes an object before its creator has read the answer to its seal. Otherwise a page
    /// may be granted again with an answer that a kill loses, and the client knows it as sealed.
    is_calm: bool,
    is_broken: bool,
}

fn page(number: usize) -> Span {
    Span { offset: Offset(number as u64 * page_bytes()), length: Length(page_bytes()) }
}

fn number(span: Span) -> usize {
    (span.offset.0 / page_bytes()) as usize
}

impl World {
    fn new(mutant: Mutant, seed: u64, is_calm: bool) -> Self {
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
            late: Vec::new(),
            is_calm,
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
        match self.roll(THREADS + 3) {
            0 => self.step_elsewhere(),
            1 => self.step_daemon(),
            2 => self.step_late(),
            thread => {
                let thread = thread - 3;
                let next = self.step_thread(self.threads[thread].clone());
                self.threads[thread] = next;
            }
        }
        self.dispose();
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
        self.is_broken |= (0..PAGES).any(|page| {
            self.is_used(page) && !matches!(self.node[page], Owner::Client | Owner::Object)
        });
    }

    /// Whether a thread uses a page with a seal that was not answered.
    fn is_used(&self, page: usize) -> bool {
        self.threads.iter().any(|thread| match thread {
            Thread::Uses(one) | Thread::Unanswered(one, _) => number(one.span) == page,
            Thread::Sealed(one, Some(true), _) => self.is_calm && number(one.span) == page,
            _ => false,
        })
    }

    /// Gives back what ended with the last change of the records.
    fn dispose(&mut self) {
        for ended in std::mem::take(&mut self.state.ended) {
            if let Some((span, connection)) = ended.returned
                && connection == self.connection
                && self.is_alive
            {
                self.release(span);
            }
        }
    }

    /// The daemon serves a seal whose call has ended, or its answer arrives.
    fn step_late(&mut self) {
        if !self.is_alive || self.late.is_empty() {
            return;
        }
        let place = self.roll(self.late.len());
        match self.late.swap_remove(place) {
            LateSeal::Queued(ticket) => {
                let is_sealed = self.serve(ticket.span);
                self.late.push(LateSeal::Served(ticket, is_sealed));
            }
            LateSeal::Served(..) if self.mutant == Mutant::IgnoreLate => {}
            LateSeal::Served(ticket, is_sealed) => {
                let outcome = match is_sealed {
                    true => SealOutcome::Sealed(None),
                    false => SealOutcome::Refused,
                };
                self.state.conclude(ticket, outcome);
                if self.mutant == Mutant::ReturnInUse {
                    self.state.unused(ticket);
                }
            }
        }
    }

    /// Whether the daemon makes an object of the range.
    fn serve(&mut self, span: Span) -> bool {
        let is_refused = self.roll(4) == 0;
        if !is_refused {
            self.is_broken |= self.node[number(span)] != Owner::Client;
            self.node[number(span)] = Owner::Object;
        }
        !is_refused
    }

    /// Another client deletes an object, takes a page or gives one back.
    fn step_elsewhere(&mut self) {
        let (page, is_queried) = (self.roll(PAGES), self.roll(4) == 0);
        // An object that its creator may use without a hold is retained.
        if self.is_alive && !self.is_used(page) {
            self.node[page] = match self.node[page] {
                Owner::Object | Owner::Other => Owner::Nobody,
                Owner::Nobody if is_queried => Owner::Other,
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
        self.late.clear();
        let Some(theirs) = self.welcome.take() else {
            let of_client = (0..PAGES).filter(|page| self.node[*page] == Owner::Client);
            self.welcome = Some(of_client.map(page).collect());
            return;
        };
        self.connection += 1;
        self.is_alive = true;
        let ours = self.state.reconcile(self.connection, &theirs);
        for span in difference(&theirs, &ours) {
            let first = number(farrow_wire::span(span));
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
            Thread::Sealed(ticket, answer, sent_on) => self.sealed(ticket, answer, sent_on),
            Thread::Unanswered(ticket, sent_on) => {
                self.state.unanswered(ticket, Some(sent_on), None);
                Thread::Uses(ticket)
            }
            Thread::Uses(ticket) => {
                self.state.unused(ticket);
                Thread::Idle
            }
        }
    }

    fn accept(&mut self, granted: &Granted) -> Thread {
        let span = granted.ranges[0];
        let doubt = self.state.pending_seals.remove(&span.offset.0);
        if self.mutant == Mutant::AcceptAlways {
            self.state.insert_granted(span);
        } else if !self.state.accept(granted) {
            self.state.pending_seals.extend(doubt.map(|doubt| (span.offset.0, doubt)));
            return Thread::Idle;
        }
        if self.mutant == Mutant::KeepDoubts {
            self.state.pending_seals.extend(doubt.map(|doubt| (span.offset.0, doubt)));
        }
        Thread::Has(self.state.hand_out(span, page_bytes()))
    }

    fn ask_to_seal(&mut self, span: Span) -> Thread {
        let ticket = self.state.seal_requested(span);
        if !self.is_alive {
            return Thread::Sealed(ticket, Some(false), self.connection);
        }
        let unanswered = match self.roll(2) {
            0 => Thread::Sealed(ticket, None, self.connection),
            _ => Thread::Unanswered(ticket, self.connection),
        };
        let late = match self.roll(4) {
            0 => LateSeal::Queued(ticket),
            1 => LateSeal::Served(ticket, self.serve(span)),
            _ => {
                let is_sealed = self.serve(span);
                self.is_alive = self.roll(4) > 0;
                return match self.is_alive {
                    true => Thread::Sealed(ticket, Some(is_sealed), self.connection),
                    false => unanswered,
                };
            }
        };
        self.late.push(late);
        unanswered
    }

    fn sealed(&mut self, mut ticket: SealTicket, answer: Option<bool>, sent_on: u64) -> Thread {
        if self.mutant == Mutant::NoNumbers {
            let now = self.state.pending_seals.get(&ticket.span.offset.0);
            ticket.number = now.map_or(ticket.number, |asked| asked.number);
        }
        let span = ticket.span;
        let is_found = self.node[number(span)] == Owner::Object;
        match answer {
            Some(true) if self.mutant == Mutant::SealedAlways => self.state.remove_granted(span),
            Some(true) => self.state.sealed(ticket),
            None if self.mutant == Mutant::ReturnUnanswered => {
                self.state.unused(ticket);
                self.state.conclude(ticket, SealOutcome::Refused);
            }
            None if self.mutant != Mutant::NotFoundIsRefused || is_found => {
                self.state.unanswered(ticket, Some(sent_on), None);
                self.state.unused(ticket);
            }
            Some(false) | None => {
                self.state.end_seal(ticket);
                return Thread::Has(span);
            }
        }
        Thread::Idle
    }
}

impl World {
    /// Ends everything while the daemon lives. Whether the client then does not know a page that is
    /// granted to it.
    fn has_lost_pages(&mut self) -> bool {
        while !self.is_alive {
            self.step_daemon();
            self.dispose();
        }
        loop {
            while !self.late.is_empty() {
                self.step_late();
                self.dispose();
            }
            let busy = self.threads.iter().position(|thread| !matches!(thread, Thread::Idle));
            let Some(busy) = busy else {
                break;
            };
            if let Thread::Has(span) = self.threads[busy] {
                let _ = self.state.free.free(span_run(span));
                self.threads[busy] = Thread::Idle;
                continue;
            }
            let next = self.step_thread(self.threads[busy].clone());
            self.threads[busy] = next;
            self.dispose();
        }
        let known: Vec<usize> = self
            .state
            .free
            .runs()
            .flat_map(|run| (run.start..run.end).step_by(page_bytes() as usize))
            .map(|start| (start / page_bytes()) as usize)
            .collect();
        (0..PAGES).any(|page| self.node[page] == Owner::Client && !known.contains(&page))
    }
}

/// Whether some order breaks the invariant.
fn is_broken(mutant: Mutant) -> bool {
    (0..RUNS).any(|seed| {
        let is_calm = seed % 2 == 0;
        let mut world = World::new(mutant, seed + 1, is_calm);
        let is_broken = (0..STEPS).any(|_| {
            world.step();
            world.is_broken
        });
        is_broken || (is_calm && world.has_lost_pages())
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
    assert!(is_broken(Mutant::ReturnUnanswered), "seals that are still served");
    assert!(is_broken(Mutant::ReturnInUse), "pages that are still used");
    assert!(is_broken(Mutant::IgnoreLate), "pages that are never given back");
}
