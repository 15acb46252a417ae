//! Events of the replicas: what [`Replicas`](super::replicas::Replicas) decides, and the steps that
//! seal or delete objects of this node.

use std::sync::Arc;

use farrow_memory::Span;
use farrow_store::{ClientSlot, ObjectId, StoreError};
use farrow_wire::{Extent, ImportStep, OpenLazy, ReplyBody, WireError, WireTarget};

use super::action::{Action, answer_to};
use super::context::{FirstRequest, ReplyTo, RequestContext};
use super::core::namespaces::full_target;
use super::net::{NetAction, NetEvent, NetReaders};
use super::replicas::invalidation_notice::InvalidationNotice;
use super::replicas::{BroughtImport, ImportReply, ImportTarget};
use super::state::NodeState;

impl NodeState {
    /// Attaches the network fabric. `bytes_max` limits the memory of replicas.
    pub(crate) fn set_net(
        &mut self,
        readers: Arc<dyn NetReaders>,
        kind: &'static str,
        bytes_max: Option<u64>,
    ) {
        self.replicas.attach(readers, kind, bytes_max, &self.home);
        self.publish_rules();
    }

    /// Whether other nodes read from an earlier incarnation of this node by network.
    pub(crate) fn was_read_by_net(&self) -> bool {
        self.replicas.is_new_life
    }

    /// One more hold block for the threads that read for other nodes.
    pub(crate) fn net_hold_block(&mut self) -> Result<Span, StoreError> {
        self.replicas.hold_block(&mut self.home, self.pid, self.clients.owner_uid())
    }

    /// Counts bytes that were brought for page faults of clients ([`crate::net`]).
    pub(crate) fn count_pages(&mut self, bytes: u64) {
        self.replicas.fetched_bytes_total += bytes;
    }

    /// Sets the time until which clients may use replicas without asking.
    pub(crate) fn set_replicas_until(&mut self, until_ns: u64, awake_ns: u64) {
        if let Err(error) = self.home.set_replicas_until(until_ns, awake_ns) {
            tracing::error!(%error, "the replicas of a node cannot be dropped");
        }
    }

    /// Handles an event of the network fabric.
    pub(crate) fn net_event(&mut self, event: NetEvent, now_ms: u64, out: &mut Vec<Action>) {
        self.residency.set_now(now_ms);
        self.heed_lease(now_ms, out);
        let (replicas, mut context) = self.replicas(now_ms, out);
        match event {
            NetEvent::Opened { token, node, result } => {
                let brought = replicas.opened_elsewhere(token, &node, result, &mut context);
                self.finish_import(brought, now_ms, out);
            }
            NetEvent::Loaded { origin, result } => {
                let brought = replicas.loaded(origin, result, &mut context);
                self.finish_import(brought, now_ms, out);
            }
            NetEvent::Pages { token, result } => replicas.pages_came(token, result, &mut context),
            NetEvent::Transferred { node, bytes, way, elapsed_us } => {
                self.cluster.transferred(&node, bytes, elapsed_us);
                if self.cluster.reached_by(&node, way) {
                    self.notify_members();
                }
            }
            NetEvent::Resolved { node, at, section } => {
                let addresses = at.iter().map(ToString::to_string).collect();
                out.push(Action::Net(NetAction::Connect { node, addresses, section }));
            }
            NetEvent::TicketWanted { node, number } => {
                let life = self.home.life();
                self.cluster.want_ticket(&node, number, life, out);
            }
            NetEvent::Restore { id } => self.residency.restore_soon(&self.home, id),
        }
        self.residency.take_jobs(out);
    }

    /// Does the work that is due.
    pub(super) fn tick_replicas(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let (replicas, mut context) = self.replicas(now_ms, out);
        replicas.tick_ends(&mut context);
        self.serve_deletes_in_debt(now_ms, out);
        let (replicas, mut context) = self.replicas(now_ms, out);
        replicas.tick_searches(&mut context);
        for origin in self.replicas.to_load() {
            let (replicas, mut context) = self.replicas(now_ms, out);
            let brought = replicas.load_replica(origin, &mut context);
            self.finish_import(brought, now_ms, out);
        }
        let (replicas, mut context) = self.replicas(now_ms, out);
        if replicas.notify_late(&mut context) {
            self.settle_leaving(now_ms, out);
        }
    }

    /// Resumes deletes of objects that have no replicas any more.
    pub(super) fn settle_leaving(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for over in self.replicas.take_withdrawn() {
            self.go_on_to_delete(over, now_ms, out);
        }
        // Objects that could not be evicted may be evictable now.
        self.admission.look_again();
    }

