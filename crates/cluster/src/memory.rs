//! Creates the memory of a node, or adopts that of an earlier one.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use farrow_memory::device::DeviceFabric;
use farrow_memory::shm::ShmFabric;
use farrow_memory::{
    Access, Fabric, FabricError, HeldMemory, Length, Offset, Region, RegionSize, mount, survey,
};
use farrow_store::{
    ClientSlot, Dropped, FormatError, HEADER_BYTES, Home, Layout, ObjectId, Reader, RegionOptions,
    RegionUid, StoreError, Unfinished, lent_spans,
};
use farrow_wire::{Inheritance, paths};

use crate::lock::Holder;
use crate::node::{MEMORY_BYTES_MIN, MemorySource, NodeError, NodeOptions};
use crate::place::{RegionFolder, should_mount};
use crate::protocol::PeerIdentity;
use crate::size::human;

/// Room for an object's name, equal to the store's default.
const NAME_BYTES_EACH: u64 = 32;

/// A store over its region, new or adopted.
pub(crate) struct OpenedStore {
    pub(crate) home: Home,
    /// Number of objects adopted from an earlier life.
    pub(crate) adopted: u32,
    pub(crate) clients: Vec<(ClientSlot, PeerIdentity)>,
    /// Objects that go with these clients.
    pub(crate) staged: Vec<(ClientSlot, ObjectId)>,
    pub(crate) dropped: Vec<String>,
    /// Objects that were retained without their damaged names, with reasons.
    pub(crate) unnamed: Vec<String>,
    /// Its folder. `None`: on a device, which is permanent, or without a name.
    pub(crate) place: Option<RegionFolder>,
    /// Keeps the memory while no daemon runs. `None`: on a device.
    pub(crate) held: Option<HeldMemory>,
    /// State of the previous daemon that is not in the region.
    pub(crate) inheritance: Inheritance,
    /// The previous daemon, which waits until this one serves.
    pub(crate) predecessor: Option<UnixStream>,
}

/// Adopts the region of an earlier life at the same socket, or creates a new one. `held` is memory
/// retained from an earlier life.
pub(crate) fn find_or_make(
    options: &NodeOptions,
    name: &str,
    held: Option<HeldMemory>,
) -> Result<OpenedStore, NodeError> {
    // Memory that still has a name is found by that name.
    if let Some(held) = held.filter(|held| held.is_nameless() && !options.is_fresh) {
        // A daemon that was killed handed nothing over.
        match adopt_held(&held, None) {
            // Its creator was killed before it stored anything.
            Err(error) if is_unfinished(&error) => {}
            adopted => return adopted,
        }
    }
    match &options.source {
        MemorySource::Automatic => anywhere(options, name),
        MemorySource::Shm { dir } => {
            let place = RegionFolder::shared(dir);
            if options.is_fresh {
                place.clear(name)?;
            }
            match adopt_in(&place, name)? {
                Some(found) => Ok(found),
                None => make_in(place, options, name),
            }
        }
        MemorySource::Device { path, file_offset, coherence } => {
            let plan = RegionPlan::of_device(options)?;
            let geometry = plan.size.geometry;
            let fabric = DeviceFabric::open(path, *file_offset, geometry, *coherence)?;
            let fabric: Arc<dyn Fabric> = Arc::new(fabric);
            if !options.is_fresh {
                match adopt(Arc::clone(&fabric), None, None) {
                    Ok(found) => return Ok(found),
                    // The device contains no region yet.
                    Err(error) if is_unfinished(&error) => check_blank(Arc::clone(&fabric))?,
                    Err(NodeError::NotAdopted {
                        memory,
                        source: StoreError::Format(FormatError::BadMagic { found }),
                    }) => return Err(NodeError::OtherData { memory, at: 0, found }),
                    Err(error) => return Err(error),
                }
            }
            make(fabric, &plan, None)
        }
    }
}

