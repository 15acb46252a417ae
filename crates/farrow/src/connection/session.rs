//! A client's session with a node: the mapped region, the connection, the holds.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_memory::{Length, Offset, Proximity, Region, Retired, Span, page_bytes, process_id};
use farrow_store::{
    ClientSlot, Entry, EntryTable, Held, HoldTable, NamespaceId, ObjectId, Reader, StoreError,
    UseStamps,
};
use farrow_wire::link::{Link, LinkError, confused};
use farrow_wire::{
    BATCH_ITEMS_MAX, Hello, PROTOCOL_VERSION, ReplyBody, RequestBody, WireError, paths,
};

use crate::clock::{monotonic_ns, wall_clock_ns};
use crate::connection::connect::{Connected, connect};
use crate::connection::local_entries::LocalEntries;
use crate::connection::mapping::{map, shared_marks};
use crate::connection::pending_holds::PendingHolds;
use crate::connection::registry::Registry;
use crate::connection::reserved_names::ReservedNames;
use crate::connection::reserved_objects::ReservedObjects;
use crate::connection::turn::Turn;
use crate::error::{Error, named};
use crate::interrupt::{self, may_interrupt};
use crate::key::ObjectKey;
use crate::lock::lock;
use crate::memory::arena::Arena;
use crate::memory::background::{self, Populator};
use crate::memory::blocks::HeldBlocks;
use crate::memory::extents::{Extents, difference};
use crate::memory::node::{FIRST_CONNECTION, Node, Unanswered};
use crate::memory::pool::PoolCore;
use crate::memory::unused::Inherited;
use crate::options::{ConnectOptions, SpawnCommand};
use crate::spans::{span, wire_span};

/// How long an ending client waits for a daemon that has just replaced another.
const GOODBYE_PATIENCE: Duration = Duration::from_millis(500);

/// Uses of an object within this time count as one.
const USE_GRAIN_NS: u64 = 1_000_000;

/// Up to this many bytes `protect` takes page tables down at once, at 20 to 60 us a MiB. To defer
/// it costs a table some 50 us more below this size, and a third less from twice this size on.
const PROTECT_AT_ONCE_BYTES_MAX: u64 = 2 << 20;

/// The sessions of this process, and those that a forked child inherited.
static SESSIONS: Registry<Session> = Registry::new();

/// The sessions that this process has opened.
pub(crate) fn own_sessions() -> Vec<Arc<Session>> {
    let mut all = SESSIONS.all();
    all.retain(|session| session.is_own_process());
    all
}

/// The daemon's identification of this client.
#[derive(Debug, Clone, Copy)]
struct Identity {
    region_uid: u64,
    slot: u32,
    nonce: u64,
}

/// A connection to the daemon. Its number distinguishes it from earlier and later connections.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    link: Arc<Link>,
    number: u64,
}

/// Shared by the client, its objects and its pools; the session ends when all are dropped.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) socket: PathBuf,
    pub(crate) timeout: Duration,
    pub(crate) region: Arc<Region>,
    pub(crate) reader: Reader,
    pub(crate) holds: Arc<HoldTable>,
    pub(crate) uses: UseStamps,
    pub(crate) local: LocalEntries,
    pub(crate) extents: Extents,
    pub(crate) arena: Arena,
    pub(crate) pool: PoolCore,
    pub(crate) blocks: HeldBlocks,
    pub(crate) populator: Populator,
    pub(crate) reservations: ReservedNames,
    pub(crate) reserved_objects: ReservedObjects,
    pub(crate) unheld: PendingHolds,
    pub(crate) inherited: Inherited,
    /// Earlier events do not belong to the client's namespace.
    pub(crate) events_from: u64,
    spawn: Option<SpawnCommand>,
    /// No node served when this session was opened: it started a private one.
    pub(crate) has_started_node: bool,
    /// The node that owns the memory; empty: the client's own.
    node: String,
    identity: Identity,
    pid: u32,
    link: Mutex<Connection>,
    reconnecting: Turn,
    /// One more than the number of hold slots at the latest request for a block.
    hold_slots: Mutex<u64>,
}

