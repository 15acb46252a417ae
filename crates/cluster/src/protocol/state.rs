//! State of one node: its store, its parts, and the cluster.

use farrow_store::{ClientSlot, EvictionPolicy, Home, ObjectId};
use farrow_wire::{Members, NamespaceReport, WireError};

use super::action::Action;
use super::cluster::{AwaitContext, MappablePeer, OptionalCluster};
use super::core::admission::Admission;
use super::core::barriers::{BarrierContext, Barriers};
use super::core::buffers::Buffers;
use super::core::clients::Clients;
use super::core::cluster_record::{RecordNumbers, RecordParts, retained_rules, retained_state};
use super::core::counting::CountQueue;
use super::core::drain::context::DrainContext;
use super::core::drain::state::{Drain, DrainRecord};
use super::core::families::Families;
use super::core::fanout::FanOut;
use super::core::joined::JoinedState;
use super::core::leases::Leases;
use super::core::namespace_drops::NamespaceDrops;
use super::core::namespaces::namespace_reports;
use super::core::quota::{Quota, Quotas};
use super::core::reclaim::Reclaim;
use super::core::residency::Residency;
use super::core::resize::Resize;
use super::core::settings::RuntimeSettings;
use super::core::staged::StagedObjects;
use super::core::waits::Waits;
use super::core::watches::Watches;
use super::identity::{PeerIdentity, SessionId};
use super::replicas::{ReplicaContext, Replicas};
use super::rights::RightsTable;

/// Counters since start.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct RequestCounts {
    pub(super) requests: u64,
    pub(super) sealed: u64,
    pub(super) deleted: u64,
}

/// Offsets of the region's sections in their files, for the welcome.
#[derive(Debug, Clone)]
pub(super) struct SectionFiles {
    pub(super) control_file_offset: u64,
    pub(super) data_file_offset: u64,
    pub(super) memory: String,
}

/// The process that serves a node.
#[derive(Debug, Clone, Copy)]
pub struct DaemonInfo {
    /// The address at which processes should map the region.
    pub base: u64,
    /// Its process id.
    pub pid: u32,
    /// The user that runs it.
    pub owner_uid: u32,
}

/// What a daemon finds in a region that it adopts; nothing in a new one.
#[derive(Debug, Clone, Default)]
pub struct AdoptedState {
    /// The clients that the region still lists.
    pub orphans: Vec<(ClientSlot, PeerIdentity)>,
    /// Objects that go with these clients.
    pub staged: Vec<(ClientSlot, ObjectId)>,
    /// Number of objects.
    pub objects: u32,
}

/// State of a node: its store, its clients and their waiting requests.
#[derive(Debug)]
pub struct NodeState {
    pub(super) home: Home,
    pub(super) place: SectionFiles,
    pub(super) base: u64,
    pub(super) pid: u32,
    pub(super) clients: Clients,
    /// Clients that have ended but whose children may still read.
    pub(super) families: Families,
    pub(super) waits: Waits,
    pub(super) fan_out: FanOut,
    pub(super) buffers: Buffers,
    pub(super) admission: Admission,
    pub(super) watches: Watches,
    pub(super) residency: Residency,
    pub(super) replicas: Replicas,
    /// Objects of clients that are deleted when these end.
    pub(super) staged: StagedObjects,
    /// Objects that references in flight name.
    pub(super) leases: Leases,
    pub(super) quota: Quota,
    /// Rules for other nodes.
    pub(super) rules: RightsTable,
    pub(super) settings: RuntimeSettings,
    pub(super) resize: Resize,
    pub(super) drain: Drain,
    pub(super) reclaim: Reclaim,
    pub(super) counts: RequestCounts,
    pub(super) counting: CountQueue,
    pub(super) namespace_drops: NamespaceDrops,
    pub(super) adopted: u64,
    pub(super) prepared: u64,
    pub(super) turns: u64,
    pub(super) started_ms: u64,
    pub(super) is_stopping: bool,
    /// Error that ended the node, unless it was stopped.
    pub(super) failure: Option<String>,
    pub(super) barriers: Barriers,
    /// The other nodes, if there are any.
    pub(super) cluster: OptionalCluster,
    /// The names that this node brought into its life in the cluster.
    pub(super) joined: JoinedState,
}

