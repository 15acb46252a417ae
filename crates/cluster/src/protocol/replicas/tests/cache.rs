//! The limit on replicas (`--cache`): objects of node a that clients of node b fetch.

use farrow_wire::{NoRoom, PartSpec};

use super::super::replica_table::Replica;
use super::*;

struct CachedReader {
    pair: ReplicaNodes,
    hold: u64,
}

impl CachedReader {
    fn new() -> Self {
        Self { pair: ReplicaNodes::new(), hold: 0 }
    }

    fn node(&mut self) -> &mut NodeState {
        &mut self.pair.nodes[1]
    }

    /// Fetches an object of 128 B; the id of its replica, or why there is none.
    fn fetch(&mut self, number: u64) -> Result<ObjectId, WireError> {
        let origin = ObjectId { hi: self.pair.nodes[0].home().uid().0, lo: number << 32 };
        let key = FetchKey::new(NetQuery::Id(origin.hi, origin.lo), Extent::Whole).unwrap();
        let waiter = FetchWaiter { key, session: CLIENT, seq: number, until_ms: u64::MAX };
        let (now_ms, mut out) = (self.pair.now_ms, Vec::new());
        assert_eq!(self.node().fetch(waiter, now_ms, &mut out), Ok(None));
        let token = opened_at("a", &out).unwrap();
        self.hold += 1;
        let result = Ok((self.hold, described_as(&self.pair.nodes[0], origin.lo)));
        let event = NetEvent::Opened { token, node: "a".to_owned(), result };
        out.clear();
        self.node().net_event(event, now_ms, &mut out);
        let answer = out.into_iter().find_map(|action| match action {
            Action::Send { reply, .. } if reply.seq == number => Some(reply.body),
            _ => None,
        });
        match answer.unwrap()? {
            ReplyBody::Fetched(Some(id)) => Ok(id.into()),
            other => panic!("{other:?}"),
        }
    }

    fn has(&mut self, replica: ObjectId) -> bool {
        self.node().home().find(Target::Id(replica)).is_ok()
    }

    /// Another need for memory evicts a replica.
    fn evict(&mut self, replica: ObjectId) {
        assert!(self.node().home.evict(replica).unwrap().is_some());
    }
}

/// Regression test: each fetch looked at each replica.
#[test]
fn below_the_limit_a_fetch_looks_at_no_other_replica() {
    let mut reader = CachedReader::new();
    reader.node().replicas.bytes_max = Some(1 << 20);
    let first = reader.fetch(1).unwrap();
    reader.fetch(2).unwrap();
    reader.evict(first);
    reader.fetch(3).unwrap();
    assert_eq!(reader.node().replicas.made.len(), 3, "a look would find that one has left");
}

#[test]
fn replicas_stay_below_the_limit_and_none_leaves_without_need() {
    let mut reader = CachedReader::new();
    let first = reader.fetch(1).unwrap();
    let bytes = reader.node().replicas.made.bytes();
    assert!(bytes > 0);
    reader.node().replicas.bytes_max = Some(3 * bytes);
    let [second, third] = [2, 3].map(|number| reader.fetch(number).unwrap());
    reader.evict(first);
    let fourth = reader.fetch(4).unwrap();
    for replica in [second, third, fourth] {
        assert!(reader.has(replica), "there was room");
    }
    for number in 5..40 {
        let replica = reader.fetch(number).unwrap();
        assert!(reader.has(replica));
        let table = &reader.node().replicas.made;
        assert_eq!((table.len(), table.bytes()), (3, 3 * bytes), "{number}");
        assert_eq!(reader.node().home().replica_count(), 3);
    }
    // A smaller limit applies at once.
    let NodeState { replicas, home, .. } = reader.node();
    replicas.keep_below(home, bytes, Length(0)).unwrap();
    assert_eq!(reader.node().home().replica_count(), 1);
    let NodeState { replicas, home, .. } = reader.node();
    let refused = replicas.keep_below(home, bytes, Length(bytes + 1));
    let Err(WireError::NoRoom(NoRoom { requested, free, largest, used, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((requested, free, largest, used), (bytes + 1, bytes, bytes, 0));
    // What a home recalls is counted no more.
    reader.fetch(50).unwrap();
    let now_ms = reader.pair.now_ms;
    let mut out = Vec::new();
    let (replicas, mut context) = reader.node().replicas(now_ms, &mut out);
    replicas.drop_all(&mut context);
    let table = &reader.node().replicas.made;
    assert_eq!((table.len(), table.bytes()), (0, 0));
}

/// An evicted part is asked for again, and another part of the same object is not.
#[test]
fn an_evicted_part_is_found_by_its_name_no_more() {
    let mut reader = CachedReader::new();
    let origin = ObjectId { hi: reader.pair.nodes[0].home().uid().0, lo: 7 << 32 };
    let part = |rows: i64| PartSpec { columns: None, start: None, stop: Some(rows) };
    let replicas = &mut reader.node().replicas;
    for (rows, bytes) in [(1, 100), (2, 200)] {
        let local = ObjectId { hi: 5, lo: bytes };
        let replica = Replica { local, node: "a".to_owned(), bytes };
        replicas.made.insert((origin, Some(part(rows))), replica);
        let wish = NetQuery::Name("t".to_owned());
        let key = FetchKey::new(wish, Extent::Part(part(rows))).unwrap();
        replicas.named_parts.insert(key, origin);
    }
    replicas.forget_evicted(vec![ObjectId { hi: 5, lo: 100 }, ObjectId { hi: 5, lo: 99 }]);
    let left: Vec<_> = replicas.named_parts.keys().map(|key| key.extent.part().cloned()).collect();
    assert_eq!(left, [Some(part(2))]);
    assert_eq!((replicas.made.len(), replicas.made.bytes()), (1, 200));
}
