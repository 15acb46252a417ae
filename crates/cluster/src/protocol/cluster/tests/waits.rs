//! Waits for names at a node whose daemon is replaced.

use super::*;

/// Regression test: a client of one node waited for a name, and the daemon of another node was killed
/// or upgraded. The next one did not know that the name was waited for: the client waited until its
/// timeout, though the object was there.
#[test]
fn a_wait_outlives_the_daemon_of_the_node_where_the_name_is_sealed() {
    for is_restarted in [false, true] {
        let mut world = World::new(false);
        world.sessions += 1;
        let client = SessionId(world.sessions);
        let peer = PeerIdentity { pid: 20, start_time: 1, uid: OWNER, remote_client: None };
        world.nodes[1].opened(client, peer, world.now_ms);
        let (namespace, node, version) = (String::new(), String::new(), PROTOCOL_VERSION);
        let hello = Hello { version, resume: None, namespace, node, maps_memory: true };
        let targets = vec![WireTarget::Name("x".to_owned())];
        let wait = RequestBody::Wait { targets, count: 1, timeout_ms: 60_000 };
        for (seq, body) in (0..).zip([RequestBody::Hello(hello), wait]) {
            let (mut out, request) = (Vec::new(), Request { seq, body });
            world.nodes[1].handle(client, request, world.now_ms, 1, &mut out);
            world.perform(1, out);
        }
        world.go_on(LONG_MS);
        if is_restarted {
            world.restart_a();
            world.go_on(LONG_MS);
        }
        world.replies.clear();
        let span = world.grant(world.local, HELD).unwrap();
        let item = SealItem { name: Some("x".to_owned()), ..SealItem::bytes(span, HELD) };
        world.ask(world.local, RequestBody::Seal { items: vec![item] }).unwrap();
        world.go_on(LONG_MS);
        let ready = [(client, 1, Ok(ReplyBody::Ready(vec![true])))];
        assert_eq!(world.replies, ready, "is_restarted: {is_restarted}");
    }
}
