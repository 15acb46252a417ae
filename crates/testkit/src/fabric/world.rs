//! Who takes part in a contract, and where: all in this process, or each in one of its own.
//!
//! A contract is one function that every process runs from its first line to its last. What it does
//! with a region it does in [`Party::act`]: the process of that party does it, and the others wait
//! for the value that came of it. So all take the same way through the contract, and a contract
//! reads, and is, the same whether its parties share a process or not. A panic in an act is one in
//! every process.

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

use super::wire::{PARTY, Packet, Started, Wire};
use super::{Backend, Made, Reach, geometry};

/// What a party is to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Who lends it.
    Home,
    /// A client on the home's node.
    Client,
    /// A client on another node, where the back end has nodes; else as a client.
    Other,
}

/// Where the parties are.
enum Place {
    /// All here.
    OneProcess(Made),
    /// Here the home, if the contract has one; the others where they were started.
    First { made: Made, started: RefCell<BTreeMap<usize, Started>>, test: String },
    /// Here the party of this number alone.
    Started {
        party: usize,
        wire: Wire,
        /// Where the memory lies.
        memory: RefCell<Introduced>,
        early: RefCell<BTreeMap<u32, Packet>>,
    },
}

/// Words and descriptors of [`introduce`].
type Introduced = (Vec<u8>, Vec<OwnedFd>);

/// A new region of a back end, and where its parties are.
pub struct World {
    place: Place,
    backend: Backend,
    step: RefCell<u32>,
}

impl World {
    /// All parties in this process.
    #[must_use]
    pub fn in_one_process(backend: &Backend) -> Self {
        let place = Place::OneProcess((backend.make)(geometry()));
        Self { place, backend: *backend, step: RefCell::new(0) }
    }

    /// Each party in a process of its own; `test` is the test that runs this contract, by the path
    /// from its crate on.
    ///
    /// # Panics
    /// If this process was started for a contract, and by somebody else.
    #[must_use]
    pub fn in_processes(backend: &Backend, test: &str) -> Self {
        let place = match std::env::var(PARTY) {
            Ok(party) => {
                let wire = Wire::of_child();
                let memory = RefCell::new(wire.receive().expect("where the memory lies"));
                let party = party.parse().expect("the number of a party");
                Place::Started { party, wire, memory, early: RefCell::default() }
            }
            Err(_) => Place::First {
                made: (backend.make)(geometry()),
                started: RefCell::default(),
                test: test.split_once("::").map_or(test, |(_, path)| path).to_owned(),
            },
        };
        Self { place, backend: *backend, step: RefCell::new(0) }
    }

    /// Do addresses of two parties mean the same?
    #[must_use]
    pub fn is_one_process(&self) -> bool {
        matches!(self.place, Place::OneProcess(_))
    }

    /// Everybody who takes part, each with a map of its own. Called once, at the beginning.
    ///
    /// # Panics
    /// If one cannot map the region.
    #[track_caller]
    pub fn parties<const N: usize>(&self, roles: [Role; N]) -> [Party<'_>; N] {
        if let Place::First { made, started, test } = &self.place {
            let mut started = started.borrow_mut();
            for (number, _) in roles.iter().enumerate().filter(|(_, role)| **role != Role::Home) {
                let child = started.entry(number).or_insert_with(|| Started::new(test, number));
                introduce(made, &child.wire);
            }
        }
        let mut number = 0;
        roles.map(|role| {
            let mut party = Party { world: self, number, role, region: None };
            number += 1;
            let is_here = match &self.place {
                Place::OneProcess(_) => true,
                Place::First { .. } => role == Role::Home,
                Place::Started { party: own, .. } => *own == party.number,
            };
            let mut region = None;
            party.exchange(is_here.then_some(|| region = Some(self.map(role))));
            party.region = region;
            party
        })
    }

    /// Waits until all processes have come to the end of the contract.
    ///
    /// # Panics
    /// If one has not, or did not like what it saw.
    pub fn finish(self) {
        if let Place::First { started, .. } = &self.place {
            for (number, child) in started.borrow_mut().iter_mut() {
                let status = child.wait();
                assert!(status.is_some_and(|one| one.success()), "party {number}: {status:?}");
            }
        }
    }

    fn map(&self, role: Role) -> Arc<Region> {
        let fabric = match (&self.place, role) {
            (Place::Started { memory, .. }, _) => self.reach(memory.take(), role),
            (Place::OneProcess(made) | Place::First { made, .. }, Role::Home) => {
                Arc::clone(&made.home)
            }
            (Place::OneProcess(made) | Place::First { made, .. }, Role::Client) => {
                Arc::clone(&made.client)
            }
            (Place::OneProcess(made) | Place::First { made, .. }, Role::Other) => {
                Arc::clone(&made.other)
            }
        };
        let (access, proximity) = match role {
            Role::Home => (Access::Home, Proximity::Local),
            Role::Client => (Access::Client, Proximity::Local),
            Role::Other => (Access::Client, Proximity::Remote),
        };
        Arc::new(Region::map_from(fabric, access, None, proximity).expect("map"))
    }

