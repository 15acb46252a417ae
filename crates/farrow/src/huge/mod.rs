//! Huge tables: one Arrow table whose rows are in the memory of many nodes.
//!
//! A table is a log. Each append is one sealed object, a chunk, whose name ends in the next
//! version. Names are unique in the cluster, so of concurrent appends of one version one succeeds,
//! and the others try again. So no dead client can hold a lock, and a reader that finds versions 1
//! to n, by loads, has the whole table as of version n. A second such log beside the root lists the
//! nodes that may have chunks: if one of them is lost, reads fail, and the table never appears
//! complete.

mod append;
mod discover;
mod far_draft;
mod keys;
mod labels;
mod layout;
mod moves;
mod order;
mod place;
mod read;
mod schema;
mod statistics;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farrow_arrow::{ArrowObject, Kind, Rebuilt, SchemaNode};
use farrow_store::{Entry, Metadata, ObjectId};

pub use append::AppendOptions;
pub use keys::TableOptions;
pub use layout::Partition;

use crate::api::Client;
use crate::clock::{deadline_after, millis};
use crate::connection::session::Session;
use crate::error::Error;
use crate::interrupt::{pause, suspend};
use crate::key::ObjectKey;
use crate::lock::lock;
use crate::objects::draft::Draft;
use crate::objects::object::Object;
use crate::options::ObjectOptions;
use crate::value::Value;
use keys::{ChunkKeys, TableOrder, check_statistics};
use labels::{ChunkNodes, STATISTICS_BYTES_MAX};
use layout::{ChunkList, Clash};
use place::Place;

/// A wait is cut into pieces of this length, to notice a lost node or a dropped table.
const WAIT_PIECE: Duration = Duration::from_secs(1);

/// The longest wait after a lost race for a name: the seal that took the name may still fail.
const RACE_PIECE: Duration = Duration::from_millis(50);

/// Pause before an object that was not where it was found is looked for again.
const RACE_PAUSE: Duration = Duration::from_millis(1);

/// A table whose rows are in the memory of many nodes. Threads may use it at the same time.
#[derive(Debug)]
pub struct HugeTable {
    client: Client,
    name: String,
    /// The id of the first root, which is part of the names of chunks and members.
    id: ObjectId,
    schema: Arc<SchemaNode>,
    order: TableOrder,
    state: Mutex<SeenTable>,
}

/// The known part of a table. Only the places of the root and of chunks ever change.
#[derive(Debug)]
struct SeenTable {
    root: ObjectId,
    root_node: String,
    members: ChunkNodes,
    layout: ChunkList,
    /// The number of the record up to which the places of chunks are known to be right.
    placed_as_of: u64,
    /// Whether the nodes were searched for versions beyond a missing one.
    is_checked: bool,
    /// Objects pinned by this client: root, members and chunks.
    pinned: BTreeSet<ObjectId>,
    /// What sorted and partitioned tables check at an append, by version.
    keys: BTreeMap<u64, ChunkKeys>,
}

/// A table as of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The version; 0 is the empty table.
    pub version: u64,
    /// The row behind the last existing one.
    pub rows: u64,
    /// The first gap before that row.
    pub missing: Option<Range<u64>>,
    /// The location of the rows, in row order.
    pub partitions: Vec<Partition>,
}

impl Snapshot {
    fn new(version: u64, partitions: Vec<Partition>) -> Self {
        let rows = partitions.last().map_or(0, Partition::end);
        Self { version, rows, missing: layout::first_gap(&partitions), partitions }
    }

    /// Number of rows before the first gap.
    pub fn rows_in_a_row(&self) -> u64 {
        self.missing.as_ref().map_or(self.rows, |gap| gap.start)
    }
}

/// The condition to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// This many rows from the first on, without a gap.
    Rows(u64),
    /// This version, or a later one.
    Version(u64),
}

impl Client {
    /// Opens a huge table. Creates it if there is none and a schema is given. Appends without a
    /// node place their rows in the memory of this client's node.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a schema other than the table's, with the first difference,
    /// and for an object that is not a huge table; [`Error::NotFound`] without a schema;
    /// [`Error::NodeLost`] also when the table is not found and may be on a lost node.
    pub fn huge_table(&self, name: &str, schema: Option<&SchemaNode>) -> Result<HugeTable, Error> {
        HugeTable::open(self, name, schema, &TableOptions::default())
    }

