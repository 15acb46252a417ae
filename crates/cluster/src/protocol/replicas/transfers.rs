//! Objects that are searched, fetched and imported, and the clients that wait for them.

use std::collections::{BTreeMap, BTreeSet};

use farrow_memory::Span;
use farrow_net::frame::Opened;
use farrow_store::{ClientSlot, NamespaceId, ObjectId, SpillHead};
use farrow_wire::{
    Extent, ImportStep, PART_COLUMNS_MAX, PART_NAME_BYTES_MAX, PartSpec, WireError, WireTarget,
};

use crate::protocol::action::Action;
use crate::protocol::context::ReplyTo;
use crate::protocol::identity::SessionId;
use crate::protocol::limits::check_limit;
use crate::protocol::net::query::{Brought, NetQuery};
use crate::protocol::net::{NetAction, NetFault};

/// An object or part that a client wants. Clients with equal keys share one transfer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::protocol) struct FetchKey {
    pub(in crate::protocol) wish: NetQuery,
    pub(in crate::protocol) extent: Extent,
}

impl FetchKey {
    pub(in crate::protocol) fn new(wish: NetQuery, extent: Extent) -> Result<Self, WireError> {
        let columns = extent.part().and_then(|part| part.columns.as_deref()).unwrap_or_default();
        check_limit("columns of a part", columns.len(), PART_COLUMNS_MAX)?;
        let bytes = columns.iter().map(String::len).sum();
        check_limit("bytes of the names of a part's columns", bytes, PART_NAME_BYTES_MAX)?;
        Ok(Self { wish, extent })
    }

    pub(in crate::protocol) fn open_at(&self, token: u64, node: String) -> Action {
        let (want, part) = (self.wish.encode(), self.extent.part().cloned());
        Action::Net(NetAction::Open { token, node, want, part })
    }
}

/// Ends a hold on an object that was opened at another node.
pub(super) fn release(out: &mut Vec<Action>, node: impl Into<String>, hold: u64) {
    out.push(Action::Net(NetAction::Release { node: node.into(), hold }));
}

/// A client that waits for an object.
#[derive(Debug)]
pub(in crate::protocol) struct FetchWaiter {
    pub(in crate::protocol) key: FetchKey,
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) seq: u64,
    /// At this time the client is informed that the object is still being fetched.
    pub(in crate::protocol) until_ms: u64,
}

impl FetchWaiter {
    pub(in crate::protocol) fn reply_to(&self) -> ReplyTo {
        ReplyTo { session: self.session, seq: self.seq }
    }
}

/// Limit of the wait of an object for room, or for its home to restore it to memory.
pub(in crate::protocol) const ROOM_MS_MAX: u64 = 60_000;

/// Limit of the wait for a node that opens a part: its answer has contents of the part, which a slow
/// link takes long to transfer.
const PART_MS_MAX: u64 = 3_600_000;

/// Limit of the wait for a node that opens an object.
pub(super) fn answer_ms_max(extent: &Extent) -> u64 {
    if extent.part().is_some() { PART_MS_MAX } else { ROOM_MS_MAX }
}

/// An object that is searched for.
#[derive(Debug)]
pub(in crate::protocol) struct Opening {
    pub(in crate::protocol) key: FetchKey,
    pub(in crate::protocol) waiters: Vec<FetchWaiter>,
    /// Later clients: an earlier answer that a node lacks the object may be too old for them.
    pub(in crate::protocol) late: Vec<FetchWaiter>,
    /// Nodes that have not answered yet.
    pub(in crate::protocol) left: BTreeSet<String>,
    /// Nodes to ask again, and when.
    pub(in crate::protocol) again: BTreeMap<String, u64>,
    /// Why these nodes did not open it when they were asked last.
    pub(in crate::protocol) refusals: BTreeMap<String, NetFault>,
    /// Nodes that are asked if the first ones do not have the object.
    pub(in crate::protocol) rest: BTreeSet<String>,
    /// Whether the name's authority is being asked which node to ask first.
    pub(in crate::protocol) is_hint_awaited: bool,
    /// The error of a node that may have the object.
    pub(in crate::protocol) fault: Option<WireError>,
    /// Objects recalled meanwhile: a node may have answered before the recall.
    pub(in crate::protocol) invalidated: BTreeSet<ObjectId>,
    /// Nodes whose answer that is under way may be of an earlier life: the home does not know that
    /// this node would have a replica.
    pub(in crate::protocol) outdated: BTreeSet<String>,
    pub(in crate::protocol) deadline_ms: u64,
    /// Nodes that have not answered until this time are not waited for.
    pub(in crate::protocol) answers_until_ms: u64,
    /// Until this time a node that cannot be reached may be restarting.
    pub(in crate::protocol) lost_ms: u64,
    /// It becomes an object of this node.
    pub(in crate::protocol) import: Option<ImportTarget>,
}

impl Opening {
    /// An object that these nodes may have.
    pub(in crate::protocol) fn new(
        key: FetchKey,
        waiters: Vec<FetchWaiter>,
        nodes: impl IntoIterator<Item = String>,
        now_ms: u64,
        lost_ms: u64,
    ) -> Self {
        let answers_until_ms = now_ms.saturating_add(answer_ms_max(&key.extent));
        Self {
            key,
            waiters,
            late: Vec::new(),
            left: nodes.into_iter().collect(),
            again: BTreeMap::new(),
            refusals: BTreeMap::new(),
            rest: BTreeSet::new(),
            is_hint_awaited: false,
            fault: None,
            invalidated: BTreeSet::new(),
            outdated: BTreeSet::new(),
            deadline_ms: now_ms.saturating_add(ROOM_MS_MAX),
            answers_until_ms,
            lost_ms,
            import: None,
        }
    }
}

