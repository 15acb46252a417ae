//! Queries of members with different rights, from fixed seeds: what a source answers is within the
//! rights of the member at the time of its open, whatever the bytes of the query are.
//! `FARROW_FUZZ_ROUNDS` multiplies the runs.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

use farrow_memory::shm::ShmFabric;
use farrow_memory::{Access, Length, Offset, Region, Span};
use farrow_net::frame::{ErrorCode, Opened};
use farrow_net::source::{HoldId, MemberLife, Source, SourceRefusal};
use farrow_store::{
    Home, Layout, NamespaceId, NamespaceOptions, Newcomer, ObjectId, RegionOptions, SealRequest,
    full_name, namespace_of, own_name,
};
use farrow_wire::rights::{ANY, Rule};
use farrow_wire::{Rights, WireTarget};

use super::EventSender;
use super::source::RegionSource;
use crate::protocol::net::broadcast::ReplicaKey;
use crate::protocol::net::query::{Brought, NetQuery};
use crate::protocol::net::{NetEvent, NetReaders, ReaderRules, listing};
use crate::protocol::rights::RightsTable;

const NAMESPACES: [&str; 3] = ["", "shared", "private"];
const MEMBERS: [&str; 2] = ["b", "c"];
const OBJECT_BYTES: u64 = 4096;
const STEPS: usize = 24;

/// An object of each namespace. Its bytes are its number plus one.
struct Stored {
    id: ObjectId,
    /// In the data section.
    block: Span,
}

struct World {
    _home: Home,
    source: Arc<RegionSource>,
    objects: Vec<Stored>,
    _events: (mpsc::Receiver<NetEvent>, UnixStream),
}

impl World {
    fn new() -> Self {
        let options = RegionOptions::for_capacity(Length(1 << 20));
        let geometry = Layout::new(&options).unwrap().geometry;
        let fabric = Arc::new(ShmFabric::memfd("queries", geometry).unwrap());
        let region = Arc::new(Region::map(fabric, Access::Home, None).unwrap());
        let mut home = Home::create(Arc::clone(&region), &options, 0).unwrap();
        let map = super::writable_map(&region).unwrap();
        let mut objects = Vec::new();
        for (number, name) in NAMESPACES.into_iter().enumerate() {
            let namespace = match name {
                "" => NamespaceId::DEFAULT,
                _ => {
                    let (bytes_max, objects_max, writers) = Default::default();
                    let name = name.to_owned();
                    let options = NamespaceOptions { name, bytes_max, objects_max, writers };
                    home.create_namespace(&options).unwrap()
                }
            };
            assert_eq!(usize::from(namespace.0), number);
            let (pid, remote_client) = (1 + number as u32, None);
            let newcomer = Newcomer { pid, start_time: 0, uid: 0, namespace, remote_client };
            let slot = home.client_join_as(&newcomer).unwrap().client;
            let block = home.grant(slot, Length(OBJECT_BYTES), Length(OBJECT_BYTES)).unwrap();
            let offset = Offset(block.offset.0 - geometry.control.0);
            map.write(offset, &[number as u8 + 1; OBJECT_BYTES as usize]).unwrap();
            let full = full_name(name, "t").unwrap();
            let request = SealRequest::bytes(block, block.length, Some(&full));
            let id = home.seal(slot, &request, 1).unwrap();
            objects.push(Stored { id, block: Span::new(offset, block.length) });
        }
        let (sender, events) = mpsc::channel::<NetEvent>();
        let (wake, woken) = UnixStream::pair().unwrap();
        let source = RegionSource::new(&region, EventSender::new(sender, wake)).unwrap();
        let slot = home.client_join(9, 0, 0).unwrap().client;
        source.add_hold_block(home.hold_block(slot).unwrap()).unwrap();
        Self { _home: home, source, objects, _events: (events, woken) }
    }

    /// Lets each member read in the namespaces of its mask alone.
    fn publish(&self, masks: [u8; 2]) {
        let mut rights = RightsTable::closed();
        for (node, mask) in MEMBERS.into_iter().zip(masks) {
            for (number, namespace) in NAMESPACES.into_iter().enumerate() {
                let may = mask & 1 << number != 0;
                let rights_of = if may { Rights::READ } else { Rights::WRITE };
                let (namespace, node) = (namespace.to_owned(), node.to_owned());
                rights.set(Rule { namespace, node, rights: rights_of }).unwrap();
            }
        }
        rights.set(Rule { namespace: "?".into(), node: ANY.into(), rights: Rights::ALL }).unwrap();
        let named = NAMESPACES.iter().enumerate().skip(1);
        let namespaces = named.map(|(number, name)| (number as u16, (*name).to_owned())).collect();
        self.source.publish_rules(ReaderRules { rights, namespaces });
    }

