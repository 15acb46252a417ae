//! The state of the model: a home, its readers, and the messages between them.

/// Objects of the home. The second is sealed once the first one's name is free, or in its place.
pub const OBJECTS: usize = 2;
/// Ids: one of each object, and the id that the first object has after the home took it over.
pub const IDS: usize = 3;
/// Stands for all objects in a notice, like `EVERYTHING` of the code.
pub const EVERYTHING: usize = IDS;
pub const READERS: usize = 2;

/// Results of a get: a bit for each. The object of the second home comes after the home's.
pub const NONE: u8 = 1;
pub const fn found(object: usize) -> u8 {
    2 << object
}
pub const OF_SECOND_HOME: usize = OBJECTS;

pub const fn object_of(id: usize) -> usize {
    if id < OBJECTS { id } else { 0 }
}

pub const fn bit(number: usize) -> u8 {
    1 << number
}

/// An object at its home (`crates/store/src/home`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelObjectState {
    Unsealed,
    Sealed,
    /// Being evicted: it cannot be held, and may be sealed again (`begin_leave`).
    Leaving,
    Removed,
}

/// A thread of the data server that opens an object for one reader (`RegionSource::hold`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerThread {
    Idle,
    Found(usize),
    /// The reader is noted. In a mutant, the object is held.
    Half(usize),
}

/// A delete or replacement (`Withdrawal`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delete {
    None,
    /// The object is closed to readers, and waits for members.
    Waits {
        object: usize,
        is_replaced: bool,
    },
    /// No member has a replica any more.
    Ready {
        object: usize,
        is_replaced: bool,
    },
    /// The object is deleted, and is to be opened again.
    Done {
        object: usize,
    },
}

/// The last notice of an object to a reader (`LastNotice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Last {
    /// The reader has no replica.
    None,
    Sent {
        number: u8,
    },
    /// It was not answered, and is sent again.
    Failed {
        number: u8,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelHome {
    pub objects: [ModelObjectState; OBJECTS],
    pub is_taken_over: bool,
    /// Readers that may have a replica, by id: `interests`.
    pub notes: [u8; IDS],
    /// Ids that cannot be opened.
    pub closed: u8,
    /// Notices under way, by id and reader: `leaving`.
    pub last: [[Last; READERS]; IDS + 1],
    pub delete: Delete,
    /// Restarted, and not yet a member again: `is_new_life`.
    pub is_new_life: bool,
    /// The victim of an eviction, chosen without a look at its holds since.
    pub victim: Option<usize>,
    pub threads: [ServerThread; READERS],
    /// Holds for readers, by reader and id.
    pub holds: [[u8; IDS]; READERS],
    /// Readers with complete replicas, by id: the tree of a large object.
    pub complete: [u8; IDS],
    /// The number of the last notice to each reader.
    pub numbers: [u8; READERS],
}

/// The answer of the home to an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenAnswer {
    Found(usize),
    NotFound,
    Busy,
}

/// A node to ask for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameHolder {
    Home,
    Second,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpeningStage {
    Asked(NameHolder),
    /// The home was busy, or the connection broke.
    Again(NameHolder),
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GetTarget {
    /// The name that the objects have one after the other.
    Name,
    Object(usize),
}

impl GetTarget {
    pub fn is(self, object: usize) -> bool {
        match self {
            Self::Name => true,
            Self::Object(wanted) => wanted == object,
        }
    }
}

/// A search (`Opening`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelOpening {
    pub stage: OpeningStage,
    /// The node that is asked next.
    pub rest: Option<NameHolder>,
    pub target: GetTarget,
    /// Ids recalled meanwhile.
    pub removed: u8,
    pub is_outdated: bool,
    /// The client came after the search had begun.
    pub is_late: bool,
}

/// Where the bytes of a replica come from (`FetchSender`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BytesSender {
    /// None yet: of a large object the home is asked.
    Unknown,
    Home,
    /// The home moved the object to a file while nothing held it.
    Overwritten,
    /// A reader whose replica holds the bytes of this object.
    Reader {
        reader: usize,
        bytes: u8,
    },
}

/// An object on its way (`Fetching`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelFetching {
    pub sender: BytesSender,
    pub is_removed: bool,
}