/// An object that its home has opened, and holds, for this node.
#[derive(Debug)]
pub(in crate::protocol) struct ObjectAtHome {
    pub(in crate::protocol) node: String,
    pub(in crate::protocol) hold: u64,
    pub(in crate::protocol) opened: Opened,
    pub(in crate::protocol) brought: Brought,
    pub(in crate::protocol) head: SpillHead,
}

/// The sender of an object that is being fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::protocol) enum FetchSender {
    /// The home, or none yet.
    #[default]
    Home,
    /// The home is asked by this question. `None`: a sender has failed, so the home sends the object,
    /// whatever it answers.
    Requested { token: u64, until_ms: Option<u64> },
    /// All senders are busy.
    Waiting { again_at_ms: u64, until_ms: u64 },
    /// The replica of a third node is being opened by this question.
    Opening { token: u64 },
    /// A third node, by its hold.
    Member { node: String, hold: u64 },
    /// The replica is sealed, and the home is notified.
    Done,
}

impl FetchSender {
    pub(in crate::protocol) fn ask_again_at_ms(&self) -> Option<u64> {
        match self {
            Self::Waiting { again_at_ms, .. } => Some(*again_at_ms),
            _ => None,
        }
    }
}

/// A question about the sender of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) enum SenderQuestion {
    /// To the home: which node sends it?
    Which(ObjectId),
    /// To that node: its replica.
    Open(ObjectId),
    /// To the home, whose hold ends with the answer: the replica here is complete.
    Complete { hold: u64 },
}

/// Time that the client of an import has for its next step, while other clients wait for the object.
/// It takes some milliseconds, unless the client is stopped.
pub(super) const STEP_MS_MAX: u64 = 10_000;

/// An object that is being fetched.
#[derive(Debug)]
pub(in crate::protocol) struct Fetching {
    pub(in crate::protocol) node: String,
    pub(in crate::protocol) hold: u64,
    pub(in crate::protocol) head: SpillHead,
    pub(in crate::protocol) brought: Brought,
    pub(in crate::protocol) opened: Opened,
    /// Memory for its blocks, once it is on its way.
    pub(in crate::protocol) blocks: Vec<Span>,
    pub(in crate::protocol) sender: FetchSender,
    /// The part to fetch; `None`: the whole object.
    pub(in crate::protocol) part: Option<PartSpec>,
    /// The full name by which the part was found.
    pub(in crate::protocol) part_of: Option<String>,
    /// Full name of the replica, if it gets one.
    pub(in crate::protocol) name: Option<String>,
    pub(in crate::protocol) namespace: NamespaceId,
    pub(in crate::protocol) waiters: Vec<FetchWaiter>,
    /// Clients that need another part of the object, or a replica while it is imported. One transfer
    /// of an object is made at a time.
    pub(in crate::protocol) later: Vec<FetchWaiter>,
    /// Whether the bytes are in transfer, or wait for a sender. Otherwise the object waits for room.
    pub(in crate::protocol) is_on_its_way: bool,
    /// Whether the bytes of an import are in memory, and only its client's next step is missing.
    pub(in crate::protocol) is_brought: bool,
    /// When they were.
    pub(in crate::protocol) brought_ms: u64,
    /// Whether the object was recalled meanwhile, or its home or the client of the import ended.
    pub(in crate::protocol) is_invalidated: bool,
    /// Whether its home did that.
    pub(in crate::protocol) is_recalled: bool,
    pub(in crate::protocol) lost_ms: u64,
    pub(in crate::protocol) deadline_ms: u64,
    pub(in crate::protocol) import: Option<ImportTarget>,
}

impl Fetching {
    /// When an import ends whose client takes no next step. `None`: no other client waits for it.
    pub(in crate::protocol) fn step_until_ms(&self) -> Option<u64> {
        let is_awaited = self.is_brought && !self.later.is_empty();
        is_awaited.then(|| self.brought_ms.saturating_add(STEP_MS_MAX))
    }
}

pub(in crate::protocol) fn wish_of(target: &WireTarget) -> NetQuery {
    match target {
        WireTarget::Name(full) => NetQuery::Name(full.clone()),
        WireTarget::Id(id) => NetQuery::Id(id.hi, id.lo),
    }
}

/// For whom an object is brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::protocol) struct ImportTarget {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) slot: ClientSlot,
    /// `None`: the client says later what becomes of it.
    pub(in crate::protocol) seal: Option<ImportSeal>,
}

/// The object that an import becomes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::protocol) struct ImportSeal {
    /// In full; reserved by the client.
    pub(in crate::protocol) name: Option<String>,
    /// Instead of the original's.
    pub(in crate::protocol) metadata: Option<Vec<u8>>,
    pub(in crate::protocol) is_pinned: bool,
    /// It has moved from another node, and is as old as it was there.
    pub(in crate::protocol) is_moved: bool,
}

impl ImportTarget {
    /// Whether both are steps of one import.
    pub(in crate::protocol) fn is_of(&self, later: &Self) -> bool {
        (self.session, self.slot) == (later.session, later.slot)
            && (self.seal.is_none() || self.seal == later.seal)
    }
}

/// A request to import an object.
#[derive(Debug)]
pub(in crate::protocol) struct ImportAsk {
    pub(in crate::protocol) session: SessionId,
    pub(in crate::protocol) slot: ClientSlot,
    pub(in crate::protocol) seq: u64,
    pub(in crate::protocol) origin: ObjectId,
    pub(in crate::protocol) step: ImportStep,
    pub(in crate::protocol) until_ms: u64,
}
