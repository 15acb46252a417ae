//! Real Arrow readers on memory that is coherent only inside a node. Three nodes build tables of
//! many types in granted memory, seal them with the store's own code, and read each other's. The
//! arrays are rebuilt over the node's own copy of the region, and every value is compared with the
//! original. Memory is small, so that ranges are reused, and demons write back and fetch lines at
//! any time. pyarrow reads in the same way, in a separate process.
//!
//! A single thread runs all steps in an order determined by a seed. In
//! `crates/store/src/tests/nodes` other nodes act in the middle of a call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod node;
mod pyarrow;
mod tables;
mod world;

use node::ReaderNode;
use pyarrow::Python;
use tables::Variety;
use world::{Mistake, NODES, ReadersWorld, Tally};

/// The result of a step, with a description of the fault.
type StepResult<T> = Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Steps of a run.
const STEPS: u32 = 700;
/// Seeds of each run without a mistake; the environment may set more.
const SEEDS: u64 = 8;
/// Each mistake must be detected within this many seeds.
const MISTAKE_SEEDS: u64 = 1000;
/// The node on which Python reads: not the home.
const PYTHON_NODE: u32 = 2;

/// Runs all steps in one world.
fn play(world: &mut ReadersWorld) -> StepResult<Tally> {
    let nodes = (0..NODES).map(|number| ReaderNode::join(world, number));
    let mut nodes = nodes.collect::<StepResult<Vec<_>>>()?;
    for _ in 0..STEPS {
        world.cluster.disturb(10);
        let index = world.random.below(u64::from(NODES)) as usize;
        let node = nodes.get_mut(index).ok_or("no such node")?;
        node.step(world)?;
    }
    world.cluster.disturb(1000);
    for node in &mut nodes {
        for known in world.live.clone() {
            node.read(world, &known)?;
        }
        world.cluster.disturb(100);
        node.look_again(world)?;
    }
    nodes.into_iter().try_for_each(|node| node.leave(world))?;
    world.home.check()?;
    let stats = world.home.stats().map_err(text)?;
    let left = (stats.retiring.0, stats.granted.0, stats.holds, stats.clients);
    if left != (0, 0, 0, 0) || stats.objects as usize != world.live.len() {
        let (objects, live) = (stats.objects, world.live.len());
        return Err(format!("{objects} objects, not {live}; retiring, granted, ...: {left:?}"));
    }
    Ok(world.tally)
}

fn run(seed: u64, line_bytes: u32, mistake: Option<Mistake>) -> StepResult<Tally> {
    play(&mut ReadersWorld::new(seed, line_bytes, mistake, Variety::Every)?)
}

fn must_pass(line_bytes: u32) {
    let mut all = Tally::default();
    let requested = std::env::var("FARROW_SEEDS").ok().and_then(|text| text.parse().ok());
    let seeds = requested.unwrap_or(SEEDS);
    for seed in 0..seeds {
        match run(seed, line_bytes, None) {
            Ok(tally) => all.add(tally),
            Err(fault) => panic!("lines of {line_bytes} B, seed {seed}: {fault}"),
        }
    }
    println!("lines of {line_bytes} B: {all:?}");
    assert!(u64::from(all.read) > 20 * seeds && u64::from(all.derived) > seeds, "{all:?}");
    assert!(2 * all.read_in_reused > all.read && all.uses_max >= 10, "{all:?}");
}

fn must_be_noticed(mistake: Mistake) {
    for line_bytes in [64, 128] {
        let noticed = (0..MISTAKE_SEEDS).find_map(|seed| {
            let fault = run(seed, line_bytes, Some(mistake)).err()?;
            Some((seed, fault))
        });
        let Some((seed, fault)) = noticed else {
            panic!("lines of {line_bytes} B: {mistake:?} is not noticed");
        };
        println!("{mistake:?}, lines of {line_bytes} B: noticed by seed {seed}: {fault}");
    }
}

#[test]
fn every_value_is_the_one_that_was_built_with_lines_of_64() {
    must_pass(64);
}

#[test]
fn every_value_is_the_one_that_was_built_with_lines_of_128() {
    must_pass(128);
}

/// A fault can be reproduced from its seed.
#[test]
fn one_seed_is_one_course_of_events() {
    use Mistake::{OneRefreshPerRange, OnlyDescriptorPublished, TableWithoutHold};
    for mistake in [OnlyDescriptorPublished, OneRefreshPerRange, TableWithoutHold] {
        let fault = run(3, 64, Some(mistake)).expect_err("every run with such a mistake fails");
        assert_eq!(run(3, 64, Some(mistake)), Err(fault));
    }
    assert_eq!(run(3, 64, None), run(3, 64, None));
}

#[test]
fn a_table_that_is_not_published_is_noticed() {
    must_be_noticed(Mistake::NoPublish);
    must_be_noticed(Mistake::OnlyDescriptorPublished);
}

#[test]
fn a_table_that_is_not_refreshed_is_noticed() {
    must_be_noticed(Mistake::NoRefresh);
    must_be_noticed(Mistake::OnlyDescriptorRefreshed);
    must_be_noticed(Mistake::OneRefreshPerRange);
}

#[test]
fn a_table_that_outlives_its_hold_is_noticed() {
    must_be_noticed(Mistake::TableWithoutHold);
}

/// Python reads one node's copy, and this process reads the others.
fn run_with_python(
    python: Python,
    seed: u64,
    mistake: Option<Mistake>,
) -> (StepResult<Tally>, Python) {
    let line_bytes = if seed.is_multiple_of(2) { 64 } else { 128 };
    let mut world = ReadersWorld::new(seed, line_bytes, mistake, Variety::Plain).expect("a world");
    let mut python = python;
    python.map(world.cluster.node(PYTHON_NODE).as_ref()).expect("map the node's copy");
    world.python = Some((PYTHON_NODE, python));
    let outcome = play(&mut world);
    let (_, python) = world.python.take().expect("it was put there");
    (outcome, python)
}

#[test]
fn pyarrow_reads_what_was_built_over_its_own_nodes_copy() {
    let Some(path) = pyarrow::find() else {
        println!("skipped: no Python with pyarrow (PYO3_PYTHON, VIRTUAL_ENV, python3)");
        return;
    };
    let mut python = Python::start(&path).expect("start Python");
    let mut all = Tally::default();
    for seed in 0..2 {
        let (outcome, again) = run_with_python(python, seed, None);
        python = again;
        all.add(outcome.unwrap_or_else(|fault| panic!("seed {seed}: {fault}")));
    }
    println!("{all:?}");
    assert!(all.read_by_python > 100, "{all:?}");
    // Python also detects mistakes.
    for mistake in [Mistake::OnlyDescriptorPublished, Mistake::OnlyDescriptorRefreshed] {
        let mut seeds = 0..MISTAKE_SEEDS;
        let noticed = loop {
            let Some(seed) = seeds.next() else { panic!("{mistake:?} is not noticed by Python") };
            let (outcome, again) = run_with_python(python, seed, Some(mistake));
            python = again;
            match outcome {
                Err(fault) if fault.contains("pyarrow: ") => break fault,
                _ => {}
            }
        };
        println!("{mistake:?}: noticed: {noticed}");
        assert!(python.is_running(), "it tells what is wrong, and does not crash");
    }
}