    /// Opens an object whose pages are brought one by one. The connection is used for nothing else.
    pub(super) fn open_lazy(
        &mut self,
        first: FirstRequest,
        open: &OpenLazy,
        out: &mut Vec<Action>,
    ) {
        let FirstRequest { session, seq, .. } = first;
        let answer = self.begin_open_lazy(first, open, out).transpose();
        let Some(answer) = answer else { return };
        let is_refused = answer.is_err();
        out.push(answer_to(session, seq, answer));
        if is_refused {
            out.push(Action::Close { session });
        }
    }

    fn begin_open_lazy(
        &mut self,
        first: FirstRequest,
        open: &OpenLazy,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let FirstRequest { session, seq, peer, now_ms } = first;
        if peer.remote_client.is_some() {
            let text = "pages are brought for clients of this machine only";
            return Err(WireError::Invalid(text.into()));
        }
        self.listen(session, peer, &open.client)?;
        let slot = ClientSlot(open.client.slot);
        let target = full_target(&self.home, slot, &open.target)?;
        let (replicas, mut context) = self.replicas(now_ms, out);
        replicas.open_lazy(ReplyTo { session, seq }, &target, open, &mut context)
    }

    /// Brings an object of another node and makes it one of this node. `None`: the answer follows
    /// later.
    pub(super) fn import_for(
        &mut self,
        request: RequestContext,
        origin: ObjectId,
        step: ImportStep,
        wait_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let (replicas, mut context) = self.replicas(request.now_ms, out);
        match replicas.import_for(request, origin, step, wait_ms, &mut context)? {
            ImportReply::Now(reply) => Ok(Some(reply)),
            ImportReply::Later(brought) => {
                self.finish_import(brought, request.now_ms, out);
                Ok(None)
            }
        }
    }

    /// Seals what was brought for an import, if anything.
    fn finish_import(
        &mut self,
        brought: Option<BroughtImport>,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(import) = brought else { return };
        let (replicas, mut context) = self.replicas(now_ms, out);
        let checked = replicas.check_import(&import, &mut context);
        let BroughtImport { origin, target } = import;
        let sealed = checked.and_then(|()| self.seal_brought(origin, &target, now_ms, out));
        let (replicas, mut context) = self.replicas(now_ms, out);
        replicas.end_load(origin, sealed, &mut context);
    }

    /// Makes an object of what was brought, under a name that no other object can have.
    pub(super) fn seal_brought(
        &mut self,
        origin: ObjectId,
        import: &ImportTarget,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<ObjectId, WireError> {
        let (replicas, mut context) = self.replicas(now_ms, out);
        let id = replicas.seal_brought(origin, import, &mut context)?;
        self.counts.sealed += 1;
        self.quota.reservations.note_sealed();
        self.cluster.note_reservations();
        if let Some(name) = import.seal.as_ref().and_then(|seal| seal.name.as_ref()) {
            self.cluster.note_named(import.slot, id);
            self.waits.sealed(name);
            self.fan_out.answer(&mut self.waits, out);
            self.cluster.notify_sealed(name, &self.rules, out);
        }
        Ok(id)
    }

    /// Fetches an object or part for a client. Returns `None` if the answer follows later.
    pub(super) fn fetch_for(
        &mut self,
        request: RequestContext,
        target: &WireTarget,
        extent: Extent,
        wait_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let (replicas, mut context) = self.replicas(request.now_ms, out);
        replicas.fetch_for(request, target, extent, wait_ms, &mut context)
    }

    /// Asks another node for a page of its list. The answer follows later.
    pub(super) fn list_at(
        &mut self,
        request: RequestContext,
        node: String,
        prefix: String,
        from: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let (replicas, mut context) = self.replicas(request.now_ms, out);
        replicas.list_at(request, node, prefix, from, &mut context)
    }

    /// Asks another node which of these objects it has. The answer follows later.
    pub(super) fn find_at(
        &mut self,
        request: RequestContext,
        node: String,
        targets: Vec<WireTarget>,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let (replicas, mut context) = self.replicas(request.now_ms, out);
        replicas.find_at(request, node, targets, &mut context)
    }

    /// A member has dropped its replica of an object, or did not answer.
    pub(super) fn on_invalidation_response(
        &mut self,
        notice: &InvalidationNotice,
        is_done: bool,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) {
        if self.replicas.on_invalidation_response(notice, is_done, now_ms) {
            self.settle_leaving(now_ms, out);
        }
    }
}
