//! Daemons that are killed or upgraded and followed by others in the same lives of their nodes.

use farrow_wire::BarrierBroken;

use super::*;

/// A client that connects after a restart.
const LATER: SessionId = SessionId(2);
pub(super) const TIMEOUT_MS: u64 = 60_000;

impl BarrierCluster {
    /// The daemon is killed, and another one adopts the region. Returns the slots of its clients.
    fn restart(&mut self, number: usize) -> Vec<ClientSlot> {
        let region = Arc::clone(self.nodes[&number].home().region());
        self.nodes.remove(&number);
        let (home, report) = Home::adopt(region).unwrap();
        let orphans = report.clients.iter().map(|one| (one.client, PeerIdentity::from(one)));
        let (orphans, staged) = (orphans.collect::<Vec<_>>(), report.staged);
        let slots = orphans.iter().map(|(slot, _)| *slot).collect();
        let adopted = AdoptedState { orphans, staged, objects: report.objects };
        // Its questions get no answer.
        self.messages.retain(|one| one.from != number && one.to != number);
        self.start_daemon(number, home, adopted);
        slots
    }

    pub(super) fn arrive(
        &mut self,
        number: usize,
        client: SessionId,
        word: u64,
        parties: u32,
    ) -> u64 {
        let ask = SyncAsk::Arrive { parties, timeout_ms: TIMEOUT_MS };
        self.request_of(number, client, RequestBody::Sync { name: format!("f{word}"), ask })
    }

    pub(super) fn arrive_everywhere(&mut self, number: usize, parties: u32) -> Vec<u64> {
        (0..WORDS).map(|word| self.arrive(number, CLIENT, word, parties)).collect()
    }

    pub(super) fn owner(&self, word: u64) -> String {
        self.nodes[&0].cluster.authority_name(&format!("f{word}"))
    }

    fn replies_to(&self, all: &[u64]) -> Vec<Option<Result<ReplyBody, WireError>>> {
        all.iter().map(|seq| self.reply(*seq)).collect()
    }
}

const DONE: Option<Result<ReplyBody, WireError>> = Some(Ok(ReplyBody::Done));

/// Regression test: a client waited at barriers, and its daemon was killed or upgraded. The client
/// arrived again at the next one, was counted twice, and passed barriers of two alone.
#[test]
fn a_client_that_arrives_again_at_the_next_daemon_counts_once() {
    let mut world = BarrierCluster::new(3, None);
    world.arrive_everywhere(1, 2);
    world.go_on(LEASE_MS / 2);
    let slots = world.restart(1);
    world.connect(1, LATER, Some(slots[0]));
    let again: Vec<u64> = (0..WORDS).map(|word| world.arrive(1, LATER, word, 2)).collect();
    world.go_on(LEASE_MS);
    assert_eq!(world.replies_to(&again), [const { None }; WORDS as usize], "it is alone");
    let last = world.arrive_everywhere(2, 2);
    world.go_on(LEASE_MS);
    assert_eq!(world.replies_to(&again), [DONE; WORDS as usize]);
    assert_eq!(world.replies_to(&last), [DONE; WORDS as usize]);
}

/// Regression test: a client that ended while its daemon was replaced, or after it, broke no barrier:
/// the others waited until their timeouts.
#[test]
fn the_end_of_a_client_of_the_earlier_daemon_breaks_its_barriers() {
    for has_passed in [false, true] {
        let mut world = BarrierCluster::new(3, None);
        let mut waiting = world.arrive_everywhere(0, 2 + u32::from(!has_passed));
        world.arrive_everywhere(1, 2 + u32::from(!has_passed));
        world.go_on(LEASE_MS / 2);
        if has_passed {
            assert_eq!(world.replies_to(&waiting), [DONE; WORDS as usize]);
            waiting = world.arrive_everywhere(0, 2);
        }
        let slots = world.restart(1);
        world.go_on(LEASE_MS / 2);
        assert_eq!(world.replies_to(&waiting), [const { None }; WORDS as usize]);
        let now_ms = world.now_ms;
        world.nodes.get_mut(&1).unwrap().orphan_died(slots[0], now_ms);
        world.go_on(LEASE_MS / 2);
        for (word, seq) in (0..).zip(&waiting) {
            // The next daemon of an owner does not know who has passed its barriers.
            let reply = world.reply(*seq);
            let is_broken = matches!(
                &reply,
                Some(Err(WireError::BarrierBroken(BarrierBroken { who, .. })))
                    if who == "process 10 of node b"
            );
            assert_eq!(is_broken, world.owner(word) != "b", "f{word}: {reply:?}");
        }
    }
}

