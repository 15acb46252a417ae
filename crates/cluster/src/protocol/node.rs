//! State of one node, as its local clients see it.

use farrow_store::{ClientSlot, NamespaceId, ObjectId};
use farrow_wire::{Reply, ReplyBody, Request, RequestBody, Rights, WAIT_MS_MAX, WireError};

use super::action::{Action, answer, answer_to, answer_wait};
use super::context::{Asker, RequestContext};
use super::convert::store_error;
use super::core::quota::ReservationRequest;
use super::core::sessions::ClientSession;
use super::identity::{PeerIdentity, SessionId};
use super::replicas::{FetchKey, FetchWaiter, ImportAsk, wish_of};
use super::state::NodeState;

/// A connection must send `Hello` within this time.
const HELLO_MS_MAX: u64 = 5_000;

impl NodeState {
    /// Notes an accepted connection.
    pub fn opened(&mut self, id: SessionId, peer: PeerIdentity, now_ms: u64) {
        let hello_by_ms = now_ms.saturating_add(HELLO_MS_MAX);
        let session = ClientSession {
            peer,
            slot: None,
            hello_by_ms,
            has_said_goodbye: false,
            is_listening: false,
            is_stranger: !self.may_connect(&peer),
            namespace: NamespaceId::DEFAULT,
            rights: if peer.remote_client.is_some() { Rights::NONE } else { Rights::ALL },
            maps_memory: true,
        };
        self.strangers += usize::from(session.is_stranger);
        self.sessions.insert(id, session);
        self.silent.insert((hello_by_ms, id));
    }

    /// Handles the end of a connection. Unsealed memory is reclaimed, unless the process lives and
    /// sent no goodbye: it may still read what it holds. Its slot then remains until it reconnects
    /// or ends. The slot is returned for the server to watch the process, and [`Self::orphan_died`]
    /// reports its end. `is_alive` states that the server can watch it.
    pub fn closed(&mut self, id: SessionId, is_alive: bool, now_ms: u64) -> Option<ClientSlot> {
        let session = self.sessions.remove(&id)?;
        self.silent.remove(&(session.hello_by_ms, id));
        self.strangers -= usize::from(session.is_stranger);
        self.forget_buffers(id);
        if session.slot.is_some() || session.is_listening {
            // A connection that was never admitted has nothing waiting, so its end stays cheap.
            self.waits.forget(id);
            self.fan_out.forget(id);
            self.admission.forget(id);
            self.quota.reservations.forget(id);
            self.spills.forget(id);
            self.replicas.forget(id);
            self.watches.forget(id);
            self.show_fewer_watched();
            self.sync_ended(id);
            self.cluster.forget_lookups(id);
        }
        let slot = session.slot?;
        if is_alive && !session.has_said_goodbye && session.maps_memory {
            self.orphans.insert(slot, session.peer);
            return Some(slot);
        }
        self.end_of_client(slot, session.peer, now_ms);
        None
    }

    /// The connection that has been silent for the longest time.
    pub fn first_silent(&self) -> Option<SessionId> {
        self.silent.first().map(|(_, session)| *session)
    }

    /// Whether the first message of a connection was accepted.
    pub fn is_introduced(&self, session: SessionId) -> bool {
        let session = self.sessions.get(&session);
        session.is_some_and(|session| session.slot.is_some() || session.is_listening)
    }

    /// The clients without a connection that are still expected.
    pub fn orphans(&self) -> impl Iterator<Item = (ClientSlot, PeerIdentity)> + '_ {
        self.orphans.iter().map(|(slot, peer)| (*slot, *peer))
    }

    /// When [`Self::tick`] is due, in the milliseconds of `now_ms`.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        if self.is_behind_with_answers() {
            return Some(0);
        }
        let hello = self.silent.first().map(|(at_ms, _)| *at_ms);
        let admission = self.admission.next_deadline_ms(self.home.freed());
        let watches = self.watches.next_deadline_ms();
        let timers = [
            hello,
            self.waits.next_deadline_ms(),
            watches,
            admission,
            self.reclaim.next_deadline_ms(),
        ];
        let more = [
            self.spills.next_deadline_ms(),
            self.replicas.next_deadline_ms(),
            self.cluster.next_cluster_deadline_ms(),
            self.next_sync_deadline_ms(),
            self.quota.next_deadline_ms(&self.home),
            self.families.next_deadline_ms(),
            self.doubts_at_ms,
            (!self.orphans.is_empty()).then_some(self.ended_orphans.at_ms),
            self.leases.next_deadline_ms(),
        ];
        timers.into_iter().chain(more).flatten().min()
    }

    /// Does the work that is due.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.spills.set_now(now_ms);
        self.answer_more(out);
        let expired = self.waits.expired(now_ms, self.fan_out.left());
        self.fan_out.add(expired.into_iter().map(answer_wait), out);
        while let Some(due) = self.silent.first().copied().filter(|(at, _)| *at <= now_ms) {
            self.silent.remove(&due);
            out.push(Action::Close { session: due.1 });
        }
        self.reclaim.tick(&mut self.home, now_ms);
        self.release_in_doubt(now_ms);
        self.end_unmapped_orphans(now_ms);
        self.tick_leases(now_ms, out);
        self.look_for_families(now_ms, out);
        self.tick_cluster(now_ms, out);
        self.tick_sync(now_ms, out);
        self.tick_spills(now_ms, out);
        self.tick_replicas(now_ms, out);
        self.serve_waiting(now_ms, out);
        self.quota.serve(&mut self.home, now_ms, out);
        self.spills.take_jobs(out);
        self.tell_watchers(out);
        self.expire_watches(now_ms, out);
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
        for (session, seq) in self.spills.drain().into_iter().chain(fetches) {
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
        self.spills.set_now(now_ms);
        self.heed_lease(now_ms, out);
        self.answer(session, request, now_ms, wall_ns, out);
        self.spills.take_jobs(out);
        self.tell_watchers(out);
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
        let Some(state) = self.sessions.get(&session) else {
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
                match checked.and_then(|()| self.evict(asker, bytes).map_err(store_error)) {
                    Ok(None) => return,
                    Ok(Some(evicted)) => Ok(evicted),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Restore { id: (hi, lo) }, Some(_)) => {
                match self.restore(session, seq, ObjectId { hi, lo }, now_ms) {
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
                match self.sync(context(slot), &name, ask, out) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Cancel { seq: earlier }, Some(_)) => {
                self.cancel(session, earlier, now_ms, out);
                Ok(ReplyBody::Done)
            }
            (RequestBody::Goodbye, Some(_)) => {
                if let Some(state) = self.sessions.get_mut(&session) {
                    state.has_said_goodbye = true;
                }
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
