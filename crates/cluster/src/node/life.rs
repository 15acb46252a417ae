//! A node from its start to its end. It stops, or hands over to the next daemon.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use farrow_memory::{HeldMemory, sync};
use farrow_wire::{BootTime, Inheritance, paths};

use super::error::{NodeError, check_socket_path, failed};
use super::options::NodeOptions;
use super::scraped::Scraped;
use super::start::{
    HeapPreparation, base_of, begin_settings, bind, handles_of, join_cluster, offer_of, open_audit,
    purge_spill, start_peers, start_preparing, start_spill,
};
use super::stop::{self, StopSwitch, Stopper};
use crate::lock::Lock;
use crate::memory::{OpenedStore, adopt_existing, find_or_make};
use crate::peer_memory::Devices;
use crate::peers::Peers;
use crate::place::RegionFolder;
use crate::protocol::{AdoptedState, DaemonInfo, NodeState, unfinished};
use crate::server::{Handover, LoopEnd, Remains, Server, ServerParts};
use crate::supervisor::{Custody, Handles};
use crate::upgrade::{self, Succession, TakenOver, UpgradeState};

/// A node that is ready to serve.
pub struct Node {
    server: Server,
    options: NodeOptions,
    /// `None`: on a device, which is permanent, or without a name.
    place: Option<RegionFolder>,
    /// The descriptors that keep the memory. The lock file states their numbers.
    handles: Handles,
    custody: Custody,
    lock: Lock,
    preparing: Option<JoinHandle<()>>,
    should_prepare: Arc<sync::AtomicBool>,
    stopper: UnixStream,
    /// Open until this daemon is confirmed to serve. If it ends before that, the previous daemon
    /// takes the region back.
    predecessor: Option<UnixStream>,
    /// A summary of the start.
    pub summary: Summary,
}

/// The results of a node's start.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Heap bytes.
    pub capacity: u64,
    /// A description of the memory.
    pub memory: String,
    /// Objects adopted from an earlier life.
    pub adopted: u32,
    /// Objects of an earlier life that could not be adopted, with reasons.
    pub dropped: Vec<String>,
    /// Objects of an earlier life that were retained without their damaged names, with reasons.
    pub unnamed: Vec<String>,
    /// The address of the metrics.
    pub metrics: Option<String>,
    /// The node's name and address in its cluster.
    pub cluster: Option<String>,
}

impl Summary {
    /// That of an opened store, whose reports it takes.
    fn of(found: &mut OpenedStore) -> Self {
        Self {
            capacity: found.home.capacity().0,
            memory: found.home.region().fabric().describe(),
            adopted: found.adopted,
            dropped: std::mem::take(&mut found.dropped),
            unnamed: std::mem::take(&mut found.unnamed),
            metrics: None,
            cluster: None,
        }
    }
}

impl Node {
    /// Takes the lock, creates or adopts the region, and binds the socket.
    ///
    /// # Errors
    ///
    /// See [`NodeError`]. Everything created for this node is removed again.
    pub fn open(options: NodeOptions) -> Result<Self, NodeError> {
        Self::open_with(options, StopSwitch::new().map_err(failed("a pair of sockets"))?)
    }

