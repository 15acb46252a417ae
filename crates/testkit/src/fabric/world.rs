//! The parties of a contract and their processes: all in this process, or each in one of its own.
//!
//! Every process runs the contract function from beginning to end. Each use of a region is in
//! [`Participant::act`]: the process of that party runs it, and the others wait for its result. So all
//! processes take the same path, and a contract is the same function whether its parties share a
//! process or not. A panic in an act is a panic in every process.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use farrow_memory::{
    Access, CoherenceClass, Fabric, FabricKind, PassedFabric, PassedParts, Proximity, Region,
    Section,
};

use super::wire::{PARTY, Packet, ProcessSocket, Started};
use super::{AccessMethod, Backend, Made, geometry};

/// The role of a party in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The region's home.
    Home,
    /// A client on the home's node.
    Client,
    /// A client on another node, if the back end has nodes; else like a client.
    Other,
}

/// The processes of the parties.
enum PartyProcesses {
    /// All in this process.
    OneProcess(Made),
    /// The home, if the contract has one, is in this process; the others are in the started ones.
    First { made: Made, started: RefCell<BTreeMap<usize, Started>>, test: String },
    /// Only the party of this number is in this process.
    Started {
        party: usize,
        wire: ProcessSocket,
        /// Description of the memory.
        memory: RefCell<Introduced>,
        early: RefCell<BTreeMap<u32, Packet>>,
    },
}

/// Words and descriptors of [`introduce`].
type Introduced = (Vec<u8>, Vec<OwnedFd>);

/// A new region of a back end, and the processes of its parties.
pub struct ConformanceRegion {
    place: PartyProcesses,
    backend: Backend,
    step: RefCell<u32>,
}

impl ConformanceRegion {
    /// All parties in this process.
    #[must_use]
    pub fn in_one_process(backend: &Backend) -> Self {
        let place = PartyProcesses::OneProcess((backend.make)(geometry()));
        Self { place, backend: *backend, step: RefCell::new(0) }
    }

    /// Each party in a process of its own. `test` is the path of the test that runs this contract,
    /// starting with its crate.
    ///
    /// # Panics
    /// If this process was started for a contract of another test.
    #[must_use]
    pub fn in_processes(backend: &Backend, test: &str) -> Self {
        let place = match std::env::var(PARTY) {
            Ok(party) => {
                let wire = ProcessSocket::of_child();
                let memory = RefCell::new(wire.receive().expect("where the memory lies"));
                let party = party.parse().expect("the number of a party");
                PartyProcesses::Started { party, wire, memory, early: RefCell::default() }
            }
            Err(_) => PartyProcesses::First {
                made: (backend.make)(geometry()),
                started: RefCell::default(),
                test: test.split_once("::").map_or(test, |(_, path)| path).to_owned(),
            },
        };
        Self { place, backend: *backend, step: RefCell::new(0) }
    }

    /// Whether all parties share one address space.
    #[must_use]
    pub fn is_one_process(&self) -> bool {
        matches!(self.place, PartyProcesses::OneProcess(_))
    }

    /// Creates the parties, each with its own map. Called once, at the beginning.
    ///
    /// # Panics
    /// If a party cannot map the region.
    #[track_caller]
    pub fn parties<const N: usize>(&self, roles: [Role; N]) -> [Participant<'_>; N] {
        if let PartyProcesses::First { made, started, test } = &self.place {
            let mut started = started.borrow_mut();
            for (number, _) in roles.iter().enumerate().filter(|(_, role)| **role != Role::Home) {
                let child = started.entry(number).or_insert_with(|| Started::new(test, number));
                introduce(made, &child.wire);
            }
        }
        let mut number = 0;
        roles.map(|role| {
            let mut party = Participant { world: self, number, role, region: None };
            number += 1;
            let is_here = match &self.place {
                PartyProcesses::OneProcess(_) => true,
                PartyProcesses::First { .. } => role == Role::Home,
                PartyProcesses::Started { party: own, .. } => *own == party.number,
            };
            let mut region = None;
            party.exchange(is_here.then_some(|| region = Some(self.map(role))));
            party.region = region;
            party
        })
    }

    /// Waits until all processes have finished the contract.
    ///
    /// # Panics
    /// If one does not finish, or fails.
    pub fn finish(self) {
        if let PartyProcesses::First { started, .. } = &self.place {
            for (number, child) in started.borrow_mut().iter_mut() {
                let status = child.wait();
                assert!(status.is_some_and(|one| one.success()), "party {number}: {status:?}");
            }
        }
    }

