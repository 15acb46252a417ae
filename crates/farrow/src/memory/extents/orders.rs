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
enum OrdersMutant {
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
enum RangeOwner {
    Unowned,
    Client,
    Other,
    Object,
}

/// A thread between two steps.
#[derive(Clone, Debug)]
enum SealingThread {
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
enum AbandonedSeal {
    Queued(SealTicket),
    Served(SealTicket, bool),
}

struct OrdersModel {
    mutant: OrdersMutant,
    dice: u64,
    node: [RangeOwner; PAGES],
    state: ExtentsState,
    connection: u64,
    is_alive: bool,
    /// The ranges granted to the client, as reported by the next daemon.
    welcome: Option<Vec<Span>>,
    threads: [SealingThread; THREADS],
    late: Vec<AbandonedSeal>,
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

impl OrdersModel {
    fn new(mutant: OrdersMutant, seed: u64, is_calm: bool) -> Self {
        let heap = Span { offset: Offset(0), length: Length(PAGES as u64 * page_bytes()) };
        Self {
            mutant,
            dice: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            node: [RangeOwner::Unowned; PAGES],
            state: Extents::new(heap, false).unwrap().state.into_inner().unwrap(),
            connection: FIRST_CONNECTION,
            is_alive: true,
            welcome: None,
            threads: [const { SealingThread::Idle }; THREADS],
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
            owner @ RangeOwner::Client => *owner = RangeOwner::Unowned,
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
            SealingThread::Has(span) => Some(number(*span)),
            _ => None,
        });
        let free = self.state.free.runs().map(|run| number(run_span(run)));
        let mut seen = [false; PAGES];
        for page in owned.chain(free) {
            let is_twice = std::mem::replace(&mut seen[page], true);
            self.is_broken |= is_twice || self.node[page] != RangeOwner::Client;
        }
        self.is_broken |= (0..PAGES).any(|page| {
            self.is_used(page)
                && !matches!(self.node[page], RangeOwner::Client | RangeOwner::Object)
        });
    }

