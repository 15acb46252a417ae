//! Requests for statistics. The answer needs a visit to all objects that clients sealed themselves
//! and to every hold, which is made in parts: one in a turn of the event loop.

use std::collections::VecDeque;

use farrow_store::{EntryRegistration, HoldSurvey, Home, StoreError};

use crate::protocol::identity::SessionId;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) enum CountKind {
    /// Statistics, for a client.
    Stats,
    /// Statistics, for a scraper of metrics.
    Scrape,
    /// The namespaces and their usage.
    Namespaces,
    /// Clients and the heap.
    Overview {
        /// Equal parts of the heap.
        cells: u32,
        /// Holds to list at most.
        held_max: u32,
    },
}

impl CountKind {
    /// Whether one count answers both requests, if neither had begun.
    fn is_like(self, other: Self) -> bool {
        let is_of_stats = |kind| matches!(kind, Self::Stats | Self::Scrape);
        self == other || (is_of_stats(self) && is_of_stats(other))
    }
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) struct CountRequest {
    pub(in crate::protocol) kind: CountKind,
    /// The session that waits and the sequence number of its request; `None` for a scraper.
    pub(in crate::protocol) asker: Option<(SessionId, u64)>,
}

/// A count under way: what is left of it.
#[derive(Debug)]
struct CountJob {
    kind: CountKind,
    requests: Vec<CountRequest>,
    /// Objects that clients sealed are registered first.
    registration: Option<EntryRegistration>,
    survey: Option<HoldSurvey>,
}

/// The result of a count.
#[derive(Debug)]
pub(in crate::protocol) struct Counted {
    pub(in crate::protocol) kind: CountKind,
    pub(in crate::protocol) requests: Vec<CountRequest>,
    /// What is held, unless the request needs only registered objects.
    pub(in crate::protocol) survey: Result<Option<HoldSurvey>, StoreError>,
}

/// The requests that wait for a count.
#[derive(Debug, Default)]
pub(in crate::protocol) struct CountQueue {
    job: Option<CountJob>,
    /// Requests that arrived after the count under way had begun: it may have missed what their
    /// clients did before.
    later: VecDeque<CountRequest>,
}

impl CountQueue {
    /// Adds a request. Returns whether it is the only one, so that its count can begin.
    pub(in crate::protocol) fn push(&mut self, request: CountRequest) -> bool {
        // Scrapers that hung up are not known here: one count is for all that wait.
        if request.asker.is_none() && self.later.iter().any(|one| one.asker.is_none()) {
            return false;
        }
        self.later.push_back(request);
        self.job.is_none() && self.later.len() == 1
    }

    /// Number of requests of a session that wait.
    pub(in crate::protocol) fn count_of(&self, session: SessionId) -> usize {
        let under_way = self.job.iter().flat_map(|job| &job.requests);
        let all = under_way.chain(&self.later).filter_map(|request| request.asker);
        all.filter(|(of, _)| *of == session).count()
    }

    /// Whether a part is left for the next turn.
    pub(in crate::protocol) fn is_busy(&self) -> bool {
        self.job.is_some() || !self.later.is_empty()
    }

    /// Does one part of the count under way, or of the next one. Returns what is finished.
    pub(in crate::protocol) fn advance(&mut self, home: &mut Home) -> Option<Counted> {
        if self.job.is_none() {
            self.job = self.next_job(home);
        }
        let job = self.job.as_mut()?;
        let is_over = job.advance(home);
        if let Ok(false) = is_over {
            return None;
        }
        let CountJob { kind, requests, survey, .. } = self.job.take()?;
        Some(Counted { kind, requests, survey: is_over.map(|_| survey) })
    }

    /// Begins a count for the first request that waits and all others that it answers.
    fn next_job(&mut self, home: &Home) -> Option<CountJob> {
        let kind = self.later.front()?.kind;
        let (requests, later): (Vec<_>, Vec<_>) =
            self.later.drain(..).partition(|one| one.kind.is_like(kind));
        self.later.extend(later);
        let registration =
            (!matches!(kind, CountKind::Overview { .. })).then(EntryRegistration::default);
        let survey = match kind {
            CountKind::Stats | CountKind::Scrape => Some(HoldSurvey::default()),
            CountKind::Overview { cells, .. } => Some(home.survey_for_overview(cells)),
            CountKind::Namespaces => None,
        };
        Some(CountJob { kind, requests, registration, survey })
    }

    /// Forgets requests. Returns whether there were any.
    fn retain(&mut self, keep: impl Fn(&CountRequest) -> bool) -> bool {
        let before = self.later.len();
        self.later.retain(&keep);
        let mut has_changed = self.later.len() < before;
        if let Some(job) = &mut self.job {
            let before = job.requests.len();
            job.requests.retain(keep);
            has_changed |= job.requests.len() < before;
            // No client waits for the rest.
            self.job = self.job.take().filter(|job| !job.requests.is_empty());
        }
        has_changed
    }

    /// Forgets one request.
    pub(in crate::protocol) fn cancel(&mut self, session: SessionId, seq: u64) -> bool {
        self.retain(|request| request.asker != Some((session, seq)))
    }

    /// Forgets the requests of an ended session.
    pub(in crate::protocol) fn forget(&mut self, session: SessionId) {
        self.retain(|request| request.asker.is_none_or(|(of, _)| of != session));
    }

    /// Takes out all requests of clients at shutdown.
    pub(in crate::protocol) fn drain(&mut self) -> Vec<(SessionId, u64)> {
        let under_way = self.job.take().map(|job| job.requests).unwrap_or_default();
        let all = under_way.into_iter().chain(self.later.drain(..));
        all.filter_map(|request| request.asker).collect()
    }
}

impl CountJob {
    /// Does one part. True: it was the last one.
    fn advance(&mut self, home: &mut Home) -> Result<bool, StoreError> {
        if let Some(registration) = &mut self.registration {
            if !home.register_some(registration)? {
                return Ok(false);
            }
            self.registration = None;
        }
        match &mut self.survey {
            Some(survey) => home.survey_some(survey),
            None => Ok(true),
        }
    }
}