    fn map(&self, role: Role) -> Arc<Region> {
        let fabric = match (&self.place, role) {
            (PartyProcesses::Started { memory, .. }, _) => self.reach(memory.take(), role),
            (PartyProcesses::OneProcess(made) | PartyProcesses::First { made, .. }, Role::Home) => {
                Arc::clone(&made.home)
            }
            (
                PartyProcesses::OneProcess(made) | PartyProcesses::First { made, .. },
                Role::Client,
            ) => Arc::clone(&made.client),
            (
                PartyProcesses::OneProcess(made) | PartyProcesses::First { made, .. },
                Role::Other,
            ) => Arc::clone(&made.other),
        };
        let (access, proximity) = match role {
            Role::Home => (Access::Home, Proximity::Local),
            Role::Client => (Access::Client, Proximity::Local),
            Role::Other => (Access::Client, Proximity::Remote),
        };
        Arc::new(Region::map_from(fabric, access, None, proximity).expect("map"))
    }

    /// In a started process: opens the memory that the first process made.
    fn reach(&self, (words, descriptors): Introduced, role: Role) -> Arc<dyn Fabric> {
        let words = String::from_utf8(words).expect("words");
        let mut words = words.splitn(5, ' ');
        let mut next = || words.next().expect("five words");
        let kind = match next() {
            "shm" => FabricKind::Shm,
            _ => FabricKind::Device,
        };
        let coherence = match next() {
            "coherent" => CoherenceClass::Coherent,
            _ => CoherenceClass::NodeLocal,
        };
        let control_file_offset = next().parse().expect("an offset");
        let data_file_offset = next().parse().expect("an offset");
        match self.backend.reach {
            AccessMethod::Opened(open) => open(&PathBuf::from(next()), geometry(), role),
            AccessMethod::Passed => {
                let [control_read, data_read, data_write] =
                    descriptors.try_into().expect("three descriptors");
                let passed = PassedFabric::new(PassedParts {
                    kind,
                    coherence,
                    geometry: geometry(),
                    control_read,
                    control_file_offset,
                    data_read,
                    data_write: Some(data_write),
                    data_file_offset,
                });
                Arc::new(passed.expect("what was passed"))
            }
        }
    }

    fn next_step(&self) -> u32 {
        *self.step.borrow_mut() += 1;
        *self.step.borrow()
    }

    /// Sends the result of a local act to the other processes.
    fn deliver(&self, packet: &Packet) {
        match &self.place {
            PartyProcesses::OneProcess(_) => {}
            PartyProcesses::First { started, .. } => forward(&started.borrow(), packet, None),
            // The first process may have ended already, after an act that failed.
            PartyProcesses::Started { wire, .. } => drop(wire.say(packet)),
        }
    }

    /// Waits for the result of an act of another process.
    fn hear(&self, party: usize, step: u32) -> Packet {
        match &self.place {
            PartyProcesses::OneProcess(_) => unreachable!("all are here"),
            PartyProcesses::First { started, .. } => {
                let mut started = started.borrow_mut();
                let child = started.get_mut(&party).expect("a party that was started");
                let packet = child.wire.hear().unwrap_or_else(|error| {
                    let is_closed = error.kind() == std::io::ErrorKind::UnexpectedEof;
                    let status = if is_closed { child.wait() } else { None };
                    panic!("party {party} says nothing at step {step}: {error}; {status:?}")
                });
                forward(&started, &packet, Some(party));
                packet
            }
            PartyProcesses::Started { wire, early, .. } => {
                let mut early = early.borrow_mut();
                loop {
                    if let Some(packet) = early.remove(&step) {
                        return packet;
                    }
                    let packet = wire.hear().expect("what came of an act of another process");
                    early.insert(packet.step, packet);
                }
            }
        }
    }
}

impl std::fmt::Debug for ConformanceRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match &self.place {
            PartyProcesses::OneProcess(_) => "in one process",
            PartyProcesses::First { .. } => "in processes, the first",
            PartyProcesses::Started { .. } => "in processes, one that was started",
        };
        write!(f, "{:?}, {place}", self.backend)
    }
}

fn forward(started: &BTreeMap<usize, Started>, packet: &Packet, from: Option<usize>) {
    for (_, child) in started.iter().filter(|(number, _)| Some(**number) != from) {
        // A process that has ended is noticed when its next packet is due, or at the end.
        let _ = child.wire.say(packet);
    }
}

/// Describes the memory to a process, and passes the file descriptors of a daemon.
fn introduce(made: &Made, wire: &ProcessSocket) {
    let fabric = &made.home;
    let (control_read, control_file_offset) = fabric.read_fd(Section::Control);
    let (data_read, data_file_offset) = fabric.read_fd(Section::Data);
    let (data_write, _) = fabric.write_fd(Section::Data).expect("the home writes data");
    let words = format!(
        "{} {} {control_file_offset} {data_file_offset} {}",
        fabric.kind().as_str(),
        made.client.coherence_class().as_str(),
        made.dir.display()
    );
    wire.send(words.as_bytes(), &[control_read, data_read, data_write]).expect("a child listens");
}

/// A participant with the region mapped. The map is only in its own process.
#[derive(Debug)]
pub struct Participant<'w> {
    world: &'w ConformanceRegion,
    number: usize,
    role: Role,
    region: Option<Arc<Region>>,
}

