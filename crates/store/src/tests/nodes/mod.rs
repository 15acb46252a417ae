//! Three nodes over memory that is coherent inside a node only: random creates, holds, reads,
//! deletes, evictions, crashes and reuse, with a demon in every cache. A sealed object must be
//! found and whole on every node, a deleted one on none, and no byte may be lost. Each violation of
//! the four rules must be caught.

mod actor;
mod costs;
mod lookups;
mod turns;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use farrow_memory::Access;

use actor::{ActorResult, NodeActor, check_bytes, text};
use world::{Area, CoherenceMistake, NodesWorld};

use crate::{HoldTable, Reader, Target, clean};

/// The home and two clients.
const NODES: u32 = 3;
/// Steps of each node.
const STEPS: u32 = 40;
/// A mutant must be caught by one of this many seeds.
const MUTANT_SEEDS: u64 = 1000;

/// Seeds of each run without a mistake; the environment can set more.
fn seeds() -> std::ops::Range<u64> {
    let read = |name, default| {
        std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(default)
    };
    let first = read("FARROW_FIRST_SEED", 0);
    first..first + read("FARROW_SEEDS", 150)
}

fn run(seed: u64, line_bytes: u32, mutant: Option<CoherenceMistake>) -> ActorResult<()> {
    evictions(seed, line_bytes, mutant).map(drop)
}

/// As [`run`]; returns how many objects were evicted, and how many were not because they were held.
fn evictions(
    seed: u64,
    line_bytes: u32,
    mutant: Option<CoherenceMistake>,
) -> ActorResult<(u32, u32)> {
    let world = NodesWorld::new(seed, line_bytes, NODES, mutant);
    std::thread::scope(|scope| {
        for node in 0..NODES {
            let world = &world;
            scope.spawn(move || {
                let _part = world.turns.take_part(node as usize);
                let act = AssertUnwindSafe(|| NodeActor::new(world, node, seed).run(STEPS));
                let outcome = catch_unwind(act).unwrap_or_else(|_| Err("a panic".to_owned()));
                if let Err(fault) = outcome {
                    world.fail(fault);
                }
            });
        }
    });
    match world.fault() {
        Some(fault) => Err(fault),
        None => look_around(&world),
    }?;
    Ok(world.registry(|registry| (registry.evicted, registry.stayed)))
}

/// When all clients have left: nothing waits, and every node finds the sealed objects.
fn look_around(world: &NodesWorld) -> ActorResult<()> {
    for grave in world.registry(|registry| std::mem::take(&mut registry.graves)) {
        clean(&world.cluster.map(grave.node, Access::Client), &grave.spans).map_err(text)?;
        world.home(|home| home.release_quarantine(grave.client)).map_err(text)?;
    }
    world.home(|home| home.reclaim()).map_err(text)?;
    world.home(|home| home.check())?;
    let stats = world.home(|home| home.stats()).map_err(text)?;
    let left = (stats.retiring.0, stats.granted.0, stats.quarantine.0, stats.holds, stats.clients);
    if left != (0, 0, 0, 0, 0) {
        return Err(format!("retiring, granted, quarantine, holds, clients: {left:?}"));
    }
    let live = world.registry(|registry| registry.live.clone());
    if live.len() as u32 != stats.objects {
        return Err(format!("{} objects are left, not {}", stats.objects, live.len()));
    }
    world.cluster.disturb(500);
    for node in 0..NODES {
        let reader = Reader::open(world.cluster.map(node, Access::Client)).map_err(text)?;
        let block = world.home(|home| {
            let client = home.client_join(1, node.into(), 0)?.client;
            home.hold_block(client)
        });
        let block = block.map_err(text)?;
        let holds = HoldTable::new(Arc::clone(reader.region()), &[block]).map_err(text)?;
        let holds = Arc::new(holds);
        for known in &live {
            let held = reader.hold(&holds, Target::Id(known.id)).map_err(text)?;
            let held = held.ok_or_else(|| format!("{} is not there in the end", known.id))?;
            check_bytes(&reader, &held)?;
        }
    }
    Ok(())
}

fn must_pass(line_bytes: u32) {
    let (mut evicted, mut stayed) = (0, 0);
    for seed in seeds() {
        match evictions(seed, line_bytes, None) {
            Ok((removed, held)) => (evicted, stayed) = (evicted + removed, stayed + held),
            Err(fault) => panic!("lines of {line_bytes} B, seed {seed}: {fault}"),
        }
    }
    let is_tried = u64::from(evicted.min(stayed)) >= seeds().end - seeds().start;
    assert!(is_tried, "{evicted} objects evicted, {stayed} held against it");
}

fn must_be_caught(mutant: CoherenceMistake) {
    for line_bytes in [64, 128] {
        let caught = (0..MUTANT_SEEDS)
            .find_map(|seed| run(seed, line_bytes, Some(mutant)).err().map(|fault| (seed, fault)));
        let Some((seed, fault)) = caught else {
            panic!("lines of {line_bytes} B: {mutant:?} is not caught by {MUTANT_SEEDS} seeds");
        };
        println!("{mutant:?}, lines of {line_bytes} B: caught by seed {seed}: {fault}");
    }
}

#[test]
fn no_reader_sees_a_wrong_byte_with_lines_of_64() {
    must_pass(64);
}

#[test]
fn no_reader_sees_a_wrong_byte_with_lines_of_128() {
    must_pass(128);
}

#[test]
fn no_publish_after_write_is_caught() {
    use Area::{Directory, EntryPages, Events, Header, Heap, Holds, Index, Lives, Names};
    for area in [Heap, Holds, EntryPages, Directory, Index, Names, Lives, Events, Header] {
        must_be_caught(CoherenceMistake::NoPublish(area));
    }
}

#[test]
fn no_refresh_before_read_is_caught() {
    use Area::{Directory, EntryPages, Events, Header, Heap, Holds, Index, Lives, Names};
    for area in [Heap, Holds, EntryPages, Directory, Index, Names, Lives, Events, Header] {
        must_be_caught(CoherenceMistake::NoRefresh(area));
    }
    must_be_caught(CoherenceMistake::NoRefreshByOthers(EntryPages));
}

#[test]
fn header_before_payload_is_caught() {
    must_be_caught(CoherenceMistake::HeaderBeforePayload);
}

#[test]
fn two_objects_on_one_line_are_caught() {
    must_be_caught(CoherenceMistake::TwoObjectsOnOneLine);
}

#[test]
fn reuse_without_quarantine_is_caught() {
    must_be_caught(CoherenceMistake::ReuseWithoutQuarantine);
}

#[test]
fn release_without_clean_is_caught() {
    must_be_caught(CoherenceMistake::ReleaseWithoutClean);
}