    /// In a process that was started: the memory that the first one made.
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
            Reach::Opened(open) => open(&PathBuf::from(next()), geometry(), role),
            Reach::Passed => {
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

    /// Tells the other processes what came of an act here.
    fn tell(&self, packet: &Packet) {
        match &self.place {
            Place::OneProcess(_) => {}
            Place::First { started, .. } => forward(&started.borrow(), packet, None),
            // The first process may be at its end already, of an act that failed.
            Place::Started { wire, .. } => drop(wire.say(packet)),
        }
    }

    /// Waits for what came of an act of another process.
    fn hear(&self, party: usize, step: u32) -> Packet {
        match &self.place {
            Place::OneProcess(_) => unreachable!("all are here"),
            Place::First { started, .. } => {
                let mut started = started.borrow_mut();
                let child = started.get_mut(&party).expect("a party that was started");
                let packet = child.wire.hear().unwrap_or_else(|error| {
                    let is_gone = error.kind() == std::io::ErrorKind::UnexpectedEof;
                    let status = if is_gone { child.wait() } else { None };
                    panic!("party {party} says nothing at step {step}: {error}; {status:?}")
                });
                forward(&started, &packet, Some(party));
                packet
            }
            Place::Started { wire, early, .. } => {
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

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match &self.place {
            Place::OneProcess(_) => "in one process",
            Place::First { .. } => "in processes, the first",
            Place::Started { .. } => "in processes, one that was started",
        };
        write!(f, "{:?}, {place}", self.backend)
    }
}

fn forward(started: &BTreeMap<usize, Started>, packet: &Packet, from: Option<usize>) {
    for (_, child) in started.iter().filter(|(number, _)| Some(**number) != from) {
        // One that is gone is noticed when something is to come from it, or at the end.
        let _ = child.wire.say(packet);
    }
}

/// Tells a process where the memory lies, and passes what a daemon passes.
fn introduce(made: &Made, wire: &Wire) {
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

/// One who takes part, with the region mapped. The map is in its own process alone.
#[derive(Debug)]
pub struct Party<'w> {
    world: &'w World,
    number: usize,
    role: Role,
    region: Option<Arc<Region>>,
}

impl<'w> Party<'w> {
    /// Has this party do something with its region. Every process gets the value.
    ///
    /// # Panics
    /// As the act does.
    #[track_caller]
    pub fn act<T: Value>(&self, act: impl FnOnce(&Arc<Region>) -> T) -> T {
        self.exchange(self.region.as_ref().map(|region| || act(region)))
    }

    /// As [`Party::act`] for what cannot leave the party's process: an alias, for one.
    ///
    /// # Panics
    /// As the act does.
    #[track_caller]
    pub fn keep<'p, T>(&'p self, make: impl FnOnce(&Arc<Region>) -> T) -> Retained<'p, 'w, T> {
        let mut value = None;
        self.act(|region| value = Some(make(region)));
        Retained { party: self, value }
    }

    #[track_caller]
    fn exchange<T: Value>(&self, act: Option<impl FnOnce() -> T>) -> T {
        let (step, place) = (self.world.next_step(), Location::caller().to_string());
        match act {
            Some(act) => self.settle(step, place, caught(act)),
            None => self.learn(step, &place),
        }
    }

    /// Tells the others what came of an act here, and goes on with it.
    fn settle<T: Value>(&self, step: u32, place: String, result: Caught<T>) -> T {
        let said = match &result {
            Ok(value) => Ok(value.to_bytes()),
            Err(panic) => Err(words_of(&**panic)),
        };
        self.world.tell(&Packet { step, place, result: said });
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn learn<T: Value>(&self, step: u32, place: &str) -> T {
        let packet = self.world.hear(self.number, step);
        assert_eq!((packet.step, &*packet.place), (step, place), "the processes went apart");
        match packet.result {
            Ok(bytes) => T::from_bytes(&bytes),
            Err(words) => panic!("in the process of {:?} {}: {words}", self.role, self.number),
        }
    }
}

/// Has two parties act at the same time.
///
/// # Panics
/// As an act does.
#[track_caller]
pub fn together<T: Value + Send, U: Value>(
    first: (&Party<'_>, impl FnOnce(&Arc<Region>) -> T + Send),
    second: (&Party<'_>, impl FnOnce(&Arc<Region>) -> U),
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
    // What came of an act here is told before anything is waited for.
    let value = value.map(|value| first.settle(step, place.clone(), value));
    let other = other.map(|other| second.settle(other_step, place.clone(), other));
    (
        value.unwrap_or_else(|| first.learn(step, &place)),
        other.unwrap_or_else(|| second.learn(other_step, &place)),
    )
}

/// A value that stays with the party that made it.
#[derive(Debug)]
pub struct Retained<'p, 'w, T> {
    party: &'p Party<'w>,
    value: Option<T>,
}

impl<T> Retained<'_, '_, T> {
    /// Has its party do something with the value.
    ///
    /// # Panics
    /// As the act does.
    #[track_caller]
    pub fn act<U: Value>(&self, act: impl FnOnce(&T) -> U) -> U {
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
    // After a panic nothing of what the act had in hand is used any more.
    catch_unwind(AssertUnwindSafe(act))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// What an act can return to all processes.
pub trait Value: Sized {
    /// As it travels.
    fn to_bytes(&self) -> Vec<u8>;

    /// As it arrives.
    ///
    /// # Panics
    /// If these are not the bytes of one.
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl Value for () {
    fn to_bytes(&self) -> Vec<u8> {
        Vec::new()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        assert!(bytes.is_empty(), "{bytes:?}");
    }
}

impl Value for u64 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }
}

impl Value for bool {
    fn to_bytes(&self) -> Vec<u8> {
        u64::from(*self).to_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        u64::from_bytes(bytes) != 0
    }
}

impl Value for Vec<u8> {
    fn to_bytes(&self) -> Vec<u8> {
        self.clone()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        bytes.to_vec()
    }
}