impl<'w> Participant<'w> {
    /// Runs `act` on this party's region. Every process gets the value.
    ///
    /// # Panics
    /// As the act does.
    #[track_caller]
    pub fn act<T: Transferable>(&self, act: impl FnOnce(&Arc<Region>) -> T) -> T {
        self.exchange(self.region.as_ref().map(|region| || act(region)))
    }

    /// As [`Participant::act`] for a value that cannot leave the party's process, such as an alias.
    ///
    /// # Panics
    /// As the act does.
    #[track_caller]
    pub fn keep<'p, T>(&'p self, make: impl FnOnce(&Arc<Region>) -> T) -> LocalValue<'p, 'w, T> {
        let mut value = None;
        self.act(|region| value = Some(make(region)));
        LocalValue { party: self, value }
    }

    #[track_caller]
    fn exchange<T: Transferable>(&self, act: Option<impl FnOnce() -> T>) -> T {
        let (step, place) = (self.world.next_step(), Location::caller().to_string());
        match act {
            Some(act) => self.settle(step, place, caught(act)),
            None => self.learn(step, &place),
        }
    }

    /// Sends the result of a local act to the others, and returns or panics with it.
    fn settle<T: Transferable>(&self, step: u32, place: String, result: Caught<T>) -> T {
        let said = match &result {
            Ok(value) => Ok(value.to_bytes()),
            Err(panic) => Err(words_of(&**panic)),
        };
        self.world.deliver(&Packet { step, place, result: said });
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn learn<T: Transferable>(&self, step: u32, place: &str) -> T {
        let packet = self.world.hear(self.number, step);
        assert_eq!((packet.step, &*packet.place), (step, place), "the processes went apart");
        match packet.result {
            Ok(bytes) => T::from_bytes(&bytes),
            Err(words) => panic!("in the process of {:?} {}: {words}", self.role, self.number),
        }
    }
}

/// Runs acts of two parties at the same time.
///
/// # Panics
/// As an act does.
#[track_caller]
pub fn together<T: Transferable + Send, U: Transferable>(
    first: (&Participant<'_>, impl FnOnce(&Arc<Region>) -> T + Send),
    second: (&Participant<'_>, impl FnOnce(&Arc<Region>) -> U),
) -> (T, U) {
    let place = Location::caller().to_string();
    let ((first, act), (second, other_act)) = (first, second);
    let (step, other_step) = (first.world.next_step(), first.world.next_step());
    let act = first.region.as_ref().map(|region| || caught(|| act(region)));
    let (value, other) = std::thread::scope(|scope| {
        let running = act.map(|act| scope.spawn(act));
        let other = second.region.as_ref().map(|region| caught(|| other_act(region)));
        (running.map(|thread| thread.join().unwrap_or_else(Err)), other)
    });
    // Results of local acts are sent before waiting for remote ones.
    let value = value.map(|value| first.settle(step, place.clone(), value));
    let other = other.map(|other| second.settle(other_step, place.clone(), other));
    (
        value.unwrap_or_else(|| first.learn(step, &place)),
        other.unwrap_or_else(|| second.learn(other_step, &place)),
    )
}

/// A value that stays with the party that made it.
#[derive(Debug)]
pub struct LocalValue<'p, 'w, T> {
    party: &'p Participant<'w>,
    value: Option<T>,
}

impl<T> LocalValue<'_, '_, T> {
    /// Runs `act` on the value, in the process of its party.
    ///
    /// # Panics
    /// As the act does.
    #[track_caller]
    pub fn act<U: Transferable>(&self, act: impl FnOnce(&T) -> U) -> U {
        self.party.exchange(self.value.as_ref().map(|value| || act(value)))
    }

    /// The value, in the process of its party.
    #[must_use]
    pub fn here(&self) -> Option<&T> {
        self.value.as_ref()
    }
}

type Caught<T> = Result<T, Box<dyn Any + Send>>;

fn caught<T>(act: impl FnOnce() -> T) -> Caught<T> {
    // After a panic, nothing that the act used is used again.
    catch_unwind(AssertUnwindSafe(act))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// A result of an act that can be sent to all processes.
pub trait Transferable: Sized {
    /// Encodes the value.
    fn to_bytes(&self) -> Vec<u8>;

    /// Decodes a value.
    ///
    /// # Panics
    /// If the bytes are not an encoded value.
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl Transferable for () {
    fn to_bytes(&self) -> Vec<u8> {
        Vec::new()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        assert!(bytes.is_empty(), "{bytes:?}");
    }
}

impl Transferable for u64 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }
}

impl Transferable for bool {
    fn to_bytes(&self) -> Vec<u8> {
        u64::from(*self).to_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        u64::from_bytes(bytes) != 0
    }
}

impl Transferable for Vec<u8> {
    fn to_bytes(&self) -> Vec<u8> {
        self.clone()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.to_vec()
    }
}
