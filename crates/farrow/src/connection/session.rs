//! A client's session with a node: the mapped region, the connection, the holds.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use farrow_memory::{Proximity, Region, Retired, Span, process_id};
use farrow_store::{ClientSlot, EntryTable, Held, HoldTable, NamespaceId, Reader, UseStamps};
use farrow_wire::link::{Link, Notification};
use farrow_wire::{Hello, PROTOCOL_VERSION, ReplyBody, RequestBody, paths, span};

use crate::clock::deadline_after;
use crate::connection::connect::{ConnectTarget, Connected, connect};
use crate::connection::ended_leases::EndedLeases;
use crate::connection::excluded::Exclusion;
use crate::connection::hold_request::HoldBlockRequest;
use crate::connection::late_queue::LateQueue;
use crate::connection::local_entries::LocalEntries;
use crate::connection::mapping::{map, shared_marks};
use crate::connection::pending_holds::PendingHolds;
use crate::connection::registry::WeakList;
use crate::connection::replaced::Replaced;
use crate::connection::reserved_names::ReservedNames;
use crate::connection::reserved_objects::ReservedObjects;
use crate::connection::turn::Turn;
use crate::error::Error;
use crate::gate::RequestGate;
use crate::lock::lock;
use crate::memory::arena::Arena;
use crate::memory::background::{self, Populator};
use crate::memory::blocks::HeldBlocks;
use crate::memory::extents::Extents;
use crate::memory::node::{FIRST_CONNECTION, NodeAccess, Unanswered};
use crate::memory::pool::PoolCore;
use crate::memory::unused::Inherited;
use crate::options::{ConnectOptions, SpawnCommand};

/// Up to this many bytes `protect` takes page tables down at once, at 20 to 60 us a MiB. To defer
/// it costs a table some 50 us more below this size, and a third less from twice this size on.
const PROTECT_AT_ONCE_BYTES_MAX: u64 = 2 << 20;

/// The sessions of this process, and those that a forked child inherited.
static SESSIONS: WeakList<Session> = WeakList::new();

/// The sessions that this process has opened.
pub(crate) fn own_sessions() -> Vec<Arc<Session>> {
    let mut all = SESSIONS.all();
    all.retain(|session| session.is_own_process());
    all
}

/// The daemon's identification of this client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    pub(super) region_uid: u64,
    pub(super) slot: u32,
    pub(super) nonce: u64,
}

/// A connection to the daemon. Its number distinguishes it from earlier and later connections.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) link: Arc<Link>,
    pub(super) number: u64,
}

/// Shared by the client, its objects and its pools; the session ends when all are dropped.
#[derive(Debug)]
pub(crate) struct Session {
    /// This session, for its threads.
    pub(super) this: Weak<Self>,
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
    pub(crate) late: LateQueue,
    pub(crate) inherited: Inherited,
    /// Earlier events do not belong to the client's namespace.
    pub(crate) events_from: u64,
    pub(super) spawn: Option<SpawnCommand>,
    /// No node served when this session was opened: it started a private one.
    pub(crate) has_started_node: bool,
    /// The node that owns the memory; empty: the client's own.
    pub(super) node: String,
    pub(super) identity: Identity,
    pid: u32,
    pub(super) link: Mutex<Connection>,
    pub(super) reconnecting: Turn,
    pub(super) replaced: Replaced,
    pub(super) exclusion: Exclusion,
    pub(super) ended_leases: EndedLeases,
    /// One thread at a time asks the node for a block of holds.
    pub(super) hold_blocks: RequestGate,
    pub(super) hold_request: Mutex<HoldBlockRequest>,
}

impl Session {
    /// Opens a session at the client's own node or, through it, at another node of its cluster.
    pub(crate) fn open(options: &ConnectOptions, node: &str) -> Result<Arc<Self>, Error> {
        let (socket, may_spawn) = options.place();
        let spawn = options.spawn.clone().filter(|_| may_spawn);
        paths::check_runtime_dir(&socket)
            .map_err(|error| Error::PermissionDenied(error.to_string()))?;
        let deadline = deadline_after(options.timeout);
        let hello = Hello {
            version: PROTOCOL_VERSION,
            resume: None,
            namespace: options.namespace.clone(),
            node: node.to_owned(),
            maps_memory: true,
        };
        let to = ConnectTarget {
            socket: &socket,
            spawn: spawn.as_ref(),
            excluded: &|| None,
            patience: options.timeout,
        };
        let Connected { link, welcome, descriptors, has_started_node } =
            connect(&to, &hello, deadline)?;
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
        holds.publish_open_seals(0)?;
        let slot = ClientSlot(welcome.slot);
        let local = LocalEntries::new(EntryTable::new(Arc::clone(&region), slot, process_id())?);
        let heap = reader.layout().heap;
        background::warm_up();
        // The first `get` should not pay for the first index lookup either.
        let _ = reader.lookup(farrow_store::Target::Name("farrow"));
        let (extents, pool) = (Extents::new(heap, false)?, PoolCore::new(heap)?);
        let uses = UseStamps::new(&region)?;
        let session = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            socket,
            timeout: options.timeout,
            extents,
            arena: Arena::default(),
            pool,
            blocks: HeldBlocks::default(),
            populator: Populator::new(&region),
            reservations: ReservedNames::default(),
            reserved_objects: ReservedObjects::new(welcome.are_objects_limited),
            unheld: PendingHolds::default(),
            late: LateQueue::default(),
            inherited: Inherited::default(),
            uses,
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
            replaced: Replaced::default(),
            exclusion: Exclusion::default(),
            ended_leases: EndedLeases::default(),
            hold_blocks: RequestGate::default(),
            hold_request: Mutex::default(),
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

    pub(super) fn connection(&self) -> Connection {
        lock(&self.link).clone()
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

    /// The daemon's identification of this client: region, slot and nonce.
    pub(crate) fn place(&self) -> (u64, u32, u64) {
        let Identity { region_uid, slot, nonce } = self.identity;
        (region_uid, slot, nonce)
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
}

impl NodeAccess for Session {
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

    fn notify(&self, notification: Notification) -> bool {
        self.notify(notification)
    }

    fn give_back(&self, spans: &[Span], connection: u64) {
        self.give_back(spans, connection);
    }

    fn release(&self, held: Held) {
        self.release(held);
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
