//! Membership under faults of all kinds, in virtual time.

use super::message::Body;
use super::simulation::{LEASE_MS, seeds_times};
use super::simulator::{Network, PeerWorld};
use super::state::MembershipMutant;
use super::types::Epoch;

/// The faults of a run.
#[derive(Debug, Clone, Copy)]
struct RunFaults {
    has_loss: bool,
    has_cuts: bool,
    has_pauses: bool,
    has_kills: bool,
    has_leaves: bool,
    has_replays: bool,
}

impl RunFaults {
    fn of(seed: u64) -> Self {
        let bit = |n: u64| seed >> n & 1 == 1;
        Self {
            has_loss: bit(0),
            has_cuts: bit(1),
            has_pauses: bit(2),
            has_kills: bit(3),
            has_leaves: bit(4),
            has_replays: bit(6),
        }
    }
}

/// Starts nodes one after the other, and waits until all are members.
pub(super) fn begin(count: usize, is_founded_alone: bool, seed: u64) -> Result<PeerWorld, String> {
    let mut world = PeerWorld::new(count, is_founded_alone, seed);
    for node in 0..count {
        world.start(node, false)?;
        let wait_ms = world.below(50);
        world.run_until(world.now_ms + wait_ms)?;
    }
    world.run_while(8, |world| !world.is_whole())?;
    Ok(world)
}

fn some_fault(world: &mut PeerWorld, faults: RunFaults) -> Result<(), String> {
    let count = world.nodes.len() as u64;
    let node = world.below(count) as usize;
    match world.below(8) {
        0 if faults.has_loss => {
            world.environment.network.loss_percent = world.below(40);
            world.environment.network.double_percent = world.below(20);
            world.environment.network.delay_ms_max = [2, 10, 60, 600][world.below(4) as usize];
        }
        1 if faults.has_cuts => {
            let part = world.below(1 << count);
            let is_one_way = world.below(3) == 0;
            world.environment.network.cuts.clear();
            for from in 0..count {
                for to in 0..count {
                    let (one, other) = (part >> from & 1, part >> to & 1);
                    if one > other || one != other && !is_one_way {
                        world.environment.network.cuts.push((from as usize, to as usize));
                    }
                }
            }
        }
        2 if faults.has_cuts => {
            let to = world.below(count) as usize;
            world.environment.network.cuts.push((node, to));
        }
        3 if faults.has_cuts => world.environment.network.cuts.clear(),
        4 if faults.has_pauses => {
            let for_ms = world.below(3 * LEASE_MS);
            world.pause(node, for_ms);
        }
        5 if faults.has_kills => world.kill(node),
        5 | 6 if world.nodes[node].process.is_none() => {
            let has_retained = world.below(3) > 0;
            world.start(node, has_retained)?;
        }
        6 if faults.has_kills => {
            world.kill(node);
            let has_retained = world.below(3) > 0;
            world.start(node, has_retained)?;
        }
        7 if faults.has_leaves => world.leave(node)?,
        _ => {}
    }
    Ok(())
}

fn heal(world: &mut PeerWorld) -> Result<(), String> {
    world.environment.network = Network { delay_ms_max: 10, ..Network::default() };
    for node in 0..world.nodes.len() {
        world.resume(node)?;
        if world.nodes[node].process.is_none() {
            // A node that left returns too: a first view needs most of the configured nodes.
            let has_retained = !world.nodes[node].has_left;
            world.start(node, has_retained)?;
        }
    }
    // Messages in flight have arrived, and no new member looks silent.
    world.run_until(world.now_ms + LEASE_MS)
}

