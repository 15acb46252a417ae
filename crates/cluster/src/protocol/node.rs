//! One node as its local clients see it.

use std::collections::{BTreeMap, BTreeSet};

use farrow_memory::{CoherenceClass, FabricKind, Length, Offset, Span};
use farrow_store::{
    ClientSlot, Home, ObjectId, ObjectKind, SealRequest, StoreError, StoreStats, Target,
};

use super::waits::{WAITS_PER_SESSION_MAX, Wait, Waits};
use crate::wire::{
    BATCH_ITEMS_MAX, EXTRA_BLOCKS_MAX, Hello, NodeStats, PROTOCOL_VERSION, Reply, ReplyBody,
    Request, RequestBody, SealItem, WAIT_MS_MAX, Welcome, WireError, WireSpan, WireTarget,
};

/// A connection must say `Hello` within this time.
const HELLO_MS_MAX: u64 = 5_000;

/// Deleted objects that are held are looked at again after 5 ms at first, 200 ms at most;
/// a client that lets go says so, the timer is for those that died or forgot.
const RECLAIM_MS_MIN: u64 = 5;
const RECLAIM_MS_MAX: u64 = 200;

/// Names a connection; never used twice in one life of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Who is at the other end, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Process id; 0 when it lives in a namespace that is not visible here.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot; 0 when unknown.
    pub start_time: u64,
    /// User id.
    pub uid: u32,
}

/// What the server has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a reply, with the region's file descriptors when asked.
    Send {
        /// To whom.
        session: SessionId,
        /// What.
        reply: Reply,
        /// Attach the descriptors.
        has_descriptors: bool,
    },
    /// Close the connection after what was sent.
    Close {
        /// Which.
        session: SessionId,
    },
    /// End the daemon.
    Stop,
}

#[derive(Debug)]
struct Session {
    peer: PeerIdentity,
    slot: Option<ClientSlot>,
    hello_by_ms: u64,
    has_said_goodbye: bool,
}

/// Counters since start.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    requests: u64,
    sealed: u64,
    deleted: u64,
}

/// Where the region's sections lie in their files, for the welcome.
#[derive(Debug, Clone)]
struct Place {
    control_file_offset: u64,
    data_file_offset: u64,
    memory: String,
}

/// The state of a node: its store, its clients, who waits for what.
#[derive(Debug)]
pub struct NodeState {
    home: Home,
    place: Place,
    base: u64,
    pid: u32,
    owner_uid: u32,
    sessions: BTreeMap<SessionId, Session>,
    /// Connections that have not said hello, by when they must.
    silent: BTreeSet<(u64, SessionId)>,
    /// Clients without a connection that may still read what they hold.
    orphans: BTreeMap<ClientSlot, PeerIdentity>,
    waits: Waits,
    reclaim_at_ms: Option<u64>,
    reclaim_wait_ms: u64,
    counts: Counts,
    adopted: u64,
    prepared: u64,
    started_ms: u64,
    is_stopping: bool,
}

impl NodeState {
    /// A node over `home`; `orphans` are the clients that an adopted region still lists.
    pub fn new(
        home: Home,
        base: u64,
        pid: u32,
        owner_uid: u32,
        orphans: Vec<(ClientSlot, PeerIdentity)>,
        adopted: u32,
        now_ms: u64,
    ) -> Self {
        let fabric = home.region().fabric();
        let place = Place {
            control_file_offset: fabric.read_fd(farrow_memory::Section::Control).1,
            data_file_offset: fabric.read_fd(farrow_memory::Section::Data).1,
            memory: fabric.describe(),
        };
        Self {
            home,
            place,
            base,
            pid,
            owner_uid,
            sessions: BTreeMap::new(),
            silent: BTreeSet::new(),
            orphans: orphans.into_iter().collect(),
            waits: Waits::default(),
            reclaim_at_ms: Some(now_ms),
            reclaim_wait_ms: RECLAIM_MS_MIN,
            counts: Counts::default(),
            adopted: adopted.into(),
            prepared: 0,
            started_ms: now_ms,
            is_stopping: false,
        }
    }

    /// The store, for tests and for the server's checks.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Number of clients, connected or expected back.
    pub fn clients(&self) -> usize {
        self.sessions.values().filter(|session| session.slot.is_some()).count() + self.orphans.len()
    }

    /// The server's progress in making pages ready, in bytes.
    pub fn set_prepared(&mut self, bytes: u64) {
        self.prepared = bytes;
    }

