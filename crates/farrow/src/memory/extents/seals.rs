//! Ranges that the node was asked to seal, from the request until the outcome is known and this
//! process no longer uses the range.

use std::fmt::Debug;
use std::sync::Arc;

use farrow_memory::Span;
use farrow_store::{Held, Run};

use super::ranges::{difference, run_span, span_run};
use super::records::ExtentsState;
use crate::memory::node::NodeAccess;

/// Lives for as long as bytes of a range may be in use without a hold.
pub(crate) type UseGuard = Arc<dyn Debug + Send + Sync>;

/// A range with a seal request. The number distinguishes the request from one for the same range
/// after it was granted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealTicket {
    pub(crate) span: Span,
    pub(super) number: u64,
}

/// The result of a seal request.
#[derive(Debug)]
pub(crate) enum SealOutcome {
    /// The answer may arrive in time.
    Requested,
    /// The call has ended without an answer. A late answer, or the next connection, shows the
    /// outcome.
    Unanswered,
    /// The range is still granted.
    Refused,
    /// The range is part of an object. `None`: which object is not known, or it cannot be held.
    Sealed(Option<Held>),
}

impl SealOutcome {
    /// Of a range that a later daemon reports as granted, or not.
    fn compared(is_granted: bool) -> Self {
        if is_granted { Self::Refused } else { Self::Sealed(None) }
    }
}

/// One range with a seal request.
#[derive(Debug)]
pub(super) struct PendingSeal {
    pub(super) end: u64,
    pub(super) number: u64,
    outcome: SealOutcome,
    /// Whether the range was granted when the records were last compared with the node's.
    was_granted: Option<bool>,
    /// This process no longer uses the range, and no forked child does.
    is_unused: bool,
    /// Open for as long as bytes of the range may be in use without a hold.
    open: Option<UseGuard>,
}

/// A request that needs no record any more. It is disposed of without the lock of the extents.
#[derive(Debug)]
pub(super) struct EndedSeal {
    /// A range that goes back to the node, and the connection for that.
    pub(super) returned: Option<(Span, u64)>,
    seal: PendingSeal,
}

impl EndedSeal {
    fn new(seal: PendingSeal) -> Self {
        Self { returned: None, seal }
    }

    /// Whether it has something to give back.
    fn is_empty(&self) -> bool {
        let has_hold = matches!(self.seal.outcome, SealOutcome::Sealed(Some(_)));
        self.returned.is_none() && self.seal.open.is_none() && !has_hold
    }

    pub(super) fn dispose(self, node: &dyn NodeAccess) {
        if let Some((span, connection)) = self.returned {
            node.give_back(&[span], connection);
        }
        if let SealOutcome::Sealed(Some(held)) = self.seal.outcome {
            node.release(held);
        }
    }
}

impl ExtentsState {
    pub(super) fn seal_requested(&mut self, span: Span) -> SealTicket {
        self.seals += 1;
        let Run { start, end } = span_run(span);
        let (number, outcome) = (self.seals, SealOutcome::Requested);
        let seal =
            PendingSeal { end, number, outcome, was_granted: None, is_unused: false, open: None };
        self.pending_seals.insert(start, seal);
        SealTicket { span, number }
    }

    /// Ends a request with a range that this process uses again. False: the range was sealed,
    /// deleted and granted again since.
    pub(super) fn end_seal(&mut self, ticket: SealTicket) -> bool {
        let Some(seal) = self.remove_seal(ticket) else {
            return false;
        };
        self.end(EndedSeal::new(seal));
        true
    }

    /// Ends a request with a range that is part of an object.
    pub(super) fn sealed(&mut self, ticket: SealTicket) {
        if self.end_seal(ticket) {
            self.remove_granted(ticket.span);
        }
    }

    /// Records that the call has ended without an answer. `sent_on` is the connection of the request.
    pub(super) fn unanswered(
        &mut self,
        ticket: SealTicket,
        sent_on: Option<u64>,
        open: Option<&UseGuard>,
    ) {
        let has_ended = sent_on.is_some_and(|connection| connection < self.connection);
        let Some(seal) = self.seal_mut(ticket) else {
            return;
        };
        seal.open = open.cloned();
        if !matches!(seal.outcome, SealOutcome::Requested) {
            return;
        }
        seal.outcome = SealOutcome::Unanswered;
        // Another thread has compared the records since.
        if let Some(was_granted) = seal.was_granted.filter(|_| has_ended) {
            self.conclude(ticket, SealOutcome::compared(was_granted));
        }
    }

