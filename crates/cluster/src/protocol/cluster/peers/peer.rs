//! Another node: its membership and its mapped memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use farrow_membership::naming::Unread;
use farrow_membership::{Member, NodeName, Reachability as Heard, View};
use farrow_memory::Fabric;
use farrow_store::{Home, Reader, Target, Whereabouts, namespace_of, own_name};
use farrow_wire::{MemberInfo, NodeUnreachable, Reach, WireError};

use super::offer::Offer;
use super::peer_cost::PeerCost;
use crate::protocol::core::drain::state::DrainRecord;

/// The memory of another node, mapped by this one to look up names.
#[derive(Debug, Clone)]
pub struct MappablePeer {
    /// The fabric, for clients that map it.
    pub fabric: Arc<dyn Fabric>,
    /// Reads its directory.
    pub reader: Reader,
}

#[derive(Debug)]
pub(super) enum PeerMemory {
    /// The action that maps it is under way: [`NodeState::mapped`] follows in the same turn of the
    /// loop.
    ///
    /// [`NodeState::mapped`]: crate::protocol::NodeState::mapped
    BeingMapped,
    /// Not mapped, for this reason.
    Missing(String),
    Mapped(Box<MappablePeer>),
}

#[derive(Debug)]
pub(in crate::protocol) struct PeerNode {
    pub(in crate::protocol) member: Member,
    pub(in crate::protocol) offer: Option<Offer>,
    pub(in crate::protocol) reach: Reach,
    /// Its incarnation is over, and what it read here has ended. A node that was excluded itself calls
    /// all members lost, of which some may still be members.
    pub(in crate::protocol::cluster) has_ended: bool,
    /// It left in order, so no node waits for its objects.
    pub(in crate::protocol) has_left: bool,
    pub(super) memory: PeerMemory,
    /// Fabric by which its objects are fetched: `net` or `net+TLS`, with `+rdma` behind it if a
    /// network card read the last ones.
    pub(in crate::protocol) by_net: Option<&'static str>,
    /// Time of the next question for the address of its data server.
    pub(in crate::protocol) ask_net_at_ms: Option<u64>,
    pub(super) cost: PeerCost,
}

impl PeerNode {
    pub(in crate::protocol) fn new(member: Member) -> Self {
        let offer = Offer::decode(&member.info);
        let memory = match &offer {
            Some(_) => PeerMemory::BeingMapped,
            None => PeerMemory::Missing("it offers no memory".to_owned()),
        };
        Self {
            member,
            offer,
            reach: Reach::Live,
            has_ended: false,
            has_left: false,
            memory,
            by_net: None,
            ask_net_at_ms: None,
            cost: PeerCost::default(),
        }
    }

    pub(in crate::protocol) fn set_reach(&mut self, state: Heard) {
        let reach = match state {
            Heard::Live => Reach::Live,
            Heard::Suspect => Reach::Suspect,
            Heard::Lost => Reach::Lost,
        };
        if self.reach != reach {
            let node = self.member.name.as_str();
            tracing::info!(
                node,
                from = self.reach.as_str(),
                to = reach.as_str(),
                "the reachability of a node changed"
            );
        }
        self.reach = reach;
    }

    pub(in crate::protocol) fn ask_by_net_at_ms(&self) -> Option<u64> {
        self.ask_net_at_ms.filter(|_| !self.is_lost())
    }

    pub(in crate::protocol) fn is_lost(&self) -> bool {
        self.reach == Reach::Lost
    }

    pub(in crate::protocol) fn mapped(&self) -> Option<&MappablePeer> {
        match &self.memory {
            PeerMemory::Mapped(memory) => Some(memory),
            PeerMemory::BeingMapped | PeerMemory::Missing(_) => None,
        }
    }

    pub(in crate::protocol::cluster) fn is_being_mapped(&self) -> bool {
        matches!(self.memory, PeerMemory::BeingMapped)
    }

    pub(in crate::protocol) fn has_name(&self, full: &str) -> bool {
        self.mapped().is_some_and(|memory| has_name(&memory.reader, full))
    }

    /// An error if the node is lost.
    pub(in crate::protocol) fn check_live(&self) -> Result<(), WireError> {
        if !self.is_lost() {
            return Ok(());
        }
        let node = self.member.name.to_string();
        let reason = format!("nothing is heard from {}", self.member.address);
        Err(WireError::NodeLost { node, reason })
    }

    /// An error that says why objects in its memory cannot be used.
    pub(in crate::protocol) fn check_usable(&self) -> Result<(), WireError> {
        self.check_live()?;
        match self.mapped() {
            Some(_) => Ok(()),
            None => Err(self.unreachable()),
        }
    }

    /// The error for an object in its memory, which is not mapped here.
    pub(in crate::protocol) fn unreachable(&self) -> WireError {
        let reason = self.why_not_mapped();
        let Member { name, address, .. } = &self.member;
        WireError::NodeUnreachable(NodeUnreachable {
            node: name.to_string(),
            address: address.clone(),
            reason,
        })
    }