    /// A connection was accepted.
    pub fn opened(&mut self, id: SessionId, peer: PeerIdentity, now_ms: u64) {
        let hello_by_ms = now_ms.saturating_add(HELLO_MS_MAX);
        let session = Session { peer, slot: None, hello_by_ms, has_said_goodbye: false };
        self.sessions.insert(id, session);
        self.silent.insert((hello_by_ms, id));
    }

    /// A connection ended. Everything unsealed comes back, unless the process lives on and did
    /// not say goodbye: it may still read what it holds, so it keeps its place until it comes
    /// back or ends. The server then watches the process (`is_alive` says that it can) and
    /// calls [`Self::orphan_died`]; the slot to watch is returned.
    pub fn closed(&mut self, id: SessionId, is_alive: bool, now_ms: u64) -> Option<ClientSlot> {
        self.waits.forget(id);
        let session = self.sessions.remove(&id)?;
        self.silent.remove(&(session.hello_by_ms, id));
        let slot = session.slot?;
        if is_alive && !session.has_said_goodbye {
            self.orphans.insert(slot, session.peer);
            return Some(slot);
        }
        self.leave(slot, now_ms);
        None
    }

    /// A client that lost its connection, perhaps in an earlier life of the node, died.
    pub fn orphan_died(&mut self, slot: ClientSlot, now_ms: u64) {
        if self.orphans.remove(&slot).is_some() {
            self.leave(slot, now_ms);
        }
    }

