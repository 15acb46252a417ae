//! A put with a name at a node that lost the majority was refused three leases after it began, also
//! where the node had been without a lease for minutes. Clients with a shorter timeout saw only
//! that the node did not answer.

use farrow_wire::EXTRA_BLOCKS_MAX;

use super::*;

/// A node of two that is alone: the other one goes on without it.
struct CutOff {
    world: MappedCluster,
    client: SessionId,
    lost_ms: u64,
    /// The request that was sent last.
    seq: u64,
}

impl CutOff {
    fn new() -> Self {
        let mut world = MappedCluster::new(false);
        world.sessions += 1;
        let client = SessionId(world.sessions);
        let peer = PeerIdentity { pid: 20, start_time: 1, uid: OWNER, remote_client: None };
        world.nodes[1].opened(client, peer, world.now_ms);
        let (namespace, node) = (String::new(), String::new());
        let version = PROTOCOL_VERSION;
        let hello = Hello { version, resume: None, namespace, node, maps_memory: true };
        let mut cut_off = Self { world, client, lost_ms: 0, seq: 0 };
        cut_off.send(RequestBody::Hello(hello));
        cut_off.world.is_cut = true;
        cut_off
    }

    /// Sends a request to b. Returns the reply if it is immediate.
    fn send(&mut self, body: RequestBody) -> Option<Result<ReplyBody, WireError>> {
        self.seq += 1;
        let (mut out, request) = (Vec::new(), Request { seq: self.seq, body });
        let now_ms = self.world.now_ms;
        self.world.nodes[1].handle(self.client, request, now_ms, 1, &mut out);
        self.world.perform(1, out);
        self.reply()
    }

    fn reply(&self) -> Option<Result<ReplyBody, WireError>> {
        let replies = self.world.replies.iter();
        let mut its = replies.filter(|(to, seq, _)| (*to, *seq) == (self.client, self.seq));
        its.next().map(|(_, _, body)| body.clone())
    }

    fn reserve(&mut self, name: &str) -> Option<Result<ReplyBody, WireError>> {
        self.send(RequestBody::Reserve { names: vec![name.to_owned()] })
    }

    /// Lets time pass until the last request is answered.
    fn answered(&mut self) -> (u64, Result<ReplyBody, WireError>) {
        let begin_ms = self.world.now_ms;
        loop {
            if let Some(reply) = self.reply() {
                return (self.world.now_ms - begin_ms, reply);
            }
            assert!(self.world.now_ms < begin_ms + LONG_MS, "no answer");
            self.go_on(ROUND_MS);
        }
    }

    fn go_on(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(ROUND_MS) {
            let had_lease = self.has_lease();
            self.world.round();
            if had_lease && !self.has_lease() {
                self.lost_ms = self.world.now_ms;
            }
        }
    }

    fn has_lease(&self) -> bool {
        self.world.nodes[1].members().has_lease
    }
}

fn is_cut_off(answer: &Result<ReplyBody, WireError>) -> bool {
    matches!(answer, Err(WireError::CutOff { node, .. }) if node == "b")
}

#[test]
fn a_name_is_refused_soon_where_the_lease_was_lost_some_time_ago() {
    let mut cut_off = CutOff::new();
    cut_off.go_on(LONG_MS);
    assert!(!cut_off.has_lease() && cut_off.lost_ms > 0);
    assert_eq!(cut_off.reserve("x"), None);
    let (waited_ms, answer) = cut_off.answered();
    assert!(is_cut_off(&answer), "{answer:?}");
    assert!(waited_ms <= LEASE_MS / 2 + ROUND_MS, "{waited_ms} ms");
    // The world can tell it from a node that has a lease.
    cut_off.world.is_cut = false;
    cut_off.go_on(LONG_MS);
    assert!(cut_off.has_lease());
    cut_off.reserve("x");
    assert_eq!(cut_off.answered().1, Ok(ReplyBody::Done));
}

/// A lease that was lost just now may come back with the next view.
#[test]
fn a_name_waits_two_leases_for_a_view_and_is_granted_with_it() {
    let mut cut_off = CutOff::new();
    while cut_off.has_lease() {
        cut_off.go_on(ROUND_MS);
    }
    assert_eq!(cut_off.reserve("x"), None);
    let (waited_ms, answer) = cut_off.answered();
    assert!(is_cut_off(&answer), "{answer:?}");
    let waits = 2 * LEASE_MS - ROUND_MS..=2 * LEASE_MS + ROUND_MS;
    assert!(waits.contains(&waited_ms), "{waited_ms} ms");

    let mut cut_off = CutOff::new();
    while cut_off.has_lease() {
        cut_off.go_on(ROUND_MS);
    }
    assert_eq!(cut_off.reserve("x"), None);
    cut_off.go_on(LEASE_MS);
    assert_eq!(cut_off.reply(), None);
    cut_off.world.is_cut = false;
    let (waited_ms, answer) = cut_off.answered();
    assert_eq!(answer, Ok(ReplyBody::Done), "after {waited_ms} ms");
}

/// A name whose authority is silent is asked for while the lease lasts. The answer names this node.
#[test]
fn a_name_that_was_asked_for_before_the_cut_was_noticed_is_refused_within_three_leases() {
    for number in 0..4 {
        let mut cut_off = CutOff::new();
        let is_immediate = cut_off.reserve(&format!("x{number}")).is_some();
        let (waited_ms, answer) = cut_off.answered();
        assert!(is_immediate || is_cut_off(&answer), "{answer:?}");
        assert!(waited_ms <= 3 * LEASE_MS + ROUND_MS, "{waited_ms} ms");
    }
}

/// What waits for a lease once counted as half a kilobyte, whatever the size of its request, and was
/// held to no limit before it waited.
#[test]
fn what_waits_for_the_lease_counts_as_buffered_and_has_limits() {
    let mut cut_off = CutOff::new();
    cut_off.go_on(2 * LEASE_MS);
    assert!(!cut_off.has_lease());
    let seal = |n: usize, blocks: usize| {
        let mut item = SealItem::bytes((0, 128), 1);
        item.extra = vec![(0, 128); blocks];
        item.name = Some(format!("name-{n}"));
        RequestBody::Seal { items: vec![item] }
    };
    let too_long = cut_off.send(seal(0, EXTRA_BLOCKS_MAX + 1));
    assert!(matches!(too_long, Some(Err(WireError::TooMany { .. }))), "{too_long:?}");
    let node = &mut cut_off.world.nodes[1];
    let before = node.buffers().held(cut_off.client).waiting;
    assert_eq!(cut_off.send(seal(1, 1000)), None, "it waits");
    let (node, client) = (&mut cut_off.world.nodes[1], cut_off.client);
    node.note_buffered(client, 0);
    let waiting = node.buffers().held(client).waiting - before;
    assert!(waiting >= 16_000, "{waiting}");
    let mut refused = None;
    for n in 2..2000 {
        if let Some(answer) = cut_off.send(seal(n, EXTRA_BLOCKS_MAX)) {
            refused = Some((n, answer));
            break;
        }
    }
    let (_, answer) = refused.unwrap();
    assert!(matches!(answer, Err(WireError::QuotaExceeded(_))), "{answer:?}");
}