/// Faults for a while; then all nodes must find each other; then one is killed, and must be
/// excluded.
fn run(count: usize, seed: u64, leases: u64) -> Result<(), String> {
    let faults = RunFaults::of(seed);
    let mut world = begin(count, seed >> 5 & 1 == 1, seed)?;
    world.environment.network.replay_percent = if faults.has_replays { 30 } else { 0 };
    let end_ms = world.now_ms + leases * LEASE_MS;
    while world.now_ms < end_ms {
        some_fault(&mut world, faults)?;
        let wait_ms = world.below(LEASE_MS / 2);
        world.run_until(world.now_ms + wait_ms)?;
    }
    heal(&mut world)?;
    let healed_ms = world.now_ms;
    while !world.is_whole() {
        for node in 0..count {
            if world.nodes[node].has_left {
                world.start(node, false)?;
            }
        }
        world.run_until(world.now_ms + LEASE_MS / 10)?;
        if world.now_ms > healed_ms + HEAL_LEASES * LEASE_MS {
            return Err(format!("apart for {HEAL_LEASES} leases: {}", world.sketch()));
        }
    }
    let running = |world: &PeerWorld| world.nodes.iter().filter(|n| n.process.is_some()).count();
    if running(&world) >= 3 {
        let lives = |n: &usize| world.nodes[*n].process.is_some();
        let victim = (0..count).filter(lives).nth(seed as usize % running(&world));
        let victim = victim.unwrap();
        world.kill(victim);
        world.run_until(world.now_ms + 2 * LEASE_MS)?;
        if !world.is_whole() {
            return Err(format!("{victim} is not out: {}", world.sketch()));
        }
    }
    Ok(())
}

/// Leases until all nodes are together again after any fault. The longest way is to abandon a
/// cluster that cannot continue, to wait in vain for another, and to found a new one.
const HEAL_LEASES: u64 = 20;

fn seeds(count: usize, leases: u64, seeds: std::ops::Range<u64>) {
    for seed in seeds.start..seeds.end * seeds_times() {
        if let Err(error) = run(count, seed, leases) {
            panic!("{count} nodes, seed {seed}, {:?}: {error}", RunFaults::of(seed));
        }
    }
}

#[test]
fn two_nodes() {
    seeds(2, 10, 0..1000);
}

#[test]
fn three_nodes() {
    seeds(3, 10, 0..1000);
}

#[test]
fn five_nodes() {
    seeds(5, 8, 0..400);
}

#[test]
fn sixteen_nodes() {
    seeds(16, 4, 0..8);
}

/// Whether some seed detects a mutant; the same seeds pass without it.
fn is_noticed(
    mutant: MembershipMutant,
    counts: &[usize],
    scenario: fn(usize, u64, Option<MembershipMutant>) -> RunOutcome,
) {
    for seed in 0..CANARY_SEEDS {
        for count in counts {
            scenario(*count, seed, None).unwrap();
            let error = scenario(*count, seed, Some(mutant)).err();
            if error.is_some_and(|error| is_violation(&error)) {
                return;
            }
        }
    }
    panic!("{mutant:?} was not noticed in {CANARY_SEEDS} seeds");
}

type RunOutcome = Result<(), String>;

/// Seeds within which each mutant must be detected.
const CANARY_SEEDS: u64 = 300;

/// Two views of one epoch, or conflicting leases: not a matter of duration.
fn is_violation(error: &str) -> bool {
    error.starts_with("two views") || error.contains("which has it too")
}

/// Faults of all kinds, harder on the members than [`run`]: no progress is required.
fn storm(count: usize, seed: u64, mutant: Option<MembershipMutant>) -> RunOutcome {
    let mut world = begin(count, false, seed)?;
    world.infect(mutant);
    world.environment.network =
        Network { loss_percent: 10, double_percent: 10, delay_ms_max: 250, ..Network::default() };
    let faults = RunFaults { has_loss: false, has_leaves: false, ..RunFaults::of(u64::MAX) };
    for _ in 0..40 {
        some_fault(&mut world, faults)?;
        let wait_ms = world.below(LEASE_MS / 2);
        world.run_until(world.now_ms + wait_ms)?;
    }
    Ok(())
}