impl NodeState {
    /// A node over `home`.
    pub fn new(home: Home, daemon: DaemonInfo, adopted: AdoptedState, now_ms: u64) -> Self {
        let DaemonInfo { base, pid, owner_uid } = daemon;
        let fabric = home.region().fabric();
        let place = SectionFiles {
            control_file_offset: fabric.read_fd(farrow_memory::Section::Control).1,
            data_file_offset: fabric.read_fd(farrow_memory::Section::Data).1,
            memory: fabric.describe(),
        };
        let watches = Watches::resumed(&home, now_ms);
        let rules = retained_rules(&home);
        let retained = retained_state(&home);
        let drain = Drain { record: retained.drain.unwrap_or_default(), ..Drain::default() };
        let clients = Clients::new(owner_uid, adopted.orphans, now_ms);
        let leases = Leases::resumed(&home, |slot| clients.orphan(slot).is_some(), now_ms);
        let mut state = Self {
            home,
            place,
            base,
            pid,
            clients,
            families: Families::default(),
            waits: Waits::default(),
            fan_out: FanOut::default(),
            buffers: Buffers::default(),
            admission: Admission::default(),
            watches,
            residency: Residency::default(),
            replicas: Replicas::default(),
            staged: StagedObjects::default(),
            leases,
            quota: Quota::default(),
            rules,
            settings: RuntimeSettings::retained(retained.settings.unwrap_or_default()),
            resize: Resize::default(),
            drain,
            reclaim: Reclaim::new(now_ms),
            counts: RequestCounts::default(),
            counting: CountQueue::default(),
            namespace_drops: NamespaceDrops::default(),
            adopted: adopted.objects.into(),
            prepared: 0,
            turns: 0,
            started_ms: now_ms,
            is_stopping: false,
            failure: None,
            barriers: Barriers::numbered_from(retained.first_number),
            cluster: OptionalCluster::default(),
            joined: JoinedState::resumed(retained.compared_for),
        };
        state.drain.resume_move(&state.home);
        for (slot, id) in adopted.staged {
            state.staged.insert(slot, id);
            if state.home.client(slot).is_err() {
                // It left while the last daemon was killed.
                state.drop_staged(slot);
            }
        }
        state
    }