    /// Whether a thread uses a page with a seal that was not answered.
    fn is_used(&self, page: usize) -> bool {
        self.threads.iter().any(|thread| match thread {
            SealingThread::Uses(one) | SealingThread::Unanswered(one, _) => {
                number(one.span) == page
            }
            SealingThread::Sealed(one, Some(true), _) => self.is_calm && number(one.span) == page,
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
            AbandonedSeal::Queued(ticket) => {
                let is_sealed = self.serve(ticket.span);
                self.late.push(AbandonedSeal::Served(ticket, is_sealed));
            }
            AbandonedSeal::Served(..) if self.mutant == OrdersMutant::IgnoreLate => {}
            AbandonedSeal::Served(ticket, is_sealed) => {
                let outcome = match is_sealed {
                    true => SealOutcome::Sealed(None),
                    false => SealOutcome::Refused,
                };
                self.state.conclude(ticket, outcome);
                if self.mutant == OrdersMutant::ReturnInUse {
                    self.state.unused(ticket);
                }
            }
        }
    }

    /// Whether the daemon makes an object of the range.
    fn serve(&mut self, span: Span) -> bool {
        let is_refused = self.roll(4) == 0;
        if !is_refused {
            self.is_broken |= self.node[number(span)] != RangeOwner::Client;
            self.node[number(span)] = RangeOwner::Object;
        }
        !is_refused
    }

    /// Another client deletes an object, takes a page or gives one back.
    fn step_elsewhere(&mut self) {
        let (page, is_queried) = (self.roll(PAGES), self.roll(4) == 0);
        // An object that its creator may use without a hold is retained.
        if self.is_alive && !self.is_used(page) {
            self.node[page] = match self.node[page] {
                RangeOwner::Object | RangeOwner::Other => RangeOwner::Unowned,
                RangeOwner::Unowned if is_queried => RangeOwner::Other,
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
            let of_client = (0..PAGES).filter(|page| self.node[*page] == RangeOwner::Client);
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

    fn step_thread(&mut self, thread: SealingThread) -> SealingThread {
        match thread {
            SealingThread::Idle if self.is_alive => {
                let free = (0..PAGES).find(|page| self.node[*page] == RangeOwner::Unowned);
                let Some(free) = free else {
                    return SealingThread::Answered(None);
                };
                self.node[free] = RangeOwner::Client;
                let ranges = vec![page(free)];
                let granted = Granted { ranges, connection: self.connection };
                // The answer may be lost with the daemon.
                self.is_alive = self.roll(8) > 0;
                SealingThread::Answered(self.is_alive.then_some(granted))
            }
            SealingThread::Idle | SealingThread::Answered(None) => SealingThread::Idle,
            SealingThread::Answered(Some(granted)) => self.accept(&granted),
            SealingThread::Has(span) => match self.roll(3) {
                0 => {
                    let connection = self.state.let_go(&[span]);
                    SealingThread::LetGo(span, connection)
                }
                _ => self.ask_to_seal(span),
            },
            SealingThread::LetGo(span, connection) => {
                let is_current =
                    connection == self.connection || self.mutant == OrdersMutant::ReleaseAlways;
                if is_current && self.is_alive {
                    self.release(span);
                }
                SealingThread::Idle
            }
            SealingThread::Sealed(ticket, answer, sent_on) => self.sealed(ticket, answer, sent_on),
            SealingThread::Unanswered(ticket, sent_on) => {
                self.state.unanswered(ticket, Some(sent_on), None);
                SealingThread::Uses(ticket)
            }
            SealingThread::Uses(ticket) => {
                self.state.unused(ticket);
                SealingThread::Idle
            }
        }
    }

    fn accept(&mut self, granted: &Granted) -> SealingThread {
        let span = granted.ranges[0];
        let doubt = self.state.pending_seals.remove(&span.offset.0);
        if self.mutant == OrdersMutant::AcceptAlways {
            self.state.insert_granted(span);
        } else if !self.state.accept(granted) {
            self.state.pending_seals.extend(doubt.map(|doubt| (span.offset.0, doubt)));
            return SealingThread::Idle;
        }
        if self.mutant == OrdersMutant::KeepDoubts {
            self.state.pending_seals.extend(doubt.map(|doubt| (span.offset.0, doubt)));
        }
        SealingThread::Has(self.state.hand_out(span, page_bytes()))
    }

    fn ask_to_seal(&mut self, span: Span) -> SealingThread {
        let ticket = self.state.seal_requested(span);
        if !self.is_alive {
            return SealingThread::Sealed(ticket, Some(false), self.connection);
        }
        let unanswered = match self.roll(2) {
            0 => SealingThread::Sealed(ticket, None, self.connection),
            _ => SealingThread::Unanswered(ticket, self.connection),
        };
        let late = match self.roll(4) {
            0 => AbandonedSeal::Queued(ticket),
            1 => AbandonedSeal::Served(ticket, self.serve(span)),
            _ => {
                let is_sealed = self.serve(span);
                self.is_alive = self.roll(4) > 0;
                return match self.is_alive {
                    true => SealingThread::Sealed(ticket, Some(is_sealed), self.connection),
                    false => unanswered,
                };
            }
        };
        self.late.push(late);
        unanswered
    }

    fn sealed(
        &mut self,
        mut ticket: SealTicket,
        answer: Option<bool>,
        sent_on: u64,
    ) -> SealingThread {
        if self.mutant == OrdersMutant::NoNumbers {
            let now = self.state.pending_seals.get(&ticket.span.offset.0);
            ticket.number = now.map_or(ticket.number, |requested| requested.number);
        }
        let span = ticket.span;
        let is_found = self.node[number(span)] == RangeOwner::Object;
        match answer {
            Some(true) if self.mutant == OrdersMutant::SealedAlways => {
                self.state.remove_granted(span)
            }
            Some(true) => self.state.sealed(ticket),
            None if self.mutant == OrdersMutant::ReturnUnanswered => {
                self.state.unused(ticket);
                self.state.conclude(ticket, SealOutcome::Refused);
            }
            None if self.mutant != OrdersMutant::NotFoundIsRefused || is_found => {
                self.state.unanswered(ticket, Some(sent_on), None);
                self.state.unused(ticket);
            }
            Some(false) | None => {
                self.state.end_seal(ticket);
                return SealingThread::Has(span);
            }
        }
        SealingThread::Idle
    }
}

impl OrdersModel {
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
            let busy =
                self.threads.iter().position(|thread| !matches!(thread, SealingThread::Idle));
            let Some(busy) = busy else {
                break;
            };
            if let SealingThread::Has(span) = self.threads[busy] {
                let _ = self.state.free.free(span_run(span));
                self.threads[busy] = SealingThread::Idle;
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
        (0..PAGES).any(|page| self.node[page] == RangeOwner::Client && !known.contains(&page))
    }
}

/// Whether some order breaks the invariant.
fn is_broken(mutant: OrdersMutant) -> bool {
    (0..RUNS).any(|seed| {
        let is_calm = seed % 2 == 0;
        let mut world = OrdersModel::new(mutant, seed + 1, is_calm);
        let is_broken = (0..STEPS).any(|_| {
            world.step();
            world.is_broken
        });
        is_broken || (is_calm && world.has_lost_pages())
    })
}

#[test]
fn nothing_is_taken_for_own_that_is_not() {
    assert!(!is_broken(OrdersMutant::None));
}

#[test]
fn each_rule_is_needed() {
    assert!(is_broken(OrdersMutant::AcceptAlways), "answers of an earlier daemon");
    assert!(is_broken(OrdersMutant::ReleaseAlways), "releases to a later daemon");
    assert!(is_broken(OrdersMutant::KeepDoubts), "seals without an answer");
    assert!(is_broken(OrdersMutant::SealedAlways), "seals answered late");
    assert!(is_broken(OrdersMutant::NoNumbers), "seals of the same range");
    assert!(is_broken(OrdersMutant::NotFoundIsRefused), "objects that are gone again");
    assert!(is_broken(OrdersMutant::ReturnUnanswered), "seals that are still served");
    assert!(is_broken(OrdersMutant::ReturnInUse), "pages that are still used");
    assert!(is_broken(OrdersMutant::IgnoreLate), "pages that are never given back");
}
