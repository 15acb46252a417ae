//! Statistics of a node.

use farrow_store::{HoldSurvey, StoreError, StoreStats};
use farrow_wire::{NodeStats, Overview, ReplyBody, WireError};

use super::overview::overview;
use crate::protocol::Action;
use crate::protocol::action::answer_to;
use crate::protocol::cluster::ClusterStats;
use crate::protocol::context::RequestContext;
use crate::protocol::convert::{store_error, too_many};
use crate::protocol::core::counting::{CountKind, CountRequest, Counted};
use crate::protocol::core::namespaces::namespace_reports;
use crate::protocol::state::NodeState;

/// Limit of requests of one session that wait for a count.
const COUNTS_PER_SESSION_MAX: u32 = 64;

impl NodeState {
    /// Sets the server's progress: bytes of prepared pages, and number of wake-ups.
    pub fn set_progress(&mut self, prepared: u64, turns: u64) {
        self.prepared = prepared;
        self.turns = turns;
    }

    /// Counts for a request of a client, including objects that clients have sealed by themselves
    /// until now. The answer follows with the last part of the count.
    pub(in crate::protocol) fn count(
        &mut self,
        context: RequestContext,
        kind: CountKind,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let RequestContext { session, seq, now_ms, .. } = context;
        if self.counting.count_of(session) >= COUNTS_PER_SESSION_MAX as usize {
            return Err(too_many("requests for statistics", COUNTS_PER_SESSION_MAX));
        }
        self.begin_count(CountRequest { kind, asker: Some((session, seq)) }, now_ms, out);
        Ok(None)
    }

    /// Counts for the scrapers of metrics: [`Action::Scraped`] follows.
    pub fn count_for_scrapers(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.begin_count(CountRequest { kind: CountKind::Scrape, asker: None }, now_ms, out);
    }

    fn begin_count(&mut self, request: CountRequest, now_ms: u64, out: &mut Vec<Action>) {
        if self.counting.push(request) {
            self.count_more(now_ms, out);
        }
    }

    /// Once a turn: does a part of the count under way.
    pub(in crate::protocol) fn count_more(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let had_retiring = self.home.has_retiring();
        let counted = self.counting.advance(&mut self.home);
        if !had_retiring {
            // Refused entries wait to be freed.
            self.reclaim.soon(&self.home, now_ms);
        }
        if let Some(counted) = counted {
            self.answer_counted(counted, now_ms, out);
        }
    }

    fn answer_counted(&mut self, counted: Counted, now_ms: u64, out: &mut Vec<Action>) {
        let Counted { kind, requests, survey } = counted;
        let body = survey.map_err(store_error).and_then(|survey| match kind {
            CountKind::Namespaces => Ok(ReplyBody::Namespaces(namespace_reports(&self.home))),
            CountKind::Overview { held_max, .. } => {
                let overview = self.overview_of(survey.unwrap_or_default(), held_max);
                overview.map(ReplyBody::Overview).map_err(store_error)
            }
            CountKind::Stats | CountKind::Scrape => {
                let store = self.home.stats_of(&survey.unwrap_or_default());
                Ok(ReplyBody::Stats(Box::new(self.stats_with(store, now_ms))))
            }
        });
        for request in requests {
            match (request.asker, &body) {
                (Some((session, seq)), body) => out.push(answer_to(session, seq, body.clone())),
                (None, Ok(ReplyBody::Stats(stats))) => {
                    out.push(Action::Scraped(Some(stats.clone())));
                }
                (None, _) => {
                    tracing::error!(?body, "a scrape has no statistics");
                    out.push(Action::Scraped(None));
                }
            }
        }
    }

    fn overview_of(&self, survey: HoldSurvey, held_max: u32) -> Result<Overview, StoreError> {
        let Self { home, clients, families, .. } = self;
        let is_away = |slot| clients.orphan(slot).is_some() || families.has(slot);
        let held = home.held_objects(&survey, held_max)?;
        Ok(overview(home.overview_of(survey), held, is_away))
    }

    /// Statistics of the node as registered so far.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn stats(&self, now_ms: u64) -> Result<NodeStats, StoreError> {
        Ok(self.stats_with(self.home.stats()?, now_ms))
    }

    fn stats_with(&self, store: StoreStats, now_ms: u64) -> NodeStats {
        let (buffers, buffers_max) = self.buffers.totals();
        let residency = self.residency.totals();
        let fabric = self.home.region().fabric();
        NodeStats {
            capacity: store.capacity.0,
            used: store.used.0,
            free: store.free.0,
            largest_free: store.largest_free.0,
            granted: store.granted.0,
            fragmented: store.fragmented.0,
            quarantine: store.quarantine.0,
            retiring: store.retiring.0,
            objects: store.objects.into(),
            objects_max: store.objects_max.into(),
            objects_retiring: store.objects_retiring.into(),
            clients: store.clients.into(),
            clients_max: store.clients_max.into(),
            holds: store.holds,
            region_uid: self.home.uid().0,
            pid: self.pid,
            uptime_ms: now_ms.saturating_sub(self.started_ms),
            adopted: self.adopted,
            prepared: self.prepared,
            fabric: fabric.kind().as_str().to_owned(),
            coherence: fabric.coherence_class().as_str().to_owned(),
            memory: self.place.memory.clone(),
            huge_page_bytes: fabric.huge_page_bytes().map_or(0, |bytes| bytes.0),
            requests: self.counts.requests,
            sealed_total: self.counts.sealed,
            deleted_total: self.counts.deleted,
            waiting: self.admission.waiting() as u64,
            waiting_bytes: self.admission.waiting_bytes(),
            turns_total: self.turns,
            eviction: self.residency.policy_name().to_owned(),
            held: store.held.0,
            pinned: store.pinned.0,
            objects_pinned: store.objects_pinned.into(),
            evictable: self.residency.evictable(&store).0,
            evicted_total: residency.evicted,
            evicted_bytes_total: residency.evicted_bytes,
            records: store.records.0,
            client_objects: store.client_objects.into(),
            client_objects_max: store.client_objects_max.into(),
            objects_spilled: store.objects_spilled.into(),
            spilled: store.spilled.0,
            spilled_total: residency.spilled,
            restored_total: residency.restored,
            spill_failures_total: residency.spill_failures,
            buffers,
            buffers_max,
            capacity_max: store.capacity_max.0,
            settings: self.settings.current(),
            settings_changed: self.settings.changed(),
            draining: u64::from(self.drain.record.is_draining),
            moved_total: self.drain.moved,
            moved_bytes_total: self.drain.moved_bytes,
        }
    }

    /// Statistics of the cluster; `None` for a node without one.
    pub fn cluster_stats(&self, now_ms: u64) -> Option<ClusterStats> {
        let cluster = self.cluster.0.as_ref()?;
        let own = (self.cluster.own_name(), self.home.region());
        let peers = cluster.peers.iter();
        let peers = peers.filter_map(|(name, one)| Some((name.clone(), one.mapped()?)));
        let peers = peers.map(|(name, memory)| (name, memory.reader.region()));
        let lines = std::iter::once(own).chain(peers).map(|(name, region)| {
            let counters = region.counters();
            (name, [counters.published_lines, counters.refreshed_lines])
        });
        Some(ClusterStats {
            members: self.members(),
            lease_left_ms: self.cluster.lease_left_ms(now_ms)?,
            lines: lines.collect(),
            names_lost: self.joined.lost,
            fetched: self.replicas.fetched(),
            served: self.replicas.served(),
            packed: self.replicas.packed(),
        })
    }
}