    /// The barriers and flags, and what they need of the rest of the node.
    pub(super) fn barriers<'a>(
        &'a mut self,
        now_ms: u64,
        out: &'a mut Vec<Action>,
    ) -> (&'a mut Barriers, BarrierContext<'a>) {
        let Self { barriers, cluster, rules, clients, .. } = self;
        (barriers, BarrierContext { cluster, rules, clients, now_ms, out })
    }

    /// The cluster, and what waits for names of other nodes need of the rest of the node.
    pub(super) fn awaiting<'a>(
        &'a mut self,
        now_ms: u64,
        out: &'a mut Vec<Action>,
    ) -> (&'a mut OptionalCluster, AwaitContext<'a>) {
        let Self { cluster, waits, fan_out, home, rules, .. } = self;
        (cluster, AwaitContext { waits, fan_out, home, rules, now_ms, out })
    }

    /// The replicas, and what they need of the rest of the node.
    pub(super) fn replicas<'a>(
        &'a mut self,
        now_ms: u64,
        out: &'a mut Vec<Action>,
    ) -> (&'a mut Replicas, ReplicaContext<'a>) {
        let Self { replicas, home, cluster, residency, quota, clients, reclaim, .. } = self;
        let context =
            ReplicaContext { home, cluster, residency, quota, clients, reclaim, now_ms, out };
        (replicas, context)
    }

    /// The drain, and what it needs of the rest of the node.
    pub(super) fn drain<'a>(
        &'a mut self,
        now_ms: u64,
        out: &'a mut Vec<Action>,
    ) -> (&'a mut Drain, DrainContext<'a>) {
        let Self { drain, home, cluster, replicas, joined, leases, .. } = self;
        let compared_for = joined.compared_for.unwrap_or_default();
        let numbers = RecordNumbers { first_number: self.barriers.first_number(), compared_for };
        let (rules, settings) = (&self.rules, self.settings.record());
        let parts = RecordParts { rules, settings, numbers };
        (drain, DrainContext { home, cluster, replicas, joined, leases, parts, now_ms, out })
    }

    /// The store, and what it keeps for the cluster beside the membership state.
    pub(super) fn record(&mut self) -> (&mut Home, RecordParts<'_>, &DrainRecord) {
        let Self { home, rules, settings, drain, barriers, joined, .. } = self;
        let compared_for = joined.compared_for.unwrap_or_default();
        let numbers = RecordNumbers { first_number: barriers.first_number(), compared_for };
        (home, RecordParts { rules, settings: settings.record(), numbers }, &drain.record)
    }

    /// Stores the changed settings and the numbers beside the rest, to survive a kill.
    pub(super) fn keep_settings(&mut self) -> Result<(), WireError> {
        let (home, parts, drain) = self.record();
        parts.keep(home, drain)
    }

    /// The nodes, as clients see them.
    pub(super) fn members(&self) -> Members {
        self.cluster.members(&self.home, &self.drain.record)
    }

    /// All namespaces, with the objects that are registered or spilled.
    pub(crate) fn namespace_reports(&self) -> Vec<NamespaceReport> {
        namespace_reports(&self.home)
    }

    /// Informs clients of the nodes after a change.
    pub(super) fn notify_members(&mut self) {
        self.cluster.notify_members(&mut self.home, &self.drain.record);
    }

    /// The store, for tests and for the server's checks.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The error that ended the node.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Number of clients that are connected, expected back, or survived by children that read.
    pub fn clients(&self) -> usize {
        self.clients.count() + self.families.count()
    }

    /// Sets the eviction policy. Without this call objects are evicted by request only.
    pub fn set_eviction_policy(&mut self, policy: Box<dyn EvictionPolicy>) {
        self.residency.set_policy(policy);
    }

    /// Enables spilling to files named `label/ID`.
    pub fn set_spill(&mut self, label: String) {
        self.residency.set_spill(label);
    }

    /// Sets the limits for each client. A client beyond them keeps what it has and gets no more.
    pub fn set_quotas(&mut self, quotas: Quotas) {
        self.quota.set_limits(quotas);
    }

    /// Every object is sealed by a request from here on, so that all are recorded. A client that the
    /// former daemon gave entry pages may still fill these.
    pub fn set_audited(&mut self) {
        self.quota.set_audited();
    }

    /// The process at a connection and its namespace. `None`: it has ended.
    pub(crate) fn who_is(&self, session: SessionId) -> Option<(PeerIdentity, String)> {
        let state = self.clients.session(session)?;
        let mut namespaces = self.home.namespaces();
        let namespace = namespaces.find(|one| one.id == state.namespace);
        Some((state.peer, namespace.map_or_else(String::new, |one| one.options.name.clone())))
    }

    /// Objects evicted since the start, and their bytes.
    pub(crate) fn evicted(&self) -> (u64, u64) {
        let totals = self.residency.totals();
        (totals.evicted, totals.evicted_bytes)
    }

    /// Resumes the reservations of the previous daemon.
    pub(crate) fn inherit_reservations(&mut self, reserved: &[(u32, u32)]) {
        self.quota.inherit(&mut self.home, reserved);
    }

    /// Whether a node is a member.
    pub fn is_peer(&self, node: &str) -> bool {
        self.cluster.is_peer(node)
    }

    /// The memory of another node, for a client that maps it too.
    pub fn memory_of(&self, node: &str) -> Option<&MappablePeer> {
        self.cluster.memory_of(node)
    }

    /// Mapped nameless memory of nodes that are not heard of.
    pub fn unheard_memory(&self) -> impl Iterator<Item = (&str, &MappablePeer)> {
        self.cluster.unheard_memory()
    }

    /// The other node that listens at an address.
    pub fn node_at(&self, address: &str) -> Option<&str> {
        self.cluster.node_at(address)
    }

    /// Whether this node serves clients; otherwise the reason.
    pub fn readiness(&self, now_ms: u64) -> Result<(), String> {
        if self.drain.record.is_draining {
            return Err("the node is draining: its objects move to other nodes".to_owned());
        }
        self.cluster.readiness(now_ms)?;
        if self.home.has_client_place() {
            return Ok(());
        }
        let max = self.home.layout().clients_max;
        Err(format!("no client can connect: all {max} places are taken (--clients-max)"))
    }

    /// Whether no other node needs to learn that this one leaves.
    pub fn has_left(&self) -> bool {
        self.cluster.has_left()
    }

    /// Notes that messages to an address arrive, or why they do not.
    pub fn delivery_changed(&mut self, address: String, why_not: Option<String>) {
        self.cluster.delivery_changed(address, why_not);
    }

    /// Whether all state that was handed over has been received.
    pub fn has_handed_over(&self) -> bool {
        self.cluster.has_handed_over() && self.barriers.has_nothing_set_aside()
    }

    /// Whether all members have heard of the clients that have ended here.
    pub fn has_reported_ends(&self) -> bool {
        self.cluster.has_reported_ends()
    }

    /// Notes how long another node took to answer a question of this one.
    pub fn round_trip(&mut self, token: u64, elapsed_us: u64) {
        self.cluster.round_trip(token, elapsed_us);
    }

    /// The state of a remote client is unknown: it is checked again later.
    pub fn watch_later(&mut self, slot: ClientSlot, now_ms: u64) {
        self.cluster.watch_later(slot, now_ms);
    }

    /// Time for which replicas are known to be current; `None`: no limit applies.
    pub(crate) fn replicas_last_ms(&self, now_ms: u64) -> Option<u64> {
        self.replicas.last_ms(&self.cluster, now_ms)
    }
}