    /// The object that a query opens.
    fn wanted(&self, wish: &NetQuery) -> Option<usize> {
        (0..NAMESPACES.len()).find(|number| match wish {
            // The separator may also stand in front of a name in the default namespace.
            NetQuery::Name(name) => {
                namespace_of(name) == NAMESPACES[*number] && own_name(name) == "t"
            }
            NetQuery::Id(hi, lo) => self.objects[*number].id == ObjectId { hi: *hi, lo: *lo },
            _ => false,
        })
    }
}

fn member(number: usize) -> MemberLife {
    MemberLife { name: MEMBERS[number].to_owned(), incarnation: 1 }
}

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }

    fn id(&mut self, world: &World) -> ObjectId {
        let mut id = world.objects[self.below(3) as usize].id;
        if self.below(8) == 0 {
            id.lo = id.lo.wrapping_add(self.below(3));
        }
        id
    }

    fn wish(&mut self, world: &World) -> NetQuery {
        let namespaces = ["", "shared", "private", "private\0t", "?", "shared\0", "none"];
        let names = ["t", "shared\0t", "private\0t", "private\0", "\0t", "none\0t", "?\0t"];
        let (namespace, prefix) = (self.of(&namespaces).to_owned(), self.of(&["", "t", "u"]));
        match self.below(9) {
            0 => NetQuery::List { namespace, prefix: prefix.into(), from: self.below(3) },
            1 => {
                let targets = vec![
                    WireTarget::Name(self.of(&names).to_owned()),
                    WireTarget::Name("t".into()),
                    WireTarget::Id(self.id(world).into()),
                ];
                NetQuery::Find { namespace, targets }
            }
            2 => NetQuery::Sender { hold: self.below(4), failed: None },
            3 => NetQuery::Complete { hold: self.below(4), key: ReplicaKey([1; 32]) },
            4 => {
                let ObjectId { hi, lo } = self.id(world);
                NetQuery::Replica { hi, lo, key: ReplicaKey([self.below(2) as u8; 32]) }
            }
            5..7 => NetQuery::Name(self.of(&names).to_owned()),
            _ => {
                let ObjectId { hi, lo } = self.id(world);
                NetQuery::Id(hi, lo)
            }
        }
    }

    /// The bytes of a query, sometimes damaged.
    fn query(&mut self, world: &World) -> Vec<u8> {
        let mut bytes = self.wish(world).encode();
        let at = self.below(bytes.len() as u64) as usize;
        match self.below(16) {
            0 => bytes[at] ^= 1 << self.below(8),
            1 => bytes.truncate(at),
            2 => bytes.push(self.below(256) as u8),
            _ => {}
        }
        bytes
    }
}

struct QueriesRun<'a> {
    world: &'a World,
    /// Bits of the namespaces in which each member may read.
    masks: [u8; 2],
    /// Objects by member and hold.
    holds: BTreeMap<(usize, u64), usize>,
    /// Answers of each kind.
    counts: BTreeMap<&'static str, u64>,
}