    fn why_not_mapped(&self) -> String {
        match &self.memory {
            PeerMemory::Missing(why) => why.clone(),
            PeerMemory::BeingMapped => "it is being mapped".to_owned(),
            PeerMemory::Mapped(_) => "it was not mapped when it was looked for".to_owned(),
        }
    }

    /// Whether it is lost and may return with objects whose names are unknown here.
    pub(in crate::protocol) fn is_lost_unread(&self) -> bool {
        self.is_lost() && !self.has_left && self.mapped().is_none()
    }

    /// Bytes that it lends: as it said last, else as when it joined.
    fn capacity(&self) -> u64 {
        let offered = self.offer.as_ref().map_or(0, |offer| offer.capacity);
        self.cost.capacity().unwrap_or(offered)
    }

    /// What clients learn of it. `record` says whether its objects move to other nodes.
    pub(in crate::protocol) fn report(&self, record: &DrainRecord) -> MemberInfo {
        let Member { number, name, incarnation, address, .. } = &self.member;
        let mut report = MemberInfo {
            number: number.get(),
            name: name.to_string(),
            address: address.clone(),
            incarnation: incarnation.0,
            reach: if self.is_lost() && self.has_left { Reach::Left } else { self.reach },
            region_uid: self.offer.as_ref().map_or(0, |offer| offer.region_uid),
            capacity: self.capacity(),
            is_draining: record.has_draining(&self.member) && !self.is_lost(),
            ..MemberInfo::default()
        };
        match &self.memory {
            PeerMemory::BeingMapped | PeerMemory::Missing(_) => {
                report.why_not = self.why_not_mapped();
                self.by_net.unwrap_or_default().clone_into(&mut report.fabric);
            }
            PeerMemory::Mapped(memory) => {
                report.fabric = memory.fabric.kind().as_str().to_owned();
                report.coherence = memory.fabric.coherence_class().as_str().to_owned();
            }
        }
        report
    }
}

/// Whether an object with this full name is in the memory of a node, this one included. Names of a
/// lost node stay taken: it may return with its objects.
pub(in crate::protocol) fn is_name_known(
    home: &Home,
    peers: &BTreeMap<String, PeerNode>,
    record: &DrainRecord,
    full: &str,
) -> bool {
    #[cfg(feature = "failpoints")]
    if farrow_store::failpoints::is_faulty("names.blind") {
        return false;
    }
    // An unreadable name might exist.
    let look =
        || home.has_name(full).unwrap_or(true) || peers.values().any(|one| one.has_name(full));
    // A name may move between two looks, from a directory not yet read to one read before. It is in
    // the new one before it leaves the old one, so each further look can miss one more move only.
    let movers = peers.values().filter(|one| record.has_draining(&one.member)).count();
    (0..=movers).any(|_| look())
}

pub(in crate::protocol) fn unknown_names(name: &NodeName, address: &str) -> WireError {
    let reason = format!(
        "nothing is heard from {address}, and which names its objects have is not known; if it will \
         not come back, tell each other node: `farrow nodes forget {name}`"
    );
    WireError::NodeLost { node: name.to_string(), reason }
}

/// The nodes whose names cannot be read here. If members were lost before this daemon started, all
/// others are asked: they may know the names of those.
pub(in crate::protocol) fn unread(
    peers: &BTreeMap<String, PeerNode>,
    record: &DrainRecord,
    view: Option<&View>,
) -> Unread {
    let mut former = view.into_iter().flat_map(|view| &view.former);
    let asks_all = former.any(|one| !one.has_left && !peers.contains_key(one.name.as_str()));
    let members = peers.values().filter(|one| !one.is_lost());
    let members = members.filter(|one| asks_all || one.mapped().is_none());
    let lost = peers.values().filter(|one| one.is_lost_unread());
    let is_mover = |one: &&PeerNode| record.has_draining(&one.member) && !one.is_lost();
    Unread {
        members: members.map(|one| one.member.number).collect(),
        lost: lost.map(|one| one.member.number).min(),
        movers: peers.values().filter(is_mover).count(),
    }
}

pub(in crate::protocol) fn has_name(reader: &Reader, full: &str) -> bool {
    // The number of the namespace does not matter for the lookup of a name.
    let (number, _) = reader.namespace();
    let reader = reader.clone().in_namespace(number, namespace_of(full));
    // An unreadable name might exist.
    !matches!(reader.whereabouts(Target::Name(own_name(full))), Ok(Whereabouts::Nowhere))
}

/// The same error, for a node that did not report its names either.
pub(in crate::protocol) fn because(error: &WireError, why: &str) -> WireError {
    match error {
        WireError::NodeUnreachable(one) => {
            let reason = format!("{}; it did not say which names it has: {why}", one.reason);
            WireError::NodeUnreachable(NodeUnreachable { reason, ..one.clone() })
        }
        other => other.clone(),
    }
}
