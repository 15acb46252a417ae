//! State of one node, as its local clients see it.

use farrow_membership::naming::JoinedNames;
use farrow_store::ClientSlot;
use farrow_wire::{Reply, ReplyBody, Request, RequestBody, WireError};

use super::action::{Action, answer, answer_to, answer_wait};
use super::context::{FirstRequest, ReplyTo, RequestContext};
use super::core::clients::ClientSession;
use super::core::counting::CountKind;
use super::core::rooms::{RoomRequest, Rooms};
use super::identity::{PeerIdentity, SessionId};
use super::replicas::pages_elsewhere;
use super::spill_job::SpillDone;
use super::state::NodeState;

impl NodeState {
    /// Notes an accepted connection.
    pub fn opened(&mut self, id: SessionId, peer: PeerIdentity, now_ms: u64) {
        self.clients.opened(id, peer, now_ms);
    }

    /// Handles the end of a connection. Unsealed memory is reclaimed, unless the process lives and
    /// sent no goodbye: it may still read what it holds. Its slot then remains until it reconnects
    /// or ends. The slot is returned for the server to watch the process, and [`Self::orphan_died`]
    /// reports its end. `is_alive` states that the server can watch it, or cannot see whether it
    /// lives.
    pub fn closed(&mut self, id: SessionId, is_alive: bool, now_ms: u64) -> Option<ClientSlot> {
        let session = self.clients.closed(id)?;
        self.buffers.forget(id);
        let is_expected = is_alive && !session.has_said_goodbye && session.maps_memory;
        let expected = session.slot.filter(|_| is_expected);
        if session.is_introduced() {
            // A connection that was never admitted has nothing waiting, so its end stays cheap.
            self.waits.forget(id);
            self.fan_out.forget(id);
            self.admission.forget(id);
            self.quota.reservations.forget(id);
            self.residency.forget(id);
            self.replicas.forget(id);
            self.replicas.lazy.forget(id, now_ms);
            self.resize.forget(id);
            self.drain.forget(id);
            self.counting.forget(id);
            self.namespace_drops.forget(id);
            self.watches.forget(&mut self.home, id);
            self.barriers.session_ended(id, expected.map(|_| session.nonce));
            self.cluster.forget_lookups(id);
        }
        match expected {
            Some(slot) => self.clients.expect(slot, session.peer, now_ms),
            None => self.end_of_client(session.slot?, session.peer, now_ms),
        }
        expected
    }

    /// Notes that a client is refused although it was admitted. A new one maps nothing, so its slot is
    /// free at once.
    pub(crate) fn refused(&mut self, session: SessionId) {
        if self.clients.session(session).is_some_and(|one| one.is_newcomer) {
            self.clients.said_goodbye(session);
        }
    }

    /// The connection that has been silent for the longest time.
    pub fn first_silent(&self) -> Option<SessionId> {
        self.clients.first_silent()
    }

    /// Whether the first message of a connection was accepted.
    pub fn is_introduced(&self, session: SessionId) -> bool {
        self.clients.session(session).is_some_and(ClientSession::is_introduced)
    }

