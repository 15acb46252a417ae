//! Two nodes that were apart gave one name to two objects, and one of them came back with its own:
//! `get` returned one object at one node and another one at the other node, for as long as both
//! served.

use super::*;

impl MappedCluster {
    /// Seals an object of this name at b, where a client has connected.
    fn seal_at_b(&mut self, name: &str) -> ObjectId {
        self.sessions += 1;
        let client = SessionId(self.sessions);
        let peer = PeerIdentity { pid: 20, start_time: 1, uid: OWNER, remote_client: None };
        self.nodes[1].opened(client, peer, self.now_ms);
        let (namespace, node) = (String::new(), String::new());
        let version = PROTOCOL_VERSION;
        let hello = Hello { version, resume: None, namespace, node, maps_memory: true };
        self.ask_b(client, 1, RequestBody::Hello(hello));
        let grant = RequestBody::Grant { min: HELD, want: HELD, wait_ms: 0 };
        let ReplyBody::Granted(span) = self.ask_b(client, 2, grant) else { panic!("no grant") };
        let item = SealItem { name: Some(name.to_owned()), ..SealItem::bytes(span, HELD) };
        match self.ask_b(client, 3, RequestBody::Seal { items: vec![item] }) {
            ReplyBody::Sealed(sealed) => (*sealed[0].as_ref().unwrap()).into(),
            other => panic!("{other:?}"),
        }
    }

    fn ask_b(&mut self, client: SessionId, seq: u64, body: RequestBody) -> ReplyBody {
        let mut out = Vec::new();
        self.nodes[1].handle(client, Request { seq, body }, self.now_ms, 1, &mut out);
        self.perform(1, out);
        for _ in 0..LONG_MS / ROUND_MS {
            let mut replies = self.replies.iter();
            if let Some((.., body)) = replies.find(|(to, of, _)| (*to, *of) == (client, seq)) {
                return body.clone().unwrap();
            }
            self.round();
        }
        panic!("no answer");
    }

    fn named_x(&self, number: usize) -> Option<ObjectId> {
        self.nodes[number].home().own_named("x").unwrap()
    }

    fn names_lost(&self, number: usize) -> u64 {
        self.nodes[number].cluster_stats(self.now_ms).unwrap().names_lost
    }

    /// b has x, is cut off, and is given up at a, where another x is put.
    fn two_of_one_name() -> (Self, ObjectId) {
        let mut world = Self::new(false);
        let of_b = world.seal_at_b("x");
        world.is_cut = true;
        world.go_on(LONG_MS);
        world.forget("b").unwrap();
        world.seal_x();
        (world, of_b)
    }
}

#[test]
fn of_two_objects_of_one_name_that_of_the_joining_node_loses_it() {
    let (mut world, of_b) = MappedCluster::two_of_one_name();
    assert!(world.named_x(0).is_some() && world.named_x(1) == Some(of_b));
    world.is_cut = false;
    world.go_on(LONG_MS);
    assert_eq!(world.reach_of_b(), Reach::Live);
    assert!(world.named_x(0).is_some(), "the cluster knew it");
    assert_eq!(world.named_x(1), None);
    assert!(world.nodes[1].home().has(Target::Id(of_b)).unwrap(), "it stays under its id");
    assert_eq!((world.names_lost(0), world.names_lost(1)), (0, 1));
    world.nodes[1].home().check().unwrap();
    // The name is one for both from now on.
    let targets = vec![WireTarget::Name("x".to_owned())];
    world.ask(world.local, RequestBody::Delete { targets }).unwrap();
    world.go_on(LONG_MS);
    assert_ne!(world.seal_at_b("x"), of_b);
}

#[test]
fn a_node_that_joins_with_other_names_keeps_them() {
    let mut world = MappedCluster::new(false);
    let of_b = world.seal_at_b("x");
    world.is_cut = true;
    world.go_on(LONG_MS);
    world.is_cut = false;
    world.go_on(LONG_MS);
    assert_eq!((world.reach_of_b(), world.named_x(1)), (Reach::Live, Some(of_b)));
    assert_eq!((world.names_lost(0), world.names_lost(1)), (0, 0));
    assert!(!world.nodes[1].joined.is_doubtful("x"));
}

/// A member of an earlier version may find a replica of an object where it is asked for its own.
#[test]
fn a_member_of_an_earlier_version_costs_no_name() {
    let (mut world, of_b) = MappedCluster::two_of_one_name();
    world.questions = Questions::JoinedUnknown;
    world.is_cut = false;
    world.go_on(LONG_MS);
    assert_eq!((world.reach_of_b(), world.named_x(1)), (Reach::Live, Some(of_b)));
    assert!(!world.nodes[1].joined.is_doubtful("x"));
}

/// A daemon that is killed before all members have answered is followed by one of the same life.
#[test]
fn the_next_daemon_goes_on_comparing() {
    let mut world = MappedCluster::new(false);
    world.seal_x();
    world.go_on(SOON_MS);
    let compared = world.nodes[0].joined.compared_for.unwrap();
    assert!(compared > 0);
    world.restart_a();
    assert!(world.nodes[0].joined.names.is_none(), "in the same life, and it has compared");
    world.nodes[0].joined.compared_for = Some(0);
    world.nodes[0].keep_settings().unwrap();
    world.restart_a();
    assert!(world.nodes[0].joined.is_doubtful("x"));
    world.go_on(LONG_MS);
    assert_eq!(world.nodes[0].joined.compared_for, Some(compared));
    assert!(world.named_x(0).is_some());
}