/// Adopts a region in either folder. A new region uses huge pages if possible, and has no name
/// unless it is to be retained.
fn anywhere(options: &NodeOptions, name: &str) -> Result<OpenedStore, NodeError> {
    let (own, shm) = (RegionFolder::own(&options.socket), RegionFolder::shared(paths::SHM_DIR));
    if own.is_mounted() {
        let found = if options.is_fresh { None } else { adopt_in(&own, name)? };
        if let Some(found) = found {
            return Ok(found);
        }
        // Not wanted, or its node was killed before it created the region or after it removed it.
        own.clear(name)?;
    }
    if options.is_fresh {
        shm.clear(name)?;
    } else if let Some(found) = adopt_in(&shm, name)? {
        return Ok(found);
    }
    if !options.is_keeping {
        return make_nameless(options);
    }
    if should_mount() {
        match make_in_mount(own, options, name) {
            Ok(found) => return Ok(found),
            // If memory is short, the next attempt reports it.
            Err(error) => tracing::info!(%error, "a tmpfs with huge pages cannot be used"),
        }
    }
    make_in(shm, options, name)
}

/// Creates a region without a name: in a tmpfs of its own if this process may mount one with huge
/// pages, else in the machine's shared memory within its limit, else in memory files.
fn make_nameless(options: &NodeOptions) -> Result<OpenedStore, NodeError> {
    let plan = RegionPlan::new(options, None)?;
    if should_mount() {
        match ShmFabric::nameless_in_mount(plan.size) {
            Ok(fabric) => return make_shm(fabric, &plan, None),
            // If memory is short, the next attempt reports it.
            Err(error) => tracing::info!(%error, "a tmpfs with huge pages cannot be used"),
        }
    }
    let shm = Path::new(paths::SHM_DIR);
    let in_shm = RegionPlan::new(options, Some(shm))?;
    match ShmFabric::nameless_in(shm, in_shm.size) {
        Ok(fabric) => make_shm(fabric, &in_shm, None),
        Err(FabricError::System { call, path, source }) => {
            tracing::info!(
                call, path = %path.display(), %source,
                "shared memory cannot be used; memory files replace it"
            );
            let fabric = ShmFabric::memfd("farrow", plan.size)?;
            make_shm(fabric, &plan, None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the creation of the region was not finished. Files of this name, and held memory, belong
/// to a region, so a zero magic shows that its header was never written.
fn is_unfinished(error: &NodeError) -> bool {
    matches!(
        error,
        NodeError::NotAdopted {
            source: StoreError::Format(
                FormatError::Unfinished | FormatError::BadMagic { found: 0 }
            ),
            ..
        }
    )
}

/// Refuses a device with a zero first word, which many file systems have, and other bytes in its
/// header. A region that was begun has a first word of its own.
fn check_blank(fabric: Arc<dyn Fabric>) -> Result<(), NodeError> {
    let memory = fabric.describe();
    let region = Region::map(fabric, Access::Client, None)?;
    let mut header = [0; HEADER_BYTES as usize];
    region.copy_out(Offset(0), &mut header).map_err(StoreError::from)?;
    let words = header.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    match (0..).step_by(8).zip(words).find(|(_, word)| *word != 0) {
        Some((at, found)) if at > 0 => Err(NodeError::OtherData { memory, at, found }),
        _ => Ok(()),
    }
}

fn adopt_held(
    held: &HeldMemory,
    unfinished: Option<&Unfinished>,
) -> Result<OpenedStore, NodeError> {
    adopt_shm(ShmFabric::adopt(held)?, unfinished, None)
}

fn adopt_shm(
    fabric: ShmFabric,
    unfinished: Option<&Unfinished>,
    place: Option<RegionFolder>,
) -> Result<OpenedStore, NodeError> {
    let held = fabric.hold()?;
    let found = adopt(Arc::new(fabric), unfinished, place)?;
    Ok(OpenedStore { held: Some(held), ..found })
}

fn make_shm(
    fabric: ShmFabric,
    plan: &RegionPlan,
    place: Option<RegionFolder>,
) -> Result<OpenedStore, NodeError> {
    let held = fabric.hold()?;
    let found = make(Arc::new(fabric), plan, place)?;
    Ok(OpenedStore { held: Some(held), ..found })
}

fn adopt_in(place: &RegionFolder, name: &str) -> Result<Option<OpenedStore>, NodeError> {
    match ShmFabric::open(&place.dir, name) {
        Ok(fabric) => {
            let path = place.dir.join(name);
            match adopt_shm(fabric, None, Some(place.clone())) {
                Err(error) if is_unfinished(&error) => throw_away(place, name, &path),
                adopted => adopted.map(Some),
            }
        }
        Err(FabricError::NotFound { .. }) => Ok(None),
        Err(FabricError::Unfinished { path }) => throw_away(place, name, &path),
        Err(error) => Err(error.into()),
    }
}

/// Removes the files of a creator that was killed. They never contained anything.
fn throw_away(
    place: &RegionFolder,
    name: &str,
    path: &Path,
) -> Result<Option<OpenedStore>, NodeError> {
    tracing::warn!(path = %path.display(), "unfinished memory of an earlier start is removed");
    ShmFabric::unlink(&place.dir, name)?;
    Ok(None)
}

fn make_in(
    place: RegionFolder,
    options: &NodeOptions,
    name: &str,
) -> Result<OpenedStore, NodeError> {
    let plan = RegionPlan::new(options, Some(&place.dir))?;
    let fabric = ShmFabric::create(&place.dir, name, plan.size)?;
    let made = make_shm(fabric, &plan, Some(place.clone()));
    if made.is_err() {
        let _ = ShmFabric::unlink(&place.dir, name);
    }
    made
}

/// Mounts a tmpfs of the right size and creates the region there. After an error nothing is left.
fn make_in_mount(
    own: RegionFolder,
    options: &NodeOptions,
    name: &str,
) -> Result<OpenedStore, NodeError> {
    // Chosen before the mount, whose free space is only its own size.
    let plan = RegionPlan::new(options, None)?;
    let options = NodeOptions { memory: Some(plan.lent), ..options.clone() };
    mount::mount_huge(&own.dir, plan.size.geometry)?;
    let made = make_in(own.clone(), &options, name);
    if made.is_err() {
        own.unmount();
    }
    made
}

/// The uid of the region in this location, or of the memory without a name that the serving node
/// holds. Reads the header, even if the region is in use.
pub(crate) fn find_existing(
    options: &NodeOptions,
    name: &str,
) -> Result<(RegionUid, Option<HeldMemory>), NodeError> {
    if let MemorySource::Automatic = options.source {
        // A node of an earlier version leaves its lock empty, and its memory has a name.
        let holder = Holder::read(&paths::lock_of(&options.socket));
        let held = holder.and_then(|holder| holder.open_memory());
        if let Ok(Some(held)) =
            held.inspect_err(|reason| tracing::info!(reason, "no memory is held"))
        {
            let uid = uid_of(Arc::new(held.join()?))?;
            return Ok((uid, Some(held)));
        }
    }
    uid_of(open_existing(options, name)?).map(|uid| (uid, None))
}

fn open_existing(options: &NodeOptions, name: &str) -> Result<Arc<dyn Fabric>, NodeError> {
    Ok(match &options.source {
        MemorySource::Automatic => {
            let place = RegionFolder::of_existing(&options.socket, name);
            Arc::new(ShmFabric::inspect(&place.dir, name)?)
        }
        MemorySource::Shm { dir } => Arc::new(ShmFabric::inspect(dir, name)?),
        MemorySource::Device { path, file_offset, coherence } => {
            let geometry = RegionPlan::of_device(options)?.size.geometry;
            Arc::new(DeviceFabric::inspect(path, *file_offset, geometry, *coherence)?)
        }
    })
}

fn uid_of(fabric: Arc<dyn Fabric>) -> Result<RegionUid, NodeError> {
    let memory = fabric.describe();
    let region = Arc::new(Region::map(fabric, Access::Client, None)?);
    let reader = Reader::open(region)
        .map_err(|error| NodeError::NotAdopted { memory, source: error.into() })?;
    Ok(reader.uid())
}

/// Adopts the region in this location, or held memory without a name. Never creates one.
pub(crate) fn adopt_existing(
    options: &NodeOptions,
    name: &str,
    unfinished: &Unfinished,
    held: Option<&HeldMemory>,
) -> Result<OpenedStore, NodeError> {
    if let Some(held) = held.filter(|held| held.is_nameless()) {
        return adopt_held(held, Some(unfinished));
    }
    let adopt_at = |place: RegionFolder| -> Result<OpenedStore, NodeError> {
        adopt_shm(ShmFabric::open(&place.dir, name)?, Some(unfinished), Some(place))
    };
    match &options.source {
        MemorySource::Automatic => adopt_at(RegionFolder::of_existing(&options.socket, name)),
        MemorySource::Shm { dir } => adopt_at(RegionFolder::shared(dir)),
        MemorySource::Device { path, file_offset, coherence } => {
            let geometry = RegionPlan::of_device(options)?.size.geometry;
            let fabric = DeviceFabric::open(path, *file_offset, geometry, *coherence)?;
            adopt(Arc::new(fabric), Some(unfinished), None)
        }
    }
}

/// A region to be created.
struct RegionPlan {
    options: RegionOptions,
    size: RegionSize,
    /// Bytes of the heap that are lent at first.
    lent: Length,
}

impl RegionPlan {
    /// For memory in `dir`, or in a file system that is made for it.
    fn new(options: &NodeOptions, dir: Option<&Path>) -> Result<Self, NodeError> {
        let default = || {
            let memory = default_memory(dir, options.is_private);
            options.memory_max.map_or(memory, |max| memory.min(max))
        };
        let lent = options.memory.unwrap_or_else(default);
        let max = options.memory_max.unwrap_or(lent);
        if lent > max {
            return Err(NodeError::AboveMax { requested: lent.0, max: max.0 });
        }
        Self::sized(options, lent, max)
    }

    /// For a device, all of which is lent.
    fn of_device(options: &NodeOptions) -> Result<Self, NodeError> {
        let memory = options.memory.unwrap_or(Length(MEMORY_BYTES_MIN));
        Self::sized(options, memory, memory)
    }

    fn sized(options: &NodeOptions, lent: Length, max: Length) -> Result<Self, NodeError> {
        if lent.0 < MEMORY_BYTES_MIN {
            return Err(NodeError::TooSmall { requested: lent.0, min: MEMORY_BYTES_MIN });
        }
        let options = region_options(options, max);
        let Layout { geometry, heap, page, .. } = Layout::new(&options)?;
        let lent_pages = lent.0.checked_next_multiple_of(page.0).unwrap_or(u64::MAX);
        let committed = match lent_pages < heap.length.0 {
            true => Length(heap.offset.0 + lent_pages - geometry.control.0),
            false => geometry.data,
        };
        Ok(Self { options, size: RegionSize { geometry, committed }, lent })
    }
}

fn region_options(options: &NodeOptions, memory: Length) -> RegionOptions {
    let mut region = RegionOptions::for_capacity(memory);
    if let Some(objects_max) = options.objects_max {
        region.objects_max = objects_max;
        region.client_objects_max = objects_max;
        // Each object may have a name.
        let name_bytes = u64::from(objects_max) * NAME_BYTES_EACH;
        region.name_bytes = Length(region.name_bytes.0.max(name_bytes));
    }
    if let Some(clients_max) = options.clients_max {
        region.clients_max = clients_max;
    }
    region
}

fn make(
    fabric: Arc<dyn Fabric>,
    plan: &RegionPlan,
    place: Option<RegionFolder>,
) -> Result<OpenedStore, NodeError> {
    let region = Arc::new(Region::map(fabric, Access::Home, None)?);
    region.advise_huge();
    let home = Home::create_lending(region, &plan.options, plan.lent, wall_ns())?;
    Ok(OpenedStore {
        home,
        adopted: 0,
        clients: Vec::new(),
        staged: Vec::new(),
        dropped: Vec::new(),
        unnamed: Vec::new(),
        place,
        held: None,
        inheritance: Inheritance::default(),
        predecessor: None,
    })
}

fn adopt(
    fabric: Arc<dyn Fabric>,
    unfinished: Option<&Unfinished>,
    place: Option<RegionFolder>,
) -> Result<OpenedStore, NodeError> {
    let memory = fabric.describe();
    let _span = tracing::info_span!("adoption", %memory).entered();
    let region = Arc::new(Region::map(fabric, Access::Home, None)?);
    region.advise_huge();
    commit_lent(&region, &memory)?;
    // A killed daemon handed nothing over: then the objects that each client sealed last count as
    // held.
    let adopted = match unfinished {
        Some(unfinished) => Home::adopt_from(region, unfinished),
        None => Home::adopt(region),
    };
    let (home, report) = adopted.map_err(|source| NodeError::NotAdopted { memory, source })?;
    // Its home may have been killed before it did.
    for span in home.withdrawn() {
        if let Err(error) = home.region().give_back(span) {
            tracing::warn!(%error, "memory that is not lent stays allocated");
        }
    }
    tracing::info!(
        life = report.life,
        objects = report.objects,
        retiring = report.retiring,
        unfinished = report.unfinished,
        dropped = report.dropped.len(),
        clients = report.clients.len(),
        "the memory of an earlier daemon is adopted"
    );
    let clients =
        report.clients.iter().map(|client| (client.client, PeerIdentity::from(client))).collect();
    let dropped = report.dropped.iter().map(describe_dropped).collect();
    let unnamed = report.unnamed.iter().map(describe_dropped).collect();
    Ok(OpenedStore {
        home,
        adopted: report.objects.saturating_add(report.spilled),
        clients,
        staged: report.staged,
        dropped,
        unnamed,
        place,
        held: None,
        inheritance: Inheritance::default(),
        predecessor: None,
    })
}

/// Allocates the pages of existing memory, but for those that its home does not lend.
fn commit_lent(region: &Arc<Region>, memory: &str) -> Result<(), NodeError> {
    if !region.can_give_back() {
        return Ok(());
    }
    let lent = lent_spans(region)
        .map_err(|source| NodeError::NotAdopted { memory: memory.to_owned(), source })?;
    for span in lent {
        region.commit(span)?;
    }
    Ok(())
}

fn describe_dropped(dropped: &Dropped) -> String {
    match dropped.id {
        Some(id) => format!("object {id}: {}", dropped.reason),
        None => dropped.reason.clone(),
    }
}

/// Limit on the default memory of a private node: it is committed while the first client waits, at
/// about 0.2 s per GiB.
const PRIVATE_BYTES_MAX: u64 = 4 << 30;

/// The default size: a quarter of the memory available on the machine and in the control group. If
/// the memory is in an existing `dir`, at most half of the free space there.
fn default_memory(dir: Option<&Path>, is_private: bool) -> Length {
    let available = survey::memory_without_swap().map_or(1 << 30, |free| free.0);
    let free = dir
        .and_then(|dir| rustix::fs::statvfs(dir).ok())
        .map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let most = if is_private { PRIVATE_BYTES_MAX } else { u64::MAX };
    let memory = (available / 4).min(free / 2).min(most).max(MEMORY_BYTES_MIN);
    tracing::info!(memory = %human(memory), "the default size of memory is used");
    Length(memory & !((2 << 20) - 1)).max(Length(MEMORY_BYTES_MIN))
}

fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