    /// The clients without a connection that are still expected.
    pub fn orphans(&self) -> impl Iterator<Item = (ClientSlot, PeerIdentity)> + '_ {
        self.orphans.iter().map(|(slot, peer)| (*slot, *peer))
    }

    fn leave(&mut self, slot: ClientSlot, now_ms: u64) {
        match self.home.client_leave(slot) {
            Ok(reclaimed) => tracing::info!(slot = slot.0, ?reclaimed, "a client left"),
            Err(error) => tracing::error!(slot = slot.0, %error, "a client could not be cleared"),
        }
        self.reclaim_soon(now_ms);
    }

    fn reclaim(&mut self) {
        if let Err(error) = self.home.reclaim() {
            tracing::error!(%error, "deleted objects could not be looked at");
        }
    }

    fn reclaim_soon(&mut self, now_ms: u64) {
        if self.home.has_retiring() {
            self.reclaim_wait_ms = RECLAIM_MS_MIN;
            self.reclaim_at_ms = Some(now_ms);
        }
    }

    /// When [`Self::tick`] wants to be called, in the milliseconds of `now_ms`.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let hello = self.silent.first().map(|(at_ms, _)| *at_ms);
        [hello, self.waits.next_deadline_ms(), self.reclaim_at_ms].into_iter().flatten().min()
    }

    /// Does what has come due.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        for wait in self.waits.expired(now_ms) {
            out.push(answer_wait(wait));
        }
        while let Some(due) = self.silent.first().copied().filter(|(at, _)| *at <= now_ms) {
            self.silent.remove(&due);
            out.push(Action::Close { session: due.1 });
        }
        if self.reclaim_at_ms.is_some_and(|at| at <= now_ms) {
            self.reclaim();
            self.reclaim_at_ms = self.home.has_retiring().then(|| {
                self.reclaim_wait_ms = (self.reclaim_wait_ms * 2).min(RECLAIM_MS_MAX);
                now_ms.saturating_add(self.reclaim_wait_ms)
            });
        }
    }

    /// Tells the waiting that the node ends.
    pub fn stop(&mut self, out: &mut Vec<Action>) {
        self.is_stopping = true;
        for wait in self.waits.drain() {
            let reply = Reply { seq: wait.seq, body: Err(WireError::Closing) };
            out.push(Action::Send { session: wait.session, reply, has_descriptors: false });
        }
    }

    /// Answers one request. Replies come in `out`, perhaps of other sessions too.
    pub fn handle(
        &mut self,
        session: SessionId,
        request: Request,
        now_ms: u64,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) {
        self.counts.requests += 1;
        let seq = request.seq;
        let Some(state) = self.sessions.get(&session) else {
            return;
        };
        let (peer, slot) = (state.peer, state.slot);
        let body = match (request.body, slot) {
            (RequestBody::Hello(hello), None) => {
                let body = self.hello(session, peer, &hello);
                let is_refused = body.is_err();
                let reply = Reply { seq, body };
                out.push(Action::Send { session, reply, has_descriptors: !is_refused });
                if is_refused {
                    out.push(Action::Close { session });
                }
                return;
            }
            (_, None) | (RequestBody::Hello(_), Some(_)) => {
                Err(WireError::Invalid("the first message, and only that, is Hello".into()))
            }
            (RequestBody::Wait { targets, count, timeout_ms }, Some(_)) => {
                match self.wait(session, seq, &targets, count, timeout_ms, now_ms) {
                    Ok(None) => return,
                    Ok(Some(ready)) => Ok(ReplyBody::Ready(ready)),
                    Err(error) => Err(error),
                }
            }
            (RequestBody::Goodbye, Some(_)) => {
                if let Some(state) = self.sessions.get_mut(&session) {
                    state.has_said_goodbye = true;
                }
                Ok(ReplyBody::Done)
            }
            (body, Some(slot)) => self.serve(slot, body, now_ms, wall_ns, out),
        };
        out.push(Action::Send { session, reply: Reply { seq, body }, has_descriptors: false });
    }

    fn hello(
        &mut self,
        session: SessionId,
        peer: PeerIdentity,
        hello: &Hello,
    ) -> Result<ReplyBody, WireError> {
        if hello.version != PROTOCOL_VERSION {
            return Err(WireError::Version { theirs: hello.version, ours: PROTOCOL_VERSION });
        }
        if self.is_stopping {
            return Err(WireError::Closing);
        }
        if peer.uid != self.owner_uid && peer.uid != 0 {
            return Err(WireError::Denied(format!(
                "user {} may not use the node of user {}",
                peer.uid, self.owner_uid
            )));
        }
        let slot = match hello.resume {
            None => {
                let joined = self
                    .home
                    .client_join(peer.pid, peer.start_time, peer.uid)
                    .map_err(store_error)?;
                let slot = joined.client;
                if let Err(error) = self.home.hold_block(slot) {
                    let _ = self.home.client_leave(slot);
                    return Err(store_error(error));
                }
                slot
            }
            Some((uid, slot, nonce)) => {
                let ours = self.home.uid().0;
                if uid != ours {
                    return Err(WireError::OtherRegion { old: uid, new: ours });
                }
                let slot = ClientSlot(slot);
                let taken = self.sessions.values().any(|other| other.slot == Some(slot));
                if taken {
                    return Err(WireError::Denied(format!("place {} is in use", slot.0)));
                }
                self.home.client_resume(slot, nonce, peer.pid).map_err(store_error)?;
                self.orphans.remove(&slot);
                slot
            }
        };
        if let Some(state) = self.sessions.get_mut(&session) {
            state.slot = Some(slot);
            self.silent.remove(&(state.hello_by_ms, session));
        }
        self.welcome(slot).map(ReplyBody::Welcome)
    }

    fn welcome(&self, slot: ClientSlot) -> Result<Welcome, WireError> {
        let fabric = self.home.region().fabric();
        let geometry = fabric.geometry();
        let record = self.home.clients().find(|record| record.client == slot);
        let nonce = record
            .map(|record| record.nonce)
            .ok_or_else(|| WireError::Damaged(format!("client {} is in no record", slot.0)))?;
        Ok(Welcome {
            version: PROTOCOL_VERSION,
            region_uid: self.home.uid().0,
            is_device: fabric.kind() == FabricKind::Device,
            is_node_local: fabric.coherence_class() == CoherenceClass::NodeLocal,
            control_bytes: geometry.control.0,
            data_bytes: geometry.data.0,
            control_file_offset: self.place.control_file_offset,
            data_file_offset: self.place.data_file_offset,
            base: self.base,
            slot: slot.0,
            nonce,
            hold_blocks: self.home.hold_blocks_of(slot).into_iter().map(wire_span).collect(),
            grants: self.home.grants_of(slot).into_iter().map(wire_span).collect(),
            pid: self.pid,
            memory: self.place.memory.clone(),
        })
    }

    fn serve(
        &mut self,
        slot: ClientSlot,
        body: RequestBody,
        now_ms: u64,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) -> Result<ReplyBody, WireError> {
        match body {
            RequestBody::Grant { min, want } => self.grant(slot, min, want),
            RequestBody::Release { spans } => {
                limit("spans in one message", spans.len(), BATCH_ITEMS_MAX)?;
                let spans: Vec<Span> = spans.into_iter().map(span).collect();
                self.home.release(slot, &spans).map_err(store_error)?;
                Ok(ReplyBody::Done)
            }
            RequestBody::Reserve { name } => {
                self.home.reserve(slot, &name).map_err(store_error)?;
                Ok(ReplyBody::Done)
            }
            RequestBody::Unreserve { name } => {
                self.home.unreserve(slot, &name).map_err(store_error)?;
                Ok(ReplyBody::Done)
            }
            RequestBody::Seal { items } => {
                limit("objects in one message", items.len(), BATCH_ITEMS_MAX)?;
                let sealed = items.into_iter().map(|item| self.seal(slot, item, wall_ns, out));
                Ok(ReplyBody::Sealed(sealed.collect()))
            }
            RequestBody::Confirm { ids } => {
                limit("objects in one message", ids.len(), BATCH_ITEMS_MAX)?;
                for (hi, lo) in ids {
                    self.home.confirm(slot, ObjectId { hi, lo });
                }
                self.reclaim_soon(now_ms);
                Ok(ReplyBody::Done)
            }
            RequestBody::Delete { targets } => {
                limit("objects in one message", targets.len(), BATCH_ITEMS_MAX)?;
                let deleted = targets.iter().map(|target| self.delete(target)).collect();
                self.reclaim_soon(now_ms);
                Ok(ReplyBody::Deleted(deleted))
            }
            RequestBody::HoldBlock => {
                let block = self.home.hold_block(slot).map_err(store_error)?;
                Ok(ReplyBody::HoldBlock(wire_span(block)))
            }
            RequestBody::Reclaim => {
                self.reclaim();
                Ok(ReplyBody::Done)
            }
            RequestBody::Stats => self
                .stats(now_ms)
                .map(|stats| ReplyBody::Stats(Box::new(stats)))
                .map_err(store_error),
            RequestBody::Shutdown => {
                out.push(Action::Stop);
                Ok(ReplyBody::Done)
            }
            RequestBody::Hello(_) | RequestBody::Wait { .. } | RequestBody::Goodbye => {
                Err(WireError::Invalid("not here".into()))
            }
        }
    }

    fn grant(&mut self, slot: ClientSlot, min: u64, want: u64) -> Result<ReplyBody, WireError> {
        if min == 0 || want < min {
            return Err(WireError::Invalid(format!("a grant of {min} to {want} B makes no sense")));
        }
        let (min, want) = (Length(min), Length(want));
        let mut granted = self.home.grant(slot, min, want);
        if matches!(granted, Err(StoreError::OutOfMemory { .. })) && self.home.has_retiring() {
            self.reclaim();
            granted = self.home.grant(slot, min, want);
        }
        granted.map(|granted| ReplyBody::Granted(wire_span(granted))).map_err(store_error)
    }

    fn seal(
        &mut self,
        slot: ClientSlot,
        item: SealItem,
        wall_ns: u64,
        out: &mut Vec<Action>,
    ) -> Result<(u64, u64), WireError> {
        limit("blocks in one object", item.extra.len(), EXTRA_BLOCKS_MAX)?;
        let Some(kind) = ObjectKind::from_u8(item.kind) else {
            return Err(WireError::Invalid(format!("kind {} is unknown", item.kind)));
        };
        let request = SealRequest {
            kind,
            primary: span(item.primary),
            descriptor: span(item.descriptor),
            descriptor_crc: item.descriptor_crc,
            extra: item.extra.into_iter().map(span).collect(),
            extra_crc: item.extra_crc,
            size: Length(item.size),
            metadata_bytes: item.metadata_bytes,
            metadata_crc: item.metadata_crc,
            name: item.name.as_deref(),
            is_reserved: item.is_reserved,
        };
        let id = self.home.seal(slot, &request, wall_ns).map_err(store_error)?;
        self.counts.sealed += 1;
        if item.is_held_by_creator {
            self.home.keep_for(slot, id);
        }
        if let Some(name) = &item.name {
            out.extend(self.waits.sealed(name).into_iter().map(answer_wait));
        }
        Ok((id.hi, id.lo))
    }

    fn delete(&mut self, target: &WireTarget) -> Result<(), WireError> {
        self.home.delete(store_target(target)).map_err(store_error)?;
        self.counts.deleted += 1;
        Ok(())
    }

    fn wait(
        &mut self,
        session: SessionId,
        seq: u64,
        targets: &[WireTarget],
        count: u32,
        timeout_ms: u64,
        now_ms: u64,
    ) -> Result<Option<Vec<bool>>, WireError> {
        limit("objects in one message", targets.len(), BATCH_ITEMS_MAX)?;
        let ready: Vec<bool> =
            targets.iter().map(|target| self.home.find(store_target(target)).is_ok()).collect();
        let have = ready.iter().filter(|ready| **ready).count();
        let count = (count as usize).min(targets.len());
        // An id is given at seal, so one that is not there will not come: only names can.
        let names: Vec<(String, usize)> = targets
            .iter()
            .enumerate()
            .filter(|(place, _)| !ready.get(*place).copied().unwrap_or(true))
            .filter_map(|(place, target)| match target {
                WireTarget::Name(name) => Some((name.clone(), place)),
                WireTarget::Id(..) => None,
            })
            .collect();
        if have >= count || timeout_ms == 0 || have + names.len() < count {
            return Ok(Some(ready));
        }
        let waiting = self.waits.count_of(session);
        limit("waits under way", waiting + 1, WAITS_PER_SESSION_MAX)?;
        let deadline_ms = now_ms.saturating_add(timeout_ms.min(WAIT_MS_MAX));
        self.waits.add(session, seq, ready, count, names, deadline_ms);
        Ok(None)
    }

    /// Numbers of the node.
    ///
    /// # Errors
    ///
    /// The region cannot be read.
    pub fn stats(&self, now_ms: u64) -> Result<NodeStats, StoreError> {
        let StoreStats {
            capacity,
            used,
            free,
            largest_free,
            granted,
            fragmented,
            retiring,
            objects,
            objects_max,
            objects_retiring,
            clients,
            clients_max,
            holds,
            ..
        } = self.home.stats()?;
        let fabric = self.home.region().fabric();
        Ok(NodeStats {
            capacity: capacity.0,
            used: used.0,
            free: free.0,
            largest_free: largest_free.0,
            granted: granted.0,
            fragmented: fragmented.0,
            retiring: retiring.0,
            objects: objects.into(),
            objects_max: objects_max.into(),
            objects_retiring: objects_retiring.into(),
            clients: clients.into(),
            clients_max: clients_max.into(),
            holds,
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
        })
    }
}