    /// As [`Self::huge_table`], of a table that keeps an order or partitions: an append that breaks
    /// them is refused.
    ///
    /// # Errors
    ///
    /// As there; [`Error::InvalidArgument`] for an unknown column, a column without an order or
    /// without room for its statistics, and an existing table with another order.
    pub fn huge_table_with(
        &self,
        name: &str,
        schema: Option<&SchemaNode>,
        options: &TableOptions<'_>,
    ) -> Result<HugeTable, Error> {
        HugeTable::open(self, name, schema, options)
    }
}

impl HugeTable {
    fn open(
        client: &Client,
        name: &str,
        schema: Option<&SchemaNode>,
        options: &TableOptions<'_>,
    ) -> Result<Self, Error> {
        labels::check_name(client.namespace(), name)?;
        if let Some(schema) = schema.filter(|schema| schema.to_schema().is_none()) {
            let text = format!("a table's schema is a struct, not {}", schema.data_type());
            return Err(Error::InvalidArgument(text));
        }
        let deadline = deadline_after(client.session().timeout);
        loop {
            match client.get(&name.into(), Duration::ZERO) {
                Ok(root) => match Self::of_root(client, name, &root, schema) {
                    // It has moved meanwhile, or was dropped.
                    Err(Error::NotFound { .. }) if Instant::now() < deadline => {
                        pause(RACE_PAUSE)?;
                        continue;
                    }
                    table => {
                        let table = table?;
                        table.order.check(name, &table.schema, options)?;
                        return Ok(table);
                    }
                },
                Err(Error::NotFound { .. }) => none_is_lost(client, name)?,
                Err(error) => return Err(error),
            }
            let what = format!("huge table {name:?}");
            let schema = schema.ok_or(Error::NotFound { what })?;
            let order = TableOrder::resolve(schema, options)?;
            if Self::create(client, name, schema, &order)? {
                continue;
            }
            if Instant::now() >= deadline {
                return Err(Error::AlreadyExists { name: name.to_owned() });
            }
            wait_for_name(client, name, RACE_PIECE, deadline)?;
        }
    }

    /// False if the name is taken.
    fn create(
        client: &Client,
        name: &str,
        schema: &SchemaNode,
        order: &TableOrder,
    ) -> Result<bool, Error> {
        check_statistics(schema, order, STATISTICS_BYTES_MAX)?;
        sweep::orphans(client, name)?;
        let empty = Value::Table { schema, batches: &[] };
        let metadata = labels::root_metadata(order)?;
        let options = ObjectOptions { metadata: Some(&metadata), ..ObjectOptions::default() };
        let mut draft = Draft::new(client.session(), &empty, &options, None)?;
        match draft.seal(name)? {
            Some(retained) => client.pin(&[retained.id().into()]).map(|()| true),
            None => Ok(false),
        }
    }

    fn of_root(
        client: &Client,
        name: &str,
        root: &Object,
        schema: Option<&SchemaNode>,
    ) -> Result<Self, Error> {
        let id = root.id();
        let metadata = client.metadata(&id.into())?;
        labels::check_root(name, &metadata)?;
        let Rebuilt::Arrow(ArrowObject { kind: Kind::Table, schema: ours, .. }) = root.rebuild()?
        else {
            return Err(Error::InvalidDescriptor(format!("huge table {name:?}: its root is none")));
        };
        let order = labels::read_order(name, &metadata, &ours)?;
        let (table, members) = labels::read_root(name, id, &metadata)?;
        let state = SeenTable {
            root: id,
            root_node: client.nodes().name_of(id.region().0)?,
            members,
            layout: ChunkList::default(),
            placed_as_of: 0,
            is_checked: false,
            pinned: BTreeSet::new(),
            keys: BTreeMap::new(),
        };
        let table = Self {
            client: client.clone(),
            name: name.to_owned(),
            id: table,
            schema: ours,
            order,
            state: Mutex::new(state),
        };
        schema.map_or(Ok(()), |schema| table.check_schema(schema))?;
        Ok(table)
    }

    /// The name of the table.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The id of its first root: a table that is dropped and created again has another one.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// A struct of the columns, with the metadata given at creation.
    pub fn schema(&self) -> &Arc<SchemaNode> {
        &self.schema
    }