    /// As [`Self::open`], but stopped by an existing switch.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(options: NodeOptions, switch: StopSwitch) -> Result<Self, NodeError> {
        Self::open_in(options, switch, Custody::alone())
    }

    /// As [`Self::open_with`], with a custody for the descriptors that must outlive this process.
    pub(crate) fn open_in(
        mut options: NodeOptions,
        switch: StopSwitch,
        mut custody: Custody,
    ) -> Result<Self, NodeError> {
        let started = BootTime::now();
        let Handles { lock, listener, memory } = custody.take_start();
        if custody.is_restart() {
            // The first daemon of this supervisor has done this.
            (options.is_fresh, options.is_upgrade) = (false, false);
        }
        check_socket_path(&options.socket)?;
        // A spill target that is away at a restart is no reason to lose what is in memory.
        if let Some(target) = options.spill.as_ref().filter(|_| !custody.is_restart()) {
            // Before the node creates memory that a failure would leave behind.
            target.probe().map_err(failed(format!("reach {target}")))?;
        }
        paths::prepare_socket_dir(&options.socket)
            .map_err(failed(format!("the folder of {}", options.socket.display())))?;
        let region_name = paths::region_name(&options.socket);
        let mut memory = memory;
        if options.is_upgrade {
            match upgrade::take_over(&options, &region_name)? {
                TakenOver::All(inherited) => {
                    let is_successor = true;
                    let beginning = Beginning { options, switch, custody, started, is_successor };
                    return Self::follow(beginning, *inherited);
                }
                TakenOver::NoDaemon(left) => memory = memory.or(left),
            }
        }
        let lock = match lock {
            Some(file) => Lock::inherited(file, &options.socket),
            // A node that can no longer hand over, or whose socket is removed, may hold the lock
            // briefly.
            None if options.is_upgrade || !options.socket.exists() => {
                Lock::take_when_free(&options.socket)?
            }
            None => Lock::take(&options.socket)?,
        };
        // Before the node creates memory that a failure would leave behind. A restart does not
        // require that etcd is reachable.
        let start = |config| start_peers(config, options.buffers_max, !custody.is_restart());
        let peers = options.cluster.as_ref().map(start).transpose()?;
        let found = find_or_make(&options, &region_name, memory)?;
        let listener = match listener {
            Some(listener) => listener,
            None => bind(&options.socket, &options.users)?,
        };
        let is_successor = custody.is_restart();
        let beginning = Beginning { options, switch, custody, started, is_successor };
        Self::build(beginning, lock, listener, found, peers)
    }

    /// Continues where another daemon stopped, or failed to take over.
    fn follow(beginning: Beginning, inherited: UpgradeState) -> Result<Self, NodeError> {
        let UpgradeState { listener, lock, memory, inheritance, predecessor } = inherited;
        let options = &beginning.options;
        let lock = Lock::inherited(lock, &options.socket);
        let name = paths::region_name(&options.socket);
        // A takeover does not require that etcd is reachable.
        let start = |config| start_peers(config, options.buffers_max, false);
        let peers = options.cluster.as_ref().map(start).transpose()?;
        let unfinished = unfinished(&inheritance);
        let mut found = adopt_existing(options, &name, &unfinished, memory.as_ref())?;
        found.inheritance = inheritance;
        found.predecessor = predecessor;
        Self::build(beginning, lock, listener, found, peers)
    }

    /// Sets up the state of the node, joins the cluster, and starts the event loop's parts.
    fn build(
        beginning: Beginning,
        lock: Lock,
        listener: UnixListener,
        mut found: OpenedStore,
        peers: Option<Peers>,
    ) -> Result<Self, NodeError> {
        let Beginning { options, switch, custody, started, is_successor } = beginning;
        let is_restart = custody.is_restart();
        let mut summary = Summary::of(&mut found);
        let offer = offer_of(&found, &options);
        let was_in_cluster = !matches!(found.home.retained_for_cluster(), Ok(None));
        let (stopper, wake) = switch.into_parts();
        let OpenedStore { home, held, inheritance, predecessor, place, .. } = found;
        // Dropped before the predecessor, which then listens at the same port again.
        let peers = peers;
        let adopted =
            AdoptedState { orphans: found.clients, staged: found.staged, objects: found.adopted };
        let base = base_of(home.uid(), home.region().length());
        let daemon = DaemonInfo { base, pid: std::process::id(), owner_uid: paths::own_uid() };
        let mut state = NodeState::new(home, daemon, adopted, 0);
        state.set_eviction_policy(options.eviction.policy());
        let is_nameless = held.as_ref().is_some_and(HeldMemory::is_nameless);
        let owner = is_nameless.then_some(&lock);
        let spill = options.spill.as_ref();
        let spill = spill.map(|target| start_spill(target, owner, is_restart, &mut state));
        let spill = spill.transpose()?;
        set_limits(&mut state, &options, peers.as_ref(), &inheritance)?;
        let preparation = start_preparing(options.is_preparing, &mut state);
        let HeapPreparation { thread: preparing, should_go_on: should_prepare, prepared } =
            preparation;
        let audit = open_audit(&options, is_restart, &mut state)?;
        let metrics = options.metrics.as_ref();
        let metrics = metrics.map(|address| Scraped::bind(address, &options.socket)).transpose()?;
        summary.metrics = metrics.as_ref().map(|bound| bound.address.clone());
        let metrics = metrics.map(|bound| bound.listener);
        let mut first = Vec::new();
        let mut net = None;
        if let (Some(config), Some(peers)) = (&options.cluster, &peers) {
            let joined = join_cluster(config, peers, offer, was_in_cluster, &mut state)?;
            (net, summary.cluster, first) = (joined.net, Some(joined.summary), joined.actions);
        }
        begin_settings(&options, &mut state, is_successor)?;
        let Inheritance { incarnation, flags, .. } = inheritance;
        state.inherit_flags((incarnation, flags), 0, &mut first);
        let allowed = options.cluster.as_ref().map_or(&[][..], |one| &one.devices);
        let devices = Devices::new(&options.source, allowed);
        let handles = handles_of(&lock, &listener, held)?;
        if predecessor.is_some() && stop::is_requested(&wake) {
            // The other daemon takes everything back. Its objects would end with this node.
            let reason = "this node was stopped before it served".to_owned();
            return Err(NodeError::NotHandedOver { socket: options.socket, reason });
        }
        // Before any other node learns where the memory is.
        custody.ready(&handles, predecessor.as_ref())?;
        let parts = ServerParts {
            listener,
            socket: options.socket.clone(),
            wake,
            started,
            linger: options.is_private.then_some(options.linger),
            prepared,
            metrics,
            audit,
            spill,
            peers: peers.map(|peers| (peers, devices)),
            net,
        };
        let server = Server::new(parts, state, first).map_err(failed("the event loop"))?;
        Ok(Self {
            server,
            options,
            place,
            handles,
            custody,
            lock,
            preparing,
            should_prepare,
            stopper,
            summary,
            predecessor,
        })
    }

    /// A handle that ends [`Self::run`].
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn stopper(&self) -> io::Result<Stopper> {
        Stopper::of(&self.stopper)
    }

    /// Serves until stopped, then releases everything, or until another daemon takes everything
    /// over.
    ///
    /// # Errors
    ///
    /// The event loop failed. The memory is left for the next node to adopt.
    pub fn run(self) -> Result<(), NodeError> {
        let mut node = self;
        while let Some(again) = node.serve()? {
            tracing::warn!("the next daemon failed; this one continues to serve");
            node = again;
        }
        Ok(())
    }

    /// Returns `Some` if another daemon failed to take over.
    fn serve(self) -> Result<Option<Self>, NodeError> {
        let Self { server, options, place, handles, custody, lock, preparing, .. } = self;
        let held = handles.memory;
        let adopted = self.summary.adopted;
        let (should_prepare, stopper) = (self.should_prepare, self.stopper);
        let ended = server.run();
        drop(self.predecessor);
        should_prepare.store(false, sync::Ordering::Relaxed);
        if let Some(thread) = preparing {
            let _ = thread.join();
        }
        let Remains { ended, state, listener, wake } = ended.map_err(failed("the event loop"))?;
        match ended {
            LoopEnd::HandingOver(handover) => {
                drop(state);
                let switch = StopSwitch::from_parts(stopper, wake);
                let started = BootTime::now();
                let is_successor = true;
                let beginning = Beginning { options, switch, custody, started, is_successor };
                return Self::make_way(beginning, (lock, listener, held), *handover);
            }
            LoopEnd::Deserted => tracing::info!("the last client left; the node ends"),
            LoopEnd::Requested => {}
        }
        if lock.is_current() {
            let metrics = options.metrics.as_ref().and_then(|it| it.path(&options.socket));
            for path in [Some(options.socket.clone()), metrics].into_iter().flatten() {
                let _ = fs::remove_file(path);
            }
        }
        let uid = state.home().uid();
        let failure = state.failure().map(str::to_owned);
        drop(state);
        let is_nameless = held.as_ref().is_some_and(HeldMemory::is_nameless);
        // The objects of an earlier node are no fault of this one, which another option may cure.
        let is_retained = failure.is_some() && adopted > 0;
        // If the supervisor was killed, the daemon leaves the same things as a killed daemon.
        let is_staying = options.is_keeping || custody.is_orphaned() || is_retained;
        if (is_nameless && !is_retained) || (place.is_some() && !is_staying) {
            if let Some(target) = &options.spill {
                purge_spill(target, uid);
            }
            if let Some(place) = place {
                place.clear(&paths::region_name(&options.socket))?;
            }
        }
        lock.release();
        if !is_retained {
            custody.ended();
        }
        let ended = |failure| match is_retained {
            true => NodeError::EndedWithObjects { reason: failure, objects: adopted },
            false => NodeError::Ended(failure),
        };
        failure.map_or(Ok(None), |failure| Err(ended(failure)))
    }

    /// Hands everything over, and takes it back if the next daemon fails before it serves.
    fn make_way(
        beginning: Beginning,
        (lock, listener, memory): (Lock, UnixListener, Option<HeldMemory>),
        handover: Handover,
    ) -> Result<Option<Self>, NodeError> {
        let inheritance = handover.inheritance().clone();
        let succession = match handover.pass_on(listener.as_fd(), lock.as_fd()) {
            Ok(successor) => upgrade::await_successor(successor, beginning.switch.wake()),
            Err(error) => {
                tracing::warn!(%error, "the next daemon ended before the handover was complete");
                Succession::Failed
            }
        };
        if succession == Succession::Over {
            return Ok(None);
        }
        let lock = lock.into_file();
        let back = UpgradeState { listener, lock, memory, inheritance, predecessor: None };
        let beginning = Beginning { started: BootTime::now(), ..beginning };
        Self::follow(beginning, back).map(Some)
    }
}

/// The state of a node before it has any resources.
struct Beginning {
    options: NodeOptions,
    switch: StopSwitch,
    custody: Custody,
    started: BootTime,
    /// The node continues an earlier daemon's work: after an upgrade, or after a kill.
    is_successor: bool,
}

/// Applies the limits and permissions of the options, and what the daemon before left.
fn set_limits(
    state: &mut NodeState,
    options: &NodeOptions,
    peers: Option<&Peers>,
    inheritance: &Inheritance,
) -> Result<(), NodeError> {
    state.set_quotas(options.quotas);
    let of_peers = peers.map_or(0, |peers| peers.buffered_bytes().1 as u64);
    state.buffers_mut().set_max(options.buffers_max.0.saturating_sub(of_peers));
    state.resume_from(inheritance);
    state.allow_users(&options.users);
    let ruled = state.set_rules(options.rules.clone());
    ruled.map_err(|error| NodeError::Cluster(error.to_string()))
}
