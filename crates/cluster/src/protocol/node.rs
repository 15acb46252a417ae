//! State of one node, as its local clients see it.

use farrow_store::{ClientSlot, ObjectId};
use farrow_wire::{Reply, ReplyBody, Request, RequestBody, WAIT_MS_MAX, WireError};

use super::action::{Action, answer, answer_to, answer_wait};
use super::context::{Asker, RequestContext};
use super::convert::store_error;
use super::core::clients::ClientSession;
use super::core::quota::ReservationRequest;
use super::core::rooms::{RoomRequest, Rooms};
use super::identity::{PeerIdentity, SessionId};
use super::replicas::{FetchKey, FetchWaiter, ImportAsk, wish_of};
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
    /// reports its end. `is_alive` states that the server can watch it.
    pub fn closed(&mut self, id: SessionId, is_alive: bool, now_ms: u64) -> Option<ClientSlot> {
        let session = self.clients.closed(id)?;
        self.forget_buffers(id);
        if session.is_introduced() {
            // A connection that was never admitted has nothing waiting, so its end stays cheap.
            self.waits.forget(id);
            self.fan_out.forget(id);
            self.admission.forget(id);
            self.quota.reservations.forget(id);
            self.residency.forget(id);
            self.replicas.forget(id);
            self.watches.forget(id);
            self.show_fewer_watched();
            self.barriers.session_ended(id);
            self.cluster.forget_lookups(id);
        }
        let slot = session.slot?;
        if is_alive && !session.has_said_goodbye && session.maps_memory {
            self.clients.expect(slot, session.peer);
            return Some(slot);
        }
        self.end_of_client(slot, session.peer, now_ms);
        None
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

    /// When [`Self::tick`] is due, in the milliseconds of `now_ms`.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.is_behind_with_answers() {
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
        ];
        timers.into_iter().chain(more).flatten().min()
    }

    /// Does the work that is due.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.residency.set_now(now_ms);
        self.answer_more(out);
        let expired = self.waits.expired(now_ms, self.fan_out.left());
        self.fan_out.add(expired.into_iter().map(answer_wait), out);
        while let Some(session) = self.clients.take_silent(now_ms) {
            out.push(Action::Close { session });
        }
        self.reclaim.tick(&mut self.home, now_ms);
        self.release_in_doubt(now_ms);
        self.end_unmapped_orphans(now_ms);
        self.tick_leases(now_ms, out);
        self.look_for_families(now_ms, out);
        self.tick_cluster(now_ms, out);
        let (barriers, mut context) = self.barriers(now_ms, out);
        barriers.tick(&mut context);
        self.residency.tick(&mut self.home, now_ms, out);
        self.tick_replicas(now_ms, out);
        self.serve_waiting(now_ms, out);
        self.quota.serve(&mut self.home, now_ms, out);
        self.residency.take_jobs(out);
        self.tell_watchers(out);
        self.expire_watches(now_ms, out);
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
        self.stop_watches(out);
        self.fan_out.drain(out);
        for wait in self.waits.drain() {
            let reply = Reply { seq: wait.seq, body: Err(WireError::Closing) };
            out.push(Action::Send { session: wait.session, reply, has_descriptors: false });
        }
        let fetches = self.replicas.drain();
        for (session, seq) in self.residency.drain().into_iter().chain(fetches) {
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
        self.answer(session, request, now_ms, wall_ns, out);
        self.residency.take_jobs(out);
        self.tell_watchers(out);
    }

    /// Grants memory. `None`: the answer follows later.
    fn grant(
        &mut self,
        asker: Asker,
        body: RequestBody,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Result<Option<ReplyBody>, WireError> {
        self.check_writer(asker.slot)?;
        let ask = RoomRequest::new(&self.home, asker.slot, body)?;
        let Self { home, quota, residency, replicas, .. } = self;
        let mut rooms = Rooms { home, quota, residency, elsewhere: replicas };
        rooms.check(asker.slot, &ask, now_ms, out)?;
        self.admission.grant(&mut rooms, asker, ask, now_ms)
    }

    /// Serves requests that wait for memory.
    fn serve_waiting(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let Self { home, quota, residency, replicas, .. } = self;
        let mut rooms = Rooms { home, quota, residency, elsewhere: replicas };
        self.admission.serve(&mut rooms, now_ms, out);
    }

    fn answer(
        &mut self,
        session: SessionId,
        request: Request,
        now_ms: u64,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) {
        self.counts.requests += 1;
        self.home.set_time(wall_ns);
        let seq = request.seq;
        let Some(state) = self.clients.session(session) else {
            return;
        };
        let (peer, slot, is_listening) = (state.peer, state.slot, state.is_listening);
        if slot.is_some() || is_listening {
            // Checked before a name is taken for the request or it has any other effect.
            let allowed = self.check_granted(session, &request.body);
            if let Err(error) = allowed.and_then(|()| self.check_names(session, &request.body)) {
                return out.push(answer_to(session, seq, Err(error)));
            }
        }
        let context = |slot| RequestContext { session, slot, seq, now_ms };
        let body = match (request.body, slot) {
            (first @ (RequestBody::Hello(_) | RequestBody::Listen(_)), None) if !is_listening => {
                let body = match (self.other_node(&first), &first) {
                    (Some(node), _) => match self.carry((session, seq), peer, node, first) {
                        Ok(action) => return out.push(action),
                        Err(error) => Err(error),
                    },
                    (None, RequestBody::Listen(listen)) => self.listen(session, peer, listen),
                    (None, RequestBody::Hello(hello)) => {
                        self.end_earlier(peer, hello, now_ms, out);
                        self.hello(session, peer, hello)
                    }
                    _ => return,
                };
                let has_descriptors = matches!(body, Ok(ReplyBody::Welcome(_)));
                let is_refused = body.is_err();
                out.push(Action::Send { session, reply: Reply { seq, body }, has_descriptors });
                if is_refused {
                    out.push(Action::Close { session });
                }
                return;
            }
            (RequestBody::Handover { region_uid }, None) if !is_listening => {
                match self.check_handover(session, peer, region_uid) {
                    Ok(()) => return out.push(Action::HandOver { session, seq }),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Watch(watch), _) if slot.is_some() || is_listening => {
                match self.watch(session, seq, watch, now_ms) {
                    Ok(None) => return,
                    Ok(Some(next)) => Ok(ReplyBody::Watched { next }),
                    Err(error) => Err(error),
                }
            }
            (_, None) | (RequestBody::Hello(_) | RequestBody::Listen(_), Some(_)) => {
                Err(WireError::Invalid("the first message, and only that, is Hello".into()))
            }
            (RequestBody::Wait { targets, count, timeout_ms }, Some(slot)) => {
                match self.wait(context(slot), &targets, count, timeout_ms, out) {
                    Ok(None) => return,
                    Ok(Some(ready)) => Ok(ReplyBody::Ready(ready)),
                    Err(error) => Err(error),
                }
            }
            (body @ (RequestBody::Grant { .. } | RequestBody::Room(_)), Some(slot)) => {
                match self.grant(Asker { session, seq, slot }, body, now_ms, out) {
                    Ok(None) => return,
                    Ok(Some(granted)) => Ok(granted),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::ReserveObjects { objects, wait_ms }, Some(slot)) => {
                let asker = Asker { session, seq, slot };
                let checked = self.check_writer(slot);
                let request = ReservationRequest { asker, objects, wait_ms };
                let home = &mut self.home;
                match checked.and_then(|()| self.quota.reserve(home, request, now_ms, out)) {
                    Ok(None) => return,
                    Ok(Some(done)) => Ok(done),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Evict { bytes }, Some(slot)) => {
                let asker = Asker { session, seq, slot };
                let checked = self.check_writer(slot);
                let Self { home, residency, replicas, .. } = self;
                let mut evict =
                    || residency.evict(home, replicas, asker, bytes).map_err(store_error);
                match checked.and_then(|()| evict()) {
                    Ok(None) => return,
                    Ok(Some(evicted)) => Ok(evicted),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Restore { id: (hi, lo) }, Some(slot)) => {
                let (asker, id) = (Asker { session, seq, slot }, ObjectId { hi, lo });
                match self.residency.restore(&self.home, asker, id, now_ms) {
                    Ok(None) => return,
                    Ok(Some(done)) => Ok(done),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Fetch { target, extent, wait_ms }, Some(slot)) => {
                let until_ms = now_ms.saturating_add(wait_ms.min(WAIT_MS_MAX));
                let wish = self.full_target(slot, &target).map(|full| wish_of(&full));
                let key = wish.and_then(|wish| FetchKey::new(wish, extent));
                let waiter = key.map(|key| FetchWaiter { key, session, seq, until_ms });
                match waiter.and_then(|waiter| self.fetch(waiter, now_ms, out)) {
                    Ok(None) => return,
                    Ok(Some(found)) => Ok(found),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Import { origin: (hi, lo), step, wait_ms }, Some(slot)) => {
                let until_ms = now_ms.saturating_add(wait_ms.min(WAIT_MS_MAX));
                let origin = ObjectId { hi, lo };
                let ask = ImportAsk { session, slot, seq, origin, step, until_ms };
                match self.import(ask, now_ms, out) {
                    Ok(None) => return,
                    Ok(Some(done)) => Ok(done),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::ListAt { node, prefix, from }, Some(slot)) => {
                match self.list_at((session, seq), slot, (node, prefix, from), out) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            (RequestBody::FindAt { node, targets }, Some(slot)) => {
                match self.find_at((session, seq), slot, (node, targets), out) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            (RequestBody::FindLost { name }, Some(slot)) => {
                let full = self.full_name(slot, &name);
                let home = &self.home;
                let asked = (session, seq);
                match full.and_then(|full| self.cluster.find_lost(home, asked, &full, out)) {
                    Ok(None) => return,
                    Ok(Some(found)) => Ok(found),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Sync { name, ask }, Some(slot)) => {
                let full = self.full_name(slot, &name);
                let (barriers, mut rest) = self.barriers(now_ms, out);
                let request = context(slot);
                match full.and_then(|name| barriers.request(request, name, ask, &mut rest)) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Cancel { seq: earlier }, Some(_)) => {
                self.cancel(session, earlier, now_ms, out);
                Ok(ReplyBody::Done)
            }
            (RequestBody::Goodbye, Some(_)) => {
                self.clients.said_goodbye(session);
                Ok(ReplyBody::Done)
            }
            (body, Some(slot)) => match self.park(context(slot), body, out) {
                Ok(()) => return,
                Err(body) => {
                    return self.serve_now(context(slot), body, wall_ns, out);
                }
            },
        };
        out.push(Action::Send { session, reply: Reply { seq, body }, has_descriptors: false });
    }
}