    /// The table as it is now, or was in a version. Sends no message, except to open a session at
    /// each node not searched before, and to nodes whose memory is not mapped.
    ///
    /// # Errors
    ///
    /// [`Error::NodeLost`] names a node that has chunks of the table, [`Error::NotFound`] when the
    /// table was dropped or a chunk deleted, [`Error::InvalidArgument`] for a future version.
    pub fn snapshot(&self, version: Option<u64>) -> Result<Snapshot, Error> {
        let _quiet = suspend();
        // In a forked child the thread that has the lock may not exist.
        self.client.nodes().own().check()?;
        let mut state = lock(&self.state);
        self.discover(&mut state)?;
        let newest = state.layout.version();
        let version = version.unwrap_or(newest);
        if version > newest {
            let name = &self.name;
            let text = format!("version {version} of huge table {name:?}, which has {newest}");
            return Err(Error::InvalidArgument(text));
        }
        Ok(Snapshot::new(version, state.layout.chunks(version)))
    }

    /// Waits for rows, or a version.
    ///
    /// # Errors
    ///
    /// As [`Self::snapshot`]; [`Error::Timeout`] with the rows or version reached.
    pub fn wait(&self, until: WaitFor, timeout: Duration) -> Result<Snapshot, Error> {
        let started = Instant::now();
        let deadline = deadline_after(timeout);
        loop {
            let snapshot = self.snapshot(None)?;
            let (is_there, what) = match until {
                WaitFor::Rows(rows) => {
                    let have = snapshot.rows_in_a_row();
                    (
                        have >= rows,
                        format!("{rows} rows of huge table {:?}, which has {have}", self.name),
                    )
                }
                WaitFor::Version(version) => {
                    let have = snapshot.version;
                    (
                        have >= version,
                        format!(
                            "version {version} of huge table {:?}, which is at {have}",
                            self.name
                        ),
                    )
                }
            };
            if is_there {
                return Ok(snapshot);
            }
            if Instant::now() >= deadline {
                let waited_ms = millis(started.elapsed());
                return Err(Error::Timeout { what, waited_ms });
            }
            let next = labels::chunk_name(&self.name, self.id, snapshot.version + 1);
            wait_for_name(&self.client, &next, WAIT_PIECE, deadline)?;
        }
    }

    /// The node in whose memory the root was seen last.
    fn home(&self, state: &SeenTable) -> Result<Place<'_>, Error> {
        Place::new(&self.client, state.root.region().0, &state.root_node)
    }

    fn check_schema(&self, schema: &SchemaNode) -> Result<(), Error> {
        match schema::difference(&self.schema, schema) {
            None => Ok(()),
            Some(difference) => {
                let text = format!("another schema than huge table {:?}: {difference}", self.name);
                Err(Error::InvalidArgument(text))
            }
        }
    }

    fn removed_version(&self, version: u64) -> Error {
        let what = format!("version {version} of huge table {:?}: it was deleted", self.name);
        Error::NotFound { what }
    }

    fn damaged(&self, version: u64, clash: &Clash) -> Error {
        let text = format!("version {version} of huge table {:?}: {clash:?}", self.name);
        Error::InvalidDescriptor(text)
    }
}

/// The entry and the metadata of a named object in the memory of a node.
fn find(session: &Arc<Session>, name: &str) -> Result<Option<(Entry, Metadata)>, Error> {
    let target = ObjectKey::from(name);
    if let Some(entry) = session.lookup(&target)?
        && let Some(metadata) = session.reader.metadata(&entry)?
    {
        return Ok(Some((entry, metadata)));
    }
    // The object may be spilled together with its metadata.
    let Some(held) = session.hold(&target)? else {
        return Ok(None);
    };
    let entry = *held.entry();
    let metadata = session.reader.metadata(&entry);
    session.release(held);
    Ok(metadata?.map(|metadata| (entry, metadata)))
}

/// Waits for a name to be sealed on any node, until the deadline and at most for `most`.
fn wait_for_name(
    client: &Client,
    name: &str,
    most: Duration,
    deadline: Instant,
) -> Result<(), Error> {
    let piece = deadline.min(deadline_after(most));
    let own = Client::new(Arc::clone(client.nodes().own()), Arc::clone(client.nodes()));
    own.wait_until(&[name.into()], 1, piece).map(|_| ())
}

/// Fails if a node is lost: a table that is not found may be there, and a second table of this name
/// would be worse than an error.
fn none_is_lost(client: &Client, name: &str) -> Result<(), Error> {
    let lost = client.nodes().first_lost()?;
    lost.map_or(Ok(()), |node| {
        let reason = format!("huge table {name:?} may be in its memory");
        Err(Error::NodeLost { node, reason })
    })
}