    /// The clients without a connection that are still expected.
    pub fn orphans(&self) -> impl Iterator<Item = (ClientSlot, PeerIdentity)> + '_ {
        self.clients.orphans()
    }

    /// Whether work that did not fit into one turn is left for the next one.
    pub fn has_work_left(&self) -> bool {
        self.fan_out.is_behind() || self.waits.has_ready() || self.counting.is_busy()
    }

    /// When [`Self::tick`] is due, in the milliseconds of `now_ms`.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.has_work_left() {
            return Some(0);
        }
        let admission = self.admission.next_deadline_ms(self.home.freed());
        let watches = self.watches.next_deadline_ms();
        let timers = [
            self.clients.next_deadline_ms(),
            self.waits.next_deadline_ms(),
            watches,
            admission,
            self.reclaim.next_deadline_ms(),
        ];
        let more = [
            self.residency.next_deadline_ms(),
            self.replicas.next_deadline_ms(),
            self.cluster.next_cluster_deadline_ms(),
            self.barriers.next_deadline_ms(),
            self.quota.next_deadline_ms(&self.home),
            self.families.next_deadline_ms(),
            self.leases.next_deadline_ms(),
            self.resize.next_deadline_ms(),
            self.drain.next_deadline_ms().filter(|_| self.cluster.was_member()),
            self.joined.names.as_ref().and_then(JoinedNames::next_deadline_ms),
        ];
        timers.into_iter().chain(more).flatten().min()
    }

    /// Does the work that is due.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.residency.set_now(now_ms);
        self.fan_out.next_turn(&mut self.waits, out);
        let expired = self.waits.expired(now_ms, self.fan_out.left());
        self.fan_out.add(expired.into_iter().map(answer_wait), out);
        while let Some(session) = self.clients.take_silent(now_ms) {
            out.push(Action::Close { session });
        }
        self.reclaim.tick(&mut self.home, now_ms);
        self.drop_namespaces(false, out);
        self.release_in_doubt(now_ms);
        self.end_unmapped_orphans(now_ms);
        self.delete_leased(now_ms, out);
        self.end_families(now_ms, None);
        self.look_for_families(now_ms, out);
        self.count_more(now_ms, out);
        self.tick_cluster(now_ms, out);
        let (barriers, mut context) = self.barriers(now_ms, out);
        barriers.tick(&mut context);
        self.residency.tick(&mut self.home, now_ms, out);
        self.tick_replicas(now_ms, out);
        self.tick_resize(now_ms, out);
        self.tick_drain(now_ms, out);
        self.serve_waiting(now_ms, out);
        self.quota.serve(&mut self.home, now_ms, out);
        self.residency.take_jobs(out);
        self.watches.notify(&self.home, &mut self.fan_out, out);
        self.watches.expire(&mut self.home, now_ms, &mut self.fan_out, out);
    }

    /// Handles the result of work on a file.
    pub fn spill_done(&mut self, done: SpillDone, now_ms: u64, out: &mut Vec<Action>) {
        self.residency.set_now(now_ms);
        self.residency.done(&mut self.home, done, out);
        self.admission.look_again();
        self.reclaim.soon(&self.home, now_ms);
    }

    /// Answers all waiting requests with the end of the node.
    pub fn stop(&mut self, out: &mut Vec<Action>) {
        self.is_stopping = true;
        self.watches.stop(out);
        self.fan_out.drain(out);
        for wait in self.waits.drain() {
            let reply = Reply { seq: wait.seq, body: Err(WireError::Closing) };
            out.push(Action::Send { session: wait.session, reply, has_descriptors: false });
        }
        let rest = self.replicas.drain().into_iter().chain(self.resize.drain());
        let rest = rest.chain(self.drain.drain()).chain(self.counting.drain());
        let all = self.residency.drain().into_iter().chain(rest);
        for (session, seq) in all.chain(self.namespace_drops.drain()) {
            out.push(answer_to(session, seq, Err(WireError::Closing)));
        }
        let waiting = self.admission.drain().chain(self.quota.reservations.drain());
        out.extend(waiting.map(|asker| answer(asker, Err(WireError::Closing))));
    }

    /// Handles one request. Replies are added to `out`, also those to other sessions.
    pub fn handle(
        &mut self,
        session: SessionId,
        request: Request,
        now_ms: u64,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) {
        self.residency.set_now(now_ms);
        self.heed_lease(now_ms, out);
        self.home.set_time(wall_ns);
        self.answer(session, request, now_ms, out);
        self.residency.take_jobs(out);
        self.watches.notify(&self.home, &mut self.fan_out, out);
    }

    fn answer(&mut self, session: SessionId, request: Request, now_ms: u64, out: &mut Vec<Action>) {
        self.counts.requests += 1;
        let Request { seq, body } = request;
        let Some(state) = self.clients.session(session) else {
            return;
        };
        let (peer, slot, is_introduced) = (state.peer, state.slot, state.is_introduced());
        if !is_introduced {
            return self.greet(FirstRequest { session, seq, peer, now_ms }, body, out);
        }
        let answer = match self.check_request(session, slot, &body) {
            Err(error) => Err(error),
            Ok(()) => match (slot, body) {
                (_, RequestBody::Watch(watch)) => {
                    let next = self.watch(session, seq, watch, now_ms);
                    next.map(|next| next.map(|next| ReplyBody::Watched { next }))
                }
                (None, RequestBody::Pages { start, end }) => {
                    let (replicas, mut rest) = self.replicas(now_ms, out);
                    replicas.bring_pages(ReplyTo { session, seq }, start..end, &mut rest)
                }
                (None, _) => Err(not_first()),
                (Some(slot), body) => {
                    let context = RequestContext { session, slot, seq, now_ms };
                    let body = match self.wait_for_move(context, body, out) {
                        Ok(()) => return,
                        Err(body) => body,
                    };
                    match self.park(context, body, out) {
                        Ok(()) => return,
                        Err(body) => self.route(context, body, out),
                    }
                }
            },
        };
        out.extend(answer.transpose().map(|answer| answer_to(session, seq, answer)));
    }

    /// Answers the first message of a connection. Without success, the connection is closed.
    fn greet(&mut self, first: FirstRequest, body: RequestBody, out: &mut Vec<Action>) {
        let FirstRequest { session, seq, peer, now_ms } = first;
        let answer = match (self.other_node(&body), body) {
            (None, RequestBody::Handover { region_uid }) => {
                match self.check_handover(session, peer, region_uid) {
                    Ok(()) => return out.push(Action::HandOver { session, seq }),
                    Err(error) => return out.push(answer_to(session, seq, Err(error))),
                }
            }
            (Some(node), body) => {
                match self.forward_client(ReplyTo { session, seq }, peer, node, body) {
                    Ok(action) => return out.push(action),
                    Err(error) => Err(error),
                }
            }
            (None, RequestBody::OpenLazy(open)) => {
                return self.open_lazy(first, &open, out);
            }
            (None, RequestBody::Listen(listen)) => self.listen(session, peer, &listen),
            (None, RequestBody::Hello(hello)) => {
                self.end_earlier(peer, &hello, now_ms, out);
                self.hello(session, peer, &hello)
            }
            _ => return out.push(answer_to(session, seq, Err(not_first()))),
        };
        let has_descriptors = matches!(answer, Ok(ReplyBody::Welcome(_)));
        let is_refused = answer.is_err();
        out.push(Action::Send { session, reply: Reply { seq, body: answer }, has_descriptors });
        if is_refused {
            self.refused(session);
            out.push(Action::Close { session });
        }
    }

    /// Serves a request of a client that waits for no name, and answers it.
    pub(super) fn serve(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) {
        let allowed = self.clients.check_right(&self.home, context.slot, &body);
        let answer = allowed.and_then(|()| self.route(context, body, out)).transpose();
        out.extend(answer.map(|answer| answer_to(context.session, context.seq, answer)));
    }

    /// Passes a request of a client to the part that serves it. `None`: the answer follows later.
    fn route(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let RequestContext { session, slot, now_ms, .. } = context;
        Ok(Some(match body {
            RequestBody::Grant { .. } => return self.grant(context, body, out),
            RequestBody::Room(_) => return self.grant(context, body, out),
            RequestBody::ReserveObjects { objects, wait_ms } => {
                return self.reserve_objects(context, objects, wait_ms, out);
            }
            RequestBody::DropNamespace { name } => {
                return self.drop_namespace(context.reply_to(), &name);
            }
            RequestBody::Evict { bytes } => return self.evict(context, bytes),
            RequestBody::Restore { id } => return self.restore(context, id),
            RequestBody::Wait { targets, count, timeout_ms } => {
                return self.wait(context, &targets, count, timeout_ms, out);
            }
            RequestBody::Fetch { target, extent, wait_ms } => {
                return self.fetch_for(context, &target, extent, wait_ms, out);
            }
            RequestBody::Import { origin, step, wait_ms } => {
                return self.import_for(context, origin.into(), step, wait_ms, out);
            }
            RequestBody::ListAt { node, prefix, from } => {
                return self.list_at(context, node, prefix, from, out);
            }
            RequestBody::FindAt { node, targets } => {
                return self.find_at(context, node, targets, out);
            }
            RequestBody::FindLost { name } => return self.find_lost(context, &name, out),
            RequestBody::Sync { name, ask } => return self.sync(context, &name, ask, out),
            RequestBody::Delete { targets } => return self.delete_anywhere(context, &targets, out),
            RequestBody::Seal { items } => return self.seal_items(context, items, out),
            RequestBody::Set(settings) => return self.set(context.reply_to(), settings),
            RequestBody::Drain(step) => return self.drain_step(context, step, out),
            RequestBody::Overview { cells, held_max } => {
                return self.count(context, CountKind::Overview { cells, held_max }, out);
            }
            RequestBody::Stats => return self.count(context, CountKind::Stats, out),
            RequestBody::Namespaces => return self.count(context, CountKind::Namespaces, out),
            RequestBody::Cancel { seq } => self.cancel(session, seq, now_ms, out),
            RequestBody::Goodbye => self.goodbye(session),
            RequestBody::Release { spans } => self.release(slot, spans)?,
            RequestBody::Reserve { names } => self.reserve(slot, &names)?,
            RequestBody::Renew { names, are_all } => self.renew(slot, &names, are_all)?,
            RequestBody::Unreserve { names } => self.unreserve(slot, &names)?,
            RequestBody::UnreserveObjects { objects } => self.unreserve_objects(slot, objects),
            RequestBody::ReservedObjects { objects } => self.renew_objects(slot, objects),
            RequestBody::Confirm { ids } => self.confirm(slot, &ids, now_ms)?,
            RequestBody::ConfirmEarlier => self.confirm_earlier(slot, now_ms)?,
            RequestBody::HoldBlock => self.hold_block(slot)?,
            RequestBody::EntryPages { count } => self.entry_pages(slot, count)?,
            RequestBody::Reclaim => self.reclaim_now(),
            RequestBody::EndLeases { ids } => self.end_leases(slot, &ids, now_ms),
            RequestBody::Pin { targets, is_pinned } => self.pin(slot, &targets, is_pinned)?,
            RequestBody::CreateNamespace(spec) => self.create_namespace(spec)?,
            RequestBody::SetRule(rule) => self.set_rule(rule)?,
            RequestBody::RemoveRule { namespace, node } => self.remove_rule(&namespace, &node)?,
            RequestBody::Rules => self.rules(),
            RequestBody::Nodes => self.cluster.nodes(&self.home, &self.drain.record),
            RequestBody::Forget { node } => self.forget_node(&node, now_ms, out)?,
            RequestBody::Shutdown => shut_down(out),
            RequestBody::Pages { .. } => return Err(pages_elsewhere()),
            RequestBody::Hello(_)
            | RequestBody::Listen(_)
            | RequestBody::OpenLazy(_)
            | RequestBody::Handover { .. }
            | RequestBody::Watch(_) => return Err(not_first()),
        }))
    }

    /// Grants memory. `None`: the answer follows later.
    fn grant(
        &mut self,
        context: RequestContext,
        body: RequestBody,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        let RequestContext { slot, now_ms, .. } = context;
        let ask = RoomRequest::new(&self.home, slot, body)?;
        let Self { home, quota, residency, replicas, .. } = self;
        let mut rooms = Rooms { home, quota, residency, elsewhere: replicas, is_reclaimed: false };
        rooms.check(slot, &ask, now_ms, out)?;
        self.admission.grant(&mut rooms, context.asker(), ask, now_ms)
    }

    /// Serves requests that wait for memory.
    fn serve_waiting(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Self { home, quota, residency, replicas, .. } = self;
        let mut rooms = Rooms { home, quota, residency, elsewhere: replicas, is_reclaimed: false };
        self.admission.serve(&mut rooms, now_ms, out);
    }

    /// Ends the wait of an earlier request of a session and answers it at once. A request that does
    /// not wait is answered as usual.
    fn cancel(
        &mut self,
        session: SessionId,
        seq: u64,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> ReplyBody {
        let (barriers, mut context) = self.barriers(now_ms, out);
        let was_waiting = barriers.cancel(session, seq, &mut context)
            || self.waits.cancel(session, seq)
            || self.admission.cancel(session, seq)
            || self.quota.reservations.cancel(session, seq)
            || self.residency.cancel(session, seq)
            || self.replicas.cancel(session, seq)
            || self.resize.cancel(session, seq)
            || self.drain.cancel(session, seq)
            || self.counting.cancel(session, seq)
            || self.namespace_drops.cancel(session, seq)
            || self.cluster.cancel_in_cluster(session, seq);
        if was_waiting {
            out.push(answer_to(session, seq, Err(WireError::Cancelled)));
        }
        ReplyBody::Done
    }

    fn goodbye(&mut self, session: SessionId) -> ReplyBody {
        self.clients.said_goodbye(session);
        ReplyBody::Done
    }
}

fn shut_down(out: &mut Vec<Action>) -> ReplyBody {
    out.push(Action::Stop);
    ReplyBody::Done
}

fn not_first() -> WireError {
    WireError::Invalid("the first message, and only that, is Hello".into())
}