fn answer_wait(wait: Wait) -> Action {
    let reply = Reply { seq: wait.seq, body: Ok(ReplyBody::Ready(wait.ready)) };
    Action::Send { session: wait.session, reply, has_descriptors: false }
}

fn limit(what: &str, count: usize, max: usize) -> Result<(), WireError> {
    if count > max {
        return Err(WireError::TooMany { what: what.to_owned(), max: max as u64 });
    }
    Ok(())
}

fn span((offset, length): WireSpan) -> Span {
    Span { offset: Offset(offset), length: Length(length) }
}

fn wire_span(span: Span) -> WireSpan {
    (span.offset.0, span.length.0)
}

fn store_target(target: &WireTarget) -> Target<'_> {
    match target {
        WireTarget::Id(hi, lo) => Target::Id(ObjectId { hi: *hi, lo: *lo }),
        WireTarget::Name(name) => Target::Name(name),
    }
}

/// What a client can do about an error of the store.
fn store_error(error: StoreError) -> WireError {
    match error {
        StoreError::OutOfMemory { asked, free, largest } => {
            WireError::OutOfMemory { asked: asked.0, free: free.0, largest: largest.0 }
        }
        StoreError::TooManyObjects { max } => too_many("objects", max),
        StoreError::TooManyClients { max } => too_many("clients", max),
        StoreError::TooManyGrants { max } => too_many("grants", max),
        StoreError::HoldBlocksExhausted { max } => too_many("hold blocks", max),
        StoreError::NameTaken { name } => WireError::NameTaken { name },
        StoreError::NotFound { what } => WireError::NotFound { what },
        error @ StoreError::NoSuchClient { .. } => WireError::Denied(error.to_string()),
        error @ (StoreError::NotYours { .. }
        | StoreError::BadSpan { .. }
        | StoreError::BadRequest { .. }
        | StoreError::NameInvalid { .. }
        | StoreError::NameSpaceFull { .. }) => WireError::Invalid(error.to_string()),
        error => WireError::Damaged(error.to_string()),
    }
}

fn too_many(what: &str, max: impl Into<u64>) -> WireError {
    WireError::TooMany { what: what.to_owned(), max: max.into() }
}
