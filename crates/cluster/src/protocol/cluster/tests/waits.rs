//! Waits for names at a node whose daemon is replaced.

use super::*;

impl MappedCluster {
    /// A client of b waits for a name.
    fn wait_for_x(&mut self) -> SessionId {
        self.sessions += 1;
        let client = SessionId(self.sessions);
        let peer = PeerIdentity { pid: 20, start_time: 1, uid: OWNER, remote_client: None };
        self.nodes[1].opened(client, peer, self.now_ms);
        let (namespace, node, version) = (String::new(), String::new(), PROTOCOL_VERSION);
        let hello = Hello { version, resume: None, namespace, node, maps_memory: true };
        let targets = vec![WireTarget::Name("x".to_owned())];
        let wait = RequestBody::Wait { targets, count: 1, timeout_ms: 600_000 };
        for (seq, body) in (0..).zip([RequestBody::Hello(hello), wait]) {
            let (mut out, request) = (Vec::new(), Request { seq, body });
            self.nodes[1].handle(client, request, self.now_ms, 1, &mut out);
            self.perform(1, out);
        }
        client
    }

    /// A client of a seals it.
    pub(super) fn seal_x(&mut self) {
        let span = self.grant(self.local, HELD).unwrap();
        let item = SealItem { name: Some("x".to_owned()), ..SealItem::bytes(span, HELD) };
        self.ask(self.local, RequestBody::Seal { items: vec![item] }).unwrap();
    }
}

/// Regression test: a client of one node waited for a name, and the daemon of another node was killed
/// or upgraded. The next one did not know that the name was waited for: the client waited until its
/// timeout, though the object was there.
#[test]
fn a_wait_outlives_the_daemon_of_the_node_where_the_name_is_sealed() {
    for is_restarted in [false, true] {
        let mut world = MappedCluster::new(false);
        let client = world.wait_for_x();
        world.go_on(LONG_MS);
        if is_restarted {
            world.restart_a();
            world.go_on(LONG_MS);
        }
        world.replies.clear();
        world.seal_x();
        world.go_on(LONG_MS);
        let ready = [(client, 1, Ok(ReplyBody::Ready(vec![true])))];
        assert_eq!(world.replies, ready, "is_restarted: {is_restarted}");
    }
}

/// Regression test: nodes that did not reach each other for half a minute, and that a third one
/// reached, gave up notifications. Their clients waited until their timeouts.
#[test]
fn a_wait_outlives_a_link_that_is_broken_for_long() {
    let mut world = MappedCluster::new(false);
    let client = world.wait_for_x();
    world.go_on(LONG_MS);
    world.replies.clear();
    world.questions = Questions::SealedRefused;
    world.seal_x();
    world.go_on(60_000);
    assert_eq!(world.replies, []);
    world.questions = Questions::Answered;
    world.go_on(LONG_MS);
    assert_eq!(world.replies, [(client, 1, Ok(ReplyBody::Ready(vec![true])))]);
}