/// One node receives acknowledgements late, and is then cut off.
fn late_acks(count: usize, seed: u64, mutant: Option<MembershipMutant>) -> RunOutcome {
    let mut world = begin(count, false, seed)?;
    world.infect(mutant);
    world.environment.network.delay_ms_max = 400;
    world.run_until(world.now_ms + 2 * LEASE_MS)?;
    let cut = world.below(count as u64) as usize;
    for other in (0..count).filter(|other| *other != cut) {
        // From now on the others receive nothing from it; it receives their messages.
        world.environment.network.cuts.push((cut, other));
    }
    world.run_until(world.now_ms + 4 * LEASE_MS)
}

/// A newcomer asks for admission. The member that admits it falls silent meanwhile, but hears the
/// accepting voters. The others are killed and restarted, and continue without it.
fn restarts(count: usize, seed: u64, mutant: Option<MembershipMutant>) -> RunOutcome {
    let mut world = PeerWorld::new(count + 1, false, seed);
    for node in 0..count {
        world.start(node, false)?;
    }
    let has_lease = |world: &PeerWorld| {
        let process = world.nodes[0].process.as_ref().unwrap();
        process.view().is_some_and(|view| view.members.len() == count)
            && process.has_lease(world.clock_ms(0))
    };
    world.run_while(8, |world| !has_lease(world))?;
    world.infect(mutant);
    world.environment.network.delay_ms_max = 60;
    world.start(count, false)?;
    let wait_ms = world.below(300);
    world.run_until(world.now_ms + wait_ms)?;
    world.environment.network.cuts = (1..=count).map(|other| (0, other)).collect();
    world.run_until(world.now_ms + 120)?;
    for node in 1..count {
        world.kill(node);
        world.start(node, true)?;
    }
    world.run_until(world.now_ms + 4 * LEASE_MS)
}

/// The first node is cut off, except from one that sends it votes of earlier epochs: they are for
/// ballots with the same numbers.
fn old_votes(count: usize, seed: u64, mutant: Option<MembershipMutant>) -> RunOutcome {
    let mut world = begin(count, false, seed)?;
    for round in 0..4 {
        let node = 2 + round % (count - 2);
        world.kill(node);
        world.run_until(world.now_ms + 2 * LEASE_MS)?;
        world.start(node, false)?;
        world.run_while(8, |world| !world.is_whole())?;
    }
    world.infect(mutant);
    let epoch = world.nodes[0].process.as_ref().and_then(|one| Some(one.view()?.epoch));
    let mut votes = world.environment.sent[1].clone();
    votes.retain(|message| {
        let is_vote = matches!(message.body, Body::Promise { .. } | Body::Accepted { .. });
        is_vote && Some(message.epoch) < epoch && message.epoch > Epoch(0)
    });
    if votes.is_empty() {
        return Err("no votes to send again".to_owned());
    }
    world.environment.network.cuts =
        (1..count).flat_map(|other| [(0, other), (other, 0)]).collect();
    for _ in 0..60 {
        for vote in &votes {
            world.receive(0, vote.clone())?;
        }
        world.run_until(world.now_ms + LEASE_MS / 20)?;
    }
    Ok(())
}

#[test]
fn canary_a_vote_of_another_epoch() {
    is_noticed(MembershipMutant::CountsOldVotes, &[3], old_votes);
}

#[test]
fn canary_a_forgotten_promise() {
    is_noticed(MembershipMutant::ForgetsPromise, &[3, 5], restarts);
}

#[test]
fn canary_a_half_without_the_lowest() {
    is_noticed(MembershipMutant::HalfIsQuorum, &[2, 4], storm);
}

#[test]
fn canary_a_lease_from_receipt() {
    is_noticed(MembershipMutant::LeaseFromReceipt, &[3, 5], late_acks);
}

#[test]
fn canary_an_exclusion_of_the_living() {
    is_noticed(MembershipMutant::ExcludesTheLiving, &[3, 5], storm);
}