    /// Records the outcome of a request whose range may still be in use.
    pub(super) fn conclude(&mut self, ticket: SealTicket, outcome: SealOutcome) {
        if matches!(outcome, SealOutcome::Sealed(_)) && self.seal_mut(ticket).is_some() {
            self.remove_granted(ticket.span);
        }
        match self.seal_mut(ticket) {
            Some(seal) => seal.outcome = outcome,
            // The next connection has shown the outcome, and the range is not in use.
            None => {
                let SealTicket { span, number } = ticket;
                let end = span_run(span).end;
                let seal = PendingSeal {
                    end,
                    number,
                    outcome,
                    was_granted: None,
                    is_unused: true,
                    open: None,
                };
                self.end(EndedSeal::new(seal));
            }
        }
        self.finish(ticket);
    }

    /// Records that the range is no longer used in this process.
    pub(super) fn unused(&mut self, ticket: SealTicket) {
        if let Some(seal) = self.seal_mut(ticket) {
            seal.is_unused = true;
        }
        self.finish(ticket);
    }

    /// Ends a request if its outcome is known and its range is unused.
    fn finish(&mut self, ticket: SealTicket) {
        let is_refused = match self.seal_mut(ticket) {
            Some(PendingSeal { is_unused: true, outcome, .. }) => match outcome {
                SealOutcome::Requested | SealOutcome::Unanswered => return,
                SealOutcome::Refused => true,
                SealOutcome::Sealed(_) => false,
            },
            _ => return,
        };
        if let Some(seal) = self.remove_seal(ticket) {
            let returned = is_refused.then_some((ticket.span, self.connection));
            if is_refused {
                self.remove_granted(ticket.span);
            }
            self.end(EndedSeal { returned, seal });
        }
    }

    fn end(&mut self, seal: EndedSeal) {
        if !seal.is_empty() {
            self.ended.push(seal);
        }
    }

    /// Prepares the comparison with the node's records for a new connection: `theirs` shows the
    /// outcome of each seal that was not answered. Returns the ranges that remain this client's.
    pub(super) fn reconcile(&mut self, connection: u64, theirs: &[Span]) -> Vec<Span> {
        self.connection = connection;
        let all: Vec<SealTicket> = (self.pending_seals.iter())
            .map(|(start, seal)| {
                let span = run_span(Run { start: *start, end: seal.end });
                SealTicket { span, number: seal.number }
            })
            .collect();
        for ticket in all {
            let was_granted = difference(&[ticket.span], theirs).is_empty();
            let Some(seal) = self.seal_mut(ticket) else {
                continue;
            };
            seal.was_granted = Some(was_granted);
            // A range that is granted and unused is unknown to this client from here on, and the
            // comparison returns it.
            let is_known = was_granted && !seal.is_unused;
            if matches!(seal.outcome, SealOutcome::Unanswered) {
                self.conclude(ticket, SealOutcome::compared(is_known));
            }
        }
        let runs = self.granted.iter().map(|(start, end)| Run { start: *start, end: *end });
        runs.map(run_span).collect()
    }

    /// Ends the requests for ranges that overlap this one, which is granted again: they were
    /// carried out, whatever the answers.
    pub(super) fn end_seals(&mut self, span: Span) {
        let Run { start, end } = span_run(span);
        let ended: Vec<Run> = (self.pending_seals.range(..end).rev())
            .take_while(|(_, seal)| seal.end > start)
            .map(|(from, seal)| Run { start: *from, end: seal.end })
            .collect();
        for run in ended {
            if let Some(seal) = self.pending_seals.remove(&run.start) {
                self.end(EndedSeal::new(seal));
            }
            self.remove_granted(run_span(run));
        }
    }

    pub(super) fn was_sealed(&self, start: u64) -> bool {
        self.pending_seals.get(&start).is_some_and(|seal| {
            matches!(seal.outcome, SealOutcome::Requested) && seal.was_granted == Some(false)
        })
    }

    fn seal_mut(&mut self, ticket: SealTicket) -> Option<&mut PendingSeal> {
        let seal = self.pending_seals.get_mut(&ticket.span.offset.0);
        seal.filter(|seal| seal.number == ticket.number)
    }

    fn remove_seal(&mut self, ticket: SealTicket) -> Option<PendingSeal> {
        self.seal_mut(ticket)?;
        self.pending_seals.remove(&ticket.span.offset.0)
    }
}