/// Regression test: daemons number their connections from 1, so the end of a client of the next
/// daemon broke the barriers of another one of the earlier daemon.
#[test]
fn the_end_of_a_client_breaks_no_barrier_of_one_of_the_earlier_daemon() {
    let mut world = BarrierCluster::new(3, None);
    let waiting = world.arrive_everywhere(0, 3);
    world.arrive_everywhere(1, 3);
    world.go_on(LEASE_MS / 4);
    let slots = world.restart(1);
    world.connect(1, CLIENT, None);
    world.arrive(1, CLIENT, WORDS, 2);
    world.go_on(LEASE_MS / 4);
    let now_ms = world.now_ms;
    world.nodes.get_mut(&1).unwrap().closed(CLIENT, false, now_ms);
    world.go_on(LEASE_MS / 4);
    assert_eq!(world.replies_to(&waiting), [const { None }; WORDS as usize]);
    world.connect(1, LATER, Some(slots[0]));
    let again: Vec<u64> = (0..WORDS).map(|word| world.arrive(1, LATER, word, 3)).collect();
    let last = world.arrive_everywhere(2, 3);
    world.go_on(LEASE_MS);
    for all in [waiting, again, last] {
        assert_eq!(world.replies_to(&all), [DONE; WORDS as usize]);
    }
}

/// Regression test: an owner of barriers and flags was killed, and another daemon followed. Nodes
/// repeated no request that the earlier one had accepted, so the waits ended long after their
/// timeouts.
#[test]
fn waits_at_an_owner_that_is_killed_are_repeated_or_end_with_an_error() {
    let mut world = BarrierCluster::new(3, None);
    let arrived = world.arrive_everywhere(0, 2);
    let wait = SyncAsk::WaitFlags { mask: 1, timeout_ms: TIMEOUT_MS };
    let flags_waits: Vec<u64> = (0..WORDS)
        .map(|word| {
            let name = format!("f{word}");
            world.request(0, RequestBody::Sync { name, ask: wait.clone() })
        })
        .collect();
    world.go_on(LEASE_MS / 2);
    world.restart(1);
    world.go_on(LEASE_MS / 2);
    assert_eq!(world.replies_to(&arrived), [const { None }; WORDS as usize]);
    for (word, seq) in (0..).zip(&flags_waits) {
        let reply = world.reply(*seq);
        let is_lost = matches!(&reply, Some(Err(WireError::NodeLost { node, .. })) if node == "b");
        assert_eq!(is_lost, world.owner(word) == "b", "f{word}: {reply:?}");
        assert!(is_lost || reply.is_none());
    }
    let last = world.arrive_everywhere(2, 2);
    world.go_on(LEASE_MS / 2);
    assert_eq!(world.replies_to(&arrived), [DONE; WORDS as usize]);
    assert_eq!(world.replies_to(&last), [DONE; WORDS as usize]);
}

/// Regression test: the wall clock was set back between two daemons of a life. The next one numbered its
/// requests from the clock, as the earlier one had, and members ignored those that they knew.
#[test]
fn requests_are_numbered_above_those_of_the_earlier_daemon_if_the_clock_is_set_back() {
    let mut world = BarrierCluster::new(3, None);
    for set in [1, 2, 4] {
        let all: Vec<u64> = (0..WORDS).map(|word| world.set_flags(1, word, set, 0)).collect();
        world.go_on(LEASE_MS / 2);
        assert!(all.iter().all(|seq| world.reply(*seq).is_some()), "{set}");
        world.clock = Some(2);
        world.restart(1);
        world.connect(1, CLIENT, None);
        world.replies.clear();
    }
}