impl Session {
    /// Opens a session at the client's own node or, through it, at another node of its cluster.
    pub(crate) fn open(options: &ConnectOptions, node: &str) -> Result<Arc<Self>, Error> {
        let (socket, may_spawn) = options.place();
        let spawn = options.spawn.clone().filter(|_| may_spawn);
        paths::check_runtime_dir(&socket)
            .map_err(|error| Error::PermissionDenied(error.to_string()))?;
        let deadline = Instant::now() + options.timeout;
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: options.namespace.clone(),
            node: node.to_owned(),
            maps_memory: true,
        };
        let Connected { link, welcome, descriptors, has_started_node } =
            connect(&socket, &hello, spawn.as_ref(), deadline, options.timeout)?;
        let proximity = if node.is_empty() { Proximity::Local } else { Proximity::Remote };
        let region = Arc::new(map(&welcome, descriptors, proximity)?);
        region.advise_huge();
        let namespace = NamespaceId(welcome.namespace);
        let mut reader =
            Reader::open(Arc::clone(&region))?.in_namespace(namespace, &options.namespace);
        if let Some(marks) = shared_marks(&socket, &region, welcome.region_uid) {
            reader = reader.sharing_refreshed(marks);
        }
        let hold_blocks: Vec<Span> = welcome.hold_blocks.iter().copied().map(span).collect();
        let holds = Arc::new(HoldTable::new(Arc::clone(&region), &hold_blocks)?);
        holds.tell_open_seals(0)?;
        let slot = ClientSlot(welcome.slot);
        let local = LocalEntries::new(EntryTable::new(Arc::clone(&region), slot, process_id())?);
        let heap = reader.layout().heap;
        background::warm_up();
        // The first `get` should not pay for the first index lookup either.
        let _ = reader.lookup(farrow_store::Target::Name("farrow"));
        let session = Arc::new(Self {
            socket,
            timeout: options.timeout,
            extents: Extents::new(heap, false)?,
            arena: Arena::default(),
            pool: PoolCore::new(heap)?,
            blocks: HeldBlocks::default(),
            populator: Populator::new(&region),
            reservations: ReservedNames::default(),
            reserved_objects: ReservedObjects::new(welcome.are_objects_limited),
            unheld: PendingHolds::default(),
            inherited: Inherited::default(),
            uses: UseStamps::new(&region)?,
            region,
            reader,
            holds,
            local,
            spawn,
            has_started_node,
            node: node.to_owned(),
            events_from: welcome.events_from,
            identity: Identity {
                region_uid: welcome.region_uid,
                slot: welcome.slot,
                nonce: welcome.nonce,
            },
            pid: process_id(),
            link: Mutex::new(Connection { link: Arc::new(link), number: FIRST_CONNECTION }),
            reconnecting: Turn::default(),
            hold_slots: Mutex::default(),
        });
        SESSIONS.add(&session);
        Ok(session)
    }

    /// False in a forked child: the holds and the extents belong to its parent.
    pub(crate) fn is_own_process(&self) -> bool {
        self.region.is_of_this_process()
    }

    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if self.is_own_process() {
            return Ok(());
        }
        Err(Error::Disconnected {
            socket: self.socket.clone(),
            reason: format!(
                "this client belongs to process {}; connect again after a fork",
                self.pid
            ),
        })
    }

    /// Sends a request to the daemon, with the default timeout.
    pub(crate) fn call(&self, body: RequestBody) -> Result<ReplyBody, Error> {
        self.call_until(body, Instant::now() + self.timeout)
    }

    /// As [`Self::call`], until this deadline.
    pub(crate) fn call_until(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<ReplyBody, Error> {
        Ok(self.call_numbered(body, deadline)?.0)
    }

    /// Sends a request to the daemon. If the daemon is gone, finds its successor and sends the
    /// request again if it was not sent or may be repeated. Also returns the number of the
    /// connection that answered.
    pub(crate) fn call_numbered(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(ReplyBody, u64), Unanswered> {
        self.check_process().map_err(Unanswered::unsent)?;
        // Other calls may run under a lock, or would have an unknown outcome if interrupted.
        let _quiet = (!may_interrupt(&body)).then(interrupt::suspend);
        let interrupt = interrupt::current();
        let mut body = body;
        let mut connection = lock(&self.link).clone();
        loop {
            if connection.link.is_dead() {
                // The request was not sent yet, so any request may be sent again.
                connection = self.reconnect(&connection, deadline).map_err(Unanswered::unsent)?;
            }
            let again = may_repeat(&body).then(|| body.clone());
            let answer = connection.link.call_unless(interrupt.as_ref(), body, deadline);
            body = match (answer, again) {
                (Ok(reply), _) => return Ok((reply, connection.number)),
                (Err(LinkError::Unsent { body, .. }), _) => *body,
                (Err(LinkError::Closed { .. }), Some(body)) => body,
                (Err(LinkError::Closed { reason, .. }), None) if self.is_other_gone() => {
                    let reason = format!("it went away before it answered: {reason}");
                    let error = Error::NodeLost { node: self.node.clone(), reason };
                    return Err(Unanswered { error, was_sent: true });
                }
                (Err(error), _) => {
                    let was_sent = !matches!(error, LinkError::Frame(_));
                    return Err(Unanswered { error: error.into(), was_sent });
                }
            };
        }
    }

    /// Whether a lost connection to another node failed at that node: the client's own daemon,
    /// which proxied it, still accepts connections.
    fn is_other_gone(&self) -> bool {
        self.is_elsewhere() && std::os::unix::net::UnixStream::connect(&self.socket).is_ok()
    }

    /// Sends a message that needs no answer. False if the daemon is gone.
    pub(crate) fn tell(&self, body: RequestBody) -> bool {
        self.is_own_process() && lock(&self.link).link.tell(body)
    }

    /// Returns unused ranges to the node, if `connection` is still the current one. Otherwise a
    /// later comparison of the records has already returned them, and they may have been granted
    /// again.
    pub(crate) fn give_back(&self, spans: &[Span], connection: u64) {
        if !self.clean(spans) {
            return;
        }
        let current = lock(&self.link);
        if current.number == connection {
            let spans = spans.iter().copied().map(wire_span).collect();
            current.link.tell(RequestBody::Release { spans });
        }
    }

    /// On memory that is not coherent between machines, cleans the caches of this one before ranges
    /// are returned. False: the ranges remain this client's.
    fn clean(&self, spans: &[Span]) -> bool {
        if !self.region.is_node_local() {
            return true;
        }
        farrow_store::clean(&self.region, spans)
            .inspect_err(|error| tracing::error!(%error, "ranges are not given back"))
            .is_ok()
    }

    /// Ends the session. If the daemon is gone, looks once for its successor.
    fn say_goodbye(&self) {
        if !self.is_own_process() {
            return;
        }
        let _quiet = interrupt::suspend();
        let deadline = Instant::now() + self.timeout.min(GOODBYE_PATIENCE);
        // A daemon that is killed before it reads this leaves the session to its successor, which
        // then retains objects for a client that does not return.
        let link = lock(&self.link).link.clone();
        // One that only does not answer has no successor.
        let has_ended = |error: &LinkError| {
            matches!(
                error,
                LinkError::Closed { .. }
                    | LinkError::Unsent { .. }
                    | LinkError::Refused(WireError::Closing)
            )
        };
        if link.call(RequestBody::Goodbye, deadline).err().is_none_or(|error| !has_ended(&error)) {
            return;
        }
        match Link::connect(&self.socket, self.return_hello(), deadline) {
            Ok((link, ..)) => drop(link.call(RequestBody::Goodbye, deadline)),
            Err(error) => tracing::debug!(%error, "nobody to say goodbye to"),
        }
    }

    fn return_hello(&self) -> Hello {
        let Identity { region_uid, slot, nonce } = self.identity;
        Hello {
            version: PROTOCOL_VERSION,
            resume: Some((region_uid, slot, nonce)),
            namespace: String::new(),
            node: self.node.clone(),
            maps_memory: true,
        }
    }

    fn reconnect(&self, old: &Connection, deadline: Instant) -> Result<Connection, Error> {
        let _one = self.reconnecting.enter(&self.socket, deadline)?;
        let current = lock(&self.link).clone();
        if current.number != old.number && !current.link.is_dead() {
            return Ok(current);
        }
        let hello = self.return_hello();
        // A restarted daemon is waited for; if none appears, the caller waits no longer than its
        // own deadline.
        let Connected { link, welcome, .. } =
            connect(&self.socket, &hello, self.spawn.as_ref(), deadline, self.timeout)?;
        let link = Arc::new(link);
        let pages: Vec<Span> = welcome.entry_pages.iter().copied().map(span).collect();
        self.local.add(&pages)?;
        let theirs: Vec<Span> = welcome.grants.iter().copied().map(span).collect();
        let go_over = || self.go_over(Arc::clone(&link), &theirs);
        let connection = self.reservations.renew(&link, deadline, || {
            self.reserved_objects.renew(&link, welcome.are_objects_limited, go_over)
        });
        if self.note_successor() {
            link.tell(RequestBody::ConfirmEarlier);
        }
        tracing::info!(socket = %self.socket.display(), "connected again");
        Ok(connection)
    }

    /// Compares the records with the node's list of grants, and switches to the new connection,
    /// under one lock. So each change of the records is either sent to this connection or seen
    /// here. Grants of lost answers are returned. A caller that receives such an answer later sees
    /// by its number that it is void.
    fn go_over(&self, link: Arc<Link>, theirs: &[Span]) -> Connection {
        let mut current = lock(&self.link);
        let number = current.number + 1;
        let mut ours = self.extents.reconcile(number);
        ours.extend(self.pool.extents().reconcile(number));
        let lost = difference(theirs, &ours);
        if self.clean(&lost.iter().copied().map(span).collect::<Vec<_>>()) {
            for spans in lost.chunks(BATCH_ITEMS_MAX) {
                link.tell(RequestBody::Release { spans: spans.to_vec() });
            }
        }
        *current = Connection { link, number };
        current.clone()
    }

    /// The number of the current connection.
    pub(crate) fn connection_number(&self) -> u64 {
        lock(&self.link).number
    }

    /// The node that owns the memory; empty: that of the connected daemon.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    /// Whether the memory belongs to a node other than the connected one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        !self.node.is_empty()
    }

    /// True if the connection to the node is known to be lost.
    pub(crate) fn is_cut_off(&self) -> bool {
        lock(&self.link).link.is_dead()
    }

    /// Finds an object in memory and holds it; `None` if it is not there. Sends messages only for
    /// pages of holds.
    pub(crate) fn hold_here(&self, target: &ObjectKey) -> Result<Option<Held>, Error> {
        self.hold_here_at(target, wall_clock_ns())
    }

    /// As [`Self::hold_here`], with the current time as an argument.
    pub(crate) fn hold_here_at(
        &self,
        target: &ObjectKey,
        now_ns: u64,
    ) -> Result<Option<Held>, Error> {
        self.check_process()?;
        let held = self.with_hold_blocks(|| self.reader.hold(&self.holds, target.store()))?;
        let Some(held) = held else {
            return Ok(None);
        };
        if !self.is_current(held.entry())? {
            return Ok(None);
        }
        self.touch(held.entry().id, now_ns);
        Ok(Some(held))
    }

    /// Records a use of an object.
    pub(crate) fn touch(&self, id: ObjectId, now_ns: u64) {
        self.uses.touch(id.slot(), now_ns, USE_GRAIN_NS);
    }

    /// As [`Self::hold_sealed`], for an object of one block that this process wrote entirely.
    pub(crate) fn hold_written(&self, id: ObjectId, primary: Span) -> Result<Held, Error> {
        if let Some(entry) = self.lookup(&ObjectKey::Id(id))?
            && entry.primary.offset == primary.offset
        {
            self.reader.note_written(&entry);
        }
        self.hold_sealed(id)
    }

    /// Holds an object that this client has just sealed and whose memory it continues to use, and
    /// confirms that to the node, which retains the object until then. Another client may have
    /// deleted the object meanwhile: its memory comes back with the release of this hold.
    pub(crate) fn hold_sealed(&self, id: ObjectId) -> Result<Held, Error> {
        let held = match self.hold(&ObjectKey::Id(id))? {
            None => self.with_hold_blocks(|| self.reader.hold_retained(&self.holds, id))?,
            held => held,
        };
        let held = held.ok_or_else(|| Error::NotFound { what: id.to_string() })?;
        self.confirm(id)?;
        Ok(held)
    }

    /// Reports that this client holds an object that it sealed, or does not use it.
    pub(crate) fn confirm(&self, id: ObjectId) -> Result<(), Error> {
        let ids = vec![(id.hi, id.lo)];
        if !self.tell(RequestBody::Confirm { ids: ids.clone() }) {
            // The last daemon may have handed over that this confirmation is outstanding.
            self.call(RequestBody::Confirm { ids })?;
        }
        Ok(())
    }

    /// Asks the node for pages of holds until there is one for this hold.
    fn with_hold_blocks<T>(&self, hold: impl Fn() -> Result<T, StoreError>) -> Result<T, Error> {
        loop {
            match hold() {
                Err(StoreError::HoldsExhausted { slots, .. }) => self.add_hold_block(slots)?,
                other => return other.map_err(named),
            }
        }
    }

    /// Releases a hold.
    pub(crate) fn release(&self, held: Held) {
        let id = held.entry().id;
        drop(held);
        self.released(id);
    }

    /// Follows the release of a hold. If the object was deleted meanwhile, the node is asked to
    /// reclaim it.
    pub(crate) fn released(&self, id: ObjectId) {
        if self.is_own_process() && matches!(self.reader.is_there(id), Ok(false)) {
            self.tell(RequestBody::Reclaim);
        }
    }

    pub(crate) fn lookup(&self, target: &ObjectKey) -> Result<Option<Entry>, Error> {
        self.check_process()?;
        let found = self.reader.lookup(target.store()).map_err(named)?;
        found.map_or(Ok(None), |entry| Ok(self.is_current(&entry)?.then_some(entry)))
    }

    /// Whether an object is known to exist. Once this node's lease has expired, the original of a
    /// replica may have been deleted without this node's knowledge.
    pub(crate) fn is_current(&self, entry: &Entry) -> Result<bool, Error> {
        Ok(!entry.is_replica || monotonic_ns() < self.reader.replicas_until()?)
    }

    /// The daemon's identification of this client: region, slot and nonce.
    pub(crate) fn place(&self) -> (u64, u32, u64) {
        let Identity { region_uid, slot, nonce } = self.identity;
        (region_uid, slot, nonce)
    }

    /// Whether an object may be here: an id names the region of its object.
    pub(crate) fn may_have(&self, target: &ObjectKey) -> bool {
        !matches!(target, ObjectKey::Id(id) if id.region().0 != self.region_uid())
    }

    pub(crate) fn region_uid(&self) -> u64 {
        self.identity.region_uid
    }

    /// Ends all writing through the window to pages that are to be sealed, and publishes these
    /// parts of them. For large ranges the old page tables are moved to `retired`, at a private
    /// address, to be taken down after the caller has its answer.
    pub(crate) fn protect(
        &self,
        pages: Span,
        unpublished: &[Span],
        retired: &mut Retired,
    ) -> Result<(), Error> {
        if pages.length.0 <= PROTECT_AT_ONCE_BYTES_MAX {
            self.region.make_read_only(pages)?;
        } else {
            retired.append(self.region.retire_writable(pages)?);
        }
        unpublished.iter().try_for_each(|part| Ok(self.region.publish(*part)?))
    }

    /// Writes bytes to pages of this client that are not mapped writable.
    pub(crate) fn write_by_call(&self, offset: Offset, bytes: &[u8]) -> Result<(), Error> {
        if self.region.write_by_call(offset, bytes).is_err() {
            // A device may support only mappings.
            let span = Span { offset, length: Length(bytes.len() as u64) };
            let pages = span.outward(page_bytes()).unwrap_or(span);
            self.region.alias(pages)?.write(offset, bytes)?;
        }
        Ok(())
    }

    /// Adds a page for holds, unless another thread got one since `slots` were counted.
    pub(crate) fn add_hold_block(&self, slots: u64) -> Result<(), Error> {
        let mut known = lock(&self.hold_slots);
        if *known > slots {
            return Ok(());
        }
        let block = match self.call(RequestBody::HoldBlock)? {
            ReplyBody::HoldBlock(block) => span(block),
            other => return Err(confused(&other).into()),
        };
        self.holds.add_block(block)?;
        *known = slots + 1;
        Ok(())
    }
}