/// A get of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Get {
    Idle,
    /// It looks for the name by loads.
    Looks,
    /// The daemon searches for it.
    Waits,
    /// The daemon answered with a local object.
    Answered(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelClient {
    pub get: Get,
    pub target: GetTarget,
    /// The results that are right, since the name had them during the get.
    pub allowed: u8,
    pub left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelReader {
    pub is_up: bool,
    /// Clients and daemon may rely on replicas: the word in the region (`publish_lease`).
    pub has_lease: bool,
    pub is_member: bool,
    /// The object whose bytes a replica holds, by id. `GARBAGE`: of none.
    pub replicas: [Option<u8>; IDS],
    /// Replicas that others may read: `serve_replica`.
    pub served: u8,
    pub opening: Option<ModelOpening>,
    pub fetching: [Option<ModelFetching>; IDS],
    pub client: ModelClient,
}

pub const GARBAGE: u8 = u8::MAX;

/// Messages between the home and one reader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReaderLink {
    pub open: bool,
    pub answer: Option<OpenAnswer>,
    /// Releases of holds, by id. They arrive before a later open.
    pub releases: [u8; IDS],
    /// Reports of complete replicas.
    pub complete: u8,
    /// Notices by id, each with its number, and their answers. They may overtake each other.
    pub notices: Vec<(usize, u8)>,
    pub acks: Vec<(usize, u8)>,
}

/// What may still happen of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FaultBudget {
    pub losses: u8,
    pub home_crashes: u8,
    pub reader_crashes: u8,
    pub pauses: u8,
    pub evictions: u8,
    pub spills: u8,
    pub recalls: u8,
    pub deletes: u8,
    /// Gets of each reader.
    pub gets: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wrong {
    /// A get returned bytes of another object.
    Bytes,
    /// A get returned what the name never stood for during the get.
    Result,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaState {
    pub home: ModelHome,
    /// Whether the second home has an object of the name.
    pub second: ModelObjectState,
    /// The node that the name authority was told of last.
    pub hint: Option<NameHolder>,
    pub readers: [ModelReader; READERS],
    pub links: [ReaderLink; READERS],
    pub left: FaultBudget,
    pub wrong: Option<Wrong>,
}

/// The scope of a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckScope {
    pub readers: usize,
    pub budget: FaultBudget,
    /// Both objects exist at a time, are got by their ids, and readers send them to others.
    pub is_large: bool,
    /// A second home may have an object of the name.
    pub has_second_home: bool,
    /// The home may take over the first object.
    pub takes_over: bool,
}

impl ReplicaState {
    pub fn new(scope: &CheckScope) -> Self {
        let client = ModelClient {
            get: Get::Idle,
            target: GetTarget::Name,
            allowed: 0,
            left: scope.budget.gets,
        };
        let reader = ModelReader {
            is_up: true,
            has_lease: true,
            is_member: true,
            replicas: [None; IDS],
            served: 0,
            opening: None,
            fetching: [None; IDS],
            client,
        };
        let link = ReaderLink {
            open: false,
            answer: None,
            releases: [0; IDS],
            complete: 0,
            notices: Vec::new(),
            acks: Vec::new(),
        };
        let home = ModelHome {
            objects: [ModelObjectState::Unsealed; OBJECTS],
            is_taken_over: false,
            notes: [0; IDS],
            closed: 0,
            last: [[Last::None; READERS]; IDS + 1],
            delete: Delete::None,
            is_new_life: false,
            victim: None,
            threads: [ServerThread::Idle; READERS],
            holds: [[0; IDS]; READERS],
            complete: [0; IDS],
            numbers: [0; READERS],
        };
        Self {
            home,
            second: ModelObjectState::Unsealed,
            hint: None,
            readers: [reader.clone(), reader],
            links: [link.clone(), link],
            left: scope.budget,
            wrong: None,
        }
    }

    pub fn is_there(&self, object: usize) -> bool {
        matches!(self.home.objects[object], ModelObjectState::Sealed | ModelObjectState::Leaving)
    }

    /// What a name or an id stands for.
    pub fn value(&self, target: GetTarget) -> u8 {
        let mut objects = 0..OBJECTS;
        match objects.find(|object| target.is(*object) && self.is_there(*object)) {
            Some(object) => found(object),
            None if target == GetTarget::Name && self.second == ModelObjectState::Sealed => {
                found(OF_SECOND_HOME)
            }
            None => NONE,
        }
    }

    /// The ids of an object: `ids_of`.
    pub fn ids_of(&self, object: usize) -> impl Iterator<Item = usize> + use<> {
        let is_taken_over = self.home.is_taken_over;
        (0..IDS).filter(move |id| object_of(*id) == object && (*id < OBJECTS || is_taken_over))
    }

    pub fn id_now(&self, object: usize) -> usize {
        if object == 0 && self.home.is_taken_over { OBJECTS } else { object }
    }
}