impl QueriesRun<'_> {
    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    fn may_read(&self, who: usize, namespace: usize) -> bool {
        self.masks[who] & 1 << namespace != 0
    }

    fn step(&mut self, numbers: &mut Numbers) {
        let (who, hold) = (numbers.below(2) as usize, numbers.below(4));
        match numbers.below(8) {
            0 => {
                self.masks = [numbers.below(8) as u8, numbers.below(8) as u8];
                self.world.publish(self.masks);
            }
            1 => {
                self.world.source.release(&member(who), HoldId(hold));
                self.holds.remove(&(who, hold));
            }
            2 | 3 => self.read(who, hold, numbers),
            _ => {
                let bytes = numbers.query(self.world);
                let opened = self.world.source.open(&member(who), HoldId(hold), &bytes);
                self.judge(who, hold, &bytes, opened);
            }
        }
    }

    /// Checks the answer to an open.
    fn judge(
        &mut self,
        who: usize,
        hold: u64,
        bytes: &[u8],
        opened: Result<Opened, SourceRefusal>,
    ) {
        let Ok(wish) = NetQuery::decode(bytes) else {
            self.count("no query");
            return assert!(opened.is_err(), "{bytes:?}");
        };
        match &wish {
            NetQuery::Name(_) | NetQuery::Id(..) => self.judge_object(who, hold, &wish, opened),
            NetQuery::List { namespace, .. } | NetQuery::Find { namespace, .. } => {
                self.judge_list(who, namespace, opened);
            }
            NetQuery::Replica { .. } => assert!(opened.is_err(), "{wish}: {opened:?}"),
            NetQuery::Sender { hold, .. } | NetQuery::Complete { hold, .. } => {
                let is_own = self.holds.contains_key(&(who, *hold));
                assert_eq!(opened.is_ok(), is_own, "{wish}: {opened:?}");
                if let Ok(opened) = opened {
                    assert!(opened.blocks.is_empty() && opened.inline.is_empty());
                }
            }
        }
    }

    fn judge_object(
        &mut self,
        who: usize,
        hold: u64,
        wish: &NetQuery,
        opened: Result<Opened, SourceRefusal>,
    ) {
        let object = self.world.wanted(wish);
        let is_taken = self.holds.contains_key(&(who, hold));
        let is_right = object.is_some_and(|object| self.may_read(who, object));
        match (object, opened) {
            (Some(object), Ok(opened)) if is_right && !is_taken => {
                let stored = &self.world.objects[object];
                assert_eq!(opened.blocks, [stored.block]);
                assert_eq!(opened.inline, [object as u8 + 1; OBJECT_BYTES as usize]);
                let (_, head) = Brought::decode(&opened.entry).unwrap();
                assert_eq!(head.id, stored.id);
                self.holds.insert((who, hold), object);
                self.count("opened");
            }
            (_, Ok(Opened { blocks, .. })) => {
                panic!(
                    "{who} with {:?}, hold {hold} of {:?}, {wish}: {blocks:?}",
                    self.masks, self.holds
                )
            }
            (_, Err(refusal)) => {
                assert!(!is_right || is_taken, "{wish}: {refusal}");
                self.count(if object.is_some() { "refused" } else { "no object" });
            }
        }
    }

    fn judge_list(&mut self, who: usize, namespace: &str, opened: Result<Opened, SourceRefusal>) {
        let number = NAMESPACES.iter().position(|one| *one == namespace);
        // Only the rule of the test names the namespace `?`, which has no objects.
        let may = number.map_or(namespace == "?", |number| self.may_read(who, number));
        match opened {
            Ok(opened) => {
                assert!(may, "{who} with {:?} lists {namespace:?}", self.masks);
                assert!(opened.blocks.is_empty() && opened.inline.is_empty());
                for item in listing::decode(&opened.entry).unwrap().items {
                    let own = number.map(|number| self.world.objects[number].id.into());
                    assert_eq!(Some(item.id), own, "in the list of {namespace:?}");
                    self.count("listed");
                }
            }
            Err(refusal) => {
                // A name that no object can have is refused too, after the rights.
                let expected = if may { ErrorCode::Other } else { ErrorCode::Denied };
                assert_eq!(refusal.code, expected, "{namespace:?}: {refusal}");
                self.count("not listed");
            }
        }
    }

    /// Reads ranges in and around the blocks of all objects.
    fn read(&mut self, who: usize, hold: u64, numbers: &mut Numbers) {
        let block = self.world.objects[numbers.below(3) as usize].block;
        let [from, length] = [numbers.below(OBJECT_BYTES), 1 + numbers.below(OBJECT_BYTES)];
        let offset = match numbers.below(8) {
            0 => block.offset.0.wrapping_sub(1),
            1 => u64::MAX - length + 1,
            2 => block.offset.0,
            _ => block.offset.0 + from,
        };
        let range = Span::new(Offset(offset), Length(length));
        let held = self.holds.get(&(who, hold)).map(|object| self.world.objects[*object].block);
        let guard = self.world.source.read(&member(who), HoldId(hold), &[block, range]);
        let is_right = held.is_some_and(|held| held == block && held.contains(range));
        assert_eq!(guard.is_ok(), is_right, "{range} of {held:?}");
        self.count(if is_right { "read" } else { "not read" });
    }
}

#[test]
fn a_member_finds_and_reads_what_its_rights_allow_alone() {
    let rounds = std::env::var("FARROW_FUZZ_ROUNDS").ok();
    let rounds: u64 = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let world = World::new();
    let mut counts = BTreeMap::new();
    for seed in 1..=1000 * rounds {
        let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut run =
            QueriesRun { world: &world, masks: [0b011, 0b101], holds: BTreeMap::new(), counts };
        world.publish(run.masks);
        for _ in 0..STEPS {
            run.step(&mut numbers);
        }
        counts = run.counts;
        for number in 0..MEMBERS.len() {
            world.source.forget(&member(number));
        }
        let free = world.source.hold_table().map(|table| table.free_slots());
        let all = world.source.hold_table().map(|table| table.slots() as usize);
        assert!(free == all, "seed {seed}: {free:?} of {all:?} holds are free");
    }
    println!("queries: {} executions, {counts:?}", 1000 * rounds);
    assert_eq!(counts.len(), 8, "{counts:?}");
}