impl Node for Session {
    fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn is_own_process(&self) -> bool {
        self.is_own_process()
    }

    fn call_numbered(
        &self,
        body: RequestBody,
        deadline: Instant,
    ) -> Result<(ReplyBody, u64), Unanswered> {
        self.call_numbered(body, deadline)
    }

    fn connection_number(&self) -> u64 {
        self.connection_number()
    }

    fn tell(&self, body: RequestBody) -> bool {
        self.tell(body)
    }

    fn give_back(&self, spans: &[Span], connection: u64) {
        self.give_back(spans, connection);
    }

    fn protect(
        &self,
        pages: Span,
        unpublished: &[Span],
        retired: &mut Retired,
    ) -> Result<(), Error> {
        self.protect(pages, unpublished, retired)
    }

    fn trim_all(&self) -> bool {
        let own = self.extents.trim(self);
        let pool = self.pool.trim(self);
        own || pool
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a forked child the session and the holds belong to the parent.
        if self.is_own_process() {
            self.say_goodbye();
        }
    }
}

/// Whether a request may be sent twice: a repetition changes nothing, or the next daemon takes back
/// the grants of the lost answer.
fn may_repeat(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::ReserveObjects { .. }
            | RequestBody::Wait { .. }
            | RequestBody::Confirm { .. }
            | RequestBody::ConfirmEarlier
            | RequestBody::EndLeases { .. }
            | RequestBody::Reclaim
            | RequestBody::Stats
            | RequestBody::Namespaces
            | RequestBody::Rules
            | RequestBody::SetRule(_)
            | RequestBody::Nodes
            | RequestBody::FindLost { .. }
            | RequestBody::Fetch { .. }
            | RequestBody::ListAt { .. }
            | RequestBody::FindAt { .. }
            | RequestBody::Import { .. }
            | RequestBody::Pin { .. }
            | RequestBody::Restore { .. }
            | RequestBody::Overview { .. }
    )
}
